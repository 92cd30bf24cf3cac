"""ExactSolver and its binding: the example of the documentation, determinism, limits and refusals."""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any

import pytest

from arlo import _core
from arlo.planning.allocation.exact import ExactSolver
from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve, SolverError, flow


def bert(workers: int, demand: tuple[float, ...], latency_ms: tuple[float, ...] = (1.15, 1.7, 2.7, 4.9)) -> Any:
    lengths = tuple(512 * (i + 1) // len(demand) for i in range(len(demand)))
    return AllocationProblem(workers, 150.0, lengths, tuple(map(LatencyCurve.single, latency_ms)), demand)


def test_ten_workers() -> None:
    problem = bert(10, (30.0, 20.0, 8.0, 2.0))
    found = ExactSolver().solve(problem, time_limit_s=1.0)
    best = min(
        flow(problem, n).objective
        for n in itertools.product(range(11), repeat=4)
        if sum(n) == 10 and n[3] >= 1  # no other lower bound here
    )
    assert problem.lower_bounds == (0, 0, 0, 1)
    assert found.objective == best == flow(problem, found.instances).objective
    assert (found.solver, found.optimal, found.reason) == ("exact", True, None)
    assert 0 <= found.solve_s < 1


def test_what_is_left_over_reaches_the_last_runtime_when_no_worker_is_free() -> None:
    problem = bert(4, (200.0, 130.0, 80.0, 3.0))  # M = 130, 88, 55, 30: each bound leaves something over
    found = ExactSolver().solve(problem, time_limit_s=1.0)
    assert found.instances == problem.lower_bounds == (1, 1, 1, 1)
    assert flow(problem, found.instances).left_over == (70.0, 112.0, 137.0, 110.0)
    assert found.objective == flow(problem, found.instances).objective


def test_idle_workers_are_on_the_longest_runtime() -> None:
    assert ExactSolver().solve(bert(40, (0.0, 0.0, 0.0, 0.0)), time_limit_s=1.0).instances == (0, 0, 0, 40)
    # With one request for each instance, more instances make nothing faster.
    assert ExactSolver().solve(bert(40, (3.0, 2.0, 0.0, 1.0)), time_limit_s=1.0).instances == (3, 2, 0, 35)


def test_a_runtime_that_misses_the_slo_serves_nothing() -> None:
    problem = bert(3, (5.0, 5.0), (200.0, 20.0))  # M = 0 and 7
    assert ExactSolver().solve(problem, time_limit_s=1.0).instances == (0, 3)


def test_a_longest_runtime_that_misses_the_slo_still_takes_the_rest() -> None:
    problem = bert(4, (9.0, 3.0), (20.0, 200.0))  # M = 7 and 0
    found = ExactSolver().solve(problem, time_limit_s=1.0)
    assert found.objective == min(flow(problem, (n, 4 - n)).objective for n in range(1, 4))


def test_the_same_problem_has_the_same_answer() -> None:
    draw = Random(7)
    problem = bert(300, tuple(draw.uniform(0, 3000) for _ in range(12)), tuple(1.1 + 0.3 * i for i in range(12)))
    assert problem.infeasible() is None
    answers = {ExactSolver().solve(problem, time_limit_s=1.0).instances for _ in range(5)}
    assert len(answers) == 1


def test_no_time_still_gives_an_allocation() -> None:
    draw = Random(7)
    problem = bert(300, tuple(draw.uniform(0, 3000) for _ in range(12)), tuple(1.1 + 0.3 * i for i in range(12)))
    hurried = ExactSolver().solve(problem, time_limit_s=0.0)
    proven = ExactSolver().solve(problem, time_limit_s=10.0)
    assert proven.optimal
    assert not hurried.optimal
    assert sum(hurried.instances) == 300
    assert proven.objective <= hurried.objective <= 1.01 * proven.objective


def test_an_infeasible_problem_is_refused() -> None:
    with pytest.raises(SolverError, match="overload"):
        ExactSolver().solve(bert(3, (500.0, 500.0, 500.0, 500.0)), time_limit_s=1.0)


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        (([], 1, 0, 1.0), "first point"),
        (([(2, 1.0)], 1, 0, 1.0), "first point"),
        (([(1, 1.0), (1, 2.0)], 1, 0, 1.0), "ascending"),
        (([(1, 0.0)], 1, 0, 1.0), "above 0"),
        (([(1, math.inf)], 1, 0, 1.0), "above 0"),
        (([(1, 1.0)], -1, 0, 1.0), "capacity"),
        (([(1, 1.0)], 1, -1, 1.0), "lower"),
        (([(1, 1.0)], 1, 0, -1.0), "demand"),
        (([(1, 1.0)], 1, 0, math.nan), "demand"),
    ],
)
def test_the_binding_refuses_what_makes_no_sense(runtime: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.allocate_exact(4, [runtime], 100)


def test_the_binding_without_runtimes_or_workers() -> None:
    assert _core.allocate_exact(4, [], 100) == ([], 0.0, False, 0)
    assert _core.allocate_exact(0, [([(1, 1.0)], 1, 0, 1.0)], 100)[0] == []
    with pytest.raises(ValueError, match="workers"):
        _core.allocate_exact(-1, [], 100)


def test_separable_tables_are_checked() -> None:
    assert _core.allocate_separable(2, [[3.0, 1.0, 0.5], [math.inf, 1.0, 0.0]], [0, 0])[:3] == ([1, 1], 2.0, True)
    with pytest.raises(ValueError, match="0 to `workers`"):
        _core.allocate_separable(2, [[1.0, 2.0]], [0])
    with pytest.raises(ValueError, match="NaN"):
        _core.allocate_separable(0, [[math.nan]], [0])
    with pytest.raises(ValueError, match="each runtime"):
        _core.allocate_separable(0, [[1.0]], [])
