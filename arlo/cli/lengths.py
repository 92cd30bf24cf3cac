"""`arlo compile lengths`: choose the maximum lengths to compile for, without compiling anything."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.text import between, print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.compile.lengths.curve import SourcedCurve

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

columns: expected, the time of one request where nothing waits (`of padded` where the latency is assumed and only
ratios mean something); saves, against one runtime for the longest length; last one saves, against the best set
with one runtime less; padding, of the computed tokens. Below the best sets: the lengths of --lengths, every 64
tokens as in the Arlo paper, equal steps, and what no number of runtimes can beat.

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

    load = parser.add_argument_group("requests")
    load.add_argument(
        "--histogram",
        default="tweets",
        metavar="SPEC",
        help="lengths that arrive: tweets or paper, stretched to the longest length; or in tokens: uniform:8:512, "
        "lognormal:MEDIAN:P98:MAX, a histogram or trace file, ... (default: tweets)",
    )
    load.add_argument(
        "--max-length",
        type=between(1),
        metavar="TOKENS",
        help="the longest text served (default: 512, or as far as measured)",
    )

    how = parser.add_argument_group("choice")
    how.add_argument(
        "--max-runtimes", type=between(1), default=8, metavar="N", help="most static runtimes (default: 8)"
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

    curve, longest = _latency(args.repository, args.latency_profile, args.max_length)
    given = parse_lengths(args.lengths) if args.lengths else None
    found = choose_lengths(
        curve,
        traffic(args.histogram, longest),
        max_runtimes=args.max_runtimes,
        given=given,
    )
    if args.json:
        print_json(as_dict(found))
        return 0
    from arlo.report.terminal import console, warn

    out = console()
    out.print(table(found))
    for line in sentences(found):
        out.print(line, soft_wrap=True)
    warn(out, found.notes)
    return 0


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
