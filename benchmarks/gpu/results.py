"""Ratios of a result: what the plots, the profiles and summary.md are made of. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.traces import rescale, tweet_lengths
from benchmarks.gpu.plan import Shape
from benchmarks.gpu.store import Record

Times = dict[tuple[int, int], float]  # (length, batch) -> microseconds
PAPER_STEP = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """The contenders of one back-end for one model and precision."""

    model: str
    precision: str
    backend: str
    names: dict[Shape, str]

    @property
    def title(self) -> str:
        return f"{self.model} {self.precision} {self.backend}"


class Results:
    """latency.json, by contender. Cells with an error or a wrong answer are not in the times."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self.header = {key: value for key, value in result.items() if key != "cells"}
        self.records: list[Record] = list(result["cells"])
        self.contenders: dict[str, dict[str, str]] = dict(result["contenders"])
        self._good = [record for record in self.records if "whole" in record and not record["wrong"]]

    @property
    def errors(self) -> list[Record]:
        """Cells without a time, or with a wrong answer."""
        return [record for record in self.records if "whole" not in record or record["wrong"]]

    def groups(self) -> list[Group]:
        """In the order of the contenders, for each model and precision."""
        found: dict[tuple[str, str, str], dict[Shape, str]] = {}
        seen = {(r["model"], r["precision"], r["contender"]) for r in self._good}
        for model, precision in dict.fromkeys((r["model"], r["precision"]) for r in self._good):
            for name, about in self.contenders.items():
                if (model, precision, name) in seen:
                    shape: Any = about["shape"]
                    found.setdefault((model, precision, about["backend"]), {})[shape] = name
        return [Group(*key, names) for key, names in found.items()]

    def times(self, model: str, precision: str, contender: str, *, compute: bool = False) -> Times:
        """Medians. compute: on the device alone; where that is not told apart, of the whole call."""
        found = {}
        for record in self._good:
            if (record["model"], record["precision"], record["contender"]) == (model, precision, contender):
                stats = (record["compute"] if compute else None) or record["whole"]
                found[record["length"], record["batch"]] = float(stats["median_us"])
        return found

    def on_device(self, group: Group) -> bool:
        """Whether the device's own time was measured for the group."""
        names = set(group.names.values())
        return any(
            record["compute"] is not None
            for record in self._good
            if record["model"] == group.model
            and record["precision"] == group.precision
            and record["contender"] in names
        )

    def of(self, group: Group, shape: Shape, *, compute: bool = False) -> Times:
        """Of one shape of a group; empty when it was not measured."""
        name = group.names.get(shape)
        return {} if name is None else self.times(group.model, group.precision, name, compute=compute)


def at_batch(times: Times, batch: int) -> dict[int, float]:
    """length -> microseconds."""
    return {length: us for (length, rows), us in sorted(times.items()) if rows == batch}


def ratios(numerator: Times, denominator: Times, batch: int) -> dict[int, float]:
    """By length, where both were measured."""
    above, below = at_batch(numerator, batch), at_batch(denominator, batch)
    return {length: above[length] / below[length] for length in above if length in below}


@dataclasses.dataclass(frozen=True, slots=True)
class Mean:
    """Expected latency of one request over a distribution of lengths, no queueing, microseconds."""

    static_us: float
    dynamic_us: float | None
    padded_us: float
    levels: int  # static runtimes

    @property
    def saved(self) -> float:
        """Share of the padded latency that static runtimes save."""
        return 1 - self.static_us / self.padded_us

    @property
    def saved_over_dynamic(self) -> float | None:
        """Share of the dynamic latency that static runtimes save."""
        return None if self.dynamic_us is None else 1 - self.static_us / self.dynamic_us


def tweets(longest: int, *, stretched: bool) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Lengths of tweets and their shares. stretched: the longest becomes `longest`, as in the paper (sec. 5)."""
    found = tweet_lengths()
    lengths = rescale(found.length, longest) if stretched else np.minimum(found.length, longest).astype(np.int32)
    return lengths, found.count / found.count.sum()


def expected(
    static: Mapping[int, float],
    dynamic: Mapping[int, float],
    padded_us: float | None,
    lengths: NDArray[np.int32],
    share: NDArray[np.float64],
    *,
    step: int = PAPER_STEP,
) -> Mean | None:
    """Means over the lengths, batch 1. Static: the multiples of `step` (and the longest), each request on the shortest
    that takes it. Dynamic: on the line between measured lengths. None when the static ones do not cover the lengths.

    padded_us None: the longest static runtime, which is what padding to it runs.
    """
    if not static:
        return None
    longest = max(static)
    levels = sorted(length for length in static if length % step == 0 or length == longest)
    if longest < int(lengths.max()) or len(levels) < 2:
        return None
    took = np.array([static[level] for level in levels])[np.searchsorted(levels, lengths)]
    line: float | None = None
    if len(dynamic) > 1:
        at = sorted(dynamic)
        line = float(share @ np.interp(lengths, at, [dynamic[length] for length in at]))
    full = static[longest] if padded_us is None else padded_us
    return Mean(float(share @ took), line, full, len(levels))


def padded_us(padded: Mapping[int, float], lengths: NDArray[np.int32], share: NDArray[np.float64]) -> float | None:
    """Expected latency when all is padded, from what was measured at each length; None when nothing was."""
    if not padded:
        return None
    at = sorted(padded)
    return float(share @ np.interp(lengths, at, [padded[length] for length in at]))


def span(values: Sequence[float], text: str = "{:.2f}x") -> str:
    """`1.10x to 1.32x`, or one value."""
    if not values:
        return "not measured"
    low, high = text.format(min(values)), text.format(max(values))
    return low if low == high else f"{low} to {high}"
