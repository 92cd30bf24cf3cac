"""ExactSolver and its binding: ties, determinism and refusals. Optima: tests/property/test_allocation_exact.py."""

from __future__ import annotations

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


def test_the_same_problem_has_the_same_answer() -> None:
    draw = Random(7)
    problem = bert(300, tuple(draw.uniform(0, 3000) for _ in range(12)), tuple(1.1 + 0.3 * i for i in range(12)))
    assert problem.infeasible() is None
    answers = {ExactSolver().solve(problem, time_limit_s=1.0).instances for _ in range(5)}
    assert len(answers) == 1


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
