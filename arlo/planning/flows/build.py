"""Converts a flow to a solver's program, and the solver's answer to a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from arlo.catalog.flow import Flow
from arlo.catalog.flow_accuracy import planned_accuracy
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.errors import ConfigError
from arlo.planning.flows.problem import Answer, FlowPlan, FlowProblem, Option, Pool, Route, Stage, Step

MAX_PREFIXES = 1_000_000
Factors = Mapping[tuple[int, int], float]  # (edge, variant of the tail) -> rows at the head for one at the tail
Exits = Mapping[tuple[int, int], float]  # (stage, variant) -> share of the rows that end there


def options(flow: Flow, stage: int, variants: Sequence[int], limit_s: float) -> tuple[Option, ...]:
    """Options of these variants, with every batch cap that alone keeps the limit and is worth its latency: of two with
    the same work the quicker one. If none keeps the limit, the quickest one stays, for the message."""
    found = []
    for variant in variants:
        spec = flow.stages[stage].variants[variant]
        bins = flow.stages[stage].bins(variant)
        last = max((i for i, share in enumerate(bins) if share > 0), default=0)
        mine: list[Option] = []
        for batch in spec.batch_caps:
            work = math.fsum(share * spec.latency_ns(batch, i) for i, share in enumerate(bins)) / batch / 1e9
            option = Option(variant, batch, work, spec.latency_ns(batch, last) / 1e9, spec.watts)
            if option.latency_s <= limit_s and all(option.work_s < other.work_s for other in mine):
                mine.append(option)
        found += mine
    if not found:
        return options(flow, stage, variants, math.inf)[:1]
    return tuple(found)


def weights(flow: Flow) -> list[float]:
    """The weight of each stage [stages]: its share of the weight that its parent's exits leave. Exits count equally, as
    in Loki's mean over source-to-sink paths."""
    leaves = [0] * len(flow.stages)
    for stage in reversed(flow.order):
        leaves[stage] = sum(leaves[child] for child in flow.children(stage)) or 1
    found = [1.0] * len(flow.stages)
    for stage in flow.order:
        for child in flow.children(stage):
            found[child] = leaves[child] / leaves[stage]
    return found


def _beside_s(flow: Flow, stage: int) -> float:
    """Least seconds after a stage whose rows join those of another branch, which has the head."""
    out = [edge for edge in flow.out(stage) if flow.edges[edge].join and not flow.of_tree(edge)]
    if not out:
        return 0.0
    edge = flow.edges[out[0]]
    assert edge.head is not None
    return edge.hop_ms / 2e3 + _least_s(flow, flow.index[edge.head])


def _least_s(flow: Flow, stage: int) -> float:
    variants = flow.stages[stage].variants
    own = min(variant.latency_ns(1) for variant in variants) / 1e9
    return own + max((_least_s(flow, child) for child in flow.children(stage)), default=0.0) + _beside_s(flow, stage)


def problem(
    flow: Flow,
    *,
    demand: float,
    workers: int,
    utilisation: float,
    variants: Sequence[Sequence[int]] | None = None,
    factors: Factors | None = None,
    exits: Exits | None = None,
    outcomes: RowOutcomes | None = None,
    single_batch: bool = False,
    held: Sequence[Sequence[int]] = (),
    joule: float = 0.0,
) -> FlowProblem:
    """The program of a flow. `variants`: those allowed at each stage; None: all. `factors`, `exits`: measured ones,
    which override the flow's. `held` [stages][variants]: the most instances of each; empty: any number.
    `joule`: the accuracy that a joule is worth. Half of the SLO, less the hops, is for executing (Loki, section 4.1):
    the rest is for waiting.
    """
    if not (math.isfinite(demand) and demand > 0):
        raise ConfigError(f"demand must be above 0 requests per second, not {demand}")
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, not {workers}")
    share = weights(flow)
    place = {stage: at for at, stage in enumerate(flow.order)}
    found = []
    for stage in flow.order:
        spec = flow.stages[stage]
        edge = flow.parent_edge[stage]
        line = flow.line(stage)
        if math.prod(len(flow.stages[i].variants) for i in line) > MAX_PREFIXES:
            raise ConfigError(
                f"stage {spec.name!r} has more than {MAX_PREFIXES:,} paths of variants: leave out the variants that"
                " `arlo plan flow` calls dominated"
            )
        limit = (flow.slo_ms - flow.hops_ms(stage)) / 2e3 - _beside_s(flow, stage)
        leaf = not flow.children(stage)
        known_exits = exits or {}
        ends = tuple(
            1.0 if leaf else known_exits.get((stage, k), flow.exit_share(stage, k)) for k in range(len(spec.variants))
        )
        allowed = range(len(spec.variants)) if variants is None else variants[stage]
        parent = None if edge is None else flow.index[flow.edges[edge].tail]
        factor: tuple[float, ...] = (1.0,)
        if edge is not None and parent is not None:
            known = range(len(flow.stages[parent].variants))
            factor = tuple((factors or {}).get((edge, k), flow.factor(edge, k)) for k in known)
        accuracy = tuple(planned_accuracy(flow, stage, prefix, outcomes) for prefix in flow.prefixes(stage))
        found.append(
            Stage(
                name=spec.name,
                parent=-1 if parent is None else place[parent],
                variants=len(spec.variants),
                options=options(flow, stage, allowed, limit),
                weight=share[stage],
                limit_s=limit,
                factor=factor,
                exit=ends,
                accuracy=accuracy,
            )
        )
    most = tuple(tuple(held[stage]) for stage in flow.order) if held else ()
    return FlowProblem(tuple(found), demand, workers, utilisation, single_batch, most, joule)


def plan(
    flow: Flow,
    problem: FlowProblem,
    answer: Answer,
    *,
    planner: str,
    step: Step,
    fill: bool,
    reason: str = "",
) -> FlowPlan:
    """A solver's answer as a plan. `fill`: budgets are stretched until the longest path in use fills the SLO; otherwise
    each is twice the latency, as in Loki's release, the SLO having been halved."""
    numbers: dict[tuple[int, int], int] = {}
    made: list[tuple[int, Option, int]] = []
    for at, counts in enumerate(answer.instances):
        for o, count in enumerate(counts):
            if count > 0:
                numbers[at, o] = len(made)
                made.append((at, problem.stages[at].options[o], count))
    shares: dict[tuple[int, tuple[int, ...]], float] = {}
    loads = [0.0] * len(made)
    for policy, share in answer.mixes:
        for at, load in enumerate(problem.load(policy)):
            path = tuple(numbers[j, policy[j]] for j in problem.line(at) if (j, policy[j]) in numbers)
            if len(path) < len(problem.line(at)):
                continue  # no row comes here: a factor of 0
            shares[at, path] = shares.get((at, path), 0.0) + share
            if load > 0:
                work = problem.stages[at].options[policy[at]].work_s
                loads[path[-1]] += share * load * problem.utilisation / work
    leaves = [at for at in range(len(problem.stages)) if all(stage.parent != at for stage in problem.stages)]
    longest = max(
        (
            sum(made[pool][1].latency_s for pool in path) / (2 * problem.stages[at].limit_s)
            for (at, path) in shares
            if at in leaves
        ),
        default=0.5,
    )
    stretch = 1 / (2 * longest) if fill and longest > 0 else 1.0
    pools = tuple(
        Pool(
            stage=flow.order[at],
            variant=option.variant,
            batch=option.batch,
            instances=count,
            latency_s=option.latency_s,
            capacity=count / option.work_s,
            load=loads[i],
            budget_s=2 * option.latency_s * stretch,
        )
        for i, (at, option, count) in enumerate(made)
    )
    routes = tuple(Route(flow.order[at], path, share) for (at, path), share in sorted(shares.items()) if share > 1e-12)
    work = problem.demand / problem.utilisation
    joules = math.fsum(share * problem.joules(policy) for policy, share in answer.mixes)
    # A plan with more accuracy than this, and a value proven impossible, draws more.
    bound = answer.bound + problem.joule * joules
    return FlowPlan(
        flow=flow,
        planner=planner,
        step=step,
        demand=problem.demand,
        workers_given=problem.workers,
        pools=pools,
        routes=routes,
        feasible=_feasible(problem, leaves, made),
        served=answer.served,
        accuracy=answer.accuracy / answer.served if answer.served > 0 else 0.0,
        bound=bound / answer.served if answer.served > 0 else 0.0,
        price=answer.price * work,
        utilisation=problem.utilisation,
        optimal=answer.optimal,
        reason=reason,
        joules=joules / answer.served if flow.metered and answer.served > 0 else None,
    )


def _feasible(
    problem: FlowProblem, leaves: Sequence[int], made: Sequence[tuple[int, Option, int]]
) -> tuple[tuple[int, ...], ...]:
    """Paths of pools from the root to a leaf that keep the limit, used or not."""
    found: list[tuple[int, ...]] = []
    for leaf in leaves:
        paths: list[tuple[int, ...]] = [()]
        for at in problem.line(leaf):
            here = [i for i, (stage, _, _) in enumerate(made) if stage == at]
            paths = [(*path, i) for path in paths for i in here]
        limit = problem.stages[leaf].limit_s
        found += [path for path in paths if sum(made[i][1].latency_s for i in path) <= limit]
    return tuple(found)
