"""`arlo plan flow`: a flow of several models, offline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from arlo.cli.text import between

DESCRIPTION = """A flow of several models, offline: how many instances of which variants.

A flow is a tree of stages. Each stage has variants of other accuracy and latency, and what a stage answers
for one row becomes zero or more rows of the next; branches may join. When workers are enough, the most
accurate variants run on as few workers as possible; when they are not, accuracy is given up where it costs
least (Loki, HPDC'24).

Without --demand: what is wrong or odd about the flow, its paths, variants and profiles; exit code 1 where nothing could
be served in time."""

EPILOG = """examples:
  arlo plan flow examples/simulate/loki_traffic.toml                            what is odd about it
  arlo plan flow examples/simulate/loki_traffic.toml --workers 20 --demand 100
  arlo plan flow examples/simulate/loki_traffic.toml --workers 20 --demand 100 --json
  arlo plan flow examples/simulate/loki_traffic.toml --workers 20 --report flow.html"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `flow`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "flow", help="a flow of several models: its plans, offline", description=DESCRIPTION, epilog=EPILOG
    )
    add = parser.add_argument
    add("flow", type=Path, metavar="FLOW", help="a TOML file with a [flow]")
    add("--demand", type=float, metavar="R", help="requests a second: print instances, shares and accuracy for it")
    add("--workers", type=int, default=20, metavar="N", help="at most (default: 20)")
    add(
        "--within",
        type=between(0, 1, whole=False),
        default=0.0,
        metavar="F",
        help="accuracy to give up for fewer workers (default: 0)",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help='with utilisation = "window": its last seconds, at the demand (default: a Poisson process)',
    )
    add(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a page (.html), or a file for `arlo report` (.json): accuracy, workers and shares over demand",
    )
    add("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """A page, a plan or a check."""
    if args.report is not None:
        from arlo.cli.flow import report

        return report.run(args)
    if args.demand is not None:
        from arlo.cli.flow import plan

        return plan.run(args)
    from arlo.cli.flow import check

    return check.run(args)
