"""`arlo plan --models`: workers divided among models, or shared by all of them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from arlo.cli.plan import inputs
from arlo.cli.text import print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.simulator.division import Division
    from arlo.simulator.report.result import Result

# The options that describe a demand for one model.
OF_ONE = (
    "slo_ms",
    "max_lengths",
    "latency_ms",
    "repository",
    "profile",
    "demand",
    "trace",
    "rate",
    "lengths",
    "rescale",
)


def run_models(args: argparse.Namespace) -> int:
    """Simulate and print."""
    from rich.console import Console

    from arlo.report.progress import LiveBar
    from arlo.simulator.division import divide
    from arlo.simulator.scenario import config as scenarios

    for name in OF_ONE:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is of one model: the file of --models has it for each")
    config = scenarios.load(args.models)
    if not config.model:
        raise ConfigError(f"{args.models} has no [[model]]; docs/several-models.md has an example")
    counts = inputs.workers(args.workers)
    with LiveBar(Console(stderr=True)) as bar:
        found = divide(config, counts, progress=lambda done, of: bar.show(done, of, f"{done} of {of} runs"))
    plans = list(zip(counts, found, strict=True))
    if args.json:
        rows = [as_dict(*plan) for plan in plans]
        print_json({"plans": rows} if inputs.is_range(args.workers) else rows[0])
        return 0
    console = Console(highlight=False)
    for plan in plans:
        _print(console, *plan)
    return 0


def as_dict(workers: int, division: Division) -> dict[str, Any]:
    """One plan as JSON; None for a latency if nothing was answered."""
    return {
        "workers": workers,
        "together": _figures(division.shared, ("slo_attainment", "mean_ms")),
        "divided": _figures(division, ("slo_attainment", "mean_ms")),
        "models": [
            {"name": name, "workers": count, "together": _figures(row), "divided": _figures(result)}
            for name, count, row, result in _rows(division)
        ],
    }


def _rows(division: Division) -> list[tuple[str, int, Any, Result]]:
    return list(zip(division.models, division.workers, division.shared.models, division.alone, strict=True))


def _figures(of: Any, keys: tuple[str, ...] = ("slo_attainment", "mean_ms", "p99_ms")) -> dict[str, float | None]:
    """The figures of a result, or of a model's row in one."""
    values = {key: of[key] if isinstance(of, Mapping) else getattr(of, key) for key in keys}
    return {key: float(value) if math.isfinite(value) else None for key, value in values.items()}


def _print(console: Any, workers: int, division: Division) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=f"[bold]{workers} workers", title_justify="left")
    table.add_column("model")
    for column in ("requests/s", "SLO ms", "shared by all: on time", "mean ms", "p99 ms"):
        table.add_column(column, justify="right")
    for column in ("own workers", "on time", "mean ms", "p99 ms"):
        table.add_column(column, justify="right")
    for name, count, row, result in _rows(division):
        table.add_row(
            name,
            f"{result.requests / result.duration_s:,.0f}",
            f"{result.slo_ms:g}",
            *_cells(_figures(row)),
            str(count),
            *_cells(_figures(result)),
        )
    shared = division.shared
    table.add_row(
        "all",
        f"{shared.requests / shared.duration_s:,.0f}",
        "",
        *_cells(_figures(shared)),
        str(workers),
        *_cells(_figures(division, ("slo_attainment", "mean_ms"))),
        style="bold",
    )
    console.print(table)


def _cells(figures: dict[str, float | None]) -> tuple[str, str, str]:
    mean, p99 = figures["mean_ms"], figures.get("p99_ms")
    return (
        f"{figures['slo_attainment']:.2%}",
        "-" if mean is None else f"{mean:.2f}",
        "" if "p99_ms" not in figures else "-" if p99 is None else f"{p99:.1f}",
    )
