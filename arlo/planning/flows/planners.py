"""Planners of flows by name.

    plan = make_plan(flow, demand=300, workers=20)                # the flow's own planner
    plan = make_plan(flow, demand=300, workers=20, planner="loki")

`loki` as printed (section 4): first the fewest workers with the most accurate variant of every stage; when these do
not fit, the greatest accuracy on all workers. Capacity is used to the full; budgets are twice the latency, as in
the authors' release (the paper: once).
`inferline`: the most accurate variants always; when they do not fit, the greatest share served. `proteus`: every stage
for itself, by the demand that it sees and its part of the SLO, always on all workers. `arlo`: served share, then
accuracy less what the energy for it is worth (`flow.joule`), then fewer workers, then fewer moves, with a part of the
capacity left free (a fixed one, or what window.py finds) and budgets that fill the SLO.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from typing import get_args

from arlo.catalog.flow import Flow, PlannerName
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.clock import monotonic_s
from arlo.errors import ConfigError
from arlo.planning.flows import build
from arlo.planning.flows.build import Exits, Factors
from arlo.planning.flows.exact import ExactFlowSolver
from arlo.planning.flows.exits import settled
from arlo.planning.flows.gurobi import GurobiFlowSolver
from arlo.planning.flows.highs import HighsFlowSolver
from arlo.planning.flows.problem import FlowPlan, FlowProblem, FlowSolver, Step
from arlo.planning.flows.proteus import proteus
from arlo.planning.flows.steps import (
    WHOLE,
    best_variants,
    fewest_workers,
    most_accurate,
    on_all,
    overload,
    slo_below_latency,
)
from arlo.planning.flows.window import Second, by_window

PLANNERS: tuple[PlannerName, ...] = get_args(PlannerName)
SOLVERS = ("exact", "highs", "gurobi")


def make_solver(name: str) -> FlowSolver:
    """The solver of a name. ConfigError names the nearest match of an unknown one."""
    if name == "exact":
        return ExactFlowSolver()
    if name == "highs":
        return HighsFlowSolver()
    if name == "gurobi":
        return GurobiFlowSolver()
    match = difflib.get_close_matches(name, SOLVERS, n=1, cutoff=0.5)
    hint = f"did you mean {match[0]!r}?" if match else f"known: {', '.join(SOLVERS)}"
    raise ConfigError(f"there is no solver {name!r} of flows: {hint}")


def make_plan(
    flow: Flow,
    *,
    demand: float,
    workers: int,
    planner: str | None = None,
    solver: FlowSolver | None = None,
    factors: Factors | None = None,
    exits: Exits | None = None,
    outcomes: RowOutcomes | None = None,
    held: Sequence[Sequence[int]] = (),
    before: FlowPlan | None = None,
    within: float = 0.0,
    stage_demand: Sequence[float] | None = None,
    window: Sequence[Second] = (),
    utilisation: float | None = None,
) -> FlowPlan:
    """A plan for `demand` roots per second on at most `workers` workers, by the flow's planner or the named one.

    `factors`: measured rows at the head of an edge for a row of a variant at its tail; `exits`: measured shares of the
    rows of a variant that end at its stage. `outcomes`: recorded rows, for the accuracies of paths. `held`
    [stages][variants]: at most so many instances of each; empty: any number. `before`: the plan that is in force; of
    two equally good ones `arlo` takes that which moves fewer workers. `within`: accuracy that `arlo` gives up for fewer
    workers. `stage_demand`: rows per second that each stage [stages] saw, for `proteus`; None: what the most accurate
    variants would send. `window`: seconds that say the utilisation, where the flow leaves it to them; `utilisation`:
    for `arlo`, in place of the flow's. ConfigError when wrong.
    """
    name = planner or flow.planner
    if name not in PLANNERS:
        match = difflib.get_close_matches(name, PLANNERS, n=1, cutoff=0.5)
        raise ConfigError(
            f"there is no planner {name!r}: {f'did you mean {match[0]!r}?' if match else f'known: {PLANNERS}'}"
        )
    began_s = monotonic_s()
    solver = solver or ExactFlowSolver()
    counted = bool(factors or exits)  # then what goes on is known

    def make(flow: Flow, outcomes: RowOutcomes | None) -> FlowPlan:
        def program(utilisation: float, best_only: bool = False, single_batch: bool = True) -> FlowProblem:
            return build.problem(
                flow,
                demand=demand,
                workers=workers,
                utilisation=utilisation,
                variants=best_variants(flow) if best_only else None,
                factors=factors,
                exits=exits,
                outcomes=outcomes,
                single_batch=single_batch,
                held=held,
                joule=flow.joule if name == "arlo" else 0.0,
            )

        if name == "arlo":
            found = by_window(
                flow if utilisation is None else dataclasses.replace(flow, utilisation=utilisation),
                window,
                lambda part: _arlo(flow, program(part, single_batch=False), solver, before, within),
            )
        elif name == "loki":
            found = _loki(flow, program(1.0, best_only=True), program(1.0), solver)
        elif name == "inferline":
            found = _inferline(flow, program(1.0, best_only=True), solver)
        else:
            found = proteus(flow, program(1.0), solver, stage_demand)
        return found

    if outcomes is not None and not counted and any(edge.when.follows for edge in flow.edges):
        found = settled(flow, outcomes, make)
    else:
        found = make(flow, outcomes)
    return dataclasses.replace(found, solve_s=monotonic_s() - began_s)


def _arlo(flow: Flow, problem: FlowProblem, solver: FlowSolver, before: FlowPlan | None, within: float) -> FlowPlan:
    best = most_accurate(problem, solver)
    answer = fewest_workers(problem, solver, best, within)
    full = best.served >= 1 - WHOLE
    top = max(problem.accuracy(policy) - problem.joule * problem.joules(policy) for policy in _best_policies(problem))
    step: Step = "overload" if not full else "hardware" if problem.value(answer) >= top - within - 1e-9 else "accuracy"
    reason = slo_below_latency(problem) or ("" if full else overload(best, problem))
    made = build.plan(flow, problem, answer, planner="arlo", step=step, fill=True, reason=reason)
    return _keep(problem, solver, made, before)


def _best_policies(problem: FlowProblem) -> list[tuple[int, ...]]:
    """That of the greatest value, however many workers it takes, by a solver with all workers that could be needed."""
    rich = dataclasses.replace(problem, workers=100_000, demand=problem.demand * 1e-6)
    found = ExactFlowSolver(1).solve(rich)
    return [policy for policy, _ in found.mixes] if found is not None and found.mixes else [(0,) * len(problem.stages)]


def _keep(problem: FlowProblem, solver: FlowSolver, made: FlowPlan, before: FlowPlan | None) -> FlowPlan:
    """The instances of the plan in force, where these serve as much as accurately on as many workers."""
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
