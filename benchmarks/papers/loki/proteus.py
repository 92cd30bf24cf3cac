"""Proteus (ASPLOS'24) as Loki's baseline: every stage is scaled for itself (Loki, section 6.1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from arlo.catalog.flow import Flow
from arlo.planning.flows import build
from arlo.planning.flows.problem import Answer, FlowPlan, FlowProblem, FlowSolver, Option, Stage
from arlo.planning.flows.steps import WHOLE, best_variants, most_accurate, overload, slo_below_latency


def proteus(flow: Flow, problem: FlowProblem, solver: FlowSolver, stage_demand: Sequence[float] | None) -> FlowPlan:
    """A star: a root that costs nothing, and every stage as an independent model with its own demand."""
    seen = list(stage_demand) if stage_demand is not None else stage_rates(flow, problem)
    depth = [len(flow.line(stage)) for stage in range(len(flow.stages))]
    deepest = [
        max(depth[leaf] for leaf in range(len(flow.stages)) if stage in flow.line(leaf)) for stage in range(len(depth))
    ]
    stages = [Stage("", -1, 1, (Option(0, 1, 0.0, 0.0),), 1.0, math.inf, (1.0,), (0.0,), (0.0,))]
    for at, stage in enumerate(flow.order):
        limit = (flow.slo_ms - flow.hops_ms(stage)) / 2e3 / deepest[stage]
        stages.append(
            Stage(
                name=flow.stages[stage].name,
                parent=0,
                variants=problem.stages[at].variants,
                options=build.options(flow, stage, range(problem.stages[at].variants), limit),
                weight=1 / len(flow.order),
                limit_s=limit,
                factor=(max(seen[stage], 0.0) / problem.demand,),
                exit=(1.0,) * problem.stages[at].variants,
                accuracy=tuple(flow.stages[stage].accuracy(k) for k in range(problem.stages[at].variants)),
            )
        )
    star = dataclasses.replace(problem, stages=tuple(stages))
    answer = on_all(most_accurate(star, solver), star)
    independent = [
        [
            sum(share for policy, share in answer.mixes if policy[at + 1] == o)
            for o in range(len(stages[at + 1].options))
        ]
        for at in range(len(flow.order))
    ]
    # What the stages choose for themselves, put together: every path by chance.
    own = dataclasses.replace(
        problem,
        stages=tuple(
            dataclasses.replace(stage, options=stages[at + 1].options) for at, stage in enumerate(problem.stages)
        ),
    )
    mixes = tuple(_products(independent, answer.served))
    accuracy = math.fsum(share * own.accuracy(policy) for policy, share in mixes)
    together = dataclasses.replace(
        answer, instances=answer.instances[1:], mixes=mixes, accuracy=accuracy, bound=accuracy, relaxed=accuracy
    )
    full = answer.served >= 1 - WHOLE
    reason = slo_below_latency(star) or ("" if full else overload(answer, star))
    return build.plan(
        flow,
        own,
        together,
        planner="proteus",
        step="accuracy" if full else "overload",
        fill=False,
        reason=reason,
    )


def _products(shares: list[list[float]], served: float) -> list[tuple[tuple[int, ...], float]]:
    found: list[tuple[tuple[int, ...], float]] = [((), served)]
    for each in shares:
        total = sum(each)
        found = [
            ((*policy, o), share * part / total)
            for policy, share in found
            for o, part in enumerate(each)
            if total > 0 and part > 0
        ]
    return found


def stage_rates(flow: Flow, problem: FlowProblem) -> list[float]:
    """Rows per second at each stage [stages] when the most accurate variants send them."""
    best = best_variants(flow)
    rates = [0.0] * len(flow.stages)
    for at, stage in enumerate(flow.order):
        parent = problem.stages[at].parent
        above = flow.order[parent] if parent >= 0 else -1
        rates[stage] = problem.demand if parent < 0 else rates[above] * problem.stages[at].factor[best[above][0]]
    return rates


def on_all(answer: Answer, problem: FlowProblem) -> Answer:
    """Workers that are left go to the busiest pools: the printed program uses all of them."""
    counts = [list(each) for each in answer.instances]
    load = [[0.0] * len(each) for each in counts]
    for policy, share in answer.mixes:
        for at, whole in enumerate(problem.load(policy)):
            load[at][policy[at]] += share * whole
    for _ in range(problem.workers - answer.workers):
        pools = [(at, o) for at, each in enumerate(counts) for o, n in enumerate(each) if n > 0]
        if not pools:
            break
        at, o = max(pools, key=lambda pool: load[pool[0]][pool[1]] / counts[pool[0]][pool[1]])
        counts[at][o] += 1
    return dataclasses.replace(answer, instances=tuple(map(tuple, counts)))
