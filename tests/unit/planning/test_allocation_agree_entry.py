"""The entry to the solvers: names, demands that do not fit, and what happens when a solver fails."""

from __future__ import annotations

import dataclasses

import pytest

from arlo.errors import ConfigError
from arlo.planning.allocation import solve
from arlo.planning.allocation.problem import Allocation, AllocationProblem, LatencyCurve, SolverError, flow
from arlo.planning.allocation.solve import allocate, allocate_or_keep, largest_fraction, make_solver, scaled


def problem(workers: int, *demand: float, slo_ms: float = 150) -> AllocationProblem:
    curves = tuple(LatencyCurve.single(ms) for ms in (1.15, 1.7, 2.7, 4.9))
    return AllocationProblem(workers, slo_ms, (64, 128, 256, 512), curves, demand)


FITS = problem(10, 30, 20, 8, 2)
OVERLOAD = problem(3, 600, 200, 80, 20)


@dataclasses.dataclass
class Broken:
    """A solver that always fails."""

    name: str = "broken"

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        raise SolverError("out of time")


@pytest.mark.parametrize("name", solve.SOLVERS)
def test_solvers_by_name_have_the_same_optimum(name: str) -> None:
    found = allocate(FITS, make_solver(name), time_limit_s=20)
    assert (found.solver, found.optimal, found.reason) == (name, True, None)
    assert found.objective == pytest.approx(345.6583333, rel=1e-6)


def test_queueing_is_reachable_with_exact_only() -> None:
    found = allocate(FITS, make_solver("exact", objective="queueing"), time_limit_s=20)
    assert sum(found.instances) == FITS.workers
    with pytest.raises(ConfigError, match="gurobi solves the objective paper only"):
        make_solver("gurobi", objective="queueing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gurobbi",), "unknown solver 'gurobbi': did you mean 'gurobi'"),
        (("x",), "unknown solver 'x': there are exact, gurobi"),
        (("exact", "queuing"), "unknown objective 'queuing': did you mean 'queueing'"),
    ],
)
def test_unknown_names(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_solver(*arguments)


@pytest.mark.parametrize("name", solve.SOLVERS)
def test_overload_gets_the_plan_for_a_fraction_of_the_demand(name: str) -> None:
    fraction = largest_fraction(OVERLOAD)
    assert sum(scaled(OVERLOAD, fraction).lower_bounds) <= OVERLOAD.workers
    assert sum(scaled(OVERLOAD, fraction * 1.001).lower_bounds) > OVERLOAD.workers
    found = allocate(OVERLOAD, make_solver(name), time_limit_s=20)
    assert found.reason is not None
    assert found.reason.startswith("overload: ")
    assert f"{fraction:.4g} of the demand" in found.reason
    assert not found.optimal
    assert found.objective == flow(OVERLOAD, found.instances).objective
    assert sum(found.instances) == 3
    assert found.instances[-1] >= 1


@pytest.mark.parametrize("name", solve.SOLVERS)
def test_slo_below_latency_still_gets_the_lowest_mean(name: str) -> None:
    given = problem(4, 1, 1, 1, 1, slo_ms=4)
    found = allocate(given, make_solver(name), time_limit_s=20)
    assert found.reason is not None
    assert found.reason.startswith("slo_below_latency: ")
    assert not found.optimal
    others = [(a, b, c, 4 - a - b - c) for a in range(4) for b in range(4 - a) for c in range(4 - a - b)]
    assert found.objective == pytest.approx(min(flow(given, n).objective for n in others), rel=1e-6)


def test_queueing_keeps_its_own_plan_for_an_overload() -> None:
    solver = make_solver("exact", objective="queueing")
    assert allocate(OVERLOAD, solver, time_limit_s=20).instances == solver.solve(OVERLOAD, time_limit_s=20).instances


def test_a_solver_that_works_is_not_fallen_back_from() -> None:
    found, why = allocate_or_keep(FITS, make_solver("exact"), None, time_limit_s=20)
    assert (found.solver, why) == ("exact", "")


def test_a_failed_solver_keeps_the_last_plan() -> None:
    last = Allocation((1, 2, 3, 4), 1.0, "gurobi", 0.1, optimal=True)
    found, why = allocate_or_keep(FITS, Broken(), last, time_limit_s=20)
    assert found.instances == last.instances
    assert found.objective == flow(FITS, last.instances).objective
    assert (found.solver, found.optimal) == ("gurobi", False)
    assert why == "broken: out of time; kept the last plan"


@pytest.mark.parametrize("instances", [None, (5, 5), (1, 1, 1, 1), (4, 3, 3, 0), (12, -3, 0, 1)])
def test_without_a_last_plan_that_fits_exact_solves(instances: tuple[int, ...] | None) -> None:
    last = None if instances is None else Allocation(instances, 1.0, "gurobi", 0.1, optimal=True)
    found, why = allocate_or_keep(FITS, Broken(), last, time_limit_s=20)
    assert (found.solver, found.optimal) == ("exact", True)
    assert why == "broken: out of time; solved by exact instead"


@pytest.mark.parametrize("given", [FITS, OVERLOAD, problem(1, 5, 5, 5, 5), problem(3, 0, 0, 0, 0)])
def test_when_all_fail_instances_follow_the_work(given: AllocationProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve, "make_solver", lambda _: Broken("exact"))
    found, why = allocate_or_keep(given, Broken(), None, time_limit_s=20)
    assert why == "broken: out of time; exact: out of time; instances in proportion to the work"
    assert found.solver == "proportional"
    assert sum(found.instances) == given.workers
    assert found.instances[-1] >= 1
    assert found.objective == flow(given, found.instances).objective
