"""`arlo plan --models`: workers divided among models, or shared by all of them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from arlo.cli.plan import inputs
from arlo.cli.text import print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.simulator.division import Division
    from arlo.simulator.report.result import Result

# What a demand for one model is told by.
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
    """One plan as JSON."""
    shared = division.shared
    return {
        "workers": workers,
        "together": {"slo_attainment": shared.slo_attainment, "mean_ms": shared.mean_ms},
        "divided": {"slo_attainment": division.slo_attainment, "mean_ms": division.mean_ms},
        "models": [
            {"name": name, "workers": count, "together": _model(row), "divided": _alone(result)}
            for name, count, row, result in _rows(division)
        ],
    }


def _rows(division: Division) -> list[tuple[str, int, Any, Result]]:
    return list(zip(division.models, division.workers, division.shared.models, division.alone, strict=True))


def _model(row: Any) -> dict[str, float]:
    return {key: row[key] for key in ("slo_attainment", "mean_ms", "p99_ms")}


def _alone(result: Result) -> dict[str, float]:
    return {"slo_attainment": result.slo_attainment, "mean_ms": result.mean_ms, "p99_ms": result.p99_ms}


def _print(console: Any, workers: int, division: Division) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=f"[bold]{workers} workers", title_justify="left")
    table.add_column("model")
    for column in ("requests/s", "SLO ms", "shared by all: on time", "mean ms", "p99 ms"):
        table.add_column(column, justify="right")
    for column in ("own workers", "on time", "mean ms", "p99 ms"):
        table.add_column(column, justify="right")
    for name, count, row, result in _rows(division):
        shared, alone = _model(row), _alone(result)
        table.add_row(
            name,
            f"{result.requests / result.duration_s:,.0f}",
            f"{result.slo_ms:g}",
            *_cells(shared),
            str(count),
            *_cells(alone),
        )
    shared_all = division.shared
    table.add_row(
        "all",
        f"{shared_all.requests / shared_all.duration_s:,.0f}",
        "",
        f"{shared_all.slo_attainment:.2%}",
        f"{shared_all.mean_ms:.2f}",
        "",
        str(workers),
        f"{division.slo_attainment:.2%}",
        f"{division.mean_ms:.2f}",
        "",
        style="bold",
    )
    console.print(table)


def _cells(figures: dict[str, float]) -> tuple[str, str, str]:
    return f"{figures['slo_attainment']:.2%}", f"{figures['mean_ms']:.2f}", f"{figures['p99_ms']:.1f}"
