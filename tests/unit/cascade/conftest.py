"""A cascade of two repositories with records as real stages would give them, made by a generator with a seed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from arlo.cascade.decide import Answers, answers
from arlo.cascade.records import Recorded, Records, read_data
from arlo.cascade.spec import StageSpec
from arlo.cascade.study import pruned_variant, stage_key
from arlo.catalog.manifest import Manifest, OutputTensor
from arlo.cli import main
from arlo.cli.fit.stages import Wanted, describe
from arlo.workers.emulated.repository import write_emulated_repository

LABELS = ("games", "mail", "web", "net")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "simulate"
LOAD = """\
[workload]
arrivals = "poisson"
rate = 100
duration_s = 60
[cluster]
serves = "{cascade}"
texts = "{texts}"
workers = 4
slo_ms = 100
timeout_ms = 1000
overhead_ms = 0
[dispatch]
batching = "deadline"
"""


def repository(folder: Path, name: str) -> Path:
    """A classifier of four labels that gives importance, too."""
    path = folder / name
    write_emulated_repository(path, model=name, max_lengths=(32, 64), latency_ms=(1, 2))
    outputs = (
        OutputTensor(name="logits", datatype="FP32", token_level=False, dims=(len(LABELS),)),
        OutputTensor(name="importance", datatype="FP32", token_level=True, dims=()),
    )
    manifest = Manifest.load(path)
    runtimes = tuple(dataclasses.replace(runtime, memory_mb=100) for runtime in manifest.runtimes)
    dataclasses.replace(manifest, task="sequence-classification", outputs=outputs, runtimes=runtimes).save(path)
    return path


Made = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Writes repositories, texts and records; returns the path of cascade.json. Logits are too large by 1.5."""

    def make(
        *, rows: int = 2400, strengths: tuple[float, ...] = (1.6, 3.2), labelled: bool = True, pruned: bool = True
    ) -> Path:
        rng = np.random.default_rng(7)
        y = rng.integers(0, len(LABELS), rows)
        with (tmp_path / "texts.jsonl").open("w") as file:
            for i in range(rows):
                line = {"text": f"text {i}", "group": f"g{i // 2}"} | ({"label": LABELS[y[i]]} if labelled else {})
                file.write(json.dumps(line) + "\n")
        names = [f"s{i}" for i in range(len(strengths))]
        path, data = tmp_path / "cascade.json", read_data(tmp_path / "texts.jsonl")
        cascade = describe(Wanted(out=path, repositories={n: repository(tmp_path, n) for n in names}, labels=LABELS))
        cascade.save(path)
        records = Records(tmp_path / "records", data)
        tokens = rng.integers(5, 60, rows).astype(np.int32)
        whole = []
        for s, strength in enumerate(strengths):
            noise = rng.normal(0, 1, (rows, len(LABELS)))
            logits = 1.5 * strength * (strength * np.eye(len(LABELS))[y] + noise)
            whole.append(logits)
            records.append(stage_key(cascade, tmp_path, records, s), part(logits, tokens, 4.0**s, rng))
        kinds = (("importance", 0.1), ("plain", 0.3), ("random", 1.0), ("first", 0.8))
        for how, worse in kinds if pruned else ():
            for s in range(1, len(strengths)):
                records.note_variant((names[s - 1], names[s], 0.8, how))
                key = stage_key(cascade, tmp_path, records, s, pruned_variant(cascade, tmp_path, s - 1, 0.8, how))
                shaken = whole[s] + rng.normal(0, worse * strengths[s] * 1.5, whole[s].shape)
                records.append(key, part(shaken, (tokens * 3) // 4, 0.7 * 4.0**s, rng))
        return path

    return make


def fit(path: Path, *more: str, code: int = 0) -> None:
    """`arlo fit` of what `made` wrote; all of its records are there."""
    assert main(["fit", str(path), "--data", str(path.parent / "texts.jsonl"), *more]) == code


def part(logits: np.ndarray, tokens: np.ndarray, ms: float, rng: np.random.Generator) -> Recorded:
    """All rows, at so many ms for 32 tokens."""
    times = ms * (0.5 + tokens / 64) * rng.uniform(0.95, 1.05, len(tokens))
    return Recorded(
        np.arange(len(tokens)),
        logits.astype(np.float32),
        tokens,
        times.astype(np.float32),
        np.ones(int(tokens.sum()), np.float32),
        (1.1 * times).astype(np.float32),
    )


def of_records(path: Path, more: str = "") -> str:
    """A scenario; `more`: keys of [dispatch], and further sections."""
    return f"{LOAD.format(cascade=path, texts=path.parent / 'texts.jsonl')}{more}\n"


def said_by(
    rows: int, strengths: tuple[float, ...], seed: int = 0, labels: int = 4
) -> tuple[list[Answers], np.ndarray]:
    """Stages whose logits tell the label the better the larger their strength, and the labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, labels, rows)
    truth = np.eye(labels)[y]
    return [answers(StageSpec(), s * truth + rng.normal(0, 1, (rows, labels))) for s in strengths], y
