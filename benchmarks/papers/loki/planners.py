"""Planners of Loki's evaluation (HPDC'24) as printed, to compare with Arlo's: plans are of the same kind.

    plan = plan_as(flow, "loki", demand=300, workers=20)

`loki` (section 4): first the fewest workers with the most accurate variant of every stage; when these do not fit, the
greatest accuracy on all workers. Capacity is used to the full; budgets are twice the latency, as in the authors'
release (the paper: once).
`inferline`: the most accurate variants always; when they do not fit, the greatest share served.
`proteus`: every stage on its own, by the demand that it sees and its part of the SLO, always on all workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

from arlo.catalog.flow import Flow
from arlo.clock import monotonic_s
from arlo.planning.flows import build
from arlo.planning.flows.build import Exits, Factors
from arlo.planning.flows.exact import ExactFlowSolver
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan, FlowProblem, FlowSolver
from arlo.planning.flows.steps import (
    WHOLE,
    best_variants,
    fewest_workers,
    most_accurate,
    overload,
    slo_below_latency,
)
from benchmarks.papers.loki import fleet
from benchmarks.papers.loki.proteus import on_all, proteus

PlannerName = Literal["arlo", "loki", "inferline", "proteus"]
PLANNERS: tuple[PlannerName, ...] = get_args(PlannerName)


def plan_as(
    flow: Flow,
    planner: PlannerName,
    *,
    demand: float,
    workers: int,
    solver: FlowSolver | None = None,
    factors: Factors | None = None,
    exits: Exits | None = None,
    before: FlowPlan | None = None,
    stage_demand: Sequence[float] | None = None,
) -> FlowPlan:
    """The named planner's plan for `demand` roots per second on at most `workers` workers; the rest as make_plan takes
    it. `stage_demand`: rows per second that each stage [stages] saw, for `proteus`; None: what the most accurate
    variants would send."""
    if planner == "arlo":
        return make_plan(
            flow,
            demand=demand,
            workers=workers,
            solver=solver,
            factors=factors,
            exits=exits,
            before=before,
        )
    began_s = monotonic_s()
    solver = solver or ExactFlowSolver()

    def program(best_only: bool = False) -> FlowProblem:
        return build.problem(
            flow,
            demand=demand,
            workers=workers,
            utilisation=1.0,
            variants=best_variants(flow) if best_only else None,
            factors=factors,
            exits=exits,
            single_batch=True,
        )

    if planner == "loki":
        found = _loki(flow, program(best_only=True), program(), solver)
    elif planner == "inferline":
        found = _inferline(flow, program(best_only=True), solver)
    else:
        found = proteus(flow, program(), solver, stage_demand)
    return dataclasses.replace(found, solve_s=monotonic_s() - began_s)


def planner_of(flow: Flow, name: PlannerName) -> fleet.Planner:
    """The planner of a name for a simulation; each stage of `proteus` sees its own rows."""
    if name == "arlo":
        return fleet.planner_of(flow)

    def plan(demand: float, workers: int, before: FlowPlan | None, rows: Sequence[float] | None) -> FlowPlan:
        return plan_as(flow, name, demand=demand, workers=workers, before=before, stage_demand=rows)

    return plan


def sweep(flow: Flow, planner: PlannerName, workers: int, demands: Sequence[float]) -> list[FlowPlan]:
    """A plan for each demand, each knowing the one before; `proteus` sees the rows that its last plan sent."""
    plans: list[FlowPlan] = []
    for demand in demands:
        before = plans[-1] if plans else None
        seen = None if before is None else stage_rates_of(before, demand)
        plans.append(plan_as(flow, planner, demand=demand, workers=workers, before=before, stage_demand=seen))
    return plans


def stage_rates_of(plan: FlowPlan, demand: float) -> list[float] | None:
    """Rows per second at each stage [stages] that this demand brings under a plan; None: the plan serves nothing."""
    if plan.served <= 0:
        return None
    scale = demand / plan.demand / plan.served
    return [
        scale * sum(pool.load for pool in plan.pools if pool.stage == stage) for stage in range(len(plan.flow.stages))
    ]


def _loki(flow: Flow, best_only: FlowProblem, problem: FlowProblem, solver: FlowSolver) -> FlowPlan:
    first = solver.solve(best_only)
    assert first is not None
    if first.served >= 1 - WHOLE:
        fewest = fewest_workers(best_only, solver, first, 0.0)
        return build.plan(flow, best_only, fewest, planner="loki", step="hardware", fill=False)
    answer = most_accurate(problem, solver)
    full = answer.served >= 1 - WHOLE
    reason = slo_below_latency(problem) or ("" if full else overload(answer, problem))
    answer = on_all(answer, problem)
    return build.plan(
        flow, problem, answer, planner="loki", step="accuracy" if full else "overload", fill=False, reason=reason
    )


def _inferline(flow: Flow, problem: FlowProblem, solver: FlowSolver) -> FlowPlan:
    first = most_accurate(problem, solver)
    if first.served >= 1 - WHOLE:
        answer = fewest_workers(problem, solver, first, 0.0)
        return build.plan(flow, problem, answer, planner="inferline", step="hardware", fill=False)
    reason = slo_below_latency(problem) or overload(first, problem)
    answer = on_all(first, problem)
    return build.plan(flow, problem, answer, planner="inferline", step="overload", fill=False, reason=reason)
