"""`arlo fit` on real Triton workers, with tiny models of random weights."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.cascade.records import Records, read_data
from arlo.cascade.study import load_study, stage_key
from arlo.cli import main
from benchmarks.papers.tabi import words
from tests.fakes.processes import MARK, kill_marked, marked
from tests.fakes.tiny_model import write_tiny

pytestmark = [pytest.mark.integration, pytest.mark.long]

WORDS = [
    "the",
    "time",
    "of",
    "a",
    "long",
    "night",
    "was",
    "not",
    "with",
    "his",
    "own",
    "sea",
    "and",
    "little",
    "man",
    "came",
    "said",
    "good",
    "hand",
]
TEXTS = 600


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    kill_marked(mark)


@pytest.fixture
def stages(tmp_path: Path) -> list[str]:
    """Two tiny classifiers, as `arlo fit` takes them, and texts of other lengths."""
    stages = []
    for name, family in (("small", "distilbert"), ("large", "bert")):
        write_tiny(tmp_path / f"{name}-model", family=family, head="ForSequenceClassification")
        if name == "large":  # training a tokenizer twice gives other ids
            shutil.copy(tmp_path / "small-model/tokenizer.json", tmp_path / "large-model/tokenizer.json")
        built = ["compile", str(tmp_path / f"{name}-model"), "--out", str(tmp_path / name), "--lengths", "16,48"]
        assert main([*built, *(["--importance"] if name == "small" else [])]) == 0
        stages.append(str(tmp_path / name))
    rng = random.Random(1)
    with (tmp_path / "texts.jsonl").open("w") as file:
        for _ in range(TEXTS):
            text = " ".join(rng.choices(WORDS, k=rng.randint(2, 30)))
            file.write(json.dumps({"text": text, "label": rng.randrange(3)}) + "\n")
    return stages


def records_of(path: Path) -> Records:
    return Records(path.parent / "records", read_data(path.parent / "texts.jsonl"))


def recorded(path: Path, stage: int) -> Any:
    if not path.exists():
        return None
    records = records_of(path)
    return records.load(stage_key(CascadeManifest.load(path), path.parent, records, stage))


def test_a_fit_resumes_after_an_interruption(stages: list[str], tmp_path: Path, mark: str) -> None:
    cascade, data = tmp_path / "cascade.json", str(tmp_path / "texts.jsonl")
    command = ["fit", *stages, "--out", str(cascade), "--data", data]
    process = subprocess.Popen([sys.executable, "-m", "arlo.cli", *command], env={**os.environ, MARK: mark})
    end = time.monotonic() + 90
    while recorded(cascade, 0) is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) in (0, 1, 130)
    while marked(mark) and time.monotonic() < end:  # the worker ends with its parent
        time.sleep(0.05)
    assert not marked(mark)
    some = recorded(cascade, 0)
    # Twice the mean: few words are left whichever runtimes latencies recommend, and with static ones rows fall a level.
    assert main([*command, "--alphas", "2"]) in (0, 1)
    whole = recorded(cascade, 0)
    assert len(whole.row) == len(recorded(cascade, 1).row) == TEXTS
    assert (whole.ms > 0).all()
    at = np.searchsorted(whole.row, some.row)
    assert (whole.logits[at] == some.logits).all()
    assert whole.logits.shape == (TEXTS, 3)
    assert np.isfinite(whole.logits).all()
    # Two layers of two heads: all attention that tokens give is received by some.
    sums = [whole.importance_of(at).sum() for at in range(TEXTS)]
    assert np.allclose(sums, 4 * whole.tokens, rtol=1e-3)
    assert CascadeManifest.load(cascade).point().name == "ap"
    assert words.main([str(cascade), "--data", data, "--alphas", "2"]) == 0
    study = load_study(CascadeManifest.load(cascade), tmp_path, read_data(Path(data)), records_of(cascade))
    sent = {how: study.pruned[0, 1, 2.0, how][0].tokens for how in ("importance", "plain", "random", "first")}
    assert sent["importance"].sum() < 0.9 * study.recorded[1].tokens.sum()
    assert (sent["plain"] <= sent["importance"]).all()  # the same runtime, which is filled again
    assert (sent["random"] <= sent["importance"]).all()
    assert (sent["first"] <= sent["importance"]).all()
    assert study.recorded[1].importance is None
