"""Traces as a result file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.report.result import Document, chart, line, report, save
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
        """The name that tells it from others."""
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
    # A last window that has hardly begun would look like a drop.
    last_s = data.duration_s - at[-1]
    if len(at) > 1 and last_s < window_s:
        at, rate = at[:-1], rate[:-1]
    return at, rate


def write(shown: list[Shown], path: Path) -> None:
    """Write a page (.html), or a file for `arlo report` (.json)."""
    save(path, [_document(each) for each in shown], "Traces")


def _document(shown: Shown) -> Document:
    data, name = shown.data, shown.label
    at, rate = load_over_time(data, _POINTS)
    known = [(window, value) for window, value in shown.summary.dispersion.items() if value is not None]
    dispersion = line(name, [w for w, _ in known], [v for _, v in known], "lines+markers")
    charts = [
        chart("Load over time", "time (s)", "arrivals per second", [line(name, at, rate)]),
        chart(
            "Burstiness: variance over mean of the arrivals",
            "window (s)",
            "variance / mean",
            [dispersion] if known else [],
            x_log=True,
            y_log=True,
            marks=[{"y": 1, "text": "Poisson"}],
        ),
    ]
    if isinstance(data, Trace):
        percent = np.linspace(0, 100, _POINTS + 1)
        tokens = np.percentile(data.length, percent, method="inverted_cdf")
        at, rows = (each[:_POINTS] for each in clip_percentiles(data))
        clips = [line("median", at, rows[:, 0], dash=True), line("p98", at, rows[:, 1])] if len(at) else []
        title, y = "Lengths: share of requests that are no longer", "share of requests (%)"
        charts.append(chart(title, "length (tokens)", y, [line(name, tokens, percent)], x_log=True))
        charts.append(chart("Drift: lengths in clips of 10 s", "time (s)", "length (tokens)", clips))
    return report("trace", f"Trace: {name}", label=name, charts=charts)
