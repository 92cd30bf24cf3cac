"""`arlo cascade record` on real Triton workers, and what it is for, with tiny models of random weights."""

from __future__ import annotations

import json
import os
import random
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
from arlo.cascade.study import stage_key
from arlo.cli import main
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
def cascade(tmp_path: Path) -> Path:
    """Two tiny classifiers in a cascade, and texts of other lengths."""
    stages = []
    for name, family in (("small", "distilbert"), ("large", "bert")):
        write_tiny(tmp_path / f"{name}-model", family=family, head="ForSequenceClassification")
        built = ["compile", str(tmp_path / f"{name}-model"), "--out", str(tmp_path / name), "--lengths", "16,48"]
        assert main(built) == 0
        stages += ["--stage", f"{name}={tmp_path / name}"]
    rng = random.Random(1)
    with (tmp_path / "texts.jsonl").open("w") as file:
        for _ in range(TEXTS):
            text = " ".join(rng.choices(WORDS, k=rng.randint(2, 30)))
            file.write(json.dumps({"text": text, "label": rng.randrange(3)}) + "\n")
    path = tmp_path / "cascade.json"
    assert main(["cascade", "init", *stages, "--out", str(path)]) == 0
    return path


def recorded(path: Path, stage: int) -> Any:
    made, data = CascadeManifest.load(path), read_data(path.parent / "texts.jsonl")
    records = Records(path.parent / "records", data)
    return records.load(stage_key(made, path.parent, records, stage))


def test_records_go_on_after_an_interruption(cascade: Path, mark: str) -> None:
    data = str(cascade.parent / "texts.jsonl")
    command = [sys.executable, "-m", "arlo.cli", "cascade", "record", str(cascade), "--data", data]
    process = subprocess.Popen(command, env={**os.environ, MARK: mark})
    end = time.monotonic() + 90
    while recorded(cascade, 0) is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) in (0, 130)
    while marked(mark) and time.monotonic() < end:  # the worker ends with its parent
        time.sleep(0.05)
    assert not marked(mark)
    some = recorded(cascade, 0)
    assert main(["cascade", "record", str(cascade), "--data", data]) == 0
    whole = recorded(cascade, 0)
    assert len(whole.row) == len(recorded(cascade, 1).row) == TEXTS
    assert (whole.ms > 0).all()
    at = np.searchsorted(whole.row, some.row)
    assert (whole.logits[at] == some.logits).all()
    assert whole.logits.shape == (TEXTS, 3)
    assert np.isfinite(whole.logits).all()
    for action in ("calibrate", "search", "report"):
        extra = ["--out", str(cascade.parent / "page.html")] if action == "report" else []
        assert main(["cascade", action, str(cascade), "--data", data, *extra]) == 0
    assert CascadeManifest.load(cascade).point().name == "ap"
