"""What a joule is worth: accuracy, violations and joules over `joule`, simulated, of a flow and of token counts.

    python -m benchmarks.energy [--seconds 60] [--out benchmarks/results/energy.json]

examples/simulate/loki_traffic.toml on 20 workers that hold all variants, at half of what its most accurate variants
carry, at all of it and at one and a half; examples/simulate/otas.toml on one worker, at some shares of what all tokens
carry. No watts were measured: WATTS is assumed, the same for every variant as long as it executes. Joules are
those beyond idle.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.catalog.flow import Flow
from arlo.simulator.flows import FlowRun, planner_of
from arlo.simulator.flows import run as run_flow
from arlo.simulator.tokens.file import load_tokens
from arlo.simulator.tokens.run import draw_kinds
from arlo.simulator.tokens.run import run as run_tokens
from benchmarks.flows.simulated import ROOT, WORKERS, flow_of, poisson, top_capacity

WATTS = 200.0  # assumed
FLOW_LOADS, FLOW_JOULES = (0.5, 1.0, 1.5), (0.0, 0.0003, 0.001, 0.003, 0.01, 0.03)
TOKEN_LOADS, TOKEN_JOULES = (0.05, 0.2, 0.5, 1.05), (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
RULES = ("price", "exact")
SHARES = ("accuracy", "violations", "utility_share")


def metered(flow: Flow, joule: float) -> Flow:
    """A flow whose variants all draw WATTS."""
    stages = tuple(
        dataclasses.replace(stage, variants=tuple(dataclasses.replace(v, watts=WATTS) for v in stage.variants))
        for stage in flow.stages
    )
    return dataclasses.replace(flow, stages=stages, joule=joule, router="price", drop="slack")


def flows(seconds: int) -> list[dict[str, Any]]:
    """The same roots for every worth of a joule."""
    plain, found = flow_of("traffic"), []
    top = top_capacity(plain)
    for load in FLOW_LOADS:
        arrived = poisson([load * top] * seconds, 1)
        for joule in FLOW_JOULES:
            flow = metered(plain, joule)
            result = run_flow(
                FlowRun(
                    flow=flow,
                    planner=planner_of(flow),
                    workers=WORKERS,
                    arrived_ns=arrived,
                    hold="all",
                    fixed=True,
                    batching="deadline",
                    warmup_s=5,
                )
            )
            found.append(
                {
                    "load": load,
                    "joule": joule,
                    "accuracy": result.accuracy,
                    "violations": result.violations,
                    "joules": result.joules,
                }
            )
    return found


def tokens(seconds: int) -> list[dict[str, Any]]:
    """The same queries for every worth of a joule, by the rules that heed it."""
    plain, found = load_tokens(ROOT / "examples" / "simulate" / "otas.toml"), []
    for load in TOKEN_LOADS:
        arrived = poisson([load * plain.capacity(0)] * seconds, 2)
        kinds = draw_kinds(plain, len(arrived), 0)
        for rule in RULES:
            for joule in TOKEN_JOULES:
                spec = dataclasses.replace(plain, watts=WATTS, joule=joule)
                result = run_tokens(spec, rule, arrived, kinds, warmup_s=5)
                found.append(
                    {
                        "load": load,
                        "rule": rule,
                        "joule": joule,
                        "utility_share": result.utility_share,
                        "accuracy": result.accuracy,
                        "violations": result.outcomes["late"] + result.outcomes["evicted"],
                        "joules": result.joules,
                    }
                )
    return found


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for row in rows:
        cells = [f"{row[c]:.2%}" if c in SHARES else f"{row[c]:.3g}" if c == "joules" else f"{row[c]}" for c in columns]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Run, print tables, write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "energy.json")
    args = parser.parse_args()
    kept: dict[str, Any] = {
        "command": f"python -m benchmarks.energy --seconds {args.seconds}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "watts": f"{WATTS:g} of a worker that executes, assumed",
        "flow": flows(args.seconds),
        "tokens": tokens(args.seconds),
    }
    _table(kept["flow"], ("load", "joule", "accuracy", "violations", "joules"))
    _table(kept["tokens"], ("load", "rule", "joule", "utility_share", "accuracy", "violations", "joules"))
    args.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
