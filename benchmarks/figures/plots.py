"""Draws the plots of an experiment with plotly, from plain values."""

from __future__ import annotations

from typing import Any

from arlo.report import figure as frame
from arlo.report.figure import BLUE, GOLD, GREEN, GREY, INK, ORANGE, PINK, RED, TEAL, VIOLET

# One colour for a scheme, policy or allocation wherever it appears.
COLORS = {
    "st": RED, "dt": ORANGE, "infaas": VIOLET, "paper": BLUE, "arlo": GREEN,
    "rs": BLUE, "eft": GREEN, "late": TEAL, "ilb": GOLD, "ig": PINK,
    "periodic": BLUE, "even": GOLD, "global": PINK, "oracle": TEAL, "queueing": GREEN,
    "cluster": INK, "simulated": BLUE, "published": GREY,
}  # fmt: skip


def draw(plot: dict[str, Any]) -> Any:
    """A plotly figure."""
    figure = frame.figure(plot["title"], plot["x"], plot["y"], right=16)
    stacked = plot["kind"] == "stack"
    for index, series in enumerate(plot["series"]):
        color = COLORS.get(series["scheme"]) or (
            frame.level_color(index, len(plot["series"])) if stacked else frame.color(index)
        )
        if plot["kind"] == "bars":
            figure.add_bar(x=series["x"], y=series["y"], name=series["name"], marker={"color": color})
            continue
        line = {"color": color, "width": 0.5 if stacked else 2, "dash": "dot" if series["dash"] else "solid"}
        line["shape"] = "hv" if plot["kind"] in ("steps", "stack") else "linear"
        figure.add_scatter(
            x=series["x"],
            y=series["y"],
            name=series["name"],
            mode="lines+markers" if plot["kind"] == "lines" and len(series["x"]) < 30 else "lines",
            line=line,
            **({"stackgroup": "one", "fillcolor": color} if stacked else {}),
        )
    _layout(figure, plot)
    return figure


def _layout(figure: Any, plot: dict[str, Any]) -> None:
    figure.update_layout(
        height=400,
        showlegend=True,
        hovermode="x unified" if plot["kind"] in ("steps", "stack") else "closest",
        barmode="group",
    )
    for axis, log, values, given in (
        (figure.update_xaxes, plot["log_x"], "x", plot["x_range"]),
        (figure.update_yaxes, plot["log_y"], "y", plot["y_range"]),
    ):
        if log:
            low, high = given or _extent(plot, values)
            axis(**frame.log_axis(low, high))
        elif given:
            axis(range=list(given))
    if plot["kind"] == "cdf" and not plot["y_range"]:
        figure.update_yaxes(range=[0, 101])
    elif not plot["log_y"] and not plot["y_range"]:
        figure.update_yaxes(rangemode="tozero")
    slo_ms = plot["slo_ms"]
    if slo_ms is not None:
        if plot["kind"] == "cdf":
            frame.slo_mark(figure, slo_ms, log=plot["log_x"], tint=GREY)
        else:
            figure.add_hline(y=slo_ms, line={"color": GREY, "dash": "dot"})


def _extent(plot: dict[str, Any], axis: str) -> tuple[float, float]:
    values = [v for series in plot["series"] for v in series[axis] if isinstance(v, int | float) and v > 0]
    if not values:
        return 0.1, 10.0
    return min(values) * 0.9, max(values) * 1.15
