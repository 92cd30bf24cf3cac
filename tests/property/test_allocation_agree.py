"""Both solvers on random problems: the same optimum, wherever it is proven.

2 to 60 workers and 2 to 8 runtimes; a third of the runtimes have batched latency curves, kinks that are not convex
included; a tenth of the demand bins are empty.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.planning.allocation.problem import Allocation, AllocationProblem, LatencyCurve, Solver, SolverError
from arlo.planning.allocation.solve import SOLVERS, make_solver

AGREE = 1e-6


def random_curve(rng: random.Random, latency_ms: float) -> LatencyCurve:
    """max_batch 1 for two runtimes in three; else up to 32 rows, each further one at 0 to 1.2 of the first."""
    if rng.random() < 2 / 3:
        return LatencyCurve.single(latency_ms)
    rows = sorted(rng.sample(range(2, 33), rng.randint(1, 4)))
    times = sorted(latency_ms * (1 + (row - 1) * rng.uniform(0, 1.2)) for row in rows)
    return LatencyCurve(((1, latency_ms), *zip(rows, times, strict=True)))


def random_problem(seed: int) -> AllocationProblem:
    """A feasible problem. Load: 5 to 100 % of what the workers carry, unevenly over the bins."""
    rng = random.Random(seed)
    while True:
        workers = rng.randint(2, 60)
        count = rng.randint(2, 8)
        slo_ms = rng.choice([50.0, 150.0, 450.0])
        latencies = sorted(rng.uniform(0.5, 20) for _ in range(count))
        curves = tuple(random_curve(rng, latency) for latency in latencies)
        share = [rng.random() ** 2 if rng.random() > 0.1 else 0.0 for _ in range(count)]
        load = rng.uniform(0.05, 1.0) * workers / (sum(share) or 1.0)
        demand = [load * part * curve.capacity(slo_ms) for part, curve in zip(share, curves, strict=True)]
        if rng.random() < 0.3:
            demand = [float(round(q)) for q in demand]
        problem = AllocationProblem(workers, slo_ms, tuple(64 * (i + 1) for i in range(count)), curves, tuple(demand))
        if problem.infeasible() is None:
            return problem


def answers(problem: AllocationProblem, solvers: list[Solver], limit_s: float) -> dict[str, Allocation | SolverError]:
    """What each solver says to one problem."""
    found: dict[str, Allocation | SolverError] = {}
    for solver in solvers:
        try:
            found[solver.name] = solver.solve(problem, time_limit_s=limit_s)
        except SolverError as error:
            found[solver.name] = error
    return found


def disagreements(found: dict[str, Allocation | SolverError]) -> list[str]:
    """Pairs in which one proved an optimum that the other, proven or not, contradicts."""
    said = []
    solved = [answer for answer in found.values() if isinstance(answer, Allocation)]
    for a, b in itertools.permutations(solved, 2):
        near = AGREE * max(abs(a.objective), 1e-12)
        # Above a proven optimum another may only be where it proved nothing.
        if a.optimal and (b.objective < a.objective - near or (b.optimal and b.objective > a.objective + near)):
            said.append(f"{a.solver} proved {a.objective!r} with {a.instances}, {b.solver} found {b.objective!r}")
    return said


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_solvers_agree(seed: int) -> None:
    found = answers(random_problem(seed), list(map(make_solver, SOLVERS)), limit_s=20)
    assert disagreements(found) == []
    assert all(getattr(answer, "optimal", False) for answer in found.values()), found
