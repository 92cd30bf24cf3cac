"""The entry to the allocation solvers: by name, for feasible and infeasible demands, with a fallback.

    solver = make_solver("exact", objective="queueing")
    allocation, why = allocate_or_keep(problem, solver, last, time_limit_s=5.0)

Pure but for the time that it takes.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Literal, get_args

from arlo.clock import monotonic_s
from arlo.errors import ConfigError
from arlo.planning.allocation.bounds import proportional
from arlo.planning.allocation.gurobi import GurobiSolver
from arlo.planning.allocation.problem import Allocation, AllocationProblem, Solver, SolverError, flow

SolverName = Literal["exact", "gurobi"]
Objective = Literal["paper", "queueing"]
SOLVERS: tuple[SolverName, ...] = get_args(SolverName)
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
HEURISTIC = "proportional"  # Allocation.solver if every solver failed


def make_solver(name: str, objective: str = "paper", *, policy: str = "eft") -> Solver:
    """The solver with this name: exact or gurobi. Objective: `paper` (Eq. 1), or `queueing`, which only exact solves
    and which depends on the gateway's dispatch policy.

    ConfigError names the nearest match of an unknown one. The gurobi package is not looked for here.
    """
    _check("solver", name, SOLVERS)
    _check("objective", objective, OBJECTIVES)
    if name != "exact" and objective != "paper":
        raise ConfigError(f"the solver {name} solves the objective paper only: use the solver exact for {objective}")
    if name == "gurobi":
        return GurobiSolver()
    if objective == "queueing":
        # Imported only here, as numpy and arlo._core load slowly.
        from arlo.planning.allocation.queueing import QueueingSolver

        return QueueingSolver(policy=policy)
    from arlo.planning.allocation.exact import ExactSolver

    return ExactSolver()


def allocate(problem: AllocationProblem, solver: Solver, *, time_limit_s: float) -> Allocation:
    """The solver's optimum; for a problem without a feasible allocation the least bad one, with its reason.

    `overload`: the whole demand is scaled down to the largest fraction for which Eq. 2, 3 and 7 hold together, and the
    plan is the optimum for that; the reason includes the fraction. So every bin is equally short of capacity.

    `slo_below_latency`: not one request of the longest bin can be on time, for any N. Eq. 3 then asks nothing of
    the longest runtime (M = 0) beyond Eq. 7. As Eq. 5 sends it everything left over, Eq. 1 still shows which N gives
    the lowest mean latency; that one is the plan (for a fraction of the demand, if it is overload as well).

    In both cases `objective` is Eq. 1 for the real demand, and `optimal` is False. The objective `queueing` has other
    plans for such problems (see there). SolverError: see the solver.
    """
    reason = problem.infeasible()
    if reason is None or getattr(solver, "objective", "paper") == "queueing":
        return solver.solve(problem, time_limit_s=time_limit_s)
    fraction = largest_fraction(problem)
    found = solver.solve(scaled(problem, fraction), time_limit_s=time_limit_s)
    made = "" if fraction == 1 else f" made for {min(fraction, 0.9999):.4g} of the demand in each bin"
    if reason.startswith("slo_below_latency"):
        made += " the one of lowest mean latency" if not made else ", the one of lowest mean latency"
        made += "; requests of the longest runtime will be late"
    return dataclasses.replace(
        found,
        objective=flow(problem, found.instances).objective,
        optimal=False,
        reason=f"{reason}. This plan is{made}.",
    )


def allocate_or_keep(
    problem: AllocationProblem, solver: Solver, last: Allocation | None, *, time_limit_s: float
) -> tuple[Allocation, str]:
    """An allocation in any case, with the reason why it is not the solver's (empty if it is).

    Where the solver fails or finds none in time: the last allocation, if it is for as many runtimes and workers and
    keeps Eq. 7; else the result of `exact` for Eq. 1; else instances in proportion to the work. An allocation not
    solved for the present problem has `optimal` False and its objective for the present demand.
    """
    started_s = monotonic_s()
    try:
        return allocate(problem, solver, time_limit_s=time_limit_s), ""
    except SolverError as error:
        why = f"{solver.name}: {error}"
    except Exception as error:  # a fault in a solver must not stop the serving
        why = f"{solver.name}: {error!r}"
    if last is not None and fits(problem, last.instances):
        return _unproven(problem, last.instances, last.solver, monotonic_s() - started_s), f"{why}; kept the last plan"
    try:
        return allocate(problem, make_solver("exact"), time_limit_s=time_limit_s), f"{why}; solved by exact instead"
    except (SolverError, ImportError) as error:
        why = f"{why}; exact: {error}; instances in proportion to the work"
    return _unproven(problem, proportional(problem), HEURISTIC, monotonic_s() - started_s), why


def fits(problem: AllocationProblem, instances: tuple[int, ...]) -> bool:
    """Whether N has this problem's size and keeps Eq. 2 and 7."""
    return (
        len(instances) == len(problem.demand)
        and sum(instances) == problem.workers
        and min(instances) >= 0
        and instances[-1] >= 1
    )


def scaled(problem: AllocationProblem, fraction: float) -> AllocationProblem:
    """The same problem with a fraction of the demand in every bin."""
    return dataclasses.replace(problem, demand=tuple(q * fraction for q in problem.demand))


def largest_fraction(problem: AllocationProblem) -> float:
    """The largest share of the demand, up to 1, for which the lower bounds of Eq. 3 and 7 fit into G; by bisection."""
    if sum(problem.lower_bounds) <= problem.workers:
        return 1.0
    # Without demand Eq. 7 alone asks for one instance, so 0 always fits.
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(scaled(problem, middle).lower_bounds) <= problem.workers:
            low = middle
        else:
            high = middle
    return low


def _unproven(problem: AllocationProblem, instances: tuple[int, ...], solver: str, solve_s: float) -> Allocation:
    return Allocation(
        instances=instances,
        objective=flow(problem, instances).objective,
        solver=solver,
        solve_s=solve_s,
        optimal=False,
        reason=problem.infeasible(),
    )


def _check(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        match = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {match[0]!r}?" if match else f"there are {', '.join(known)}"
        raise ConfigError(f"unknown {what} {name!r}: {hint}")
