"""What a flow carries, and what plans come to as demand grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from arlo.catalog.flow import Flow
from arlo.planning.flows import build
from arlo.planning.flows.exact import ExactFlowSolver
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan

PROBE = 1e6  # requests per second: far beyond what is asked for


def capacity(
    flow: Flow, workers: int, *, utilisation: float = 1.0, variants: Sequence[Sequence[int]] | None = None
) -> float:
    """Requests per second that so many workers carry at most, whatever their accuracy, with these variants of each
    stage (None: all); 0 where no path is short enough."""
    solver, demand, found = ExactFlowSolver(), PROBE, 0.0
    for _ in range(3):  # the share served is known to 1e-4: near 1 the rate is, too
        asked = build.problem(flow, demand=demand, workers=workers, utilisation=utilisation, variants=variants)
        answer = solver.solve(asked, served_only=True)
        if answer is None or answer.served <= 0:
            return 0.0
        found = demand * answer.served
        if answer.served > 0.9:
            break
        demand *= 1 + answer.relaxed  # what could be served with fractions of instances
    return found


def sweep(flow: Flow, workers: int, demands: Sequence[float], planner: str) -> list[FlowPlan]:
    """A plan for each demand, each knowing the one before; `proteus` sees the rows that its last plan sent."""
    plans: list[FlowPlan] = []
    for demand in demands:
        before = plans[-1] if plans else None
        seen = None if before is None else stage_rates_of(before, demand)
        plans.append(make_plan(flow, demand=demand, workers=workers, planner=planner, before=before, stage_demand=seen))
    return plans


def stage_rates_of(plan: FlowPlan, demand: float) -> list[float] | None:
    """Rows per second at each stage [stages] that this demand brings under a plan; None: the plan serves nothing."""
    if plan.served <= 0:
        return None
    scale = demand / plan.demand / plan.served
    return [
        scale * math.fsum(pool.load for pool in plan.pools if pool.stage == stage)
        for stage in range(len(plan.flow.stages))
    ]


def grid(most: float, count: int = 24) -> list[float]:
    """Demands up to somewhat beyond `most`, in round numbers."""
    step = most * 1.1 / count
    unit = 10 ** math.floor(math.log10(step))
    step = math.ceil(step / unit) * unit
    return [step * i for i in range(1, math.ceil(most * 1.1 / step) + 1)]
