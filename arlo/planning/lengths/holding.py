"""Which static runtimes a worker holds together when its memory does not take all of them. Pure.

    holding = best(runtimes, {12: 400, 60: 90, 300: 10}, memory_mb=6000, slo_ms=100)

A row runs on the shortest runtime held that takes it, in batches: its cost is its share of the quickest batch for its
rows that ends within the SLO. The longest runtime is always held, so that every request can be served. The set that
costs least is found exactly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from arlo.catalog.manifest import Runtime
from arlo.errors import ConfigError

_Set = tuple[int, int, tuple[int, ...]]
"""Of a set of runtimes: what the rows cost that it takes, its memory, the runtimes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What to hold, and what it is worth."""

    runtimes: tuple[Runtime, ...]  # ascending max_length
    memory_mb: int  # that they take
    row_us: float  # of the device, for a row of the traffic
    all_us: float  # the same, if memory held all


def row_us(runtime: Runtime, slo_ms: float) -> float:
    """Microseconds of the device that a row costs in the best batch that ends within the SLO; alone if none does."""
    batches = {point.batch for point in runtime.latency if point.batch <= runtime.max_batch} | {1}
    times = {rows: runtime.latency_ns(rows) / 1000 for rows in batches}
    return min((us / rows for rows, us in times.items() if us <= slo_ms * 1000), default=times[1])


def best(runtimes: Sequence[Runtime], counts: Mapping[int, int], *, memory_mb: int, slo_ms: float) -> Holding:
    """The runtimes that fit `memory_mb` together and cost a row least; of equals, those that take least memory.

    runtimes: static, measured, each with its memory. counts: requests by length in tokens; those that no runtime takes
    are left out. ConfigError where the longest does not fit, or the memory of one is not known.
    """
    ordered = sorted(runtimes, key=lambda runtime: runtime.max_length)
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
    costs = [round(row_us(runtime, slo_ms) * 1000) for runtime in ordered]  # whole nanoseconds: ties are ties
    rows = [
        sum(count for length, count in counts.items() if shortest < length <= runtime.max_length)
        for shortest, runtime in zip((0, *(runtime.max_length for runtime in ordered)), ordered, strict=False)
    ]
    # From the longest downwards: for each runtime as the shortest held so far, what the sets that end with it take and
    # cost, without those that another one beats in both.
    sets: list[list[_Set]] = [[] for _ in ordered]
    last = len(ordered) - 1
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
    whole = [
        (cost + sum(rows[:shortest]) * costs[shortest], memory, chosen)
        for shortest, ending in enumerate(sets)
        for cost, memory, chosen in ending
    ]
    cost, memory, chosen = min(whole)
    total = sum(rows) or 1
    return Holding(
        runtimes=tuple(ordered[index] for index in chosen),
        memory_mb=memory,
        row_us=cost / total / 1000,
        all_us=sum(count * ns for count, ns in zip(rows, costs, strict=True)) / total / 1000,
    )


def alike(longest: int) -> dict[int, int]:
    """For lengths that are not known: each as likely as any other."""
    return dict.fromkeys(range(1, longest + 1), 1)


def _unbeaten(found: list[_Set]) -> list[_Set]:
    kept: list[_Set] = []
    for entry in sorted(found):
        if not kept or entry[1] < kept[-1][1]:
            kept.append(entry)
    return kept
