"""The choice of lengths as one HTML page that loads nothing from anywhere."""

from __future__ import annotations

import html
import importlib
from pathlib import Path
from typing import Any

import numpy as np

from arlo.compile.lengths.show import cost_title, rows, sentences
from arlo.compile.steps.lengths import LengthChoice
from arlo.errors import ConfigError, EnvironmentProblem
from arlo.planning.lengths.choice import PAPER_STEP

BLUE, ORANGE, GREEN, RED, GREY = "#2f6fde", "#e58a2a", "#2f9e6e", "#d1495b", "#8b95a5"
_LEVELS = ("#cfe0fb", "#8fb4f2")  # by turns
_BARS = 64  # of the histogram, at most

# The browser itself holds the page to what it promises: no request leaves it.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; background: #f4f6f9; margin: 0; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 24px; margin: 0 0 4px; }
p.what { margin: 0 0 6px; color: #5a6575; }
.box { background: #fff; border: 1px solid #e1e6ed; border-radius: 8px; padding: 6px; overflow-x: auto; min-width: 0;
  margin-top: 14px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(540px, 100%), 1fr)); gap: 0 14px; }
.plots .box { overflow: hidden; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: 5px 9px; border-bottom: 1px solid #eef1f5; vertical-align: top; text-align: right; }
td:first-child, th:first-child, td:nth-child(2), th:nth-child(2) { text-align: left; }
td:first-child { white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
tr.chosen td { background: #eaf1fd; font-weight: 600; }
tr.beside td { color: #5a6575; }
.warn { background: #fff6e5; border: 1px solid #f0d49a; border-radius: 8px; padding: 8px 14px; margin: 12px 0; }
"""


def write_page(found: LengthChoice, path: Path, *, title: str) -> None:
    """Write the page, of about 5 MB (the plotting library is in it). EnvironmentProblem without plotly."""
    page = render(found, title=title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror})") from None


def render(found: LengthChoice, *, title: str) -> str:
    """The whole page."""
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError:
        raise EnvironmentProblem("the plot needs plotly: pip install 'arlo-serve[bench]'") from None
    config = {"displayModeBar": False, "responsive": True}
    plots = [
        figure.to_html(full_html=False, include_plotlyjs=False, config=config)
        for figure in (by_number(found), over_length(found))
    ]
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
            f"<script>{offline.get_plotlyjs()}</script></head>\n<body><main><h1>{html.escape(title)}</h1>",
            *[f'<p class="what">{html.escape(line)}</p>' for line in sentences(found)],
            *[f'<div class="warn">{html.escape(line)}</div>' for line in found.notes],
            '<div class="plots">',
            *[f'<div class="box">{plot}</div>' for plot in plots],
            "</div>",
            _table(found),
            # The first plot measures its box before the second one takes half of the row.
            '<script>addEventListener("load", () => dispatchEvent(new Event("resize")))</script>',
            "</main></body></html>\n",
        ]
    )


def by_number(found: LengthChoice) -> Any:
    """Plotly figure: expected time over the number of runtimes, and what each of them saves."""
    choice = found.choice
    figure = _figure("What each further runtime saves", "runtimes", _axis(found))
    numbers = list(range(1, len(choice.rows) + 1))
    figure.add_bar(
        x=numbers[1:],
        y=[_digits(100 * choice.marginal(index)) for index in range(1, len(choice.rows))],
        name="saved by this runtime (%)",
        width=0.5,
        marker={"color": _LEVELS[0]},
        hovertemplate="%{y} %",
    )
    figure.add_scatter(
        x=numbers,
        y=[_cost(found, row.expected_us) for row in choice.rows],
        name="best lengths",
        yaxis="y2",
        mode="lines+markers",
        line={"color": BLUE},
        marker={"size": 7},
        text=[", ".join(map(str, row.lengths)) for row in choice.rows],
        hovertemplate="%{y} (%{text})",
    )
    others = [(f"every {PAPER_STEP} tokens", choice.paper, GREY, "square")]
    if choice.uniform.lengths != choice.paper.lengths:
        others.append(("equal steps", choice.uniform, ORANGE, "diamond"))
    if choice.given is not None:
        others.append(("as named", choice.given, RED, "x"))
    most = max(8, len(choice.rows))
    for name, row, color, symbol in others:
        if len(row.lengths) <= 2 * most:
            figure.add_scatter(
                x=[len(row.lengths)],
                y=[_cost(found, row.expected_us)],
                name=name,
                yaxis="y2",
                mode="markers",
                marker={"color": color, "size": 10, "symbol": symbol},
                hovertemplate="%{y}",
            )
    figure.add_scatter(
        x=[choice.runtimes],
        y=[_cost(found, choice.chosen.expected_us)],
        name="chosen",
        yaxis="y2",
        mode="markers",
        marker={"color": "rgba(0,0,0,0)", "size": 17, "line": {"color": GREEN, "width": 3}},
        hoverinfo="skip",
    )
    figure.add_hline(
        y=_cost(found, choice.bound_us),
        yref="y2",
        line={"color": GREY, "dash": "dot"},
        annotation={"text": "a runtime for every length", "font": {"color": "#5a6575", "size": 12}},
        annotation_position="bottom right",
    )
    least = 100 * choice.least_saving
    highest = max((100 * choice.marginal(index) for index in range(len(choice.rows))), default=0.0)
    figure.update_layout(
        yaxis={
            "side": "right",
            "title": {"text": "saved by this runtime (%)"},
            "range": [0, max(2.2 * highest, 2 * least, 1)],  # bars in the lower half, below the line
            "showgrid": False,
        },
        xaxis={"dtick": 1 if most <= 16 else 2},
    )
    return figure


def over_length(found: LengthChoice) -> Any:
    """Plotly figure: the requests by length and runtime, the latency, and what the chosen runtimes take."""
    choice, requests = found.choice, found.traffic
    lengths = np.array(found.lengths)
    figure = _figure("Requests, latency and maximum lengths", "tokens", _axis(found))
    width = max(1, -(-requests.longest // _BARS))
    edges = np.arange(0, requests.longest + width, width)
    share = np.add.reduceat(requests.counts[1:], edges[:-1]) / requests.counts.sum() * 100
    middle = edges[:-1] + (width + 1) / 2
    level = np.searchsorted(lengths, np.minimum(edges[1:], requests.longest))
    figure.add_bar(
        x=middle.tolist(),
        y=[_digits(value) for value in share],
        width=width,
        name="requests (%)",
        marker={"color": [_LEVELS[at % 2] for at in level], "line": {"width": 0}},
        hovertemplate="%{y} %",
    )
    curve = found.curve.curve
    measured = [(length, cost) for length, cost in curve.points if length <= requests.longest] or [curve.points[0]]
    if measured[-1][0] < requests.longest:
        measured.append((requests.longest, float(curve.cost_us([requests.longest])[0])))
    shape = {"line": "linear", "steps": "vh"}[curve.reading]
    label = "latency, assumed" if found.curve.relative else "latency"
    figure.add_scatter(
        x=[1, *[length for length, _ in measured]],
        y=[_cost(found, cost) for cost in (measured[0][1], *[cost for _, cost in measured])],
        name=label,
        yaxis="y2",
        mode="lines" if found.curve.relative else "lines+markers",
        line={"color": ORANGE, "shape": shape, "width": 1.5},
        marker={"size": 5},
        hovertemplate="%{y}",
    )
    own = curve.cost_us(lengths)
    figure.add_scatter(
        x=[0, *lengths.tolist()],
        y=[_cost(found, cost) for cost in (own[0], *own)],
        name="runtimes as named" if choice.given is not None else "chosen runtimes",
        yaxis="y2",
        mode="lines",
        line={"color": BLUE, "shape": "vh"},
        hovertemplate="%{y}",
    )
    for length in lengths[:-1]:
        figure.add_vline(x=int(length), line={"color": GREY, "dash": "dot", "width": 1})
    figure.update_layout(
        bargap=0,
        xaxis={"range": [0, requests.longest * 1.03], "tickvals": _ticks(lengths.tolist()), "tickangle": 0},
        yaxis={
            "side": "right",
            "title": {"text": f"requests (% in {width} tokens)" if width > 1 else "requests (%)"},
            "rangemode": "tozero",
            "showgrid": False,
        },
    )
    return figure


def _ticks(lengths: list[int]) -> list[int]:
    """The maximum lengths, but for those whose labels would touch."""
    shown: list[int] = []
    for length in reversed(lengths):
        if not shown or shown[-1] - length >= lengths[-1] * 0.05:
            shown.append(length)
    return shown[::-1]


def _axis(found: LengthChoice) -> str:
    return "time (% of the longest runtime's)" if found.curve.relative else "time of one request (ms)"


def _cost(found: LengthChoice, cost_us: float) -> float:
    whole = found.choice.rows[0].expected_us
    return _digits(100 * cost_us / whole if found.curve.relative else cost_us / 1000)


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _table(found: LengthChoice) -> str:
    head = ("runtimes", "maximum lengths", cost_title(found), "saves", "last one saves", "padding")
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        f'<tr class="{"chosen" if row.chosen else "beside" if row.beside else ""}">'
        + "".join(
            f"<td>{html.escape(cell)}</td>"
            for cell in (row.runtimes, row.lengths, row.expected, row.saving, row.further, row.padding)
        )
        + "</tr>"
        for row in rows(found)
    )
    return f'<div class="box"><table><tr>{top}</tr>{body}</table></div>'


def _figure(title: str, x: str, y: str) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        title={"text": title, "font": {"size": 16}, "x": 0.02},
        font={"family": "system-ui, sans-serif", "size": 13},
        margin={"l": 64, "r": 64, "t": 48, "b": 104},
        height=430,
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "traceorder": "normal"},
        xaxis={"title": {"text": x}},
        yaxis2={"title": {"text": y}, "overlaying": "y", "side": "left", "rangemode": "tozero", "tickmode": "auto"},
        hovermode="x unified",
    )
    return figure
