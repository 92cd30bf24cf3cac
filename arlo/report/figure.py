"""The frame of all plots: colours, fonts, axes. Figures are plotly's; plotly is imported where one is made."""

from __future__ import annotations

import math
from typing import Any

BLUE, ORANGE, GREEN, RED, VIOLET = "#2f6fde", "#e58a2a", "#2f9e6e", "#d1495b", "#8a5bc7"
TEAL, GOLD, PINK, SLATE, OLIVE = "#17a2b8", "#b8860b", "#e377c2", "#5a6575", "#7f9c2f"
GREY, PALE, INK = "#8b95a5", "#d9dee6", "#1d2430"
COLORS = (BLUE, ORANGE, GREEN, RED, VIOLET, TEAL, GOLD, PINK, SLATE, OLIVE)  # of lines, in this order
# Short to long levels, light to dark.
LEVELS = ("#fde3b0", "#fbc15e", "#f49a3c", "#e0713f", "#c04b5a", "#953a72", "#663182", "#3a2a78", "#1d2150", "#0d0f26")


def color(index: int) -> str:
    """The colour of the n-th line."""
    return COLORS[index % len(COLORS)]


def level_color(index: int, count: int) -> str:
    """The colour of a level among `count`."""
    return LEVELS[round(index * (len(LEVELS) - 1) / (count - 1)) if count > 1 else len(LEVELS) // 2]


def figure(title: str, x: str, y: str, *, right: int = 32) -> Any:
    """An empty figure with the names of its axes. `right`: margin in pixels, wider for an axis there."""
    import plotly.graph_objects as go

    return framed(
        go.Figure(),
        title,
        margin={"l": 68, "r": right, "t": 48, "b": 104},
        height=430,
        legend={"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top", "traceorder": "normal"},
        xaxis={"title": {"text": x}},
        yaxis={"title": {"text": y}},
        hovermode="x unified",
    )


def framed(made: Any, title: str, **layout: Any) -> Any:
    """A figure of any kind, in the fonts and colours of all."""
    made.update_layout(
        template="plotly_white",
        title={"text": title, "font": {"size": 16}, "x": 0.02},
        font={"family": "system-ui, sans-serif", "size": 13},
        **layout,
    )
    return made


def say(made: Any, why: str) -> Any:
    """The figure, with a sentence where nothing is drawn."""
    made.add_annotation(text=why, showarrow=False, xref="paper", yref="paper", x=0.5, y=0.5)
    return made


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """1, 2, 5, 10, ... written out (plotly shortens them to a lone digit); over many decades powers of ten only."""
    decades = math.log10(high / low)
    digits = (1, 2, 5) if decades < 2.6 else (1, 3) if decades < 3.6 else (1,)
    ticks = [digit * 10.0**power for power in range(-5, 8) for digit in digits]
    return {"tickvals": ticks, "ticktext": [f"{tick:,.10g}" for tick in ticks], "tickangle": 0}


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Settings of a logarithmic axis from `low` to `high`."""
    return {"type": "log", "range": [math.log10(low), math.log10(high)], **log_ticks(low, high)}
