"""`arlo simulate --find-workers` of a scenario with a cascade: the least number of workers for which enough rows are on
time without ending early for want of time.

A row of a cascade has an answer long before it would be late, and then ends degraded: so few workers would keep any
share on time, at the accuracy of the first stage. Counted is therefore the smaller of the shares that are on time and
that are not degraded. Where the scenario gives each stage workers of its own, their number is divided in its
proportions.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.cli.simulate.find import DEFAULT_ATTAINMENT, MOST_WORKERS, Found, search
from arlo.cli.simulate.flags import Plan, in_flags
from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.planning.stages import proportional

if TYPE_CHECKING:
    from arlo.simulator.cascade.build import Built
    from arlo.simulator.cascade.engine import CascadeResult, CascadeRun


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """One number of workers."""

    workers: tuple[int, ...]
    result: CascadeResult

    @property
    def slo_attainment(self) -> float:
        """Share of the rows that are on time, or that are not degraded: the smaller one."""
        degraded = self.result.degraded if math.isfinite(self.result.degraded) else 0.0
        return min(self.result.on_time, 1.0 - degraded)


def find(asked: Sequence[Plan], args: argparse.Namespace) -> int:
    """Search for each plan, and print what was tried; 1 where no number of workers will do for one of them."""
    from rich.console import Console

    from arlo.report.progress import LiveBar
    from arlo.simulator.cascade.build import build
    from arlo.simulator.cascade.engine import run

    attainment = args.attainment if args.attainment is not None else DEFAULT_ATTAINMENT
    made: list[tuple[str, Built, Found]] = []
    with LiveBar(Console(stderr=True)) as bar:
        for plan in asked:
            try:
                built = build(plan.config)
            except ConfigError as error:
                raise ConfigError(in_flags(str(error), args.file)) from None
            name = plan.label or plan.config.run.name or plan.config.cascade.scheme
            begun = built.run.workers

            def tried(counts: Sequence[int], job: CascadeRun = built.run, name: str = name) -> Sequence[Any]:
                found = []
                for count in counts:
                    bar.show(0, None, f"{name}: {count} workers")
                    workers = divided(job.workers, count)
                    found.append(Tried(workers, run(dataclasses.replace(job, workers=workers))))
                return found

            lowest = max(len(begun), *(fault.worker + 1 for fault in built.run.faults), 1)
            found = search(
                tried, lowest=lowest, attainment=attainment, most=MOST_WORKERS, load=max(lowest, enough(built.run))
            )
            made.append((name, built, found))
    if args.json:
        runs = [_as_dict(*each, plan, attainment) for each, plan in zip(made, asked, strict=True)]
        print_json(runs[0] if len(runs) == 1 else {"runs": runs})
    else:
        for each in made:
            _print(*each, attainment)
    return 0


def divided(given: Sequence[int], count: int) -> tuple[int, ...]:
    """So many workers in the proportions of those given; one pool is one."""
    return (count,) if len(given) == 1 else proportional([1.0] * len(given), [float(each) for each in given], count)


def enough(job: CascadeRun) -> int:
    """Workers that could run every row alone at every stage."""
    seconds = float(job.arrived_ns[-1]) / 1e9
    spent_ms = 0.0
    for models in job.stages:
        ends = np.asarray([model.max_length for model in models])
        ms = np.asarray([model.latency_ns(1) / 1e6 for model in models])
        at = np.minimum(np.searchsorted(ends, job.lengths), len(ends) - 1)
        spent_ms += float(ms[at].sum())
    return math.ceil(spent_ms / 1000 / max(seconds, 1e-9))


def _as_dict(name: str, built: Built, found: Found, plan: Plan, attainment: float) -> dict[str, Any]:
    from arlo.cli.simulate.cascade import figures

    def tried(_: int, each: Tried) -> dict[str, Any]:
        return {"of_stages": list(each.workers), **figures(each.result)}

    return {
        "scenario": name,
        "scheme": built.scheme,
        "stages": list(built.names),
        "of_stages": list(found.tried[found.workers].workers) if found.workers is not None else None,
        "varied": plan.varied,
        **found.as_dict(attainment, tried),
        "notes": list(built.notes),
    }


def _print(name: str, built: Built, found: Found, attainment: float) -> None:
    from rich.console import Console
    from rich.markup import escape

    from arlo.cli.simulate.cascade import COLUMNS, WIDTH, cells, exits

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, WIDTH)
    console.print(f"{escape(name)}: SLO {built.run.slo_ms:g} ms; requests {escape(built.workload.describe())}")
    for note in built.notes:
        console.print(escape(note))

    def shown(_: int, each: Tried) -> list[str]:
        parts = "" if len(each.workers) == 1 else " + ".join(map(str, each.workers))
        return [parts, *cells(each.result), exits(built, each.result)]

    found.print(
        console,
        attainment,
        ("of stages", *COLUMNS, "answered by stage"),
        shown,
        also=" and not degraded",
        close="this is close; a longer duration or other seeds tell more",
    )
    console.print()
