"""The plots of the report, as plotly figures."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.replay.outcomes import OUTCOMES, Outcome
from arlo.replay.records import Records, latency_us
from arlo.replay.result import ReplayResult
from arlo.replay.summary import ANSWERED, Summary, computed_tokens
from arlo.report import figure as frame
from arlo.report.figure import BLUE, GREEN, GREY, ORANGE, PALE, RED, VIOLET

_CDF_POINTS = 1500  # more would only make the file larger
_BINS, _SHORTEST_BIN_S = 120, 0.5


def figures(result: ReplayResult) -> list[Any]:
    """Latency CDF, load and queue over time, requests per level where there are several, padding."""
    records, summary = result.records, result.summary
    answered = records[np.isin(records["outcome"], ANSWERED)]
    return [
        _cdf(answered, summary),
        _over_time(records, answered, summary),
        *([_levels(summary)] if len(summary.levels) != 1 else []),
        _padding(answered, summary),
    ]


def _cdf(answered: Records, summary: Summary) -> Any:
    figure = frame.figure(
        "Latency of all answered requests", "latency (ms), from the scheduled instant", "share of requests (%)"
    )
    if len(answered) == 0:
        return frame.say(figure, "nothing was answered")
    shown = [("latency", latency_us(answered), BLUE)]
    told = answered["total_us"] >= 0
    if bool(told.any()):
        shown.append(("time in the server", answered["total_us"][told], GREY))
    for name, us, color in shown:
        percent = np.linspace(0, 100, min(_CDF_POINTS, max(len(us), 2)))
        ms = np.percentile(us, percent) / 1000
        figure.add_scatter(x=np.round(ms, 4), y=np.round(percent, 3), name=name, mode="lines", line={"color": color})
    low = max(float(min(us.min() for _, us, _ in shown)) / 1000, 0.01)
    high = max(float(latency_us(answered).max()) / 1000, summary.slo_ms)
    frame.slo_mark(figure, summary.slo_ms)
    figure.update_xaxes(**frame.log_axis(low * 0.9, high * 1.3))
    figure.update_yaxes(range=[0, 101])
    figure.update_layout(hovermode="closest")
    return figure


def _over_time(records: Records, answered: Records, summary: Summary) -> Any:
    figure = frame.figure("Load and queue over time", "time (s)", "requests per second", right=56)
    if len(records) == 0 or summary.duration_s <= 0:
        return frame.say(figure, "nothing was sent")
    bins = int(np.clip(summary.duration_s / _SHORTEST_BIN_S, 1, _BINS))
    edges = np.linspace(0, summary.duration_s, bins + 1)
    width_s = summary.duration_s / bins
    middle = np.round((edges[:-1] + edges[1:]) / 2, 3)
    for name, column, part, color in (
        ("arrivals", "scheduled_us", records, BLUE),
        ("answers", "done_us", answered, GREEN),
    ):
        rate = np.histogram(part[column] / 1e6, edges)[0] / width_s
        figure.add_scatter(x=middle, y=np.round(rate, 2), name=name, mode="lines", line={"color": color})
    moments = (edges[:-1, None] + np.arange(1, 11) / 10 * width_s) * 1e6
    queue = _in_flight(records, moments).max(axis=1)
    figure.add_scatter(
        x=middle, y=queue, name="most in the system at once", mode="lines", yaxis="y2", line={"color": ORANGE}
    )
    figure.update_layout(
        yaxis={"rangemode": "tozero"},
        yaxis2={
            "title": {"text": "requests waiting or running"},
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
            "showgrid": False,
            "tickmode": "auto",
        },
    )
    return figure


def _in_flight(records: Records, at_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many requests had been scheduled but not finished at each instant; the shape of `at_us`."""
    came = np.searchsorted(np.sort(records["scheduled_us"]), at_us, side="right")
    went = np.searchsorted(np.sort(records["done_us"]), at_us, side="right")
    return np.asarray(came - went, np.int64)


def _levels(summary: Summary) -> Any:
    figure = frame.figure("Requests per level", "level (its max length in tokens)", "answered requests")
    if not summary.levels:
        return frame.say(figure, "the target does not say at which level a request ran")
    names = [f"{v.level} ({v.max_length})" if v.max_length is not None else str(v.level) for v in summary.levels]
    ideal = [v.requests - v.demoted for v in summary.levels]
    figure.add_bar(x=names, y=ideal, name="at their ideal level", marker={"color": BLUE})
    demoted = [v.demoted for v in summary.levels]
    figure.add_bar(x=names, y=demoted, name="demoted from a shorter one", marker={"color": ORANGE})
    figure.update_layout(barmode="stack")
    figure.update_xaxes(type="category")
    return figure


def _padding(answered: Records, summary: Summary) -> Any:
    figure = frame.figure(
        "Padding saved: tokens computed, by request length", "length of the requests (tokens)", "tokens (thousands)"
    )
    if summary.padding is None:
        return frame.say(figure, "nothing was answered")
    longest = summary.padding.longest
    step = max(longest // 16, 1)
    edges = np.arange(0, int(answered["length"].max()) + step, step)
    names = [f"{a + 1}-{b}" for a, b in itertools.pairwise(edges)]
    where = np.clip((answered["length"] - 1) // step, 0, len(names) - 1)
    tokens = np.bincount(where, answered["length"], len(names)) / 1000
    computed = np.bincount(where, computed_tokens(answered), len(names)) / 1000
    if_longest = np.bincount(where, np.full(len(answered), longest), len(names)) / 1000
    parts = (
        ("tokens of the requests", tokens, GREEN),
        ("padding", computed - tokens, ORANGE),
        (f"saved against padding all to {longest}", if_longest - computed, PALE),
    )
    for name, values, color in parts:
        figure.add_bar(x=names, y=np.round(values, 3), name=name, marker={"color": color})
    figure.update_layout(barmode="stack")
    figure.update_xaxes(type="category")
    return figure


def outcome_color(name: Outcome) -> str:
    """The colour of an outcome's label."""
    return dict(zip(OUTCOMES, (GREEN, ORANGE, VIOLET, VIOLET, GREY, RED), strict=True))[name]
