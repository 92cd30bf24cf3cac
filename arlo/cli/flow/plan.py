"""`arlo plan flow --demand`: a plan for a demand."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arlo.catalog.flow_file import load_flow
from arlo.catalog.flow_outcomes import records_of
from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.report.numbers import ms, share
from arlo.report.terminal import columns, console

if TYPE_CHECKING:
    from arlo.catalog.flow import Flow
    from arlo.planning.flows.problem import FlowPlan
    from arlo.planning.flows.window import Second


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    from arlo.planning.flows.planners import make_plan

    flow = load_flow(args.flow)
    if args.trace is not None and flow.utilisation != "window":
        raise ConfigError('--trace says how the demand varies, for flows with utilisation = "window" only')
    plan = make_plan(
        flow,
        outcomes=records_of(flow),
        demand=args.demand,
        workers=args.workers,
        within=args.within,
        window=_window(flow, args) if flow.utilisation == "window" else (),
    )
    if args.json:
        print_json(as_json(plan))
    else:
        _print(plan)
    return 0


def _window(flow: Flow, args: argparse.Namespace) -> Sequence[Second]:
    """Seconds counted as if the flow were served: of a trace, at the demand, or of a Poisson process."""
    import numpy as np

    from arlo.planning.flows.live import drawn
    from arlo.planning.flows.window import WINDOW_S
    from arlo.traces.readers import read_trace

    random, seconds = np.random.default_rng(0), WINDOW_S + max(round(flow.plan_period_s), 1)
    if not (math.isfinite(args.demand) and args.demand > 0):
        return ()  # the planner reports it
    if args.trace is None:
        return drawn(flow, random.poisson(args.demand, seconds).tolist(), random)
    arrived = read_trace(args.trace).arrived_at_s
    counts = np.bincount(arrived.astype(int))[-seconds:] if len(arrived) else np.zeros(1)
    return drawn(flow, np.rint(counts * args.demand / max(counts.mean(), 1e-9)).astype(int).tolist(), random)


POOLS = ("stage", "variant", "batch", "instances", "ms", "budget", "rows/s", "busy")


def pools(plan: FlowPlan) -> list[tuple[str, ...]]:
    """A row of POOLS for each pool, in the order of the tree, stages indented by depth."""
    flow = plan.flow
    return [
        (
            "\u2003" * (len(flow.line(pool.stage)) - 1) + flow.stages[pool.stage].name,
            flow.stages[pool.stage].variants[pool.variant].name,
            str(pool.batch),
            str(pool.instances),
            ms(pool.latency_s * 1e3),
            ms(pool.budget_s * 1e3),
            f"{pool.load:,.4g}",
            share(pool.load / pool.capacity if pool.capacity else 0.0),
        )
        for pool in sorted(plan.pools, key=lambda pool: flow.order.index(pool.stage))
    ]


def as_json(plan: FlowPlan) -> dict[str, Any]:
    """The plan in a form for scripts."""
    flow, backup = plan.flow, dict(plan.backup())
    names = [(flow.stages[p.stage].name, flow.stages[p.stage].variants[p.variant].name, p.batch) for p in plan.pools]
    same = ("step", "reason", "demand", "workers", "workers_given", "served", "accuracy", "optimal", "price",
            "utilisation", "note", "joules", "solve_s")  # fmt: skip
    return {
        "flow": flow.name,
        **{name: getattr(plan, name) for name in same},
        "accuracy_bound": plan.bound,
        "instances": [
            {
                "stage": stage,
                "variant": variant,
                "batch": batch,
                "instances": pool.instances,
                "latency_ms": pool.latency_s * 1e3,
                "budget_ms": pool.budget_s * 1e3,
                "rows_per_s": pool.load,
                "capacity_per_s": pool.capacity,
                "backup_per_s": backup.get(i, 0.0),
            }
            for i, ((stage, variant, batch), pool) in enumerate(zip(names, plan.pools, strict=True))
        ],
        "shares": {flow.label(*key): f for key, f in plan.shares().items()},
        "feasible_paths": [
            ">".join(f"{stage}:{variant}x{batch}" for stage, variant, batch in (names[i] for i in path))
            for path in plan.feasible
        ],
    }


def _print(plan: FlowPlan) -> None:
    flow = plan.flow
    print(
        f"{flow.name}: {plan.demand:g} requests/s on {plan.workers} of {plan.workers_given} worker(s),"
        f" {plan.step} scaling"
    )
    left = "" if plan.optimal else f" (at most {share(plan.bound)})"
    drawn = "" if plan.joules is None else f", {plan.joules:.3g} J a request"
    print(
        f"served {share(plan.served)}, accuracy {share(plan.accuracy)}{left}{drawn}, planned in"
        f" {plan.solve_s * 1e3:.1f} ms"
    )
    console(100).print(columns(POOLS, pools(plan), left=(0, 1)))
    print("share of the requests by path:")
    for key, f in plan.shares().items():
        if not flow.children(key[0]):
            print(f"  {f:7.2%}  {flow.label(*key)}")
    for text in (plan.note, plan.reason):
        if text:
            print(text)
