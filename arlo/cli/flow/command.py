"""`arlo flow`: its actions and their options. What they do is in the modules beside this one."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

DESCRIPTION = """Pipelines of models as one: how many instances of which variants, offline.

A flow is a tree of stages. Each stage has variants of other accuracy and latency, and what a stage answers
for one row becomes zero or more rows of the next; branches may join. When workers are enough, the most
accurate variants run on as few workers as possible; when they are not, accuracy is given up where it costs
least (Loki, HPDC'24)."""

EPILOG = """examples:
  arlo flow check examples/simulate/loki_traffic.toml                            what is odd about it
  arlo flow plan examples/simulate/loki_traffic.toml --workers 20 --demand 100
  arlo flow plan examples/simulate/loki_traffic.toml --workers 20 --demand 100 --json
  arlo flow report examples/simulate/loki_traffic.toml --workers 20 --out flow.html"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `flow`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "flow", help="pipelines of models as one: plans, offline", description=DESCRIPTION, epilog=EPILOG
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    _on_flow(actions, "check", "what is wrong or odd about a flow: paths, variants, profiles")
    plan = _on_flow(actions, "plan", "instances, shares and accuracy for a demand")
    _workers(plan)
    plan.add_argument("--demand", type=float, required=True, metavar="R", help="requests a second")
    plan.add_argument(
        "--within",
        type=float,
        default=0.0,
        metavar="F",
        help="accuracy that is given up for fewer workers (default: 0)",
    )
    plan.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help='with utilisation = "window": its last seconds, at the demand (default: a Poisson process)',
    )
    report = _on_flow(actions, "report", "a page: the flow, and its accuracy, workers and shares over demand")
    _workers(report)
    report.add_argument("--demand", type=float, metavar="R", help="that the picture shows (default: half of the most)")
    report.add_argument("--out", type=Path, default=Path("flow.html"), metavar="FILE", help="(default: flow.html)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    code: int = importlib.import_module(f"arlo.cli.flow.{args.action}").run(args)
    return code


def _on_flow(actions: Any, name: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    parser.add_argument("flow", type=Path, metavar="FLOW", help="a TOML file with a [flow]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=20, metavar="N", help="at most (default: 20)")
