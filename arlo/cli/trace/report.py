"""Plots of traces: one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.report import figure as frame
from arlo.report import page
from arlo.traces.measure import CountsSummary, Summary, clip_percentiles, rates
from arlo.traces.readers import Counts, Format
from arlo.traces.trace import Trace

_POINTS = 600


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
    title = "Traces: " + ", ".join(dict.fromkeys(each.path.name for each in shown))
    page.write(path, page.render(title, [page.plots(_figures(shown))]))


def _figures(shown: list[Shown]) -> list[Any]:
    figures = [_load(shown), _dispersion(shown)]
    traces = [each for each in shown if isinstance(each.data, Trace)]
    return [*figures, _lengths(traces), _clips(traces)] if traces else figures


def _figure(title: str, x: str, y: str) -> Any:
    figure = frame.figure(title, x, y)
    figure.update_layout(showlegend=True, hovermode="closest")
    figure.update_yaxes(rangemode="tozero")
    return figure


def _line(figure: Any, x: Any, y: Any, name: str, number: int, **more: Any) -> None:
    line = {"color": frame.color(number), **more.pop("line", {})}
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
    figure.add_hline(y=1, line={"color": frame.GREY, "dash": "dot"})
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
