"""The solver gurobi, and HiGHS that checks it: against exhaustive search, at their limits, and where they fail."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import pytest

from arlo.planning.allocation.bounds import SolverMissing, bounds, proportional
from arlo.planning.allocation.gurobi import GurobiSolver
from arlo.planning.allocation.pieces import groups, pieces
from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve, Solver, SolverError, flow
from tests.fakes.highs_allocation import HighsSolver

SOLVERS: list[Solver] = [GurobiSolver(), HighsSolver()]
FALLING = LatencyCurve(((1, 3.0), (4, 9.0), (8, 7.0), (16, 30.0)))


def problem(workers: int, demand: tuple[float, ...], *curves: LatencyCurve, slo_ms: float = 150) -> AllocationProblem:
    curves = curves or tuple(LatencyCurve.single(ms) for ms in (1.15, 1.7, 2.7, 4.9)[: len(demand)])
    return AllocationProblem(workers, slo_ms, tuple(64 * (i + 1) for i in range(len(demand))), curves, demand)


def every(given: AllocationProblem) -> Iterator[tuple[int, ...]]:
    """All N of Eq. 2, 3 and 7."""
    for head in itertools.product(*(range(low, given.workers + 1) for low in given.lower_bounds[:-1])):
        if given.workers - sum(head) >= given.lower_bounds[-1]:
            yield (*head, given.workers - sum(head))


PROBLEMS = {
    "spare": problem(10, (30, 20, 8, 2)),
    "tight": problem(6, (300, 200, 80, 20)),
    "one worker": problem(1, (10, 5)),
    "one runtime": problem(4, (100,)),
    "no demand": problem(5, (0, 0, 0)),
    "only short": problem(5, (200, 0, 0)),
    "only long": problem(5, (0, 0, 100)),
    "above the SLO": problem(6, (20, 20, 20), *map(LatencyCurve.single, (1.0, 200.0, 5.0))),
    "batches, convex": problem(5, (90, 60), LatencyCurve(((1, 2.0), (8, 4.0))), LatencyCurve(((1, 4.0), (8, 9.0)))),
    "batches, kinks": problem(5, (90, 60), LatencyCurve(((1, 2.0), (8, 16.0))), LatencyCurve(((1, 4.0), (4, 20.0)))),
    "batches, falling": problem(5, (60, 40), FALLING, FALLING),
}


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: str(solver.name))
@pytest.mark.parametrize("name", PROBLEMS)
def test_equal_to_exhaustive_search(solver: Solver, name: str) -> None:
    given = PROBLEMS[name]
    best = min(flow(given, instances).objective for instances in every(given))
    found = solver.solve(given, time_limit_s=20)
    assert found.optimal
    assert found.objective == pytest.approx(best, rel=1e-6, abs=1e-9)
    assert found.objective == flow(given, found.instances).objective
    assert found.instances in set(every(given))
    assert (found.solver, found.reason) == (solver.name, None)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: str(solver.name))
def test_the_same_answer_again(solver: Solver) -> None:
    given = problem(30, (900, 600, 150, 40))
    first, again = (solver.solve(given, time_limit_s=20) for _ in range(2))
    assert first.instances == again.instances


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: str(solver.name))
def test_says_nothing_on_standard_output(solver: Solver, capfd: pytest.CaptureFixture[str]) -> None:
    solver.solve(PROBLEMS["tight"], time_limit_s=20)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: str(solver.name))
def test_no_time_and_no_room_are_errors(solver: Solver) -> None:
    with pytest.raises(SolverError, match=f"{solver.name} found no allocation in"):
        solver.solve(PROBLEMS["tight"], time_limit_s=0.0)
    with pytest.raises(SolverError, match=r"no allocation satisfies Eq\. 2, 3 and 7: overload"):
        solver.solve(problem(2, (300, 200, 80, 20)), time_limit_s=20)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(SolverMissing, match=r"pip install 'arlo-serve\[gurobi\]'"):
        GurobiSolver().solve(PROBLEMS["tight"], time_limit_s=20)


def test_a_model_above_the_licence_says_so() -> None:
    many = 300
    given = AllocationProblem(
        1000,
        150,
        tuple(range(1, many + 1)),
        tuple(LatencyCurve.single(1 + i / many) for i in range(many)),
        tuple(50.0 for _ in range(many)),
    )
    with pytest.raises(SolverMissing, match="too large for the licence"):
        GurobiSolver().solve(given, time_limit_s=20)


@pytest.mark.parametrize(
    "curve",
    [
        LatencyCurve.single(2.0),
        LatencyCurve(((1, 2.0), (8, 4.0))),
        LatencyCurve(((1, 2.0), (4, 9.0), (8, 20.0))),
        FALLING,
    ],
)
def test_pieces_add_up_to_the_curve_and_tangents_lie_below(curve: LatencyCurve) -> None:
    loads = [0.0, 0.3, 1.0, 1.7, 3.0, 4.0, 6.5, 8.0, 12.0, 16.0, 40.0]

    def cost(load: float) -> float:
        return sum(piece.rise(min(max(load - piece.low, 0.0), piece.width)) for piece in pieces(curve))

    for load in loads:
        assert cost(load) == pytest.approx(load * curve.mean_ms(load), rel=1e-12)
    for group in groups(curve):
        inside = [load - group.low for load in loads if 0 <= load - group.low <= group.width]
        for at, x in itertools.product(inside, inside):
            rise = cost(group.low + x) - cost(group.low)
            if group.concave:
                assert group.chord() * x <= rise + 1e-9
            else:
                slope, offset = group.tangent(at)
                assert slope * x + offset <= rise + 1e-9
                assert at != x or slope * x + offset == pytest.approx(rise, abs=1e-9)


def test_bounds_hold_for_every_allocation() -> None:
    given = PROBLEMS["tight"]
    known = bounds(given)
    assert proportional(given) == known.start
    for instances in every(given):
        flows = flow(given, instances)
        for i, n in enumerate(instances):
            assert known.lower[i] <= n <= known.upper[i]
            assert flows.left_over[i] <= known.left_over[i] + 1e-9
            if flows.left_over[i] > 0:
                assert n <= known.spills[i]
            else:
                assert n >= known.keeps[i]
