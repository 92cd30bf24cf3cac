"""Plots of traces: one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import dataclasses
import html
import importlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError, EnvironmentProblem
from arlo.traces.measure import CountsSummary, Summary, clip_percentiles, rates
from arlo.traces.readers import Counts, Format
from arlo.traces.trace import Trace

_POINTS = 600
_COLORS = ("#2f6fde", "#e58a2a", "#2f9e6e", "#d1495b", "#8a5bc7", "#8b95a5", "#1aa5b8", "#b0588f", "#6b7a1f", "#5b4636")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; background: #f4f6f9; margin: 0; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 24px; margin: 0 0 16px; }
.box { background: #fff; border: 1px solid #e1e6ed; border-radius: 8px; padding: 6px; min-width: 0; overflow: hidden; }
.plots { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; }
@media (max-width: 900px) { .plots { grid-template-columns: minmax(0, 1fr); } }
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """One trace or one window of counts, as it is shown."""

    path: Path
    format: Format
    segment: str | None
    summary: Summary | CountsSummary
    data: Trace | Counts

    @property
    def label(self) -> str:
        """To tell it from others."""
        return f"{self.path.name} {self.segment}" if self.segment is not None else self.path.name


def load_over_time(data: Trace | Counts, points: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start in seconds and arrivals per second of at most `points` windows, of at least a second each."""
    if isinstance(data, Counts):
        width = max(1, -(-len(data.count) // points))
        starts = np.arange(0, len(data.count), width)
        sizes = np.minimum(width, len(data.count) - starts)
        return starts * data.step_s, np.add.reduceat(data.count, starts) / (sizes * data.step_s)
    window_s = max(1.0, float(np.ceil(data.duration_s / points)))
    at, rate = rates(data, window_s)
    # A last window that hardly began would look like a drop.
    last_s = data.duration_s - at[-1]
    if len(at) > 1 and last_s < window_s:
        at, rate = at[:-1], rate[:-1]
    return at, rate


def write(shown: list[Shown], path: Path) -> None:
    """Write the page. EnvironmentProblem when plotly is not installed."""
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError:
        raise EnvironmentProblem("plots need plotly: pip install 'arlo-serve[bench]'") from None
    config = {"displayModeBar": False, "responsive": True}
    plots = [figure.to_html(full_html=False, include_plotlyjs=False, config=config) for figure in _figures(shown)]
    title = html.escape("Traces: " + ", ".join(dict.fromkeys(each.path.name for each in shown)))
    page = "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{title}</title><style>{_STYLE}</style><script>{offline.get_plotlyjs()}</script></head>\n",
            f'<body><main><h1>{title}</h1><div class="plots">',
            *[f'<div class="box">{plot}</div>' for plot in plots],
            "</div></main></body></html>\n",
        ]
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the plots to {path}: {error}") from None


def _figures(shown: list[Shown]) -> list[Any]:
    figures = [_load(shown), _dispersion(shown)]
    traces = [each for each in shown if isinstance(each.data, Trace)]
    return [*figures, _lengths(traces), _clips(traces)] if traces else figures


def _figure(title: str, x: str, y: str) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        title={"text": title, "font": {"size": 16}, "x": 0.02},
        font={"family": "system-ui, sans-serif", "size": 13},
        margin={"l": 64, "r": 32, "t": 48, "b": 104},
        height=430,
        legend={"orientation": "h", "x": 0, "y": -0.26, "yanchor": "top"},
        showlegend=True,
        xaxis={"title": {"text": x}},
        yaxis={"title": {"text": y}, "rangemode": "tozero"},
    )
    return figure


def _line(figure: Any, x: Any, y: Any, name: str, number: int, **more: Any) -> None:
    line = {"color": _COLORS[number % len(_COLORS)], **more.pop("line", {})}
    # Plain lists: arrays would be written in a form that the page's policy does not let the library decode.
    figure.add_scatter(x=np.asarray(x).tolist(), y=np.asarray(y).tolist(), name=name, line=line, **more)


def _load(shown: list[Shown]) -> Any:
    figure = _figure("Load over time", "time (s)", "arrivals per second")
    for number, each in enumerate(shown):
        at, rate = load_over_time(each.data, _POINTS)
        _line(figure, at, np.round(rate, 3), each.label, number, mode="lines")
    return figure


def _dispersion(shown: list[Shown]) -> Any:
    figure = _figure("Burstiness: variance over mean of the arrivals", "window (s)", "variance / mean")
    for number, each in enumerate(shown):
        known = [(window, value) for window, value in each.summary.dispersion.items() if value is not None]
        if known:
            _line(figure, [w for w, _ in known], [v for _, v in known], each.label, number, mode="lines+markers")
    figure.add_hline(y=1, line={"color": "#8b95a5", "dash": "dot"})
    figure.add_annotation(x=1, xref="paper", y=0, text="Poisson", showarrow=False, xanchor="right", yshift=10)
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return figure


def _lengths(shown: list[Shown]) -> Any:
    figure = _figure("Lengths: share of requests that are no longer", "length (tokens)", "share of requests (%)")
    for number, each in enumerate(shown):
        assert isinstance(each.data, Trace)
        percent = np.linspace(0, 100, _POINTS + 1)
        tokens = np.percentile(each.data.length, percent, method="inverted_cdf")
        _line(figure, tokens, np.round(percent, 3), each.label, number, mode="lines")
    figure.update_xaxes(type="log")
    return figure


def _clips(shown: list[Shown]) -> Any:
    figure = _figure("Drift: lengths in clips of 10 s", "time (s)", "length (tokens)")
    for number, each in enumerate(shown):
        assert isinstance(each.data, Trace)
        at, rows = clip_percentiles(each.data)
        at, rows = at[:_POINTS], rows[:_POINTS]
        if len(at):
            _line(figure, at, rows[:, 0], f"median {each.label}", number, mode="lines", line={"dash": "dot"})
            _line(figure, at, rows[:, 1], f"p98 {each.label}", number, mode="lines")
    return figure
