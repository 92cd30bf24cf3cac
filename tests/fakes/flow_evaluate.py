"""Whether a plan keeps U1-U7, computed from the flow and the plan alone: it shares no code with the planners."""

from __future__ import annotations

import dataclasses
import math

from arlo.catalog.flow_accuracy import planned_accuracy
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.planning.flows.problem import FlowPlan, Route

TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a plan comes to."""

    problems: tuple[str, ...]  # what it breaks, by number of the condition; empty: nothing
    served: float
    accuracy: float  # of what is served
    workers: int


def evaluate(plan: FlowPlan, outcomes: RowOutcomes | None = None) -> Verdict:
    """Checks a plan. Factors are those of its flow."""
    flow, pools = plan.flow, plan.pools
    problems: list[str] = []
    entry = [route for route in plan.routes if route.stage == flow.entry]
    served = math.fsum(route.share for route in entry)
    if served > 1 + TOLERANCE or abs(served - plan.served) > TOLERANCE:
        problems.append(f"U1: {served:.6g} of the demand enters, the plan says {plan.served:.6g}")
    for route in plan.routes:
        line = flow.line(route.stage)
        if [pools[i].stage for i in route.pools] != list(line) or route.share < 0:
            problems.append(f"U2: {route} is no path to its stage")
            continue
        for child in flow.children(route.stage):
            onward = math.fsum(
                other.share for other in plan.routes if other.stage == child and other.pools[:-1] == route.pools
            )
            edge = flow.parent_edge[child]
            assert edge is not None
            if abs(onward - route.share) > TOLERANCE and flow.factor(edge, pools[route.pools[-1]].variant) > 0:
                problems.append(
                    f"U2: {route.share:.6g} comes to {flow.label(*_variants(plan, route))}, {onward:.6g} goes on"
                )
    for number, pool in enumerate(pools):
        spec = flow.stages[pool.stage].variants[pool.variant]
        bins = flow.stages[pool.stage].bins(pool.variant)
        rows = math.fsum(
            plan.demand * route.share * flow.multiplicity(*_variants(plan, route))
            for route in plan.routes
            if route.pools[-1] == number
        )
        seconds = math.fsum(bins[i] * spec.latency_ns(pool.batch, i) / 1e9 for i in range(len(bins))) / pool.batch
        if rows * seconds > plan.utilisation * pool.instances * (1 + TOLERANCE):
            problems.append(
                f"U5: {rows:.6g} rows/s of {seconds:.4g} s on {pool.instances} of {spec.name} x {pool.batch}"
            )
    if plan.workers > plan.workers_given:
        problems.append(f"U6: {plan.workers} instances on {plan.workers_given} workers")
    for route in plan.routes:
        spent = 0.0
        for i in route.pools:
            variant = flow.stages[pools[i].stage].variants[pools[i].variant]
            used = [
                variant.latency_ns(pools[i].batch, j) / 1e6
                for j, share in enumerate(flow.stages[pools[i].stage].bins(pools[i].variant))
                if share > 0
            ]
            spent += max(used)
        if spent > (flow.slo_ms - flow.hops_ms(route.stage)) / 2 + 1e-6:
            problems.append(f"U7: {flow.label(*_variants(plan, route))} takes {spent:.6g} ms")
    return Verdict(tuple(problems), served, _accuracy(plan, served, outcomes), plan.workers)


def _variants(plan: FlowPlan, route: Route) -> tuple[int, tuple[int, ...]]:
    return route.stage, tuple(plan.pools[i].variant for i in route.pools)


def _accuracy(plan: FlowPlan, served: float, outcomes: RowOutcomes | None) -> float:
    """Mean over the exits. Each leaf counts alike, but what exits earlier is taken off."""
    flow = plan.flow
    leaves = [stage for stage in range(len(flow.stages)) if not flow.children(stage)]
    total = 0.0
    for route in plan.routes:
        stage, variants = _variants(plan, route)
        line = flow.line(stage)
        below = sum(1 for leaf in leaves if stage in flow.line(leaf))
        weight = below / len(leaves)
        for i, variant in zip(line[:-1], variants, strict=False):
            weight *= 1 - flow.exit_share(i, variant)
        ends = 1.0 if stage in leaves else flow.exit_share(stage, variants[-1])
        total += route.share * weight * ends * planned_accuracy(flow, stage, variants, outcomes)
    return total / served if served > 0 else 0.0
