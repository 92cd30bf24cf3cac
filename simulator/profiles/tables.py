"""Profiles derived from published tables of measured latencies.

NVIDIA publishes BERT latencies for lengths 128 and 384 and batches of 1 to 128 in the README of demo/BERT of
NVIDIA/TensorRT (Apache-2.0). The package carries the newest table of each GPU, model and precision
(simulator/data/bert_tensorrt_published.json, which names release and commit); tables that upstream seems to have
labelled wrongly are left out. Between the two lengths the profile is a model: steps of 64 tokens whose ends lie on the
line through both, flat inside a step, the first step the shortest. Attention grows faster than that line, so 512 tokens
are rather underestimated.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.simulator.profiles import inflation
from arlo.simulator.profiles.model import Point, Profile

DATA = Path(__file__).resolve().parent.parent / "data" / "bert_tensorrt_published.json"
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
    table = tables()[BY_TOKENS.get(name, name)]
    if name in BY_TOKENS:
        step, (static, others) = FINE_STEP, by_tokens(table["latency_ms"])
    else:
        step, others = STEP, "in steps of 64 on the line through both, flat inside a step."
        static = line_staircase({int(batch): (a, b) for batch, (a, b) in table["latency_ms"].items()})
    return Profile(
        name=name,
        kind="derived",
        source=f"{table['model']} on {table['gpu']}, {table['engine']}, {table['precision']}: lengths 128 and 384 as "
        f"published ({table['source']}), the others {others}",
        slo_ms=SLO_MS[table["model"]],
        max_length=LONGEST,
        step=step,
        static=static,
        dynamic=inflation.inflate(static, dynamic, LONGEST),
        dynamic_source=inflation.source(dynamic),
        max_batch=max(int(batch) for batch in table["latency_ms"]),
    )


def by_tokens(latency_ms: dict[str, Sequence[float]]) -> tuple[tuple[Point, ...], str]:
    """Points for batches, and how they were made: the time of a batch goes by its tokens.

    Exact at both published lengths. Up to 128 tokens a batch takes what the same number of tokens takes in rows of 128;
    beyond, it lies on the line between the curves of both lengths at the same number of tokens.
    """
    rows = sorted(map(int, latency_ms))
    low, high = ([float(latency_ms[str(batch)][i]) for batch in rows] for i in (0, 1))

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
    return static, (
        "by tokens: up to 128 as so many tokens in rows of 128, beyond on the line between both lengths at equal "
        f"tokens, flat in steps of {FINE_STEP}. Tokens alone would be off at 384 tokens by "
        f"{max(errors, key=abs):.0%} for a row alone, by {errors[-1]:.0%} for {rows[-1]} rows."
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
