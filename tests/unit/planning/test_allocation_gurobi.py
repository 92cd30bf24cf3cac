"""The solver gurobi: against exhaustive search, at its limits, and what it says when it cannot."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import pytest

from arlo.planning.allocation.bounds import SolverMissing, bounds, proportional
from arlo.planning.allocation.gurobi import GurobiSolver
from arlo.planning.allocation.pieces import groups, pieces
from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve, SolverError, flow

SOLVER = GurobiSolver()
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


def test_says_nothing_on_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    SOLVER.solve(PROBLEMS["tight"], time_limit_s=20)
    assert capfd.readouterr() == ("", "")


def test_no_time_and_no_room_are_errors() -> None:
    with pytest.raises(SolverError, match="gurobi found no allocation in"):
        SOLVER.solve(PROBLEMS["tight"], time_limit_s=0.0)
    with pytest.raises(SolverError, match=r"no allocation satisfies Eq\. 2, 3 and 7: overload"):
        SOLVER.solve(problem(2, (300, 200, 80, 20)), time_limit_s=20)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(SolverMissing, match=r"pip install 'arlo-serve\[gurobi\]'"):
        SOLVER.solve(PROBLEMS["tight"], time_limit_s=20)


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
        SOLVER.solve(given, time_limit_s=20)


@pytest.mark.parametrize(
    "curve",
    [
        LatencyCurve.single(2.0),
        LatencyCurve(((1, 2.0), (8, 4.0))),
        LatencyCurve(((1, 2.0), (4, 9.0), (8, 20.0))),
        FALLING,
    ],
)
def test_pieces_add_up_to_the_curve(curve: LatencyCurve) -> None:
    for load in (0.0, 0.3, 1.0, 1.7, 3.0, 4.0, 6.5, 8.0, 12.0, 16.0, 40.0):
        inside = ((piece, min(max(load - piece.low, 0.0), piece.width)) for piece in pieces(curve))
        cost = sum(piece.slope * x + piece.bend * x * x for piece, x in inside)
        assert cost == pytest.approx(load * curve.mean_ms(load), rel=1e-12)
    assert [piece for group in groups(curve) for piece in group.pieces] == pieces(curve)


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
