"""Draws the plots of an experiment with plotly, from plain values."""

from __future__ import annotations

import math
from typing import Any

# One colour for a scheme, policy or allocation wherever it appears.
COLORS = {
    "st": "#d1495b", "dt": "#e58a2a", "infaas": "#8a5bc7", "paper": "#2f6fde", "arlo": "#2f9e6e",
    "rs": "#2f6fde", "eft": "#2f9e6e", "late": "#17a2b8", "ilb": "#b8860b", "ig": "#e377c2",
    "periodic": "#2f6fde", "even": "#b8860b", "global": "#e377c2", "oracle": "#17a2b8", "queueing": "#2f9e6e",
    "cluster": "#1d2430", "simulated": "#2f6fde", "published": "#8b95a5",
}  # fmt: skip
_FREE = ("#2f6fde", "#e58a2a", "#2f9e6e", "#d1495b", "#8a5bc7", "#17a2b8", "#b8860b", "#e377c2", "#5a6575", "#7f9c2f")
# Short to long runtimes, light to dark.
_LEVELS = ("#fde3b0", "#fbc15e", "#f49a3c", "#e0713f", "#c04b5a", "#953a72", "#663182", "#3a2a78", "#1d2150", "#0d0f26")


def draw(plot: dict[str, Any]) -> Any:
    """A plotly figure."""
    import plotly.graph_objects as go

    figure = go.Figure()
    stacked = plot["kind"] == "stack"
    for index, series in enumerate(plot["series"]):
        color = COLORS.get(series["scheme"]) or (
            _level(index, len(plot["series"])) if stacked else _FREE[index % len(_FREE)]
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
        template="plotly_white",
        title={"text": plot["title"], "font": {"size": 15}, "x": 0.01},
        font={"family": "system-ui, sans-serif", "size": 12},
        margin={"l": 64, "r": 16, "t": 44, "b": 96},
        height=400,
        legend={"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top", "traceorder": "normal"},
        xaxis={"title": {"text": plot["x"]}},
        yaxis={"title": {"text": plot["y"]}},
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
            axis(type="log", range=[math.log10(low), math.log10(high)], **_log_ticks(low, high))
        elif given:
            axis(range=list(given))
    if plot["kind"] == "cdf" and not plot["y_range"]:
        figure.update_yaxes(range=[0, 101])
    elif not plot["log_y"] and not plot["y_range"]:
        figure.update_yaxes(rangemode="tozero")
    slo_ms = plot["slo_ms"]
    if slo_ms is not None:
        if plot["kind"] == "cdf":
            figure.add_vline(x=slo_ms, line={"color": "#8b95a5", "dash": "dot"})
            at = math.log10(slo_ms) if plot["log_x"] else slo_ms
            figure.add_annotation(
                x=at, y=0.04, yref="paper", text=f"SLO {slo_ms:g} ms", showarrow=False, xanchor="right", xshift=-6
            )
        else:
            figure.add_hline(y=slo_ms, line={"color": "#8b95a5", "dash": "dot"})


def _extent(plot: dict[str, Any], axis: str) -> tuple[float, float]:
    values = [v for series in plot["series"] for v in series[axis] if isinstance(v, int | float) and v > 0]
    if not values:
        return 0.1, 10.0
    return min(values) * 0.9, max(values) * 1.15


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    """1, 2, 5, 10, ... written out (plotly shortens them to a lone digit); over many decades powers of ten only."""
    digits = (1, 2, 5) if math.log10(high / low) < 2.6 else (1, 3) if math.log10(high / low) < 3.6 else (1,)
    ticks = [digit * 10.0**power for power in range(-5, 8) for digit in digits]
    return {"tickvals": ticks, "ticktext": [f"{tick:,.10g}" for tick in ticks], "tickangle": 0}


def _level(index: int, count: int) -> str:
    return _LEVELS[round(index * (len(_LEVELS) - 1) / max(count - 1, 1))]
