"""`arlo plan --models`: workers divided among models, or shared by all of them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from arlo.cli.text import only_with, print_json
from arlo.errors import ConfigError
from arlo.report.terminal import columns, console

if TYPE_CHECKING:
    from rich.table import Table

    from arlo.simulator.division import Division
    from arlo.simulator.report.result import Result


def run_models(args: argparse.Namespace) -> int:
    """Simulate and print."""
    from rich.console import Console

    from arlo.report.progress import LiveBar
    from arlo.simulator.division import divide
    from arlo.simulator.scenario import config as scenarios

    one = "slo_ms max_lengths latency_ms repository profile demand trace rate lengths"
    only_with(args, one, "is of one model: the file of --models has it for each")
    config = scenarios.load(args.models)
    if not config.model:
        raise ConfigError(f"{args.models} has no [[model]]; docs/several-models.md has an example")
    with LiveBar(Console(stderr=True)) as bar:
        found = divide(config, [*args.workers], progress=lambda done, of: bar.show(done, of, f"{done} of {of} runs"))
    plans = list(zip(args.workers, found, strict=True))
    if args.json:
        rows = [as_dict(*plan) for plan in plans]
        print_json({"plans": rows} if len(rows) > 1 else rows[0])
        return 0
    for plan in plans:
        console(120).print(_table(*plan))
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


def _table(workers: int, division: Division) -> Table:
    figures = ("on time", "mean ms", "p99 ms")
    head = ("model", "requests/s", "SLO ms", f"shared by all: {figures[0]}", *figures[1:], "own workers", *figures)
    rows = [
        (
            name,
            f"{result.requests / result.duration_s:,.0f}",
            f"{result.slo_ms:g}",
            *_cells(_figures(row)),
            str(count),
            *_cells(_figures(result)),
        )
        for name, count, row, result in _rows(division)
    ]
    shared = division.shared
    every = _cells(_figures(shared)), _cells(_figures(division, ("slo_attainment", "mean_ms")))
    rows.append(("all", f"{shared.requests / shared.duration_s:,.0f}", "", *every[0], str(workers), *every[1]))
    return columns(head, rows, title=f"[bold]{workers} workers", bold=(len(rows) - 1,))


def _cells(figures: dict[str, float | None]) -> tuple[str, str, str]:
    mean, p99 = figures["mean_ms"], figures.get("p99_ms")
    return (
        f"{figures['slo_attainment']:.2%}",
        "-" if mean is None else f"{mean:.2f}",
        "" if "p99_ms" not in figures else "-" if p99 is None else f"{p99:.1f}",
    )
