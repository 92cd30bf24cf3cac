"""`arlo plan flow`: errors and oddities of a flow."""

from __future__ import annotations

import argparse
import dataclasses

from arlo.catalog.flow_file import load_flow
from arlo.cli.text import print_json


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if nothing could be served in time."""
    from arlo.planning.flows.check import check

    flow = load_flow(args.flow)
    found = check(flow)
    if args.json:
        print_json({"flow": flow.name, **dataclasses.asdict(found)})
        return 1 if found.problems else 0
    print(f"{flow.name}: {len(flow.stages)} stage(s), SLO {flow.slo_ms:g} ms, router {flow.router}")
    for stage in flow.order:
        spec = flow.stages[stage]
        names = ", ".join(f"{v.name} ({spec.accuracy(k):.2%})" for k, v in enumerate(spec.variants))
        print(f"  {'  ' * (len(flow.line(stage)) - 1)}{spec.name}: {names}")
    print("latency of paths at their smallest batches; half of the SLO less the hops is for executing:")
    for path in found.paths:
        print(
            f"  {path.name}: {path.least_ms:.4g} ms at least, {path.most_accurate_ms:.4g} ms most accurate, limit"
            f" {path.limit_ms:.4g} ms; {path.feasible} of {path.choices} choices of variants keep it"
        )
    for text in found.warnings:
        print(f"warning: {text}")
    for text in found.problems:
        print(f"problem: {text}")
    if not found.warnings and not found.problems:
        print("nothing is odd")
    return 1 if found.problems else 0
