"""`arlo plan flow --report`: one page about a flow: its instances, and its plans as demand grows."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from arlo.catalog.flow_file import load_flow
from arlo.catalog.flow_outcomes import records_of
from arlo.cli.flow.plan import POOLS, as_json, pools
from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.report.figure import BLUE
from arlo.report.numbers import ms, share
from arlo.report.result import Document, chart, line, report, save, table

if TYPE_CHECKING:
    from arlo.catalog.flow import Flow
    from arlo.planning.flows.problem import FlowPlan

PLANNED = "as planned"
WHOLE = "nothing left free"
POINT = ("demand", "served", "accuracy", "workers", "step")


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
    outcomes = records_of(flow)
    most = capacity(flow, args.workers)
    best = capacity(flow, args.workers, variants=best_variants(flow))
    demands = grid(most)
    plans = {PLANNED: sweep(flow, args.workers, demands, outcomes=outcomes)}
    if flow.utilisation != 1:
        whole = dataclasses.replace(flow, utilisation=1.0)
        plans[WHOLE] = sweep(whole, args.workers, demands, outcomes=outcomes)
    demand = args.demand if args.demand is not None else most / 2
    plan = make_plan(flow, outcomes=outcomes, demand=demand, workers=args.workers)
    cards = [
        (f"{best:,.4g}/s", f"carried by the most accurate variants on {args.workers} workers"),
        (f"{most:,.4g}/s", "carried by the cheapest ones"),
        (f"× {most / best:.2f}" if best > 0 else "-", "by giving up accuracy"),
        (share(plan.accuracy), f"accuracy at {demand:,.4g}/s"),
    ]
    what = "What plans make of the flow, from its latencies and accuracies; nothing was run. Capacity is without the "
    what += "share that a plan leaves free."
    charts, tables = (
        _curves(plans, _what_is_free(flow)),
        [
            table(f"Instances at {plan.demand:,.4g} requests a second", POOLS, pools(plan)),
            _variants(flow),
        ],
    )
    found_here = report(
        "flow",
        f"Flow {flow.name}",
        label=flow.name,
        what=[what],
        cards=cards,
        warnings=found.warnings,
        charts=charts,
        tables=tables,
    )
    save(args.report, [found_here])
    if args.json:
        print_json(
            {
                "written": str(args.report),
                "capacity_most_accurate": best,
                "capacity": most,
                "plan": as_json(plan),
                "curves": {
                    name: [{key: getattr(each, key) for key in POINT} for each in made] for name, made in plans.items()
                },
            }
        )
    else:
        print(f"written to {args.report}")
    return 0


def _what_is_free(flow: Flow) -> str:
    """The reason why one line runs below the other."""
    free = "a share" if isinstance(flow.utilisation, str) else f"{1 - flow.utilisation:.0%}"
    return (
        f"A plan leaves {free} of each stage's capacity free for arrivals above the mean (utilisation), so it gives up "
        "accuracy earlier. The dashed line is without that."
        if flow.utilisation != 1
        else ""
    )


def _curves(plans: dict[str, list[FlowPlan]], note: str) -> list[Document]:
    charts = []
    for title, y, of in (
        ("Accuracy of what is served", "accuracy", lambda plan: plan.accuracy),
        ("Share of the demand that is served", "share", lambda plan: plan.served),
        ("Workers", "workers", lambda plan: float(plan.workers)),
    ):
        lines = [
            line(name, [plan.demand for plan in made], [of(plan) for plan in made], color=BLUE, dash=name == WHOLE)
            for name, made in plans.items()
        ]
        charts.append(chart(title, "requests a second", y, lines, note=note))
        note = ""
    return charts


def _variants(flow: Flow) -> Document:
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
    head = ("variant", "accuracy", "ms of one row", "rows/s in full batches", "rows sent on, of one")
    return table("Variants", head, rows)
