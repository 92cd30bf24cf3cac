"""The planner of flows.

    plan = make_plan(flow, demand=300, workers=20)

Priorities: served share; accuracy less the worth of its energy (`flow.joule`); fewer workers; fewer moves.
A part of the capacity is left free (a fixed one, or the one that window.py finds), and budgets fill the SLO (Loki,
HPDC'24, section 4, leaves nothing; benchmarks/papers/loki has its planner as printed).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from arlo.catalog.flow import Flow
from arlo.catalog.flow_exits import at_price, cost_s
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.clock import monotonic_s
from arlo.planning.flows import build
from arlo.planning.flows.build import Exits, Factors
from arlo.planning.flows.exact import ExactFlowSolver
from arlo.planning.flows.problem import FlowPlan, FlowProblem, FlowSolver, Step
from arlo.planning.flows.steps import WHOLE, fewest_workers, most_accurate, overload, slo_below_latency
from arlo.planning.flows.window import Second, by_window

HALVINGS = 10  # of the price of exits that follow the load
RANGE = 1e4  # between the price at which no row goes on and the lowest price tried
SERVED = 1e-4  # share of the demand that may be unserved


def make_plan(
    flow: Flow,
    *,
    demand: float,
    workers: int,
    solver: FlowSolver | None = None,
    factors: Factors | None = None,
    exits: Exits | None = None,
    outcomes: RowOutcomes | None = None,
    held: Sequence[Sequence[int]] = (),
    before: FlowPlan | None = None,
    within: float = 0.0,
    window: Sequence[Second] = (),
    utilisation: float | None = None,
) -> FlowPlan:
    """A plan for `demand` roots per second on at most `workers` workers.

    `factors`: measured rows at the head of an edge for a row of a variant at its tail; `exits`: measured shares of the
    rows of a variant that end at its stage. `outcomes`: recorded rows, for the accuracies of paths. `held`
    [stages][variants]: the most instances of each; empty: any number. `before`: the plan in force; of two equally good
    plans, the one that moves fewer workers is taken. `within`: accuracy given up for fewer workers. `window`: seconds
    that determine the utilisation, where the flow leaves it to them; `utilisation`: overrides the flow's. ConfigError
    when wrong.
    """
    began_s = monotonic_s()
    solver = solver or ExactFlowSolver()
    counted = bool(factors or exits)  # the shares that go on are known then

    def make(flow: Flow, outcomes: RowOutcomes | None) -> FlowPlan:
        def program(utilisation: float) -> FlowProblem:
            return build.problem(
                flow,
                demand=demand,
                workers=workers,
                utilisation=utilisation,
                factors=factors,
                exits=exits,
                outcomes=outcomes,
                held=held,
                joule=flow.joule,
            )

        return by_window(
            flow if utilisation is None else dataclasses.replace(flow, utilisation=utilisation),
            window,
            lambda part: _plan(flow, program(part), solver, before, within),
        )

    if outcomes is not None and not counted and any(edge.when.follows for edge in flow.edges):
        found = _settled(flow, outcomes, make)
    else:
        found = make(flow, outcomes)
    return dataclasses.replace(found, solve_s=monotonic_s() - began_s)


def _settled(flow: Flow, records: RowOutcomes, plan: Callable[[Flow, RowOutcomes], FlowPlan]) -> FlowPlan:
    """The plan of a flow at which both prices agree, to a hundredth. The dearer time is, the fewer rows go on, which
    makes it cheaper: so the price is found by halving. At price 0 every row that gains goes on, if there is room;
    where not all can be served, fewer go on."""
    found = plan(*at_price(flow, records, 0.0))
    if found.price <= 0 and found.served >= 1 - SERVED:
        return found
    least = min(cost_s(flow.stages, flow.edges, e) for e, edge in enumerate(flow.edges) if edge.when.follows)
    high = 1 / least  # no row gains more than one right answer
    low = high / RANGE
    found = plan(*at_price(flow, records, high))
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        tried = plan(*at_price(flow, records, middle))
        if tried.served < 1 - SERVED or tried.price > middle:
            low = middle
        else:
            high, found = middle, tried
    return found


def _plan(flow: Flow, problem: FlowProblem, solver: FlowSolver, before: FlowPlan | None, within: float) -> FlowPlan:
    best = most_accurate(problem, solver)
    answer = fewest_workers(problem, solver, best, within)
    full = best.served >= 1 - WHOLE
    top = max(problem.accuracy(policy) - problem.joule * problem.joules(policy) for policy in _best_policies(problem))
    step: Step = "overload" if not full else "hardware" if problem.value(answer) >= top - within - 1e-9 else "accuracy"
    reason = slo_below_latency(problem) or ("" if full else overload(best, problem))
    made = build.plan(flow, problem, answer, planner="arlo", step=step, fill=True, reason=reason)
    return _keep(problem, solver, made, before)


def _best_policies(problem: FlowProblem) -> list[tuple[int, ...]]:
    """Policies with the greatest value at any number of workers, from a solver with more workers than needed."""
    rich = dataclasses.replace(problem, workers=100_000, demand=problem.demand * 1e-6)
    found = ExactFlowSolver(1).solve(rich)
    return [policy for policy, _ in found.mixes] if found is not None and found.mixes else [(0,) * len(problem.stages)]


def _keep(problem: FlowProblem, solver: FlowSolver, made: FlowPlan, before: FlowPlan | None) -> FlowPlan:
    """The instances of the plan in force, if they serve as much, as accurately, on no more workers."""
    if before is None or made.moves(before) == 0 or before.workers > made.workers:
        return made
    flow, target = made.flow, made.value * made.served
    held = {(flow.order.index(stage), variant, batch): n for (stage, variant, batch), n in before.instances().items()}
    stages = []
    for at, stage in enumerate(problem.stages):
        kept = tuple(o for o in stage.options if (at, o.variant, o.batch) in held)
        if not kept:
            return made
        stages.append(dataclasses.replace(stage, options=kept))
    small = dataclasses.replace(problem, stages=tuple(stages), workers=before.workers)
    found = solver.solve(small, served=made.served, target=target)
    if found is None or found.served < made.served - WHOLE or problem.value(found) < target - 1e-9:
        return made
    again = build.plan(flow, small, found, planner="arlo", step=made.step, fill=True, reason=made.reason)
    if again.workers > made.workers or again.moves(before) >= made.moves(before):
        return made
    bound = made.bound + flow.joule * ((again.joules or 0.0) - (made.joules or 0.0))
    return dataclasses.replace(again, workers_given=problem.workers, bound=bound, price=made.price)
