"""`arlo simulate`: how a cluster would handle a stream of requests, before you rent it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.fit.common import need_scipy
from arlo.cli.simulate.flags import Plan, add_flags, in_flags, plans
from arlo.cli.text import between, only_with
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.simulator.report.result import Result
    from arlo.simulator.scenario.build import Built

WORTH_PROCESSES = 3_000_000  # requests: about a second and a half of one core

DESCRIPTION = """What would my traffic cost on N GPUs with this model, and under which policy? Simulated in seconds,
by the very request scheduler and planner that serve; no GPU is needed (docs/simulator.md).

Without options: Twitter-like requests at 1,000 a second for two minutes on 10 GPUs with BERT-base. A
scenario file (docs/scenario.md) holds everything; flags override it.

Lists, as in --workers 8,10,12, make one run for each combination, in parallel, and compare them with the
first: --workers, --rate, --scheme, --policy, --allocation, --scaling, --arrivals, --seed and others. The file
may be a flow (docs/flows.md), a cascade.json, or one of token counts (docs/adapt.md).
"""

EPILOG = """examples:
  arlo simulate                                             the default: is it enough? where does time go?
  arlo simulate --rate 4000 --workers 10,12,14              how many GPUs?
  arlo simulate --rate 4000 --find-workers --attainment 0.999 --price 1.2
  arlo simulate --rate 4000 --scheme st,dt,infaas,arlo      what polymorphing brings
  arlo simulate --profile minilm --trace day.csv --slo-ms 50 --plot report.html
  arlo simulate --workers 1 --max-lengths 512 --latency-ms 10 --arrivals poisson --rate 50 \\
                --length fixed:100 --policy uniform --overhead-ms 0 --duration-s 2000 --seed 1 --json
  arlo simulate --max-lengths 128,512 --latency-ms 1.6,4.9 --instances 6,4 --fail 30:2:5
  arlo simulate --rate 2500 --scaling target --workers 4 --duration-s 1200 --save busy.toml
  arlo simulate busy.toml --policy rs,eft,late              a scenario file, and what to vary
  arlo simulate flow.toml --router price,maf --rate 300     a flow of several models
  arlo simulate otas.toml --tokens price,fixed:0 --rate 500  one model at several token counts

Latencies are of answers, from arrival to answer; attainment is over all arrivals. A load that the workers cannot carry
is a result, not an error: exit code 0, and a warning that says what it would take.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `simulate`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "simulate",
        help="what a cluster would do with a stream of requests: latency, SLO, GPU-hours",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="a scenario file, a flow, a cascade.json, or token counts"
    )
    add_flags(parser)
    find = parser.add_argument_group("finding the number of GPUs")
    find.add_argument("--find-workers", action="store_true", help="the least number of GPUs that keeps --attainment")
    find.add_argument(
        "--attainment",
        type=between(0, 1, whole=False, above=True),
        metavar="SHARE",
        help="share of requests on time (default: 0.99)",
    )
    find.add_argument(
        "--least-accuracy",
        type=between(0, 1, whole=False),
        metavar="A",
        help="of the answers, which such a number keeps, too (default: 0)",
    )
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="print JSON; of several runs, a list under `runs`")
    out.add_argument("--plot", type=Path, metavar="FILE", help="write a report: .html, or .json for `arlo report`")
    out.add_argument("--record", type=Path, metavar="FILE", help="write a row for each request, .csv")
    out.add_argument(
        "--price",
        type=between(0, whole=False, above=True),
        metavar="P",
        help="of a GPU-hour: print what a month of this costs",
    )
    out.add_argument("--save", type=Path, metavar="FILE.toml", help="write the scenario to a file, and run it")
    out.add_argument(
        "--jobs", type=between(1), metavar="N", help="processes for several runs (default: one for each core)"
    )
    out.add_argument("--profiles", action="store_true", help="list the latency profiles, and stop")
    return parser


def run(args: argparse.Namespace) -> int:
    """Simulate and print."""
    if args.profiles:
        return _list_profiles()
    _check(args)
    asked = plans(args)
    if args.save is not None:
        _save(args.save, asked)
    try:
        if any((plan.config.cluster.serves or Path()).suffix == ".json" for plan in asked):
            need_scipy()
        if args.find_workers:
            from arlo.cli.simulate.find import find

            return find(asked, args)
        return _run(asked, args)
    except KeyboardInterrupt:
        print("arlo: interrupted before there was a result", file=sys.stderr)
        return 130


def _check(args: argparse.Namespace) -> None:
    if not args.find_workers:
        only_with(args, "attainment least_accuracy", "belongs to --find-workers: what the fewest GPUs are to keep")
    else:
        only_with(
            args, "workers instances record", "is left out with --find-workers, which looks for the number of GPUs"
        )
    if args.record is not None and args.record.suffix.lower() != ".csv":
        raise ConfigError(f"--record writes .csv, not {args.record.suffix or args.record.name!r}")
    if args.plot is not None and args.plot.suffix.lower() not in (".html", ".htm", ".json"):
        raise ConfigError(f"--plot writes a page, .html, or a file for `arlo report`, .json, not {args.plot.name!r}")
    for path in (args.record, args.plot, args.save):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path.parent} is no folder: make it first")


def _list_profiles() -> int:
    from rich.console import Console

    from arlo.simulator.profiles import load_profile, profile_names

    console = Console(highlight=False)
    for name in profile_names():
        console.print(load_profile(name).describe(), markup=False, soft_wrap=True)
    return 0


def _save(path: Path, asked: list[Plan]) -> None:
    from arlo.simulator.scenario.config import to_toml

    if len(asked) > 1:
        raise ConfigError(f"--save writes one scenario, but the lists ask for {len(asked)} runs")
    path.write_text(to_toml(asked[0].config, base=path.absolute().parent))
    print(f"wrote {path}", file=sys.stderr)


def built(asked: list[Plan], args: argparse.Namespace) -> list[Built]:
    """The scenarios; each named by the flags that vary, or by its description."""
    from arlo.simulator.scenario.build import build

    record = args.record is not None
    try:
        return [build(plan.config, name=plan.label or title(plan.config), record=record) for plan in asked]
    except ConfigError as error:
        raise ConfigError(in_flags(str(error), args.file)) from None


def title(config: Any) -> str:
    """The name of a single run."""
    if config.run.name:
        return str(config.run.name)
    if config.cluster.serves is not None:
        return str(config.cluster.serves.stem)
    policy = f"/{config.dispatch.policy}" if config.dispatch.policy else ""
    return f"{config.cluster.scheme}{policy}"


def jobs_for(scenarios: Sequence[Any], jobs: int | None) -> int | None:
    """Processes to run them in: as asked; else one if starting more takes longer than they would save."""
    if jobs is not None:
        return jobs
    return 1 if sum(scenario.workload.expected() for scenario in scenarios) < WORTH_PROCESSES else None


def simulate(scenarios: Sequence[Any], jobs: int | None) -> list[Result]:
    """Run them, in processes if that is worth it, with a bar on stderr if that is a terminal."""
    from rich.console import Console

    from arlo.report.progress import LiveBar
    from arlo.simulator.run import run as run_one
    from arlo.simulator.run import run_many

    with LiveBar(Console(stderr=True)) as bar:
        if len(scenarios) == 1:

            def tell(now_s: float, of_s: float) -> None:
                bar.show(now_s, of_s, f"{now_s:,.0f} of {of_s:,.0f} s simulated")

            return [run_one(scenarios[0], tell)]

        def tell_runs(done: int, of: int) -> None:
            bar.show(done, of, f"{done} of {of} runs")

        tell_runs(0, len(scenarios))
        results: list[Result] = run_many(scenarios, jobs_for(scenarios, jobs), tell_runs)
        return results


def _run(asked: list[Plan], args: argparse.Namespace) -> int:
    from arlo.cli.simulate import output

    if args.record is not None and len(asked) > 1:
        raise ConfigError(f"--record writes one run, but the lists ask for {len(asked)}")
    made = built(asked, args)
    results = simulate([each.scenario for each in made], args.jobs)
    notes = [output.notes(each, result) for each, result in zip(made, results, strict=True)]
    if args.record is not None:
        from arlo.cli.simulate.record import write_rows

        write_rows(results[0], args.record)
    if args.plot is not None:
        output.write_plot(args.plot, made, results, notes)
    if args.json:
        output.print_as_json(asked, results, notes, args.price)
    elif len(results) == 1:
        output.print_one(made[0], results[0], notes[0], args.price)
    else:
        output.print_comparison(made, results, notes, args.price)
    for option, path in (("--record", args.record), ("--plot", args.plot)):
        if path is not None:
            print(f"wrote {path} ({option})", file=sys.stderr)
    return 0
