"""`arlo flow report`: one page about a flow: its picture, and what plans make of it as demand grows."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from arlo.catalog.flow_file import load_flow
from arlo.cli.flow.plan import as_json
from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.report import figure as frame
from arlo.report import page
from arlo.report.numbers import digits, ms, share
from arlo.report.table import table

if TYPE_CHECKING:
    from arlo.catalog.flow import Flow
    from arlo.planning.flows.problem import FlowPlan

PLANNED = "as planned"
WHOLE = "nothing left free"


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from arlo.planning.flows.check import check
    from arlo.planning.flows.curve import capacity, grid, sweep
    from arlo.planning.flows.planners import make_plan
    from arlo.planning.flows.steps import best_variants

    flow = load_flow(args.flow)
    found = check(flow)
    if found.problems:
        raise ConfigError(found.problems[0])
    most = capacity(flow, args.workers)
    best = capacity(flow, args.workers, variants=best_variants(flow))
    demands = grid(most)
    plans = {PLANNED: sweep(flow, args.workers, demands)}
    if flow.utilisation != 1:
        whole = dataclasses.replace(flow, utilisation=1.0)
        plans[WHOLE] = sweep(whole, args.workers, demands)
    demand = args.demand if args.demand is not None else most / 2
    plan = make_plan(flow, demand=demand, workers=args.workers)
    cards = [
        (f"{best:,.4g}/s", f"carried by the most accurate variants on {args.workers} workers"),
        (f"{most:,.4g}/s", "carried by the cheapest ones"),
        (f"× {most / best:.2f}" if best > 0 else "-", "by giving up accuracy"),
        (share(plan.accuracy), f"accuracy at {demand:,.4g}/s"),
    ]
    parts = [
        page.cards(cards),
        page.warnings(found.warnings),
        page.plots([_picture(plan), *_curves(plans)], ["", _what_is_free(flow)]),
        f"<h2>Instances at {demand:,.4g} requests a second</h2>",
        _pools(plan),
        "<h2>Variants</h2>",
        _variants(flow),
    ]
    what = [
        "What plans make of the flow, from its latencies and accuracies; nothing was run. Capacity is without the"
        " share that a plan leaves free."
    ]
    page.write(args.out, page.render(f"Flow {flow.name}", parts, what=what))
    if args.json:
        print_json(
            {
                "written": str(args.out),
                "capacity_most_accurate": best,
                "capacity": most,
                "plan": as_json(plan),
                "curves": {name: [_point(each) for each in made] for name, made in plans.items()},
            }
        )
    else:
        print(f"written to {args.out}")
    return 0


def _point(plan: FlowPlan) -> dict[str, Any]:
    return {
        "demand": plan.demand,
        "served": plan.served,
        "accuracy": plan.accuracy,
        "workers": plan.workers,
        "step": plan.step,
    }


def _what_is_free(flow: Flow) -> str:
    """Why one line runs below the other."""
    free = "a share" if isinstance(flow.utilisation, str) else f"{1 - flow.utilisation:.0%}"
    return (
        f"A plan leaves {free} of each stage's capacity free for arrivals above the mean (utilisation), so it gives up "
        "accuracy earlier. The dashed line is without that."
        if flow.utilisation != 1
        else ""
    )


def _curves(plans: dict[str, list[FlowPlan]]) -> list[Any]:
    figures = []
    for title, y, of in (
        ("Accuracy of what is served", "accuracy", lambda plan: plan.accuracy),
        ("Share of the demand that is served", "share", lambda plan: plan.served),
        ("Workers", "workers", lambda plan: float(plan.workers)),
    ):
        figure = frame.figure(title, "requests a second", y)
        for name, made in plans.items():
            figure.add_scatter(
                x=[digits(plan.demand) for plan in made],
                y=[digits(of(plan)) for plan in made],
                mode="lines",
                name=name,
                line={"color": frame.color(0)} | ({"dash": "dash"} if name == WHOLE else {}),
            )
        figures.append(figure)
    return figures


def _picture(plan: FlowPlan) -> Any:
    """The tree, from left to right: stages with their variants, edges with their rates."""
    flow = plan.flow
    figure = frame.figure(f"{flow.name} at {plan.demand:,.4g} requests a second", "", "")
    leaves = [stage for stage in flow.order if not flow.children(stage)]
    place: dict[int, tuple[float, float]] = {}
    for stage in reversed(flow.order):
        below = [place[child][1] for child in flow.children(stage)]
        y = sum(below) / len(below) if below else -float(leaves.index(stage))
        place[stage] = (float(len(flow.line(stage))), y)
    for stage in flow.order:
        x, y = place[stage]
        pools = [pool for pool in plan.pools if pool.stage == stage]
        rows = sum(pool.load for pool in pools)
        lines = [f"<b>{flow.stages[stage].name}</b>, {rows:,.4g} rows/s"]
        for pool in pools:
            name = flow.stages[stage].variants[pool.variant].name
            lines.append(f"{pool.instances} × {name} (batch {pool.batch}), {pool.load:,.4g}/s")
        figure.add_annotation(
            x=x,
            y=y,
            text="<br>".join(lines),
            showarrow=False,
            bordercolor=frame.BLUE,
            borderpad=6,
            bgcolor="#ffffff",
            align="left",
        )
        for edge in (flow.edges[i] for i in flow.out(stage)):
            if edge.head is not None:
                to_x, to_y = place[flow.index[edge.head]]
                line = {"color": frame.GREY, "width": 2, "dash": "dot" if edge.join else "solid"}
                figure.add_shape(type="line", x0=x, y0=y, x1=to_x, y1=to_y, line=line, layer="below")
    deepest = max(x for x, _ in place.values())
    figure.add_scatter(
        x=[x for x, _ in place.values()],
        y=[y for _, y in place.values()],
        mode="markers",
        marker={"color": frame.PALE},
        showlegend=False,
        hoverinfo="skip",
    )
    figure.update_xaxes(visible=False, range=[0.5, deepest + 0.5])
    figure.update_yaxes(visible=False, range=[0.5 - len(leaves), 0.5])
    return figure


def _pools(plan: FlowPlan) -> str:
    rows = [
        (
            plan.flow.stages[pool.stage].name,
            plan.flow.stages[pool.stage].variants[pool.variant].name,
            str(pool.batch),
            str(pool.instances),
            ms(pool.latency_s * 1e3),
            ms(pool.budget_s * 1e3),
            f"{pool.load:,.4g}",
            share(pool.load / pool.capacity),
        )
        for pool in plan.pools
    ]
    return table(("stage", "variant", "batch", "instances", "ms of a batch", "budget ms", "rows/s", "busy"), rows)


def _variants(flow: Flow) -> str:
    rows = []
    for stage in flow.order:
        spec = flow.stages[stage]
        for k, variant in enumerate(spec.variants):
            cap = max(variant.batch_caps)
            onward = ", ".join(
                f"{flow.factor(edge, k):.4g} to {flow.edges[edge].head}"
                for edge in flow.out(stage)
                if flow.of_tree(edge)
            )
            rows.append(
                (
                    f"{spec.name}: {variant.name}",
                    share(spec.accuracy(k)),
                    ms(variant.latency_ns(1) / 1e6),
                    f"{cap / variant.latency_ns(cap) * 1e9:,.4g}",
                    onward or "-",
                )
            )
    return table(("variant", "accuracy", "ms of one row", "rows/s in full batches", "rows sent on, of one"), rows)
