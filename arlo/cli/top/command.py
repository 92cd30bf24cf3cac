"""`arlo top`: a live screen of the control plane and the gateway."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arlo.cli.text import print_json, print_json_line
from arlo.errors import ConfigError, GatewayError

EPILOG = """examples:
  arlo top                              the control plane on this machine; q or Ctrl-C ends it
  arlo top serve.toml                   that of a configuration
  arlo top --control 10.0.0.5:8004      another one; its gateway is found through it
  arlo top --once                       one screen, for scripts and reports
  arlo top --once --json | jq .now      the same as a document: both sources, and rates from two samples
  arlo top --json --interval 10         one document a line, until Ctrl-C
  arlo top --model reranker             of several models on the workers one, in full

on the screen:
  attainment       rows answered within the SLO as a share of all that ended, in the last minute
  mean, p50, ...   latency from receipt to answer; green up to 80 % of the SLO, red above it
  want, have       instances of the runtime that are wanted, and that serve
  demand, peak     requests per SLO period in the runtime's length bin: mean, busiest part of the window
  load             demand as a share of what the serving instances carry within the SLO
  arrivals         share of the rows whose ideal level this is
  demoted          share of the rows started here whose ideal level is shorter
  ms, M            latency of one request of max_length; requests that one instance finishes within the SLO
  busy             share of the last 5 s with at least one row at the worker
  moved, gain      workers that a plan moved (-: it was not carried out); predicted fall of the mean latency

Of several models on the workers: a line for each (workers that hold it; rates, latency, attainment by its own SLO),
then the lengths of each; the lines above are of all together.

When only one of control plane and gateway answers, its part is shown and the other's absence is said. Exit code 6
when neither does.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `top`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "top",
        help="live screen: workers, runtimes, latency, lengths, plans",
        description="Show live what the control plane plans and what the gateway serves: workers, runtimes, latency\n"
        "against the SLO, the lengths that arrive, the allocation over time, the last plans and the next.",
        epilog=EPILOG,
    )
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="take the addresses from here")
    parser.add_argument("--control", metavar="HOST:PORT", help="control plane (default: 127.0.0.1:8004)")
    parser.add_argument(
        "--admin", metavar="HOST:PORT", help="gateway's admin port (default: the one that the control plane names)"
    )
    parser.add_argument("--model", metavar="NAME", help="one of several models on the workers (default: all)")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between (default: 1)")
    parser.add_argument("--once", action="store_true", help="print one screen, of two samples --interval apart")
    parser.add_argument("--json", action="store_true", help="print JSON; without --once one document a line")
    return parser


def run(args: argparse.Namespace) -> int:
    """Show it until q or Ctrl-C, or once."""
    from arlo import config as configuration
    from arlo.cli.top.source import Source, checked
    from arlo.config.keeping import ControlConfig

    if args.config is not None and args.control is not None:
        raise ConfigError("give CONFIG.toml or --control, not both")
    if not 0.1 <= args.interval <= 60:
        raise ConfigError(f"--interval must be from 0.1 to 60 seconds, not {args.interval:g}")
    control, fallback = ControlConfig().http_address, configuration.GatewayConfig().admin_address
    if args.config is not None:
        loaded = configuration.load(args.config)
        control, fallback = loaded.control.http_address, loaded.gateway.admin_address
    control = checked(args.control or control, "--control" if args.control else "control.http_address")
    admin = checked(args.admin, "--admin") if args.admin else None
    if not (args.once or args.json or sys.stdout.isatty()):
        raise ConfigError("standard output is not a terminal: give --once for one screen, or --json")
    source = Source(control, admin=admin, model=args.model, fallback=fallback)
    if args.once:
        return asyncio.run(_once(source, args))
    return asyncio.run(_lines(source, args) if args.json else _live(source, args))


async def _first(source: Any) -> Any:
    """The first sample; GatewayError when no gateway answers."""
    sample = await source.sample()
    if sample.control is None and sample.gateway is None:
        raise GatewayError(f"{sample.control_error}\nand {sample.gateway_error}")
    return sample


async def _once(source: Any, args: argparse.Namespace) -> int:
    from rich.console import Console

    from arlo.cli.top.screen import Screen
    from arlo.cli.top.view import History, as_dict

    history = History()
    async with source:
        history.add(await _first(source))
        await asyncio.sleep(args.interval)
        sample = await source.sample()
    shown = history.add(sample)
    if args.json:
        print_json(as_dict(sample, shown))
    else:
        Console().print(Screen(shown))
    return 0


async def _lines(source: Any, args: argparse.Namespace) -> int:
    from arlo.cli.top.view import History, as_dict

    history = History()
    async with source:
        sample = await _first(source)
        while True:
            print_json_line(as_dict(sample, history.add(sample)))
            await asyncio.sleep(args.interval)
            sample = await source.sample()


async def _live(source: Any, args: argparse.Namespace) -> int:
    from rich.live import Live

    from arlo.cli.top.screen import Screen
    from arlo.cli.top.view import History

    history, wake, stop = History(), asyncio.Event(), asyncio.Event()
    async with source:
        sample = await _first(source)
        with _keys(wake, stop), Live(auto_refresh=False, screen=True, redirect_stderr=False) as live:
            while True:
                live.update(Screen(history.add(sample)), refresh=True)
                await _pause(args.interval, wake, stop, live.refresh)
                if stop.is_set():
                    return 0
                sample = await source.sample()


async def _pause(interval_s: float, wake: asyncio.Event, stop: asyncio.Event, redraw: Any) -> None:
    """`interval_s`, less when `stop` is set; the screen is drawn again each time that `wake` is (another size)."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(interval_s):
            while not stop.is_set():
                await wake.wait()
                wake.clear()
                if not stop.is_set():
                    redraw()


@contextlib.contextmanager
def _keys(wake: asyncio.Event, stop: asyncio.Event) -> Iterator[None]:
    """q sets `stop`; another size of the terminal sets `wake`. Without a terminal at standard input: the size only."""
    import termios
    import tty

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, wake.set)
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = termios.tcgetattr(keyboard) if keyboard is not None else None

    def pressed() -> None:
        assert keyboard is not None
        keys = os.read(keyboard, 64)
        if not keys:  # the terminal is gone
            loop.remove_reader(keyboard)
        if not keys or b"q" in keys.lower():
            stop.set()
            wake.set()

    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)  # keys come at once and unseen; Ctrl-C stays a signal
            loop.add_reader(keyboard, pressed)
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        if keyboard is not None and before is not None:
            loop.remove_reader(keyboard)
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
