"""One run, or several compared, as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import html
import importlib
import math
from collections.abc import Sequence
from pathlib import Path

from arlo.errors import EnvironmentProblem
from arlo.simulator.report.plots import OUTCOME_COLORS, figures, labels_of
from arlo.simulator.report.result import OUTCOMES, Result

# The browser itself holds the page to what it promises: no request leaves it.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; background: #f4f6f9; margin: 0; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 32px 0 10px; }
p.what { margin: 0 0 20px; color: #5a6575; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.card, .box { background: #fff; border: 1px solid #e1e6ed; border-radius: 8px; }
.card { padding: 12px 16px; }
.card b { display: block; font-size: 22px; font-weight: 600; }
.card span { color: #5a6575; font-size: 13px; }
.box { padding: 6px; overflow-x: auto; min-width: 0; }
.plots .box { overflow: hidden; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(540px, 100%), 1fr));
  gap: 14px; margin-top: 14px; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: 5px 9px; border-bottom: 1px solid #eef1f5; vertical-align: top; text-align: right; }
td:first-child, th:first-child, .facts td { text-align: left; }
.facts td:first-child { width: 1%; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
td:first-child { font-weight: 600; }
code { font: 13px ui-monospace, monospace; word-break: break-word; }
.warn { background: #fff6e5; border: 1px solid #f0d49a; border-radius: 8px; padding: 8px 14px; margin: 12px 0; }
"""


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
    page = render(results, labels=labels, title=title, facts=facts, warnings=warnings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def render(
    results: Sequence[Result],
    *,
    labels: Sequence[str] | None = None,
    title: str = "Simulation",
    facts: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
) -> str:
    """The whole page."""
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError:
        raise EnvironmentProblem("the HTML report needs plotly: pip install 'arlo-serve[bench]'") from None
    names = list(labels) if labels is not None else labels_of(results)
    config = {"displayModeBar": False, "responsive": True}
    plots = [
        figure.to_html(full_html=False, include_plotlyjs=False, config=config) for figure in figures(results, names)
    ]
    what = f"{len(results)} runs" if len(results) > 1 else results[0].scenario
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
            f"<script>{offline.get_plotlyjs()}</script></head>\n<body><main>",
            f'<h1>{html.escape(title)}</h1><p class="what">{html.escape(what)}</p>',
            _cards(results[0]) if len(results) == 1 else _comparison(results, names),
            *[f'<div class="warn">{html.escape(line)}</div>' for line in warnings],
            '<div class="plots">',
            *[f'<div class="box">{plot}</div>' for plot in plots],
            "</div>",
            *[_runtimes(r, n if len(results) > 1 else "") for r, n in list(zip(results, names, strict=True))[:8]],
            _facts(facts),
            # The first plot measures its box before the second one takes half of the row.
            '<script>addEventListener("load", () => dispatchEvent(new Event("resize")))</script>',
            "</main></body></html>\n",
        ]
    )


def _cards(result: Result) -> str:
    cards = [
        (f"{result.requests:,}", "requests"),
        (_share(result.slo_attainment), f"on time, SLO {result.slo_ms:g} ms"),
        (f"{result.goodput_rps:,.1f} /s", "goodput"),
        (f"{_ms(result.mean_ms)} ms", "mean latency"),
        (f"{_ms(result.p50_ms)} ms", "p50 latency"),
        (f"{_ms(result.p98_ms)} ms", "p98 latency"),
        (f"{result.workers_mean:.4g}", "GPUs, mean over time"),
        (f"{result.gpu_hours:.4g}", "GPU-hours"),
        (f"{result.utilization:.1%}", "of the GPUs' time executing"),
        (f"{result.padding:.1%}", "of the computed tokens padding"),
    ]
    shown = "".join(f'<div class="card"><b>{value}</b><span>{label}</span></div>' for value, label in cards)
    outcomes = " &nbsp; ".join(
        f'<b style="color:{OUTCOME_COLORS[name]}">{result.outcomes.get(name, 0):,}</b> {name}' for name in OUTCOMES
    )
    return f'<div class="cards">{shown}</div><p>{outcomes}</p>'


_COLUMNS = ("run", "requests", "mean ms", "p50 ms", "p98 ms", "p99 ms", "on time", "goodput /s", "GPUs", "GPU-hours",
            "padding", "demoted", "moves")  # fmt: skip


def _comparison(results: Sequence[Result], names: Sequence[str]) -> str:
    rows = [
        (
            name,
            f"{r.requests:,}",
            *(_ms(ms) for ms in (r.mean_ms, r.p50_ms, r.p98_ms, r.p99_ms)),
            _share(r.slo_attainment),
            f"{r.goodput_rps:,.1f}",
            f"{r.workers_mean:.4g}",
            f"{r.gpu_hours:.4g}",
            f"{r.padding:.1%}",
            f"{r.demoted:.1%}",
            f"{r.replacements}",
        )
        for r, name in zip(results, names, strict=True)
    ]
    return _table(_COLUMNS, rows)


def _runtimes(result: Result, name: str) -> str:
    """Per runtime: what it served, and how busy it was."""
    columns = [key for key in result.runtimes[0] if key != "name"] if result.runtimes else []
    if not columns:
        return ""
    rows = [
        (str(runtime["name"]), *(_number(runtime[key]) for key in columns if key != "name"))
        for runtime in result.runtimes
    ]
    head = ("runtime", *(key.replace("_", " ") for key in columns))
    return f"<h2>Runtimes{': ' + html.escape(name) if name else ''}</h2>" + _table(head, rows)


def _ms(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _share(value: float) -> str:
    return f"{value:.2%}" if math.isfinite(value) else "-"


def _number(value: object) -> str:
    return f"{value:,.5g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    cells = "".join(f"<tr><td>{html.escape(a)}</td><td><code>{html.escape(b)}</code></td></tr>" for a, b in facts)
    return f'<h2>What was simulated</h2><div class="box facts"><table>{cells}</table></div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="box"><table><tr>{top}</tr>{body}</table></div>'
