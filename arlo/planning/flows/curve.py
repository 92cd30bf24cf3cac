"""The capacity of a flow, and its plans as demand grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from arlo.catalog.flow import Flow
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.planning.flows import build
from arlo.planning.flows.exact import ExactFlowSolver
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan

PROBE = 1e6  # requests per second: far beyond any demand


def capacity(
    flow: Flow, workers: int, *, utilisation: float = 1.0, variants: Sequence[Sequence[int]] | None = None
) -> float:
    """Requests per second that these workers carry at most, at any accuracy, with these variants of each stage
    (None: all); 0 if no path is short enough."""
    solver, demand, found = ExactFlowSolver(), PROBE, 0.0
    for _ in range(3):  # the share served is known to 1e-4: near 1 the rate is as well
        asked = build.problem(flow, demand=demand, workers=workers, utilisation=utilisation, variants=variants)
        answer = solver.solve(asked, served_only=True)
        if answer is None or answer.served <= 0:
            return 0.0
        found = demand * answer.served
        if answer.served > 0.9:
            break
        demand *= 1 + answer.relaxed  # the demand served with fractions of instances
    return found


def sweep(flow: Flow, workers: int, demands: Sequence[float], *, outcomes: RowOutcomes | None = None) -> list[FlowPlan]:
    """A plan for each demand, each knowing the one before."""
    plans: list[FlowPlan] = []
    for demand in demands:
        before = plans[-1] if plans else None
        plans.append(make_plan(flow, outcomes=outcomes, demand=demand, workers=workers, before=before))
    return plans


def grid(most: float, count: int = 24) -> list[float]:
    """Demands up to somewhat beyond `most`, in round numbers."""
    step = most * 1.1 / count
    unit = 10 ** math.floor(math.log10(step))
    step = math.ceil(step / unit) * unit
    return [step * i for i in range(1, math.ceil(most * 1.1 / step) + 1)]
