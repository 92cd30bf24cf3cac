"""The dynamic program for maximum lengths against a plain search of all sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.planning.lengths.choice import CostCurve, candidates, choose, evaluate, worthwhile


def plain_cost_ns(lengths: tuple[int, ...], curve: CostCurve, counts: list[int]) -> int:
    """Request by request, as the docstring has it; whole nanoseconds."""
    total = 0
    for tokens, count in enumerate(counts):
        if count:
            level = next(length for length in lengths if length >= tokens)
            total += count * round(float(curve.cost_us([level])[0]) * 1000)
    return total


@st.composite
def problems(draw: st.DrawFn) -> tuple[CostCurve, list[int], int]:
    """A curve of a few points (few distinct times, so that there are ties), a histogram, a number of runtimes."""
    longest = draw(st.integers(1, 40))
    inner = draw(st.sets(st.integers(1, longest), max_size=5))
    at = sorted(inner | {longest + draw(st.integers(0, 3))})
    times = draw(st.lists(st.integers(1, 6), min_size=len(at), max_size=len(at)))
    curve = CostCurve(
        points=tuple((length, 10.0 * time) for length, time in zip(at, times, strict=True)),
        reading=draw(st.sampled_from(["line", "steps"])),
    )
    counts = [0, *draw(st.lists(st.sampled_from([0, 0, 1, 2, 30]), min_size=longest, max_size=longest))]
    counts[draw(st.integers(1, longest))] += 1
    return curve, counts, draw(st.integers(1, 5))


@given(problems(), st.sampled_from([4, 8]))
@settings(max_examples=150, deadline=None)
def test_no_set_costs_less_and_ties_are_broken_as_written(
    problem: tuple[CostCurve, list[int], int], multiple: int
) -> None:
    curve, counts, most = problem
    longest = len(counts) - 1
    choice = choose(curve, np.array(counts), max_runtimes=most, multiple=multiple)
    others = candidates(longest, multiple=multiple, also=[point[0] for point in curve.points])[:-1]
    best = (0, 0, ())
    for runtimes in range(1, most + 1):
        sets = [
            (*chosen, longest) for size in range(runtimes) for chosen in itertools.combinations(others, size)
        ]  # fmt: skip
        # Least cost, then fewest, then the longest lengths from the longest down.
        best = min((plain_cost_ns(s, curve, counts), len(s), tuple(-n for n in reversed(s))) for s in sets)
        expected = tuple(-n for n in reversed(best[2]))
        row = choice.rows[min(runtimes, len(choice.rows)) - 1]
        assert row.lengths == expected
        assert row.expected_us == pytest.approx(best[0] / sum(counts) / 1000, rel=1e-12)
    assert choice.bound_us <= choice.rows[-1].expected_us * (1 + 1e-12)


@given(problems(), st.data())
@settings(max_examples=100, deadline=None)
def test_an_evaluation_is_what_the_requests_would_see(
    problem: tuple[CostCurve, list[int], int], data: st.DataObject
) -> None:
    curve, counts, _ = problem
    longest = len(counts) - 1
    lengths = tuple(sorted({*data.draw(st.sets(st.integers(1, longest), max_size=4)), longest}))
    row = evaluate(lengths, curve, np.array(counts))
    total = sum(counts)
    assert row.expected_us == pytest.approx(plain_cost_ns(lengths, curve, counts) / total / 1000, rel=1e-12)
    levels = [next(length for length in lengths if length >= max(tokens, 1)) for tokens in range(len(counts))]
    computed = sum(count * level for count, level in zip(counts, levels, strict=True))
    real = sum(count * tokens for tokens, count in enumerate(counts))
    assert row.padded_share == pytest.approx((computed - real) / computed, abs=1e-12)
    for length, share in zip(lengths, row.shares, strict=True):
        there = sum(count for count, level in zip(counts, levels, strict=True) if level == length)
        assert share == pytest.approx(there / total, abs=1e-12)


@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=8).map(lambda saved: np.cumprod([1.0, *saved]).tolist()),
    st.sampled_from([0.01, 0.03, 0.2]),
)
def test_the_number_of_runtimes_is_the_least_after_which_none_pay(costs: list[float], least: float) -> None:
    count = worthwhile(costs, least)

    def pays(index: int) -> bool:
        """Whether some further runtimes save `least` each."""
        return any(costs[index + more] <= costs[index] * (1 - least) ** more for more in range(1, len(costs) - index))

    assert not pays(count - 1)
    assert all(pays(index) for index in range(count - 1))
