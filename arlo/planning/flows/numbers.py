"""The core's (src/flow/pipeline) numbering of a flow, and a plan's values for the core in these numbers. Pure."""

from __future__ import annotations

import dataclasses

from arlo.catalog.flow import Flow, Prefix
from arlo.planning.flows.problem import FlowPlan

SECOND_NS = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanValues:
    """flow::pipeline::Plan: by prefix [nodes] or variant [variants], in the core's order."""

    demand: float  # roots per second
    price: float
    share: list[float]
    feasible: list[int]  # empty: all are feasible
    rate: list[float]  # rows per second of one instance
    budget_ns: list[int]
    time_ns: list[int]


class Numbers:
    """Stages parents first, variants and prefixes stage by stage."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.order = flow.order
        self.place = {stage: at for at, stage in enumerate(flow.order)}
        self.variant: dict[tuple[int, int], int] = {}  # (stage, variant) -> number
        self.node: dict[tuple[int, Prefix], int] = {}  # (stage, variants from the entry on) -> number
        for stage in self.order:
            for k in range(len(flow.stages[stage].variants)):
                self.variant[stage, k] = len(self.variant)
            for prefix in flow.prefixes(stage):
                self.node[stage, prefix] = len(self.node)

    def instances(self, plan: FlowPlan) -> list[int]:
        """Instances of each variant, summed over its batch caps."""
        found = [0] * len(self.variant)
        for pool in plan.pools:
            found[self.variant[pool.stage, pool.variant]] += pool.instances
        return found

    def values(self, plan: FlowPlan, *, shared: bool) -> PlanValues:
        """The plan's values for the core. `shared`: every worker holds all variants."""
        share = [0.0] * len(self.node)
        for key, value in plan.shares().items():
            share[self.node[key]] = value
        feasible = [0] * len(self.node)
        for path in plan.feasible:
            prefix: Prefix = ()
            for number in path:
                prefix = (*prefix, plan.pools[number].variant)
                feasible[self.node[plan.pools[number].stage, prefix]] = 1
        count = len(self.variant)
        rows, busy, instances = [0.0] * count, [0.0] * count, self.instances(plan)
        time = [int(self.flow.stages[stage].variants[k].latency_ns(1)) for stage, k in self.variant]
        budget = [2 * ns for ns in time]
        for pool in plan.pools:
            v = self.variant[pool.stage, pool.variant]
            rows[v] += pool.capacity
            busy[v] += pool.load / plan.utilisation
            time[v] = max(time[v], round(pool.latency_s * SECOND_NS))
            budget[v] = max(budget[v], round(pool.budget_s * SECOND_NS))
        total = max(sum(instances), 1)
        return PlanValues(
            demand=plan.demand,
            price=max(plan.price, 0.0),
            share=share,
            feasible=feasible if any(feasible) else [],
            rate=[busy[v] / total if shared else rows[v] / instances[v] if instances[v] else 0.0 for v in range(count)],
            budget_ns=budget,
            time_ns=time,
        )
