"""The choice of lengths as one HTML page that loads nothing from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from arlo.compile.lengths.show import cost_title, rows, sentences
from arlo.compile.steps.lengths import LengthChoice
from arlo.planning.lengths.choice import PAPER_STEP
from arlo.report import figure as frame
from arlo.report import page
from arlo.report.figure import BLUE, GREEN, GREY, ORANGE, RED, SLATE
from arlo.report.numbers import digits
from arlo.report.table import table

_LEVELS = ("#cfe0fb", "#8fb4f2")  # by turns
_BARS = 64  # of the histogram, at most

_STYLE = """
table td:nth-child(2), table th:nth-child(2) { text-align: left; }
td:first-child { white-space: nowrap; }
tr.chosen td { background: #eaf1fd; font-weight: 600; }
tr.beside td { color: #5a6575; }
"""


def write_page(found: LengthChoice, path: Path, *, title: str) -> None:
    """Write the page, of about 5 MB (the plotting library is in it). EnvironmentProblem without plotly."""
    page.write(path, render(found, title=title))


def render(found: LengthChoice, *, title: str) -> str:
    """The whole page."""
    parts = [page.warnings(found.notes), page.plots((by_number(found), over_length(found))), _table(found)]
    return page.render(title, parts, what=list(sentences(found)), style=_STYLE)


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
        annotation={"text": "a runtime for every length", "font": {"color": SLATE, "size": 12}},
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


def _digits(value: float) -> float | None:
    return digits(value, 4)


def _table(found: LengthChoice) -> str:
    head = ("runtimes", "maximum lengths", cost_title(found), "saves", "last one saves", "padding")
    shown = list(rows(found))
    return table(
        head,
        [(row.runtimes, row.lengths, row.expected, row.saving, row.further, row.padding) for row in shown],
        classes=["chosen" if row.chosen else "beside" if row.beside else "" for row in shown],
    )


def _figure(title: str, x: str, y: str) -> Any:
    """The second axis, to the left, is of `y`."""
    figure = frame.figure(title, x, "", right=64)
    figure.update_layout(
        yaxis2={"title": {"text": y}, "overlaying": "y", "side": "left", "rangemode": "tozero", "tickmode": "auto"},
    )
    return figure
