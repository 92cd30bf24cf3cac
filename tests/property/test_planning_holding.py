"""What a worker holds under its memory, against a plain search of all sets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.catalog.manifest import LatencyPoint, Runtime
from arlo.errors import ConfigError
from arlo.planning.lengths.holding import Wanted, best, best_together, row_us

SLO_MS = 100.0


def runtime(length: int, times: dict[int, float], memory_mb: int | None) -> Runtime:
    """One of `length` tokens with a time in microseconds for each batch."""
    return Runtime(
        name=f"r{length}",
        max_length=length,
        max_batch=max(times),
        dynamic=False,
        engine="emulated",
        precision="fp32",
        device="",
        latency=tuple(LatencyPoint(length=length, batch=rows, latency_us=us) for rows, us in times.items()),
        memory_mb=memory_mb,
    )


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Runtime], dict[int, int]]:
    """Runtimes of a few lengths, in no order, quick and slow ones, and requests of any length."""
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True))
    runtimes = [
        runtime(
            length,
            {1: 100.0 * draw(st.integers(1, 9)), 4: 100.0 * draw(st.sampled_from([3, 8, 20, 2000]))},
            draw(st.integers(1, 5)),
        )
        for length in lengths
    ]
    counts = draw(st.dictionaries(st.integers(1, 33), st.sampled_from([1, 2, 30]), max_size=12))
    return runtimes, counts


def plain_cost(held: tuple[Runtime, ...], counts: dict[int, int]) -> int:
    """Request by request, in nanoseconds."""
    longest = max(each.max_length for each in held)
    served = {length: count for length, count in counts.items() if length <= longest}
    return sum(
        count
        * round(
            1000
            * row_us(
                min((each for each in held if each.max_length >= length), key=lambda each: each.max_length), SLO_MS
            )
        )
        for length, count in served.items()
    )


@given(fleets(), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_no_set_that_fits_costs_less_and_the_longest_is_always_held(
    fleet: tuple[list[Runtime], dict[int, int]], memory_mb: int
) -> None:
    runtimes, counts = fleet
    longest = max(runtimes, key=lambda each: each.max_length)
    assert longest.memory_mb is not None
    if longest.memory_mb > memory_mb:
        with pytest.raises(ConfigError, match=f"the longest runtime, {longest.name}, takes"):
            best(Wanted(runtimes, counts, SLO_MS), memory_mb=memory_mb)
        return
    held = best(Wanted(runtimes, counts, SLO_MS), memory_mb=memory_mb)
    assert held.runtimes[-1] == longest
    assert held.memory_mb == sum(each.memory_mb or 0 for each in held.runtimes) <= memory_mb
    others = [each for each in runtimes if each != longest]
    sets = [(*chosen, longest) for size in range(len(runtimes)) for chosen in itertools.combinations(others, size)]
    fitting = [each for each in sets if sum(one.memory_mb or 0 for one in each) <= memory_mb]
    least = min((plain_cost(each, counts), sum(one.memory_mb or 0 for one in each)) for each in fitting)
    assert (plain_cost(held.runtimes, counts), held.memory_mb) == least


@given(st.lists(st.tuples(fleets(), st.sampled_from([0.5, 1.0, 3.0])), min_size=1, max_size=3), st.integers(1, 25))
@settings(max_examples=150, deadline=None)
def test_several_models_are_held_as_a_search_of_all_sets_says(
    models: list[tuple[tuple[list[Runtime], dict[int, int]], float]], memory_mb: int
) -> None:
    wanted = [Wanted(runtimes, counts, SLO_MS, share) for (runtimes, counts), share in models]

    def sets_of(each: Wanted) -> list[tuple[float, int, tuple[Runtime, ...]]]:
        *others, longest = sorted(each.runtimes, key=lambda one: one.max_length)
        every = plain_cost((*others, longest), dict(each.counts)) or 1
        return [
            (
                each.share * plain_cost((*chosen, longest), dict(each.counts)) / every,
                sum(one.memory_mb or 0 for one in (*chosen, longest)),
                (*chosen, longest),
            )
            for size in range(len(others) + 1)
            for chosen in itertools.combinations(others, size)
        ]

    combined = [
        (sum(one[0] for one in each), sum(one[1] for one in each))
        for each in itertools.product(*(sorted(sets_of(one), key=lambda s: s[1])[:16] for one in wanted))
    ]
    fitting = [each for each in combined if each[1] <= memory_mb]
    if not fitting:
        with pytest.raises(ConfigError, match=r"take"):
            best_together(wanted, memory_mb=memory_mb)
        return
    held = best_together(wanted, memory_mb=memory_mb)
    assert sum(each.memory_mb for each in held) <= memory_mb
    assert all(
        each.runtimes[-1] == max(w.runtimes, key=lambda r: r.max_length) for each, w in zip(held, wanted, strict=True)
    )
    cost = sum(
        w.share * plain_cost(each.runtimes, dict(w.counts)) / (plain_cost(tuple(w.runtimes), dict(w.counts)) or 1)
        for each, w in zip(held, wanted, strict=True)
    )
    assert cost <= min(each[0] for each in fitting) * (1 + 1e-9)


def test_a_batch_that_ends_too_late_is_not_counted_on() -> None:
    assert row_us(runtime(8, {1: 50_000, 8: 99_000}, 1), SLO_MS) == pytest.approx(99_000 / 8)
    assert row_us(runtime(8, {1: 50_000, 8: 101_000}, 1), SLO_MS) == 50_000
    assert row_us(runtime(8, {1: 150_000, 8: 201_000}, 1), SLO_MS) == 150_000


def test_memory_that_nobody_measured() -> None:
    with pytest.raises(ConfigError, match="the memory that r8 takes was not measured: build on a machine that runs it"):
        best(Wanted([runtime(8, {1: 1.0}, None), runtime(16, {1: 1.0}, 5)], {}, SLO_MS), memory_mb=100)
