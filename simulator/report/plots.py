"""The plots of one simulated run, or of several over each other, as plotly figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.report import figure as frame
from arlo.report.figure import GREEN, GREY, LILAC, ORANGE, RED, VIOLET
from arlo.report.numbers import digits
from arlo.simulator.report.result import OUTCOMES, Result

OUTCOME_COLORS = dict(zip(OUTCOMES, (GREEN, ORANGE, VIOLET, LILAC, GREY, RED), strict=True))
_POINTS = 400  # of a timeline; more only make the file larger
_MOST_STACKS = 6  # of instances over time, one plot for each run


def figures(results: Sequence[Result], labels: Sequence[str]) -> list[Any]:
    """CDF, outcomes, load, p98, attainment, queue, workers, and the instances of each run."""
    made = [
        _cdf(results, labels),
        _outcomes(results, labels),
        _over_time(results, labels, "Load", "requests per second", "rate"),
        _over_time(results, labels, "p98 latency over time", "p98 latency (ms)", "p98_ms"),
        _over_time(results, labels, "SLO attainment over time", "on time, of all that ended (%)", "attainment"),
        _over_time(results, labels, "Waiting at the request scheduler", "requests", "queued"),
        _over_time(results, labels, "GPUs over time", "GPUs held", "present"),
    ]
    # Beside others, a run with one runtime has nothing to show that "GPUs over time" does not.
    stacks = [pair for pair in zip(results, labels, strict=True) if len(results) == 1 or len(_stacked(pair[0])) > 1]
    made += [_instances(result, label if len(results) > 1 else "") for result, label in stacks[:_MOST_STACKS]]
    return made


def _stacked(result: Result) -> list[str]:
    return [name for name in result.timeline if name.startswith("instances.")]


def _cdf(results: Sequence[Result], labels: Sequence[str]) -> Any:
    figure = frame.figure("Latency of all answers", "latency (ms)", "share of the answers (%)")
    lows, highs = [], []
    for index, (result, label) in enumerate(zip(results, labels, strict=True)):
        if not result.requests or not math.isfinite(result.mean_ms) or result.cdf_ms[-1] <= 0:
            continue
        figure.add_scatter(
            x=_short(result.cdf_ms),
            y=np.round(result.cdf_q * 100, 4),
            name=label,
            mode="lines",
            line={"color": frame.color(index)},
        )
        lows.append(max(float(result.cdf_ms[0]), 1e-3))
        highs.append(max(float(result.cdf_ms[-1]), result.slo_ms))
    if not lows:
        return frame.say(figure, "nothing was answered")
    for slo_ms in sorted({result.slo_ms for result in results}):
        frame.slo_mark(figure, slo_ms)
    figure.update_xaxes(**frame.log_axis(min(lows) * 0.9, max(highs) * 1.2))
    figure.update_yaxes(range=[0, 101])
    figure.update_layout(hovermode="closest", showlegend=True)
    return figure


def _outcomes(results: Sequence[Result], labels: Sequence[str]) -> Any:
    figure = frame.figure("Outcomes", "share of the requests that were not on time (%)", "")
    seen = False
    for name in OUTCOMES[1:]:
        shares = [100 * result.outcomes.get(name, 0) / max(result.requests, 1) for result in results]
        if any(shares):
            seen = True
            figure.add_bar(
                y=list(labels),
                x=[float(f"{share:.4g}") for share in shares],
                name=name,
                orientation="h",
                marker={"color": OUTCOME_COLORS[name]},
            )
    if not seen:
        frame.say(figure, "every request was on time")
    figure.update_layout(
        barmode="stack", bargap=0.7 if len(results) < 3 else 0.3, showlegend=True, hovermode="y unified"
    )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    return figure


def _over_time(results: Sequence[Result], labels: Sequence[str], title: str, y: str, column: str) -> Any:
    figure = frame.figure(title, "time (s)", y)
    highest = 0.0
    drawn: list[NDArray[np.float64]] = []
    for index, (result, label) in enumerate(zip(results, labels, strict=True)):
        time_s, values = _series(result, column)
        if column in ("rate", "present") and len(results) > 1:
            # Runs of one workload have one load: a line over the other would only hide it.
            if any(len(values) == len(other) and np.array_equal(values, other) for other in drawn):
                continue
            drawn.append(values)
        figure.add_scatter(
            x=time_s,
            y=_short(values),
            name=label,
            mode="lines",
            line={"color": frame.color(index), "shape": "hv" if column == "present" else "linear", "width": 1.6},
        )
        if np.isfinite(values).any():
            highest = max(highest, float(np.nanmax(values)))
    if drawn and len(drawn) < len(results):
        figure.data[0].name = "all runs" if len(drawn) == 1 else f"{figure.data[0].name} and others alike"
    if column == "p98_ms":
        _slo_lines(figure, results)
        slo_ms = max(result.slo_ms for result in results)
        if highest > 4 * slo_ms:
            figure.update_yaxes(type="log", **frame.log_ticks(1, 1e4))
        else:
            figure.update_yaxes(range=[0, 1.08 * max(highest, slo_ms)])
    elif column == "attainment":
        figure.update_yaxes(range=[0 if _lowest(figure) < 80 else 79, 101])
    else:
        figure.update_yaxes(range=[0, 1.08 * highest or 1])
    figure.update_layout(showlegend=True)
    return figure


def _lowest(figure: Any) -> float:
    values = [v for trace in figure.data for v in trace.y if v is not None and math.isfinite(v)]
    return min(values, default=0.0)


def _slo_lines(figure: Any, results: Sequence[Result]) -> None:
    for slo_ms in sorted({result.slo_ms for result in results}):
        figure.add_hline(y=slo_ms, line={"color": RED, "dash": "dot"})


def _instances(result: Result, label: str) -> Any:
    title = "Instances of each runtime" + (f": {label}" if label else "")
    figure = frame.figure(title, "time (s)", "instances in service")
    names = _stacked(result)
    for index, name in enumerate(names):
        time_s, values = _series(result, name)
        figure.add_scatter(
            x=time_s,
            y=_short(values),
            name=name.removeprefix("instances."),
            mode="lines",
            stackgroup="one",
            line={"width": 0.5, "color": frame.level_color(index, len(names)), "shape": "hv"},
            fillcolor=frame.level_color(index, len(names)),
        )
    figure.update_layout(showlegend=True)
    figure.update_yaxes(rangemode="tozero")
    return figure


def _series(result: Result, column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Time and values, at most _POINTS of them: of a stretch its mean, or its worst where that is what matters."""
    timeline = result.timeline
    time_s = np.asarray(timeline["time_s"])
    # The last row is of what was answered after the workload's end; its interval has another width.
    inside = time_s <= result_end_s(result)
    if column == "rate":
        widths = np.diff(time_s, prepend=0.0)
        values = timeline["arrived"] / np.where(widths > 0, widths, 1.0)
    elif column == "attainment":
        values = timeline["attainment"] * 100
    else:
        values = timeline[column]
    time_s, values = time_s[inside], np.asarray(values, np.float64)[inside]
    stretch = math.ceil(len(time_s) / _POINTS)
    if stretch <= 1:
        return np.round(time_s, 3), values
    starts = np.arange(0, len(time_s), stretch)
    merge = {"p98_ms": np.fmax, "queued": np.fmax, "attainment": np.fmin}.get(column)
    if merge is not None:
        merged = merge.reduceat(values, starts)
    else:
        merged = np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))
    ends = np.minimum(starts + stretch, len(time_s)) - 1
    return np.round(time_s[ends], 3), np.asarray(merged, np.float64)


def result_end_s(result: Result) -> float:
    """When the workload ends: the last row of regular width in the timeline."""
    time_s = np.asarray(result.timeline["time_s"])
    if len(time_s) < 3:
        return float(time_s[-1]) if len(time_s) else 0.0
    arrived = np.asarray(result.timeline["arrived"])
    last = int(np.flatnonzero(arrived)[-1]) if arrived.any() else len(time_s) - 1
    return float(time_s[last])


def _short(values: NDArray[np.float64]) -> list[float | None]:
    """Five digits are more than a plot shows; NaN as a gap."""
    return [digits(value) for value in np.asarray(values, np.float64).tolist()]


def labels_of(results: Sequence[Result]) -> list[str]:
    """Names of runs for a legend: their scenarios', numbered where two are the same."""
    names = [result.scenario for result in results]
    counts = {name: itertools.count(1) for name in names}
    return [name if names.count(name) == 1 else f"{name} ({next(counts[name])})" for name in names]
