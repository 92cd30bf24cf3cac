"""Chooses the static runtimes that a worker holds together when its memory cannot hold all of them. Pure.

    holding = best(Wanted(runtimes, {12: 400, 60: 90, 300: 10}, slo_ms=100), memory_mb=6000)

A row runs on the shortest held runtime that takes it, in batches: its cost is its share of the quickest batch for its
rows that ends within the SLO. The longest runtime is always held, so that every request can be served. The cheapest
set is found exactly. For several models on the same workers, the sets are found together: the measure is
how much dearer they make each model's rows, weighted by the model's share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from arlo.catalog.manifest import Runtime
from arlo.errors import ConfigError

_Set = tuple[int, int, tuple[int, ...]]
"""Of a set of runtimes: what the rows cost that it takes, its memory, the runtimes."""
_Any = TypeVar("_Any", bound=tuple[float, int, Any])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The runtimes to hold, and their cost."""

    runtimes: tuple[Runtime, ...]  # ascending max_length
    memory_mb: int  # of all of them together
    row_us: float  # device time for a row of the traffic
    all_us: float  # the same, if memory held all


def row_us(runtime: Runtime, slo_ms: float) -> float:
    """Microseconds of the device that a row costs in the best batch that ends within the SLO; alone if none does."""
    batches = {point.batch for point in runtime.latency if point.batch <= runtime.max_batch} | {1}
    times = {rows: runtime.latency_ns(rows) / 1000 for rows in batches}
    return min((us / rows for rows, us in times.items() if us <= slo_ms * 1000), default=times[1])


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A model's demand on a worker.

    runtimes: static, measured, each with its memory. counts: requests by length in tokens; those that no runtime takes
    are ignored. share: of the workers' time, which other models may also use.
    """

    runtimes: Sequence[Runtime]
    counts: Mapping[int, int]
    slo_ms: float
    share: float = 1.0


def best(wanted: Wanted, *, memory_mb: int) -> Holding:
    """The runtimes that fit `memory_mb` together and cost a row least; of equals, those that take the least memory.

    ConfigError if the longest does not fit, or the memory of one is not known.
    """
    sets = _Sets(wanted, memory_mb)
    return sets.holding(*min(sets.whole))


def best_together(models: Sequence[Wanted], *, memory_mb: int) -> list[Holding]:
    """The runtimes to hold for each model, all of them within `memory_mb`.

    The sum over the models of share x (cost of a row over its cost with all runtimes) is least; of equals, the one with
    the least memory. ConfigError as best(), and if the longest ones together do not fit.
    """
    sets = [_Sets(wanted, memory_mb) for wanted in models]
    least = sum(each.taken[-1] for each in sets)
    if least > memory_mb:
        raise ConfigError(
            f"the longest runtimes of the {len(models)} models take {least} MB together, more than the {memory_mb} of "
            "workers.memory_mb: serve some of them from other workers"
        )
    together: list[tuple[float, int, tuple[_Set, ...]]] = [(0.0, 0, ())]
    for wanted, each in zip(models, sets, strict=True):
        found = [
            (cost + wanted.share * entry[0] / max(each.all_cost, 1), memory + entry[1], (*chosen, entry))
            for cost, memory, chosen in together
            for entry in _unbeaten(each.whole)
            if memory + entry[1] <= memory_mb
        ]
        together = _unbeaten(found)
    return [each.holding(*entry) for each, entry in zip(sets, min(together)[2], strict=True)]


class _Sets:
    """The sets of a model's runtimes that fit and that no other set beats."""

    def __init__(self, wanted: Wanted, memory_mb: int) -> None:
        self.ordered = sorted(wanted.runtimes, key=lambda runtime: runtime.max_length)
        self.taken = _memory(self.ordered, memory_mb)
        self._costs = [round(row_us(runtime, wanted.slo_ms) * 1000) for runtime in self.ordered]  # ns: ties are ties
        self._rows = [
            sum(count for length, count in wanted.counts.items() if shortest < length <= runtime.max_length)
            for shortest, runtime in zip(
                (0, *(runtime.max_length for runtime in self.ordered)), self.ordered, strict=False
            )
        ]
        self.all_cost = sum(count * ns for count, ns in zip(self._rows, self._costs, strict=True))
        self.whole = self._whole(memory_mb)

    def holding(self, cost: int, memory_mb: int, chosen: tuple[int, ...]) -> Holding:
        total = sum(self._rows) or 1
        return Holding(
            runtimes=tuple(self.ordered[index] for index in chosen),
            memory_mb=memory_mb,
            row_us=cost / total / 1000,
            all_us=self.all_cost / total / 1000,
        )

    def _whole(self, memory_mb: int) -> list[_Set]:
        rows, costs, taken = self._rows, self._costs, self.taken
        # From the longest downwards: for each runtime as the shortest held so far, the memory and cost of the sets that
        # end with it, without those that another one beats in both.
        last = len(self.ordered) - 1
        sets: list[list[_Set]] = [[] for _ in self.ordered]
        sets[last] = [(rows[last] * costs[last], taken[last], (last,))]
        for shorter in range(last - 1, -1, -1):
            found = []
            for above in range(shorter + 1, last + 1):
                padded = sum(rows[shorter + 1 : above]) * costs[above]
                for cost, memory, chosen in sets[above]:
                    if memory + taken[shorter] <= memory_mb:
                        more = cost + padded + rows[shorter] * costs[shorter]
                        found.append((more, memory + taken[shorter], (shorter, *chosen)))
            sets[shorter] = _unbeaten(found)
        return [
            (cost + sum(rows[:shortest]) * costs[shortest], memory, chosen)
            for shortest, ending in enumerate(sets)
            for cost, memory, chosen in ending
        ]


def _memory(ordered: Sequence[Runtime], memory_mb: int) -> list[int]:
    unknown = [runtime.name for runtime in ordered if runtime.memory_mb is None]
    if unknown:
        raise ConfigError(
            f"the memory that {', '.join(unknown)} takes was not measured: build on a machine that runs it, or leave "
            "workers.memory_mb out, and every worker holds all runtimes"
        )
    taken = [runtime.memory_mb or 0 for runtime in ordered]
    if taken[-1] > memory_mb:
        raise ConfigError(
            f"the longest runtime, {ordered[-1].name}, takes {taken[-1]} MB, more than the {memory_mb} of "
            "workers.memory_mb"
        )
    return taken


def alike(longest: int) -> dict[int, int]:
    """Counts for unknown lengths: each is equally likely."""
    return dict.fromkeys(range(1, longest + 1), 1)


def _unbeaten(found: Sequence[_Any]) -> list[_Any]:
    kept: list[_Any] = []
    for entry in sorted(found):
        if not kept or entry[1] < kept[-1][1]:
            kept.append(entry)
    return kept
