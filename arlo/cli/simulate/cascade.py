"""`arlo simulate` of a scenario with a cascade: run, and print one scheme or several compared."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arlo.cli.simulate.flags import Plan, in_flags
from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.report.numbers import ms, share

if TYPE_CHECKING:
    from arlo.simulator.cascade.build import Built
    from arlo.simulator.cascade.engine import CascadeResult, Part

OF_ONE_MODEL = ("plot", "record", "price")
COLUMNS = ("on time", "mean ms", "p98 ms", "p99 ms", "accuracy", "agreement", "degraded")
DIGITS = 6
WIDTH = 150  # of the table


def run_cascades(asked: Sequence[Plan], args: argparse.Namespace) -> int:
    """Simulate every plan. ConfigError for what is only there of a single model."""
    from rich.console import Console

    from arlo.cli.fit.common import need_scipy
    from arlo.report.progress import LiveBar
    from arlo.simulator.cascade.build import build
    from arlo.simulator.cascade.engine import run

    for name in OF_ONE_MODEL:
        if getattr(args, name):
            raise ConfigError(f"--{name.replace('_', '-')} is not there for a scenario with a cascade: leave it out")
    need_scipy()
    if args.find_workers:
        from arlo.cli.simulate.cascade_find import find

        return find(asked, args)
    found: list[tuple[Built, CascadeResult]] = []
    with LiveBar(Console(stderr=True)) as bar:
        for number, plan in enumerate(asked):
            bar.show(number, len(asked), f"{number} of {len(asked)} runs")
            try:
                built = build(plan.config)
            except ConfigError as error:
                raise ConfigError(in_flags(str(error), args.file)) from None
            found.append((built, run(built.run)))
    names = [plan.label or plan.config.run.name or plan.config.cascade.scheme for plan in asked]
    if args.json:
        runs = [as_dict(n, p, *each) for n, p, each in zip(names, asked, found, strict=True)]
        print_json(runs[0] if len(runs) == 1 else {"runs": runs})
    else:
        _print(names, found)
    return 0


def as_dict(name: str, plan: Plan, built: Built, result: CascadeResult) -> dict[str, Any]:
    """One run as JSON; None for what is not known."""
    run = built.run
    begins = (0.0, *built.marks_s)
    return {
        "scenario": name,
        "scheme": built.scheme,
        "stages": list(built.names),
        "workers": list(run.workers),
        "slo_ms": run.slo_ms,
        **figures(result),
        "exit_ms": [{"mean": _number(mean), "p98": _number(p98)} for mean, p98 in result.exit_ms],
        "reasons": result.reasons,
        "unanswered": result.unanswered,
        "utilization": _number(result.utilization),
        "joules": None if result.joules is None else _number(result.joules),
        "price": result.price,
        "parts": [
            {"from_s": at, **figures(part)} for at, part in zip(begins, result.parts, strict=False)
        ],
        "varied": plan.varied,
        "notes": list(built.notes),
    }  # fmt: skip


def figures(part: Part) -> dict[str, Any]:
    """As JSON; None for what is not known."""
    keys = ("on_time", "mean_ms", "p98_ms", "p99_ms", "accuracy", "agreement", "degraded")
    figures = {key: _number(getattr(part, key)) for key in keys}
    return {"rows": part.rows, **figures, "exits": [_number(each) for each in part.exits]}


def _number(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _print(names: Sequence[str], found: Sequence[tuple[Built, CascadeResult]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, WIDTH)
    first = found[0][0]
    console.print(
        f"{sum(first.run.workers)} workers, SLO {first.run.slo_ms:g} ms; requests {escape(first.workload.describe())}"
    )
    for note in dict.fromkeys(note for built, _ in found for note in built.notes):
        console.print(escape(note))
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in (*COLUMNS, "joules"):
        table.add_column(column, justify="right")
    table.add_column("answered by stage")
    for name, (built, result) in zip(names, found, strict=True):
        table.add_row(escape(name), *cells(result), _joules(result), exits(built, result))
        begins = (0.0, *built.marks_s)
        for at, part in zip(begins, result.parts, strict=False):
            table.add_row(f"  from {at:g} s", *cells(part), "", exits(built, part))
    console.print(table)
    for name, (_, result) in zip(names, found, strict=True):
        lost = "  ".join(f"{outcome} {count:,}" for outcome, count in result.unanswered.items())
        reasons = "  ".join(f"{reason} {count:,}" for reason, count in result.reasons.items())
        console.print(f"{escape(name)}: {reasons}{'  not answered: ' + lost if lost else ''}")


def cells(part: Part) -> tuple[str, ...]:
    """For the COLUMNS of a table."""

    def known(value: float) -> str:
        return share(value) if math.isfinite(value) else "-"

    times = (ms(value) if math.isfinite(value) else "-" for value in (part.mean_ms, part.p98_ms, part.p99_ms))
    return (share(part.on_time), *times, known(part.accuracy), known(part.agreement), share(part.degraded))


def _joules(result: CascadeResult) -> str:
    return "-" if result.joules is None else f"{result.joules:.3g}"


def exits(built: Built, part: Part) -> str:
    """Where rows end."""
    return ", ".join(f"{name} {value:.1%}" for name, value in zip(built.names, part.exits, strict=True))
