"""`arlo top`: the screen of `arlo status`, again and again."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from arlo.cli.text import print_json_line
from arlo.cli.top.status import add_options, make_source
from arlo.errors import ConfigError

EPILOG = """examples:
  arlo top                              the control plane on this machine; Ctrl-C ends it
  arlo top serve.toml                   that of a configuration
  arlo top --control 10.0.0.5:8004      another one; its gateway is found through it
  arlo top --model reranker             one of several models
  arlo top --json --interval 10         one document a line, until Ctrl-C

`arlo status` prints the same once. Rates and shares are over the last 5 s, attainment and lengths over the last minute.
When only one of control plane and gateway answers, its part is shown. Exit code 6 when neither does.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `top`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "top",
        help="the same as a live screen",
        description="Show live what the control plane plans and what the gateway serves: models, latency against the\n"
        "SLO, lengths, workers, plans.",
        epilog=EPILOG,
    )
    add_options(parser, json_help="print one JSON document a line, until Ctrl-C")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between (default: 1)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Show it until Ctrl-C."""
    source = make_source(args)
    if not (args.json or sys.stdout.isatty()):
        raise ConfigError("standard output is not a terminal: use `arlo status` for one screen, or give --json")
    return asyncio.run(_repeat(source, args))


async def _repeat(source: Any, args: argparse.Namespace) -> int:
    from rich.live import Live

    from arlo.cli.top.screen import Screen
    from arlo.cli.top.view import History

    history = History()
    async with source:
        sample = await source.first()
        live = None if args.json else Live(auto_refresh=False, screen=True, redirect_stderr=False)
        try:
            if live is not None:
                live.start()
            while True:
                shown = history.add(sample)
                if live is not None:
                    live.update(Screen(shown), refresh=True)
                else:
                    print_json_line(shown)
                await asyncio.sleep(args.interval)
                sample = await source.sample()
        finally:
            if live is not None:
                live.stop()
