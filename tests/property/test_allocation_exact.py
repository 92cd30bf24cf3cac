"""The exact solver against exhaustive search with `flow`, on small problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arlo import _core
from arlo.planning.allocation.exact import ExactSolver
from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve, flow

SEEDS = st.integers(0, 2**32)


def allocations(workers: int, lower: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All N with this sum and these lower bounds."""
    if len(lower) == 1:
        if workers >= lower[0]:
            yield (workers,)
        return
    for n in range(lower[0], workers - sum(lower[1:]) + 1):
        for others in allocations(workers - n, lower[1:]):
            yield (n, *others)


def curve(draw: Random, base_ms: float) -> LatencyCurve:
    """Without batches, with well-behaved ones, or with points as a noisy measurement may give."""
    points, rows, ms = [(1, base_ms)], 1, base_ms
    kind = draw.choice(["single", "batches", "noisy"])
    for _ in range(0 if kind == "single" else draw.randint(1, 3)):
        rows += draw.randint(1, 3)
        ms *= draw.uniform(0.5 if kind == "noisy" else 1.0, 1.8)
        points.append((rows, ms))
    return LatencyCurve(tuple(points))


def demand(draw: Random, capacity: int) -> float:
    """Often 0, often whole numbers, often exactly what some instances can do."""
    kind = draw.choice(["none", "real", "whole", "full"])
    most = max(capacity, 1)
    if kind == "none":
        return 0.0
    if kind == "real":
        return draw.uniform(0, most * draw.choice([0.3, 1, 2, 3]))
    return float(draw.randint(0, 3 * most) if kind == "whole" else most * draw.randint(1, 2))


def problem(seed: int) -> AllocationProblem:
    """At most 12 workers and 5 runtimes. M may be 0, and need not fall with the maximum length."""
    draw = Random(seed)
    slo_ms = draw.choice([40.0, 100.0, 150.0, 300.0])
    base_ms, curves = draw.uniform(5, 60), []
    for _ in range(draw.randint(1, 5)):
        base_ms *= draw.uniform(0.9, 1.8)
        curves.append(curve(draw, base_ms))
    made = AllocationProblem(
        workers=draw.randint(1, 12),
        slo_ms=slo_ms,
        max_lengths=tuple(range(64, 64 * len(curves) + 1, 64)),
        curves=tuple(curves),
        demand=tuple(demand(draw, c.capacity(slo_ms)) for c in curves),
    )
    if draw.random() < 0.5:  # few free workers: left-overs travel through several runtimes
        few = sum(made.lower_bounds) + draw.randint(0, 3)
        made = dataclasses.replace(made, workers=min(max(few, 1), 12))
    return made


def runtimes(made: AllocationProblem) -> list[tuple[tuple[tuple[int, float], ...], int, int, float]]:
    return [
        (c.points, m, low, q)
        for c, m, low, q in zip(made.curves, made.capacities, made.lower_bounds, made.demand, strict=True)
    ]


@given(SEEDS)
@settings(max_examples=600, deadline=None)
def test_finds_what_exhaustive_search_finds(seed: int) -> None:
    made = problem(seed)
    assume(sum(made.lower_bounds) <= made.workers)
    values = {n: flow(made, n).objective for n in allocations(made.workers, made.lower_bounds)}
    best = min(values.values())

    found = ExactSolver().solve(made, time_limit_s=10.0)

    assert found.optimal
    assert found.instances in values  # Eq. 2, 3 and 7
    assert found.objective == values[found.instances]  # to the last bit
    assert found.objective <= best * (1 + 1e-11)
    if found.objective == best:  # the tie rule: most instances on the longest, then on the next longest
        ties = [n for n, value in values.items() if value == best]
        assert found.instances == max(ties, key=lambda n: n[::-1])


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_without_states_it_still_answers_and_says_so(seed: int) -> None:
    made = problem(seed)
    assume(sum(made.lower_bounds) <= made.workers)
    proven = ExactSolver().solve(made, time_limit_s=10.0)
    instances, objective, optimal, _ = _core.allocate_exact(made.workers, runtimes(made), 0)
    assert sum(instances) == made.workers
    assert all(n >= low for n, low in zip(instances, made.lower_bounds, strict=True))
    assert objective == flow(made, instances).objective
    assert objective >= proven.objective * (1 - 1e-12)
    if optimal:
        assert objective <= proven.objective * (1 + 1e-11)
