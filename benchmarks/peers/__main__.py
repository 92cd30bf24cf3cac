"""Compare Arlo with other embedding servers on this machine.

    python -m benchmarks.peers --duration 30 [--json] [--only arlo triton ...]

Each rival is installed from PyPI into its own environment (~/.cache/arlo/peers, some 4 GB) and called over its own HTTP
API. docs/peers.md describes the measurements and the results. Not part of `make bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import Any

from arlo.errors import ArloError, ConfigError
from benchmarks import harness
from benchmarks.peers.compare import Options, compare
from benchmarks.peers.rivals import RIVALS, graph, torch_folder
from benchmarks.peers.search import grid

INTERRUPTED = 130


def say(text: str) -> None:
    """Progress, for people."""
    print(f"peers: {text}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parse = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("--duration", type=float, default=30.0, metavar="S", help="of each run (default: 30)")
    parse.add_argument("--only", nargs="+", choices=sorted(RIVALS), metavar="NAME", help=f"of {', '.join(RIVALS)}")
    parse.add_argument("--slo-ms", type=int, default=100, help="within which answers must come (default: 100)")
    parse.add_argument(
        "--rates", type=float, nargs=2, default=(10.0, 1000.0), metavar=("LOW", "HIGH"), help="of the grid"
    )
    parse.add_argument("--rate", type=float, help="the equal rate (default: half of what the weakest carries)")
    parse.add_argument("--rounds", type=int, default=3, help="at the equal rate (default: 3)")
    parse.add_argument(
        "--lengths", default="tweets", help="of the texts, as `arlo simulate trace` has it (default: tweets)"
    )
    parse.add_argument("--build-seconds", type=float, default=1800.0, help="for Arlo's runtimes, the first time")
    parse.add_argument("--json", action="store_true", help="print all figures as JSON")
    parse.add_argument("--save", action="store_true", help="write benchmarks/results/peers.json")
    return parse


def options_of(args: argparse.Namespace) -> Options:
    """The options of the command line. ConfigError names the wrong option."""
    low, high = args.rates
    if not 0 < low < high:
        raise ConfigError(f"--rates are LOW and HIGH, above 0, not {low:g} and {high:g}")
    for option in ("duration", "slo_ms", "rounds"):
        if getattr(args, option) <= 0:
            raise ConfigError(f"--{option.replace('_', '-')} must be above 0")
    return Options(
        rivals=tuple(rival for name, rival in RIVALS.items() if name in (args.only or RIVALS)),
        duration_s=args.duration,
        slo_ms=args.slo_ms,
        rates=grid(low, high),
        rounds=args.rounds,
        rate=args.rate,
        lengths=args.lengths,
        build_s=args.build_seconds,
    )


def install(options: Options) -> None:
    """Install the missing environments of the rivals."""
    for environment in {
        rival.environment.name: rival.environment for rival in options.rivals if rival.environment
    }.values():
        if not environment.ready():
            say(f"installing {', '.join(environment.packages)} (once, minutes)")
            environment.install()
    if any(rival.needs_graph for rival in options.rivals):
        say("exporting the model for ONNX Runtime, if it is not there")
        graph()
    if any(rival.needs_folder for rival in options.rivals):
        say("exporting the model for the torch engine, if it is not there")
        torch_folder()


def table(found: dict[str, Any]) -> str:
    """Markdown, one server a line."""

    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    lines = [
        f"| | rows/s on time | p50, ms | p98, ms | CPU a request, ms | memory, MB | first vector, s |\n|{'---|' * 7}",
    ]
    for each in found["servers"]:
        equal = each["equal"]
        lines.append(
            f"| {each['what']} | {'over ' if each['more'] else ''}{shown(each['on_time_rows_s'], '.0f')} "
            f"| {shown(equal['p50_ms'], '.1f')} | {shown(equal['p98_ms'], '.1f')} | {shown(equal['cpu_ms'], '.1f')} "
            f"| {shown(equal['rss_mb'], '.0f')} | {each['start_s']:.1f} |"
        )
    below = f"SLO {found['slo_ms']} ms, runs of {found['duration_s']:g} s, lengths `{found['lengths']}`; "
    below += f"latency, CPU and memory at {found['equal_rate']:g} rows/s"
    return "\n".join([*lines, "", below])


async def _compare(options: Options) -> dict[str, Any]:
    """`compare`, which SIGINT and SIGTERM end in order: every server is stopped."""
    task = asyncio.ensure_future(compare(options, say))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task


def main() -> int:
    """Run the comparison and return the exit code."""
    args = parser().parse_args()
    try:
        options = options_of(args)
        install(options)
        load = os.getloadavg()[0]
        found = {"load_before": load, **asyncio.run(_compare(options))}
    except ArloError as error:
        print(f"peers: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("interrupted; all servers are stopped")
        return INTERRUPTED
    if args.save:
        say(f"written to {harness.save('peers', ' '.join(['python -m benchmarks.peers', *sys.argv[1:]]), found)}")
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"machine": harness.machine(), **found}) if args.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
