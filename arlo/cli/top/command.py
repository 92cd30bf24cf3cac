"""`arlo top`: the state of control plane and gateway, refreshed or once."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from arlo.cli.text import between, print_json, print_json_line
from arlo.errors import ConfigError, GatewayError

EPILOG = """examples:
  arlo top                              the control plane on this machine; Ctrl-C ends it
  arlo top serve.toml                   that of a configuration
  arlo top --once                       one screen; exit code 6 when no gateway answers
  arlo top --once --interval 5          rates over five seconds, not since the gateway's start
  arlo top --once --json | jq .health   for scripts
  arlo top --control 10.0.0.5:8004      another control plane; its gateway is found through it
  arlo top --admin 10.0.0.5:8003        a gateway alone
  arlo top --model reranker             one of several models
  arlo top --json --interval 10         one document a line, until Ctrl-C

Live, rates and shares are over the last 5 s, attainment and lengths over the last minute. When only one of control
plane and gateway answers, its part is shown. Exit code 6 when neither does.

health:
  ready        every instance is in service
  degraded     some instance is not, but every level has one in service
  failing      a level has no instance in service: its requests go to a longer one, or wait
  empty        no deployment has been applied yet
  unreachable  no gateway answers
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `top`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "top",
        help="what is served, how loaded it is, how fast it answers",
        description="Show what the control plane plans and what the gateway serves: models, latency against the SLO,\n"
        "lengths, workers, plans. docs/top.md says what each column means.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("config", nargs="?", type=Path, metavar="CONFIG.toml", help="take the addresses from here")
    add("--control", metavar="HOST:PORT", help="control plane (default: 127.0.0.1:8004)")
    add(
        "--admin",
        metavar="HOST:PORT",
        help="gateway's admin port (default: the one that the control plane names, else 127.0.0.1:8003); without "
        "--control the gateway alone is asked",
    )
    add("--model", metavar="NAME", default="", help="one of several models (default: all)")
    add("--once", action="store_true", help="one screen, or one document with --json")
    add(
        "--interval",
        type=between(0.1, 60, whole=False),
        metavar="S",
        help="seconds between (default: 1); with --once between two samples",
    )
    add("--json", action="store_true", help="print one JSON document a line: both answers, and `now`, the tables")
    return parser


def make_source(args: argparse.Namespace) -> Any:
    """The arlo.cli.top.source.Source that the options ask for. ConfigError when they do not fit together."""
    from arlo import config as configuration
    from arlo.cli.top.source import Source, checked
    from arlo.config.keeping import ControlConfig

    for option in ("control", "admin"):
        if args.config is not None and getattr(args, option) is not None:
            raise ConfigError(f"give CONFIG.toml or --{option}, not both")
    control: str | None = args.control or ControlConfig().http_address
    fallback, own = configuration.GatewayConfig().admin_address, ""
    if args.admin and not args.control:
        control = None
    if args.config is not None:
        loaded = configuration.load(args.config)
        control, fallback = loaded.control.http_address, loaded.gateway.admin_address
        if control.endswith(":0"):
            control = None  # drawn when `arlo serve` starts, and written only to its log
        own = loaded.model.name or "" if loaded.gateway.several_models else ""
    if control is not None:
        checked(control, "--control" if args.control else "control.http_address")
    admin = checked(args.admin, "--admin") if args.admin else None
    return Source(control, admin=admin, model=args.model, fallback=fallback, own=own)


def run(args: argparse.Namespace) -> int:
    """Show it until Ctrl-C, or once."""
    source = make_source(args)
    if args.once:
        return asyncio.run(_once(source, args))
    if not (args.json or sys.stdout.isatty()):
        raise ConfigError("standard output is not a terminal: give --once for one screen, or --json")
    return asyncio.run(_repeat(source, args))


async def _once(source: Any, args: argparse.Namespace) -> int:
    from rich.console import Console

    from arlo.cli.top.screen import Screen
    from arlo.cli.top.view import History

    history = History()
    async with source:
        shown = history.add(await source.first())
        if args.interval is not None:
            await asyncio.sleep(args.interval)
            shown = history.add(await source.sample())
    if args.json:
        print_json(shown)
    else:
        Console().print(Screen(shown), end="")
    return GatewayError.exit_code if shown["health"] == "unreachable" else 0


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
                await asyncio.sleep(args.interval or 1.0)
                sample = await source.sample()
        finally:
            if live is not None:
                live.stop()
