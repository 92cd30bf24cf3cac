"""`arlo compile lengths`: choose the maximum lengths to compile for, without compiling anything."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.text import print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.compile.lengths.curve import SourcedCurve
    from arlo.planning.lengths.pairs import Engine

DESCRIPTION = """Which maximum lengths to compile for, and what each further runtime saves. Nothing is built or started.

Every request runs on the shortest runtime that takes it, so a set of maximum lengths has an expected time for
requests of given lengths on a given device. The best set is found for each number of runtimes. `arlo compile
--lengths auto` makes the same choice while it builds; here it is a question of seconds.
"""

EPILOG = """examples:
  arlo compile lengths --repository minilm --histogram tweets
  arlo compile lengths --latency-profile profile.json --histogram trace.csv --max-runtimes 12
  arlo compile lengths --latency-profile profile.json --histogram uniform:8:512 --lengths 128,512
  arlo compile lengths --max-length 512 --json | jq .chosen
  arlo compile lengths --adapted out/64 out/128 --worth-us 500 --histogram trace.csv

columns: expected, the time of one request where nothing waits (`of padded` where the latency is assumed and only
ratios mean something); saves, against one runtime for the longest length; last one saves, against the best set
with one runtime less; padding, of the computed tokens. Below the best sets: the lengths of --lengths, every 64
tokens as in the Arlo paper, equal steps, and what no number of runtimes can beat.

--adapted: folders of `arlo adapt`, one for each length. Lengths and token counts are chosen together, by time and by
what accuracy is worth; counts that are less accurate and no quicker are left out.

Latencies are of one row. With neither --repository nor --latency-profile they are assumed; the output marks them.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `lengths`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "lengths",
        help="which maximum lengths to compile for; what-if questions",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    what = parser.add_argument_group("latency over the length")
    what.add_argument("--repository", type=Path, metavar="DIR", help="the latencies of a Triton repository")
    what.add_argument(
        "--latency-profile", type=Path, metavar="FILE", help="latencies measured by `arlo compile profile`"
    )

    what.add_argument(
        "--adapted", type=Path, nargs="+", metavar="DIR",
        help="folders that `arlo adapt` wrote, of one model at several lengths: pairs of length and tokens are chosen",
    )  # fmt: skip
    what.add_argument(
        "--worth-us", type=float, metavar="N",
        help="with --adapted: microseconds of a row that a point of accuracy (1 %%) is worth",
    )  # fmt: skip

    load = parser.add_argument_group("requests")
    load.add_argument(
        "--histogram",
        default="tweets",
        metavar="SPEC",
        help="lengths that arrive: tweets or paper, stretched to the longest length; or in tokens: uniform:8:512, "
        "lognormal:MEDIAN:P98:MAX, a histogram or trace file, ... (default: tweets)",
    )
    load.add_argument(
        "--max-length", type=int, metavar="TOKENS", help="the longest text served (default: 512, or as far as measured)"
    )

    how = parser.add_argument_group("choice")
    how.add_argument("--max-runtimes", type=int, default=8, metavar="N", help="most static runtimes (default: 8)")
    how.add_argument(
        "--least-saving",
        type=float,
        default=3.0,
        metavar="PERCENT",
        help="of the expected time, that a further runtime must save (default: 3)",
    )
    how.add_argument("--lengths", metavar="LIST", help="lengths to compare with, as 64,128,512 or first:last:step")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Choose the lengths and print them."""
    from arlo.compile.lengths.show import as_dict, sentences, table
    from arlo.compile.options import parse_lengths
    from arlo.compile.steps.lengths import choose_lengths
    from arlo.traces.traffic import traffic

    if not 0 <= args.least_saving < 100:
        raise ConfigError(f"--least-saving is a percentage from 0 to below 100, not {args.least_saving:g}")
    if args.max_length is not None and args.max_length < 1:
        raise ConfigError(f"--max-length must be 1 token or more, not {args.max_length}")
    if args.adapted or args.worth_us is not None:
        return _pairs(args)
    curve, longest = _latency(args.repository, args.latency_profile, args.max_length)
    given = parse_lengths(args.lengths) if args.lengths else None
    found = choose_lengths(
        curve,
        traffic(args.histogram, longest),
        max_runtimes=args.max_runtimes,
        least_saving=args.least_saving / 100,
        given=given,
    )
    if args.json:
        print_json(as_dict(found))
        return 0
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(table(found))
    for line in sentences(found):
        console.print(line, soft_wrap=True)
    for note in found.notes:
        console.print(Text.assemble(("warning: ", "yellow"), note), soft_wrap=True)
    return 0


def _pairs(args: argparse.Namespace) -> int:
    """Choose lengths and token counts together."""
    from arlo.cli.adapted import engines_of, read_adapted
    from arlo.planning.lengths.pairs import choose_pairs
    from arlo.traces.traffic import traffic

    if not args.adapted or args.worth_us is None:
        raise ConfigError("--adapted and --worth-us go together: what is a point of accuracy worth, in microseconds?")
    if args.worth_us < 0:
        raise ConfigError(f"--worth-us is 0 or more, not {args.worth_us:g}")
    if args.repository or args.latency_profile or args.lengths:
        raise ConfigError("--adapted brings its latencies and lengths: leave the others out")
    if args.max_runtimes < 1:
        raise ConfigError(f"--max-runtimes must be 1 or more, not {args.max_runtimes}")
    engines = [
        engine for folder in args.adapted for engine in engines_of(read_adapted(folder)["variants"], folder.name)
    ]
    longest = max(engine.length for engine in engines)
    if args.max_length is not None and args.max_length != longest:
        raise ConfigError(f"--max-length is {longest} here, that of the longest variants")
    requests = traffic(args.histogram, longest)
    found = choose_pairs(
        engines, requests.by_length, worth_us=args.worth_us, most=args.max_runtimes,
        least_saving=args.least_saving / 100,
    )  # fmt: skip
    if args.json:
        kept = [{**dataclasses.asdict(each), "engines": [_pair(one) for one in each.engines]} for each in found.best]
        print_json(
            {
                "worth_us": args.worth_us,
                "requests": requests.text,
                "best": kept,
                "chosen": kept[found.best.index(found.chosen)],
                "dominated": [{"engine": _pair(one), "by": _pair(other)} for one, other in found.dominated],
            }
        )
        return 0
    print(f"{'engines':9}{'time, ms':>9}{'right':>8}  length and tokens")
    for each in found.best:
        mark = "<" if each is found.chosen else ""
        pairs = ", ".join(f"{one.length} {one.tokens:+d}" if one.tokens else f"{one.length}" for one in each.engines)
        print(f"{f'{len(each.engines)} {mark}':9}{each.time_us / 1000:9.2f}{each.accuracy:8.1%}  {pairs}")
    for one, other in found.dominated:
        print(f"left out: {one.name}, which is nowhere more accurate than {other.name}, and not quicker")
    print(f"requests: {requests.text}; a point of accuracy is worth {args.worth_us:g} us of a row")
    return 0


def _pair(engine: Engine) -> dict[str, Any]:
    return {"name": engine.name, "length": engine.length, "tokens": engine.tokens, "time_us": engine.time_us}


def _latency(repository: Path | None, profile_path: Path | None, max_length: int | None) -> tuple[SourcedCurve, int]:
    """The latency curve, and the longest length."""
    from arlo.catalog.manifest import Manifest
    from arlo.compile.lengths.curve import assumed, from_manifest, from_profile
    from arlo.compile.steps.lengths import DEFAULT_LONGEST
    from arlo.profiler import LatencyProfile

    if repository is not None and profile_path is not None:
        raise ConfigError("give --repository or --latency-profile, not both: each has latencies of its own")
    if repository is not None:
        manifest = Manifest.load(repository)
        longest = max_length or max(runtime.max_length for runtime in manifest.runtimes)
        return from_manifest(manifest, longest), longest
    if profile_path is not None:
        profile = LatencyProfile.load(profile_path)
        longest = max_length or max((runtime.max_length for runtime in profile.runtimes), default=DEFAULT_LONGEST)
        return from_profile(profile, longest), longest
    longest = max_length or DEFAULT_LONGEST
    return assumed(longest, "no --repository and no --latency-profile were given"), longest
