"""Latency profiles, and the runtimes made from them. Pure.

A profile is two tables of points (tokens, rows, milliseconds of the batch), one for runtimes compiled for one length
and one for a runtime compiled for a range of lengths. They are read as everybody reads them
(arlo/catalog/latency.py): linear between lengths, flat outside them, linear between batches, flat below the smallest
one, above the largest in proportion to the rows. So a staircase has two points for each step: its first length, 64k+1,
and its last, 64k+64; between 64k and 64k + 1 it jumps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from arlo.catalog.latency import LatencyTable, ms_in_ns
from arlo.errors import ConfigError
from arlo.planning.allocation.curves import capacity as rule
from arlo.simulator.scenario.scenario import RuntimeModel

Kind = Literal["estimated", "derived", "measured"]
Point = tuple[int, int, float]  # tokens, rows, ms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The latency of one model on one device, for any length and batch. Says where it comes from."""

    name: str
    kind: Kind  # estimated: from facts and a model; derived: from published tables and a model; measured: here
    source: str  # one sentence: the facts, and the models that fill what they leave open
    slo_ms: float  # that the model is usually served with
    max_length: int  # tokens, the longest
    step: int  # distance of maximum lengths that are worth compiling
    static: tuple[Point, ...]  # of runtimes compiled for one length; ascending lengths within a batch
    dynamic: tuple[Point, ...] = ()  # of a runtime compiled for lengths up to max_length; empty: not known
    dynamic_source: str = ""  # one sentence on the dynamic latencies
    max_batch: int = 1  # the largest batch that the facts or tables go to; beyond it is extrapolation
    static_load: tuple[tuple[int, int], ...] = ()  # (max_length, ms until a worker has loaded it), ascending
    dynamic_load_ms: int | None = None  # the same of the dynamic runtime; None, or nothing: not known

    def static_ms(self, max_length: int, batch: int = 1) -> float:
        """Milliseconds of a batch on a runtime compiled for `max_length` tokens, for requests of any length."""
        if not self.static:
            raise ConfigError(f"profile {self.name} knows dynamic-shape runtimes only ({self.source})")
        self._check(max_length, batch, self.max_length)
        return latency_ms(self.static, max_length, batch)

    def dynamic_ms(self, length: int, batch: int = 1, max_length: int | None = None) -> float:
        """Milliseconds of a batch of `length` tokens on a runtime compiled for lengths up to `max_length`.

        The latency is that of the runtime for the longest lengths: a runtime for a smaller range only refuses more.
        """
        if not self.dynamic:
            raise ConfigError(
                f"profile {self.name} has no dynamic-shape runtime: name a model for one, for example dynamic='added'"
            )
        limit = self.max_length if max_length is None else max_length
        self._check(limit, batch, self.max_length)
        self._check(length, batch, limit)
        return latency_ms(self.dynamic, length, batch)

    def static_runtime(self, max_length: int, *, max_batch: int = 1) -> RuntimeModel:
        """The runtime compiled for `max_length` and batches up to `max_batch`."""
        batches = _batches(self.static, max_batch)
        return RuntimeModel(
            name=f"static-{max_length}",
            max_length=max_length,
            points=tuple((max_length, batch, self.static_ms(max_length, batch)) for batch in batches),
            max_batch=max_batch,
            load_ms=self._static_load_ms(max_length),
        )

    def _static_load_ms(self, max_length: int) -> int | None:
        """On the line between those that are known, as latencies are."""
        if not self.static_load:
            return None
        lengths, times = zip(*self.static_load, strict=True)
        return round(float(np.interp(max_length, lengths, times)))

    def dynamic_runtime(self, max_length: int | None = None, *, max_batch: int = 1) -> RuntimeModel:
        """The runtime compiled for all lengths up to `max_length`; its points carry the whole curve."""
        longest = self.max_length if max_length is None else max_length
        corners = sorted({length for length, _, _ in self.dynamic if length < longest} | {longest})
        batches = _batches(self.dynamic, max_batch)
        return RuntimeModel(
            name=f"dynamic-{longest}",
            max_length=longest,
            points=tuple((at, rows, self.dynamic_ms(at, rows, longest)) for rows in batches for at in corners),
            max_batch=max_batch,
            dynamic=True,
            load_ms=self.dynamic_load_ms,
        )

    def static_runtimes(self, lengths: Iterable[int], *, max_batch: int = 1) -> tuple[RuntimeModel, ...]:
        """One runtime for each maximum length, ascending."""
        return tuple(self.static_runtime(length, max_batch=max_batch) for length in sorted(set(lengths)))

    def describe(self) -> str:
        """Lines for people: what it is and where it comes from."""
        text = f"{self.name} ({self.kind}; SLO {self.slo_ms:g} ms, up to {self.max_length} tokens): {self.source}"
        return f"{text} {self.dynamic_source}".strip()

    def _check(self, length: int, batch: int, limit: int) -> None:
        if not 1 <= length <= limit:
            raise ConfigError(f"profile {self.name} is for lengths of 1 to {limit} tokens, not {length}")
        if batch < 1:
            raise ConfigError(f"a batch has at least 1 row, not {batch}")


def latency_ms(points: Sequence[Point], length: int, batch: int = 1) -> float:
    """A table's latency at a length and batch, as everybody reads it (arlo.catalog.latency)."""
    return _table(tuple(points)).at_ns(length, batch) / 1e6


def capacity(runtime: RuntimeModel, slo_ms: float, length: int | None = None) -> int:
    """M: what the runtime states itself, else the rule that serves for its believed latency, at least 1."""
    if runtime.capacity is not None:
        return runtime.capacity
    return max(1, rule(runtime, slo_ms, length))


@functools.lru_cache(maxsize=256)
def _table(points: tuple[Point, ...]) -> LatencyTable:
    return LatencyTable(tuple((length, batch, ms_in_ns(ms)) for length, batch, ms in points))


def _batches(points: Sequence[Point], max_batch: int) -> list[int]:
    if max_batch < 1:
        raise ConfigError(f"max_batch is at least 1 row, not {max_batch}")
    return sorted({1, max_batch} | {batch for _, batch, _ in points if batch < max_batch})
