"""One run, or several compared, as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from arlo.report import page
from arlo.report.numbers import ms, number, share
from arlo.report.table import facts as fact_table
from arlo.report.table import table
from arlo.simulator.report.plots import OUTCOME_COLORS, figures, labels_of
from arlo.simulator.report.result import OUTCOMES, Result


def write_report(
    path: Path,
    results: Sequence[Result],
    *,
    labels: Sequence[str] | None = None,
    title: str = "Simulation",
    facts: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
) -> None:
    """Write the page, of about 5 MB (the plotting library is in it). `facts`: what was simulated, in rows.

    EnvironmentProblem when plotly is not installed.
    """
    page.write(path, render(results, labels=labels, title=title, facts=facts, warnings=warnings))


def render(
    results: Sequence[Result],
    *,
    labels: Sequence[str] | None = None,
    title: str = "Simulation",
    facts: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
) -> str:
    """The whole page."""
    names = list(labels) if labels is not None else labels_of(results)
    many = len(results) > 1
    parts = [
        _comparison(results, names) if many else _cards(results[0]),
        page.warnings(warnings),
        page.plots(figures(results, names)),
        *(_runtimes(r, n if many else "") for r, n in list(zip(results, names, strict=True))[:8]),
        "<h2>What was simulated</h2>" + fact_table(facts) if facts else "",
    ]
    return page.render(title, parts, what=[f"{len(results)} runs" if many else results[0].scenario])


def _cards(result: Result) -> str:
    shown = [
        (f"{result.requests:,}", "requests"),
        (share(result.slo_attainment), f"on time, SLO {result.slo_ms:g} ms"),
        (f"{result.goodput_rps:,.1f} /s", "goodput"),
        (f"{ms(result.mean_ms)} ms", "mean latency"),
        (f"{ms(result.p50_ms)} ms", "p50 latency"),
        (f"{ms(result.p98_ms)} ms", "p98 latency"),
        (f"{result.workers_mean:.4g}", "GPUs, mean over time"),
        (f"{result.gpu_hours:.4g}", "GPU-hours"),
        (f"{result.utilization:.1%}", "of the GPUs' time executing"),
        (f"{result.padding:.1%}", "of the computed tokens padding"),
    ]
    counts = ((name, result.outcomes.get(name, 0), OUTCOME_COLORS[name]) for name in OUTCOMES)
    return page.cards(shown) + page.outcomes(counts)


_COLUMNS = ("run", "requests", "mean ms", "p50 ms", "p98 ms", "p99 ms", "on time", "goodput /s", "GPUs", "GPU-hours",
            "padding", "demoted", "moves")  # fmt: skip


def _comparison(results: Sequence[Result], names: Sequence[str]) -> str:
    rows = [
        (
            name,
            f"{r.requests:,}",
            *(ms(value) for value in (r.mean_ms, r.p50_ms, r.p98_ms, r.p99_ms)),
            share(r.slo_attainment),
            f"{r.goodput_rps:,.1f}",
            f"{r.workers_mean:.4g}",
            f"{r.gpu_hours:.4g}",
            f"{r.padding:.1%}",
            f"{r.demoted:.1%}",
            f"{r.replacements}",
        )
        for r, name in zip(results, names, strict=True)
    ]
    return table(_COLUMNS, rows)


def _runtimes(result: Result, name: str) -> str:
    """Per runtime: what it served, and how busy it was."""
    columns = [key for key in result.runtimes[0] if key != "name"] if result.runtimes else []
    if not columns:
        return ""
    rows = [
        (str(runtime["name"]), *(number(runtime[key]) for key in columns if key != "name"))
        for runtime in result.runtimes
    ]
    head = ("runtime", *(key.replace("_", " ") for key in columns))
    return f"<h2>Runtimes{': ' + html.escape(name) if name else ''}</h2>" + table(head, rows)
