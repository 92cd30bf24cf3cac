"""A result (arlo.report.result) as a page."""

from __future__ import annotations

import html
import math
from typing import Any

from arlo.report import figure as frame
from arlo.report import page
from arlo.report.result import Document


def draw(found: Document) -> str:
    """The whole page, of about 5 MB: the plotting library is in it. EnvironmentProblem without plotly."""
    charts = found["charts"]
    parts = [
        page.cards(found["cards"]) if found["cards"] else "",
        page.warnings(found["warnings"]),
        page.notes(found["notes"]),
        *(_table(each) for each in found["tables"] if not each["title"]),
        page.plots([figure_of(each) for each in charts], [each.get("note", "") for each in charts]),
        *(_table(each) for each in found["tables"] if each["title"]),
    ]
    return page.render(found["title"], parts, what=found["what"])


def _table(each: Document) -> str:
    title = f"<h2>{html.escape(each['title'])}</h2>" if each["title"] else ""
    if not each["head"]:
        return title + page.facts(each["rows"])
    marked = each.get("marked", ())
    return title + page.table(
        each["head"], each["rows"], classes=["chosen" if n in marked else "" for n in range(len(each["rows"]))]
    )


def figure_of(chart: Document) -> Any:
    """A chart as a plotly figure."""
    made = frame.figure(chart["title"], chart["x"], chart["y"])
    areas = sum(each["draw"] == "area" for each in chart["lines"])
    for index, each in enumerate(chart["lines"]):
        color = each.get("color") or (frame.level_color(index, areas) if areas else frame.color(index))
        _add(made, each, color)
    if not chart["lines"]:
        frame.say(made, chart.get("empty", "nothing to show"))
    for mark in chart.get("marks", ()):
        _mark(made, chart, mark)
    made.update_layout(showlegend=True, hovermode="closest", barmode="stack" if chart.get("stacked") else "group")
    if any(isinstance(value, str) for each in chart["lines"] for value in each["x"]):
        made.update_xaxes(type="category")
    _axis(made.update_xaxes, chart, "x")
    _axis(made.update_yaxes, chart, "y")
    return made


def _add(made: Any, each: Document, color: str) -> None:
    shared: dict[str, Any] = {"x": each["x"], "y": each["y"], "name": each["name"], "text": each.get("text")}
    if each["draw"] == "bars":
        made.add_bar(**shared, marker={"color": color}, textposition="inside")
        return
    area = each["draw"] == "area"
    above, below = each.get("error") or (None, None)
    made.add_scatter(
        **shared,
        mode=each["draw"] if each["draw"] in ("markers", "lines+markers") else "lines",
        line={
            "color": color,
            "width": 0.5 if area else 1.6,
            "dash": "dash" if each.get("dash") else "solid",
            "shape": "hv" if area or each["draw"] == "steps" else "linear",
        },
        marker={"size": 9} if each["draw"] == "markers" else None,
        error_y={"type": "data", "array": above, "arrayminus": below} if above is not None else None,
        **({"stackgroup": "one", "fillcolor": color} if area else {}),
    )


def _mark(made: Any, chart: Document, mark: Document) -> None:
    """A line across, with its name. On a logarithmic axis plotly takes lines by value and names by the logarithm."""
    axis = "x" if "x" in mark else "y"
    at = math.log10(mark[axis]) if chart.get(f"{axis}_log") else mark[axis]
    where: dict[str, Any] = {"x": at, "y": 0.06, "yref": "paper", "xshift": -6}
    if axis == "y":
        where = {"y": at, "x": 1, "xref": "paper", "yshift": 10}
    (made.add_vline if axis == "x" else made.add_hline)(mark[axis], line={"color": frame.RED, "dash": "dot"})
    made.add_annotation(**where, text=mark["text"], showarrow=False, xanchor="right", font={"color": frame.SLATE})


def _axis(update: Any, chart: Document, axis: str) -> None:
    """A logarithmic axis over all values and marks, or one from 0."""
    if chart.get(f"{axis}_log"):
        values = [value for each in chart["lines"] for value in each[axis] if value is not None and value > 0]
        values += [mark[axis] for mark in chart.get("marks", ()) if axis in mark]
        if values:
            update(**frame.log_axis(min(values) * 0.9, max(values) * 1.2))
    elif f"{axis}_range" in chart:
        update(range=chart[f"{axis}_range"])
    elif axis == "y":
        update(rangemode="tozero")
