"""`arlo simulate --find-workers`: the least number of GPUs for which enough requests are on time."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from arlo.cli.simulate.flags import Plan
from arlo.cli.simulate.load import fewest_workers, least_workers, offered_workers
from arlo.errors import ConfigError
from arlo.report import terminal

if TYPE_CHECKING:
    from rich.console import Console

    from arlo.simulator.report.result import Result
    from arlo.simulator.scenario.build import Built

DEFAULT_ATTAINMENT = 0.99
MOST_WORKERS = 100_000
CHECKED = 2
MARGIN = 0.25  # of the load's own need: how far the first guess reaches

Runner = Callable[[Sequence[int]], Sequence["Result"]]


def _on_time(result: Any) -> float:
    return float(result.slo_attainment)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search: the number, None if no number of workers will do, and all that was tried."""

    workers: int | None
    tried: dict[int, Any]  # workers -> Result, ascending
    limit: str = ""  # why there is none
    kept: Callable[[Any], float] = _on_time

    def worse_above(self, attainment: float) -> list[int]:
        """Larger numbers that were tried and miss the attainment."""
        return [n for n, r in self.tried.items() if n > (self.workers or n) and self.kept(r) < attainment]


def search(
    run: Runner,
    *,
    lowest: int,
    attainment: float,
    most: int = MOST_WORKERS,
    width: int = 2,
    load: int = 1,
    kept: Callable[[Any], float] = _on_time,
) -> Found:
    """The least number of workers from `lowest` on that keeps `attainment`: doubling steps, then bisection.

    `kept`: of a result, the share that is to reach it. `load` workers could do all that arrives: far above it, more of
    them bring nothing. `width` runs are made at a time. More workers can do worse, as another number of them is
    allocated differently. So the numbers below are checked one by one until CHECKED of them in a row fail.
    """
    tried: dict[int, Any] = {}

    def holds(counts: Sequence[int]) -> None:
        new = [count for count in dict.fromkeys(counts) if count not in tried]
        tried.update(zip(new, run(new), strict=True))

    def holds_at(count: int) -> bool:
        return kept(tried[count]) >= attainment

    def ended(workers: int | None, limit: str = "") -> Found:
        return Found(workers, dict(sorted(tried.items())), limit, kept)

    low, step = lowest - 1, max(1, round(MARGIN * lowest))  # low: fails, or is not possible
    high: int | None = None
    best = -1.0
    while high is None:
        # As many as run at a time, ever farther apart.
        counts, at = [], low
        for _ in range(width):
            at = min(at + step, most)
            counts.append(at)
            step *= 2
        holds(counts)
        good = [count for count in counts if holds_at(count)]
        if good:
            high = good[0]
            low = max((count for count in tried if count < high), default=low)
            break
        low = counts[-1]
        reached = kept(tried[low])
        if low >= most:
            return ended(None, f"not even {most:,} workers")
        if reached <= best + 1e-9 and low > 4 * max(lowest, load):
            return ended(None, f"{reached:.4%} at {low:,} workers, and no more with twice as many")
        best = max(best, reached)
    while high - low > 1:
        gap = high - low
        counts = sorted({low + max(1, gap * (i + 1) // (width + 1)) for i in range(width)} - {high})
        holds(counts)
        for count in counts:
            if holds_at(count):
                high = count
                break
            low = count
    below, misses = high - 1, 0
    while below >= lowest and misses < CHECKED:
        holds([below])
        high, misses = (below, 0) if holds_at(below) else (high, misses + 1)
        below -= 1
    return ended(high)


def find(asked: list[Plan], args: argparse.Namespace) -> int:
    """Search for each combination of the lists, and print the trials."""
    from arlo.cli.simulate import output
    from arlo.cli.simulate.command import built, jobs_for, simulate

    attainment = args.attainment if args.attainment is not None else DEFAULT_ATTAINMENT
    made = built(asked, args)
    found = []

    def kept(result: Result) -> float:
        return 0.0 if (result.figures.accuracy or 0.0) < (args.least_accuracy or 0.0) else result.kept

    for plan, each in zip(asked, made, strict=True):
        scenario = each.scenario
        if scenario.scale.kind != "none":
            raise ConfigError("--find-workers is for a fixed number of GPUs: leave --scaling out")
        if plan.config.allocation.instances and scenario.served is None:
            raise ConfigError("--find-workers allocates anew for each number of GPUs: leave the instances out")

        # Several at a time only if each takes long.
        alone = jobs_for([scenario] * 2, args.jobs) == 1
        width = 1 if alone else args.jobs or min(4, len(os.sched_getaffinity(0)))

        def runner(counts: Sequence[int], scenario: Any = scenario, width: int = width) -> Sequence[Result]:
            scenarios = [dataclasses.replace(scenario.on(n), name=f"{scenario.name}, {n} GPUs") for n in counts]
            return simulate(scenarios, width) if scenarios else []

        lowest = max(fewest_workers(scenario, attainment), *(fault.worker + 1 for fault in scenario.faults), 1)
        load = least_workers(offered_workers(scenario))
        found.append(search(runner, lowest=lowest, attainment=attainment, width=width, load=load, kept=kept))
    if args.plot is not None:
        best = [
            (dataclasses.replace(b, scenario=dataclasses.replace(b.scenario, workers=f.workers)), f.tried[f.workers])
            for b, f in zip(made, found, strict=True)
            if f.workers is not None
        ]
        if best:
            output.write_plot(args.plot, [b for b, _ in best], [r for _, r in best], [[] for _ in best])
            print(f"wrote {args.plot} (--plot)", file=sys.stderr)
    if args.json:
        _print_json(asked, found, attainment, args.price)
    else:
        _print(made, found, attainment, args)
    return 0


def _print_json(asked: list[Plan], found: list[Found], attainment: float, price: float | None) -> None:
    from arlo.cli.simulate.output import cost_json
    from arlo.cli.text import print_json

    runs = [
        {
            "workers": each.workers,
            "attainment": attainment,
            "reason": each.limit or None,
            "worse_above": each.worse_above(attainment),
            "tried": [
                {"workers": count, **result.summary(), **cost_json(result, price)}
                for count, result in each.tried.items()
            ],
            "varied": plan.varied,
        }
        for plan, each in zip(asked, found, strict=True)
    ]
    print_json(runs[0] if len(runs) == 1 else {"runs": runs})


def _print(made: Sequence[Built], found: list[Found], attainment: float, args: argparse.Namespace) -> None:
    from rich.markup import escape

    from arlo.cli.simulate.output import describe, figures_of, table_of

    out = terminal.console()
    known = any(r.figures.more for each in found for r in each.tried.values())
    kept = f"{100 * attainment:.6g}% on time" + (" and not degraded" if known else "")
    kept += f" at an accuracy of {args.least_accuracy:g}" if args.least_accuracy else ""
    for built, each in zip(made, found, strict=True):
        # The number of GPUs is the unknown, so the title leaves it out.
        out.print(escape(describe(built, short=True).partition(" GPUs, ")[2]), soft_wrap=True)
        results = list(each.tried.values())
        names = [f"{count} {'<-' if count == each.workers else '  '}" for count in each.tried]
        out.print(table_of(results, figures_of(results), (), args.price, names=names, of="GPUs"))
        named = f"{escape(built.scenario.name)}: " if len(made) > 1 else ""
        if each.workers is None:
            out.print(f"{named}[bold]no number of GPUs keeps {kept}[/]: {each.limit}", soft_wrap=True)
        else:
            out.print(f"{named}[bold]{each.workers} GPUs[/] keep {kept}", soft_wrap=True)
            if worse := ", ".join(map(str, each.worse_above(attainment))):
                terminal.warn(
                    out,
                    [
                        f"{worse} GPUs do not: they are allocated otherwise, and this is close; a longer --duration-s "
                        "or other --seed tell more"
                    ],
                )
        out.print()
    if len(made) > 1:
        _print_all(out, made, found)


def _print_all(out: Console, made: Sequence[Any], found: list[Found]) -> None:
    """The numbers of several searches, compared with the first."""
    first = found[0].workers
    rows = [
        (
            built.scenario.name,
            str(each.workers or "none"),
            f"{each.workers / first - 1:+.1%}" if each.workers and first and each is not found[0] else "",
        )
        for built, each in zip(made, found, strict=True)
    ]
    out.print(terminal.columns(("", "GPUs", "against the first"), rows))
