"""Facts that both linear solvers use before they start: ranges of N and R, units, a first allocation. Pure."""

from __future__ import annotations

import dataclasses
import math

from arlo.planning.allocation.problem import AllocationProblem, SolverError, flow

GAP = 1e-6  # relative; an allocation within it of the bound counts as proven


class SolverMissing(SolverError):  # noqa: N818  # names the missing part
    """The package of a solver is not installed, or its licence does not cover the model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of runtime i: lower[i] <= N_i <= upper[i], R_i <= left_over[i].

    keeps[i] is the least N_i with which nothing can be left over, spills[i] the largest with which something can.
    Requests are counted in `unit`s and milliseconds x requests in `cost_unit`s, so that a model's numbers are near 1.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    left_over: tuple[float, ...]
    keeps: tuple[int, ...]
    spills: tuple[int, ...]
    unit: float
    cost_unit: float
    start: tuple[int, ...]  # an allocation within the bounds


def bounds(problem: AllocationProblem) -> Bounds:
    """The ranges that Eq. 2-4 and 7 allow. SolverError when they allow none."""
    lower, capacities = problem.lower_bounds, problem.capacities
    spare = problem.workers - sum(lower)
    if spare < 0:
        raise SolverError(f"no allocation satisfies Eq. 2, 3 and 7: {problem.infeasible()}")
    upper = tuple(low + spare for low in lower)
    rest, left_over, keeps, spills = 0.0, [], [], []
    for low, high, m, q in zip(lower, upper, capacities, problem.demand, strict=True):
        arriving = rest + q
        rest = max(arriving - low * m, 0.0)
        left_over.append(rest)
        keeps.append(min(max(math.ceil(q / m - 1e-9), low), high) if m else low)
        spills.append(min(max(math.floor(arriving / m + 1e-9), low), high) if m else high)
    start = proportional(problem)
    total = sum(problem.demand)
    return Bounds(
        lower=lower,
        upper=upper,
        left_over=tuple(left_over),
        keeps=tuple(keeps),
        spills=tuple(spills),
        unit=total / problem.workers if total > 0 else 1.0,
        cost_unit=flow(problem, start).objective / 100 or 1.0,
        start=start,
    )


def proportional(problem: AllocationProblem) -> tuple[int, ...]:
    """Instances in proportion to each runtime's work (demand x time of one row in full batches), highest averages.

    Satisfies Eq. 2 and 7, and Eq. 3 where it can be satisfied.
    """
    found = list(problem.lower_bounds)
    if sum(found) > problem.workers:
        found = [0] * len(found)
        found[-1] = 1
    work = [q * curve.points[-1][1] / curve.max_batch for q, curve in zip(problem.demand, problem.curves, strict=True)]
    for _ in range(problem.workers - sum(found)):
        # Ties go to the longer runtime, which takes any request.
        chosen = max(range(len(found)), key=lambda i: (work[i] / (found[i] + 1), i))
        found[chosen] += 1
    return tuple(found)
