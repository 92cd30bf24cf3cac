"""Profiles derived from published tables of measured latencies.

NVIDIA publishes BERT latencies for lengths 128 and 384 and batches of 1 to 128 in the README of demo/BERT of
NVIDIA/TensorRT (Apache-2.0). The package carries the newest table of each GPU, model and precision
(simulator/data/bert_tensorrt_published.json, which names release and commit); tables that upstream seems to have
labelled wrongly are left out. Between the two lengths the profile is a model: steps of 64 tokens whose ends lie on the
line through both, flat inside a step, the first step the shortest. Attention grows faster than that line, so 512 tokens
are rather underestimated.

The dense DistilBERT curve (every fourth length) has no licence and is not part of the package. It is read from the
folder of development data that the environment variable ARLO_TRACES names.
"""

from __future__ import annotations

import csv
import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.errors import EnvironmentProblem
from arlo.simulator.profiles import inflation
from arlo.simulator.profiles.estimated import dynamic_source
from arlo.simulator.profiles.model import Point, Profile

DATA = Path(__file__).resolve().parent.parent / "data" / "bert_tensorrt_published.json"
DENSE = "distilbert-dense"
DENSE_FILE = Path("latency/distilbert_tensorrt_dense_seqlen.csv")  # in the folder that TRACES_VARIABLE names
TRACES_VARIABLE = "ARLO_TRACES"
STEP = 64
FINE_STEP = 32  # of profiles by tokens
BY_TOKENS = {"bert-base-a100": "bert-base-a100-fp16"}  # name -> table
LONGEST = 512
PUBLISHED = (128, 384)  # tokens
SLO_MS = {"BERT Base": 150.0, "BERT Large": 450.0}  # the paper's


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
    """The tables that the package carries, by profile name."""
    return {table["name"]: table for table in json.loads(DATA.read_text())["tables"]}


def names() -> tuple[str, ...]:
    """Profiles that from_table() knows, sorted."""
    return tuple(sorted({*tables(), *BY_TOKENS}))


def from_table(name: str, dynamic: str = inflation.DEFAULT) -> Profile:
    """The profile of a name of names(); `dynamic` names a model of inflation.DESCRIPTIONS."""
    if name in BY_TOKENS:
        return by_tokens(name, BY_TOKENS[name], dynamic)
    table = tables()[name]
    static = line_staircase({int(batch): (a, b) for batch, (a, b) in table["latency_ms"].items()})
    return Profile(
        name=name,
        kind="derived",
        source=f"{table['model']} on {table['gpu']}, {table['engine']}, {table['precision']}: lengths 128 and 384 as "
        f"published ({table['source']}), the others in steps of 64 on the line through both, flat inside a step.",
        slo_ms=SLO_MS[table["model"]],
        max_length=LONGEST,
        step=STEP,
        static=static,
        dynamic=inflation.inflate(static, dynamic, LONGEST),
        dynamic_source=dynamic_source(dynamic),
        max_batch=max(int(batch) for batch in table["latency_ms"]),
    )


def by_tokens(name: str, of: str, dynamic: str = inflation.DEFAULT) -> Profile:
    """A profile for batches, from the table `of`: the time of a batch goes by its tokens.

    Exact at both published lengths. Up to 128 tokens a batch takes what the same number of tokens takes in rows of 128;
    beyond, it lies on the line between the curves of both lengths at the same number of tokens.
    """
    table = tables()[of]
    rows = sorted(int(batch) for batch in table["latency_ms"])
    low, high = ([float(table["latency_ms"][str(batch)][i]) for batch in rows] for i in (0, 1))

    def curve(length: int, ms: Sequence[float], tokens: float) -> float:
        last = rows[-1] * length
        return ms[-1] * tokens / last if tokens > last else float(np.interp(tokens, [b * length for b in rows], ms))

    def at(length: int, batch: int) -> float:
        tokens = float(length * batch)
        ms = curve(PUBLISHED[0], low, tokens)
        if length <= PUBLISHED[0]:
            return ms
        return ms + (curve(PUBLISHED[1], high, tokens) - ms) * (length - PUBLISHED[0]) / (PUBLISHED[1] - PUBLISHED[0])

    edges = range(FINE_STEP, LONGEST + 1, FINE_STEP)
    static = tuple(
        (length, batch, at(edge, batch)) for batch in rows for edge in edges for length in (edge - FINE_STEP + 1, edge)
    )
    errors = [curve(PUBLISHED[0], low, b * PUBLISHED[1]) / ms - 1 for b, ms in zip(rows, high, strict=True)]
    return Profile(
        name=name,
        kind="derived",
        source=f"{table['model']} on {table['gpu']}, {table['engine']}, {table['precision']}: lengths 128 and 384 as "
        f"published ({table['source']}), the others by tokens: up to 128 as so many tokens in rows of 128, beyond on "
        "the line between both lengths at equal tokens, flat in "
        f"steps of {FINE_STEP}. Tokens alone would be off at 384 tokens by {max(errors, key=abs):.0%} for a row alone, "
        f"by {errors[-1]:.0%} for {rows[-1]} rows.",
        slo_ms=SLO_MS[table["model"]],
        max_length=LONGEST,
        step=FINE_STEP,
        static=static,
        dynamic=inflation.inflate(static, dynamic, LONGEST),
        dynamic_source=dynamic_source(dynamic),
        max_batch=rows[-1],
    )


def line_staircase(latency_ms: dict[int, tuple[float, float]]) -> tuple[Point, ...]:
    """Batch -> latency at 128 and at 384, as points: steps of 64, their ends on the line."""
    low, high = PUBLISHED
    points = []
    for batch, (at_low, at_high) in sorted(latency_ms.items()):
        for edge in range(STEP, LONGEST + 1, STEP):
            ms = at_low + (at_high - at_low) * (edge - low) / (high - low)
            points += [(edge - STEP + 1, batch, ms), (edge, batch, ms)]
    return tuple(points)


def dense(path: Path | None = None) -> Profile:
    """The published DistilBERT curve of a dynamic-shape engine, every fourth length, batches up to 4.

    Linear between published lengths, but where latency jumps by more than 6 % it stays flat up to the token before
    the upper one, so that steps stay steps. 512 tokens are left out: at every batch the engine takes 2.4 to
    3.2 times what it takes at 509, and that would not be deployed; they take what 509 take. No static engine was
    published: a runtime compiled for one length is taken to be as fast as this one at it, which says nothing about
    the price of dynamic shapes.
    """
    file = path or dense_file()
    if file is None or not file.is_file():
        raise EnvironmentProblem(
            f"profile {DENSE} needs data that are not part of Arlo (no licence): set {TRACES_VARIABLE} to the folder "
            f"that holds {DENSE_FILE}; the other profiles need no file"
        )
    by_batch: dict[int, list[tuple[int, float]]] = {}
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if int(row["batch"]) in (1, 2, 4) and int(row["seq_len"]) < LONGEST:
                by_batch.setdefault(int(row["batch"]), []).append((int(row["seq_len"]), float(row["latency_ms"])))
    points = [(at, batch, ms) for batch, line in sorted(by_batch.items()) for at, ms in _with_jumps(sorted(line))]
    return Profile(
        name=DENSE,
        kind="derived",
        source="DistilBERT (6 layers), TensorRT dynamic-shape engine, GPU and precision not stated, every fourth "
        "length as published (Txxx926/torch2tensorrt, distillbert_onnx_all_seqlen.json); static taken equal.",
        slo_ms=150.0,
        max_length=LONGEST,
        step=STEP,
        static=tuple(points),
        dynamic=tuple(points),
        dynamic_source="Dynamic shapes as published, without the engine's outlier at 512 tokens.",
        max_batch=4,
    )


def dense_file() -> Path | None:
    """Where the dense curve lies: in the folder that ARLO_TRACES names. None when it names none."""
    folder = os.environ.get(TRACES_VARIABLE)
    return Path(folder) / DENSE_FILE if folder else None


def _with_jumps(line: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Points with one more before each jump: the step's height up to the token before the jump."""
    points = line[:1]
    for at, ms in line[1:]:
        before, before_ms = points[-1]
        if ms > before_ms * 1.06 and at - 1 > before:
            points.append((at - 1, before_ms))
        points.append((at, ms))
    return points
