"""`arlo replay`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from arlo.client.transport import TLS
from arlo.errors import ConfigError
from arlo.replay.options import ReplayOptions
from arlo.replay.progress import LiveProgress
from arlo.replay.report import write_report
from arlo.replay.run import run_replay
from arlo.replay.table import print_table
from arlo.traces import Trace, parse_lengths, poisson, read_csv, rescale

DESCRIPTION = """Send a trace to any KServe v2 endpoint (an Arlo gateway, a plain Triton, ...) and report what came of
every request.

Requests leave when the trace says, whether or not earlier ones were answered, and latency counts from that
instant; a send that is late is counted and shown. TRACE is a CSV file (columns arrived_at_s,length and, if
you like, text_id) or the word `poisson`, which makes one from --rate, --duration and --lengths.
"""

EPILOG = """examples:
  arlo replay poisson --target 127.0.0.1:8001 --rate 50 --duration 30
  arlo replay poisson --target 127.0.0.1:8001 --rate 20 --rescale 512 --tokenizer MODEL_FOLDER
  arlo replay trace.csv --target 127.0.0.1:8001 --speed 2 --slo-ms 100 --out results --report report.html
  arlo replay poisson --target triton:8001 --model minilm_512 --rate 100 --lengths fixed:64 --json

exit codes: 0 done, 1 at least one request failed, 7 the target could not be asked, 130 interrupted (Ctrl-C;
what came back by then is still reported)
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `replay`."""
    defaults = ReplayOptions(endpoint="127.0.0.1:8001")
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "replay",
        help="send a trace to an endpoint and report the outcome of every request",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("trace", metavar="TRACE", help="a CSV file, or `poisson`")
    add("--target", metavar="HOST:PORT", default=defaults.endpoint, help="gRPC endpoint (default %(default)s)")
    add("--model", metavar="NAME", help="model to ask (default: the only one there)")

    made = parser.add_argument_group("a made trace (TRACE is poisson)")
    made.add_argument("--rate", type=float, metavar="R", help="arrivals per second (default 10)")
    made.add_argument("--duration", type=float, metavar="S", help="seconds (default 60)")
    made.add_argument("--lengths", metavar="SPEC", help="tweets (default), rag, mix, fixed:N or uniform:MIN:MAX tokens")
    made.add_argument(
        "--rescale", type=int, metavar="MAX", help="stretch tweets to MAX tokens, as the paper does to 512"
    )
    add("--seed", type=int, default=defaults.seed, metavar="N", help="of all that is random (default %(default)s)")

    how = parser.add_argument_group("sending")
    how.add_argument("--tokenizer", type=Path, metavar="PATH",
                     help="tokenizer.json or its folder: send English text (default: random token ids)")  # fmt: skip
    how.add_argument(
        "--speed", type=float, default=defaults.speed, metavar="X", help="2.0: twice as fast (default 1.0)"
    )
    how.add_argument(
        "--slo-ms", type=float, default=defaults.slo_ms, metavar="MS", help="on time (default %(default)g)"
    )
    how.add_argument("--timeout-ms", type=float, default=defaults.timeout_ms, metavar="MS",
                     help="when the client gives up, 0: never (default: ten times the SLO, at least 1000)")  # fmt: skip
    how.add_argument("--warmup", type=int, default=defaults.warmup, metavar="N",
                     help="requests before the start, not recorded (default %(default)s)")  # fmt: skip

    secure = parser.add_argument_group("TLS and token")
    secure.add_argument(
        "--tls", action="store_true", help="TLS with the system's authorities; the options below imply it"
    )
    secure.add_argument("--ca", type=Path, metavar="PEM", help="who may sign the server's certificate")
    secure.add_argument("--cert", type=Path, metavar="PEM", help="our certificate, for servers that ask for one")
    secure.add_argument("--key", type=Path, metavar="PEM", help="its key")
    secure.add_argument(
        "--token-file", type=Path, metavar="FILE", help="bearer token (or ARLO_TOKEN in the environment)"
    )

    out = parser.add_argument_group("results")
    out.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    out.add_argument("--out", type=Path, metavar="DIR",
                     help="write result.json, records.npy, trace.csv, report.html and report.json there")  # fmt: skip
    out.add_argument("--report", type=Path, metavar="FILE", help="write a report: .html, or .json for `arlo report`")
    return parser


def run(args: argparse.Namespace) -> int:
    """Replay; returns the exit code."""
    trace = _trace(args)
    fields = {field.name for field in dataclasses.fields(ReplayOptions)}
    given: dict[str, Any] = {name: value for name, value in vars(args).items() if name in fields}
    given |= {"endpoint": args.target, "tls": _tls(args), "token": _token(args.token_file)}
    options = ReplayOptions(**given)
    console = Console(stderr=True)
    with LiveProgress(console) as progress:
        result = run_replay(trace, options, on_progress=progress)
    if args.json:
        json.dump(result.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_table(result)
    reports = [args.report] if args.report is not None else []
    if args.out is not None:
        result.save(args.out)
        reports += [args.out / "report.json", args.out / "report.html"]
    for path in reports:
        write_report(result, path)
        console.print(f"report: {path}", highlight=False, soft_wrap=True)
    return result.exit_code


def _trace(args: argparse.Namespace) -> Trace:
    made = {"rate": args.rate, "duration": args.duration, "lengths": args.lengths}
    if args.trace == "poisson":
        draw = parse_lengths(args.lengths or "tweets")
        rate = 10.0 if args.rate is None else args.rate
        trace = poisson(rate, 60.0 if args.duration is None else args.duration, draw, args.seed)
    else:
        given = [f"--{name}" for name, value in made.items() if value is not None]
        if given:
            raise ConfigError(f"{given[0]} belongs to a made trace (`arlo replay poisson`); {args.trace} is a file")
        trace = read_csv(Path(args.trace))
    if args.rescale is None:
        return trace
    return Trace(arrived_at_s=trace.arrived_at_s, length=rescale(trace.length, args.rescale), text_id=trace.text_id)


def _tls(args: argparse.Namespace) -> TLS | None:
    named = {"ca": args.ca, "cert": args.cert, "key": args.key}
    return TLS(**named) if args.tls or any(v is not None for v in named.values()) else None


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get("ARLO_TOKEN") or None
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}") from None
