"""`arlo simulate trace`: make a trace from a workload, and describe a trace."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from arlo.cli.text import between, print_json
from arlo.config.flag import KeyFlag, flags_of
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.traces.measure import CountsSummary, Summary
    from arlo.traces.workloads import Workload

DESCRIPTION = """Make traces, and see what traces are like.

A trace says when requests arrive and how many tokens each has. Formats, generators with all their parameters, and
where the data come from: traces/README.md.
"""

EPILOG = """examples:
  arlo simulate trace make stable.csv --arrivals twitter-stable --rate 1000 --duration-s 600
  arlo simulate trace inspect stable.csv --plot stable.html
  arlo simulate trace make --help                      its settings
"""

MAKE_EPILOG = """examples:
  arlo simulate trace make stable.csv --arrivals twitter-stable --rate 1000 --duration-s 600
  arlo simulate trace make bursty.csv --arrivals twitter-bursty --rate 8000 --burst 4 --sojourn-ms 200 --seed 7
  arlo simulate trace make varying.csv --arrivals twitter-bursty --segment bursty --rate 60 --length tweets
  arlo simulate trace make plain.csv --rate ramp:10:100 --duration-s 60 --length uniform:1:512 --json
"""

INSPECT_DESCRIPTION = """See what traces are like. FILE is of any format that is known (told by its header): our own as
CSV, tweet lengths, Azure LLM, and counts of arrivals (Twitter per second, Azure Functions per
minute).

dispersion is the variance over the mean of the arrivals in windows of a length: 1 for Poisson arrivals at a constant
rate, more for bursts and for a load that changes. The clips show how the lengths drift: the deviation of the 98th
percentile over clips of 10 s, beside what clips of so few requests show by sampling alone.
"""

INSPECT_EPILOG = """examples:
  arlo simulate trace inspect trace.csv
  arlo simulate trace inspect one.csv two.csv --json
  arlo simulate trace inspect segments.csv --segment bursty
  arlo simulate trace inspect trace.csv --plot trace.html
"""


MOST_SUMMARISED = 20_000_000  # requests; more would take more than about 1.3 GB


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `trace`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "trace", help="make a trace, or see what one is like", description=DESCRIPTION, epilog=EPILOG
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    make = actions.add_parser(
        "make",
        help="write a trace",
        description="Write the requests of a workload as a trace. The same settings give the same trace.",
        epilog=MAKE_EPILOG,
    )
    make.add_argument("file", type=Path, metavar="FILE", help="where to write; .csv")
    for flag in workload_flags():
        flag.add_to(make)
    make.add_argument("--seed", type=between(0), default=0, metavar="N", help="of all that is random (default: 0)")
    make.add_argument("--json", action="store_true", help="print the summary as JSON")

    inspect = actions.add_parser(
        "inspect", help="what a trace is like", description=INSPECT_DESCRIPTION, epilog=INSPECT_EPILOG
    )
    inspect.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a trace of any known format")
    inspect.add_argument("--segment", metavar="NAME", help="only this window of a file of counts (default: all)")
    inspect.add_argument(
        "--tokens",
        choices=("context", "generated", "total"),
        default="context",
        help="which count of an Azure LLM trace is the length (default: context)",
    )
    inspect.add_argument("--json", action="store_true", help="print JSON; for several, an object with a list, `traces`")
    inspect.add_argument(
        "--plot", type=Path, metavar="FILE", help="write plots there: .html, or .json for `arlo report`"
    )
    return parser


def workload_flags() -> Iterator[KeyFlag]:
    """The flags of `arlo simulate` that describe requests."""
    from arlo.simulator.scenario.sections import WorkloadSection

    return flags_of("workload", WorkloadSection)


def workload_of(args: argparse.Namespace) -> Workload:
    """The workload that the arguments describe, as `arlo simulate` would draw it."""
    from arlo.cli.simulate.flags import in_flags, values_of
    from arlo.simulator.scenario.build import workload_of
    from arlo.simulator.scenario.sections import WorkloadSection

    given = {}
    for flag in workload_flags():
        if (text := getattr(args, flag.name)) is not None:
            given[flag.key], *more = values_of(flag, text)
            if more:
                raise ConfigError(f"{flag.option} takes one value here, not {text!r}")
    try:
        return cast("Workload", workload_of(WorkloadSection(**given), args.seed))
    except ConfigError as error:
        raise ConfigError(in_flags(str(error), None)) from None


def run(args: argparse.Namespace) -> int:
    """Make or inspect."""
    return _make(args) if args.action == "make" else _inspect(args)


def _make(args: argparse.Namespace) -> int:
    from rich.console import Console

    from arlo.report.progress import LiveBar
    from arlo.traces.measure import summarise
    from arlo.traces.workloads import materialise
    from arlo.traces.writers import write_workload

    workload = workload_of(args)
    console = Console(stderr=True)
    expected = workload.expected()
    with LiveBar(console, f"writing {args.file.name}") as bar:
        requests = write_workload(workload, args.file, lambda done: bar.show(done, expected))
    summary = None
    if 0 < requests <= MOST_SUMMARISED:
        summary = summarise(materialise(workload), workload.duration_s)
    if args.json:
        print_json(
            {"file": str(args.file), "name": workload.name, "workload": workload.describe(), "requests": requests}
            | (summary.to_json() if summary is not None else {})
        )
        return 0
    print(f"{args.file}: {requests} requests in {workload.duration_s:g} s\n{workload.describe()}")
    if summary is not None:
        _print(_lines(summary))
    elif requests:
        print(f"`arlo simulate trace inspect {args.file}` says more; for so many requests it takes about 70 bytes each")
    return 0


def _inspect(args: argparse.Namespace) -> int:
    from rich.console import Console

    from arlo.cli.trace import report as trace_report
    from arlo.report.progress import LiveBar
    from arlo.traces.measure import summarise, summarise_counts
    from arlo.traces.readers import detect, read_counts, read_trace, segments

    shown: list[dict[str, Any]] = []
    reports: list[trace_report.Shown] = []
    with LiveBar(Console(stderr=True), "reading") as bar:
        for done, path in enumerate(args.files):
            found = detect(path)
            if found.counts:
                names: list[str | None] = [args.segment] if args.segment else [*segments(path)] or [None]
                for name in names:
                    series = read_counts(path, name)
                    reports.append(trace_report.Shown(path, found, name, summarise_counts(series), series))
            else:
                if args.segment:
                    raise ConfigError(f"--segment is for files of counts; {path} holds requests")
                trace = read_trace(path, tokens=args.tokens)
                if len(trace) == 0:
                    raise ConfigError(f"{path} holds no request")
                reports.append(trace_report.Shown(path, found, None, summarise(trace), trace))
            bar.show(done + 1, len(args.files))
    for each in reports:
        about = {"file": str(each.path), "format": each.format.name}
        about |= {"segment": each.segment} if each.segment is not None else {}
        shown.append(about | each.summary.to_json())
    if args.json:
        print_json(shown[0] if len(shown) == 1 else {"traces": shown})
    else:
        for number, each in enumerate(reports):
            if number:
                print()
            window = f", window {each.segment}" if each.segment is not None else ""
            print(f"{each.path}{window}: {each.format.what}")
            _print(_lines(each.summary))
            _charts(each)
    if args.plot is not None:
        trace_report.write(reports, args.plot)
        print(f"plots: {args.plot}", file=sys.stderr)
    return 0


def _lines(summary: Summary | CountsSummary) -> list[tuple[str, str]]:
    from arlo.traces.measure import CLIP_S, CountsSummary

    windows = ", ".join(
        f"{window:g} s {'-' if value is None else f'{value:.2f}'}" for window, value in summary.dispersion.items()
    )
    if isinstance(summary, CountsSummary):
        return [
            ("arrivals", f"{summary.arrivals} in {summary.duration_s:g} s, counted every {summary.step_s:g} s"),
            (
                "rate (1/s)",
                f"mean {summary.mean_rate:.1f}, least {summary.least_rate:.1f}, peak {summary.peak_rate:.1f}",
            ),
            ("dispersion", windows),
        ]
    lines = [
        ("requests", f"{summary.requests} in {summary.duration_s:.3f} s"),
        ("rate (1/s)", f"mean {summary.mean_rate:.1f}, peak second {summary.peak_rate:.0f}"),
        ("dispersion", windows),
        (
            "length",
            f"mean {summary.mean_length:.1f}, p50 {summary.p50}, p90 {summary.p90}, p98 {summary.p98}, "
            f"longest {summary.longest}; {summary.above_512:.2%} above 512",
        ),
    ]
    clips = summary.clips
    if clips is not None:
        lines += [
            (
                f"{CLIP_S:g}-s clips",
                f"{clips.clips} of about {clips.requests_per_clip:.0f} requests; "
                f"median {clips.median[0]:g} to {clips.median[1]:g}, p98 {clips.p98[0]:g} to {clips.p98[1]:g}",
            ),
            (
                "drift of p98",
                f"{clips.drift_log_p98:.1%} (clips deviate by {clips.sd_log_p98:.1%}, sampling alone by "
                f"{clips.sampling_log_p98:.1%}); of the median {clips.drift_log_median:.1%}",
            ),
        ]
    return lines


def _print(lines: list[tuple[str, str]]) -> None:
    for label, value in lines:
        print(f"  {label:<13} {value}")


def _charts(shown: Any) -> None:
    """Load over time, and the histogram of lengths."""
    import numpy as np
    from rich.console import Console

    from arlo.cli.top import charts
    from arlo.cli.trace.report import load_over_time
    from arlo.traces.trace import Trace

    console = Console(highlight=False)
    glyphs = charts.BLOCKS if (console.encoding or "").lower().startswith("utf") else charts.ASCII
    width = max(20, min(console.width, 100) - 4)
    _, rate = load_over_time(shown.data, width)
    most = float(rate.max())
    print(f"  load, 0 to {most:.0f}/s, over {shown.summary.duration_s:.0f} s")
    for row in range(4):
        marks = "".join(charts.column(value, most, 4, glyphs)[row] for value in rate.tolist())
        console.print(f"  {marks}", markup=False)
    if isinstance(shown.data, Trace):
        lengths = np.bincount(np.minimum(shown.data.length, 4096)).tolist()
        print("  lengths" if len(lengths) <= 4096 else "  lengths (4096: and longer)")
        for line in charts.histogram(lengths, (), width, 5, glyphs):
            console.print("  ", line, sep="", no_wrap=True)
