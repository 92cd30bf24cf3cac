"""`arlo status`: what control plane and gateway say, once. `arlo top` repeats it."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from arlo.cli.text import print_json
from arlo.errors import ConfigError, GatewayError

EPILOG = """examples:
  arlo status                          the control plane on this machine, and the gateway that it names
  arlo status serve.toml               those of a configuration
  arlo status --control 10.0.0.5:8004  another control plane
  arlo status --admin 10.0.0.5:8003    a gateway alone
  arlo status --model reranker         one of several models
  arlo status --interval 5             rates over five seconds, not since the gateway's start
  arlo status --json | jq .health      for scripts; exit code 6 when no gateway answers

health:
  ready        every instance is in service
  degraded     some instance is not, but every level has one in service
  failing      a level has no instance in service: its requests go to a longer one, or wait
  empty        no deployment has been applied yet
  unreachable  no gateway answers
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `status`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "status",
        help="what is served, how loaded it is, how fast it answers",
        description="Ask the control plane and the gateway what is served, how loaded it is and how fast it answers.\n"
        "docs/top.md says what each column means.",
        epilog=EPILOG,
    )
    add_options(parser, json_help="print JSON: both answers, and `now`, the tables")
    parser.add_argument("--interval", type=float, metavar="S", help="take two samples, S seconds apart")
    return parser


def add_options(parser: argparse.ArgumentParser, *, json_help: str) -> None:
    """Whom to ask, and about what; the same for `status` and `top`."""
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="take the addresses from here")
    parser.add_argument("--control", metavar="HOST:PORT", help="control plane (default: 127.0.0.1:8004)")
    parser.add_argument(
        "--admin",
        metavar="HOST:PORT",
        help="gateway's admin port (default: the one that the control plane names, else 127.0.0.1:8003); without "
        "--control the gateway alone is asked",
    )
    parser.add_argument("--model", metavar="NAME", default="", help="one of several models (default: all)")
    parser.add_argument("--json", action="store_true", help=json_help)


def make_source(args: argparse.Namespace) -> Any:
    """The arlo.cli.top.source.Source that the options ask for. ConfigError when they do not fit together."""
    from arlo import config as configuration
    from arlo.cli.top.source import Source, checked
    from arlo.config.keeping import ControlConfig

    for option in ("control", "admin"):
        if args.config is not None and getattr(args, option) is not None:
            raise ConfigError(f"give CONFIG.toml or --{option}, not both")
    if args.interval is not None and not 0.1 <= args.interval <= 60:
        raise ConfigError(f"--interval must be from 0.1 to 60 seconds, not {args.interval:g}")
    control: str | None = args.control or ControlConfig().http_address
    fallback, own = configuration.GatewayConfig().admin_address, ""
    if args.admin and not args.control:
        control = None
    if args.config is not None:
        loaded = configuration.load(args.config)
        control, fallback = loaded.control.http_address, loaded.gateway.admin_address
        if control.endswith(":0"):
            control = None  # drawn when `arlo serve` starts, and known to its log alone
        own = loaded.model.name or "" if loaded.gateway.several_models else ""
    if control is not None:
        checked(control, "--control" if args.control else "control.http_address")
    admin = checked(args.admin, "--admin") if args.admin else None
    return Source(control, admin=admin, model=args.model, fallback=fallback, own=own)


def run(args: argparse.Namespace) -> int:
    """Print the status."""
    return asyncio.run(_once(make_source(args), args))


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
