"""A run as a result file: its figures, its timeline, its runtimes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.report.numbers import ms, number, share
from arlo.report.result import Document, chart, line, report, table
from arlo.simulator.report.result import OUTCOMES, Result

_POINTS = 400  # of a timeline; more only make the file larger
# Title, axis, column of the timeline, and what a stretch of several intervals is: its mean, or its worst.
_OVER_TIME: tuple[tuple[str, str, str, Any], ...] = (
    ("Load", "requests per second", "rate", None),
    ("p98 latency over time", "p98 latency (ms)", "p98_ms", np.fmax),
    ("SLO attainment over time", "on time, of all that ended (%)", "attainment", np.fmin),
    ("Waiting at the request scheduler", "requests", "queued", np.fmax),
    ("GPUs over time", "GPUs held", "present", None),
)


def document(result: Result, *, facts: Sequence[tuple[str, str]] = (), warnings: Sequence[str] = ()) -> Document:
    """The page of one run; arlo.report.result.save() overlays several. `facts`: rows that describe the simulation."""
    cards = [
        (f"{result.requests:,}", "requests"),
        (share(result.slo_attainment), f"on time, SLO {result.slo_ms:g} ms"),
        (f"{result.goodput_rps:,.1f} /s", "goodput"),
        (f"{ms(result.mean_ms)} ms", "mean latency"),
        (f"{ms(result.p50_ms)} ms", "p50 latency"),
        (f"{ms(result.p98_ms)} ms", "p98 latency"),
        (f"{ms(result.p99_ms)} ms", "p99 latency"),
        (f"{result.workers_mean:.4g}", "GPUs, mean over time"),
        (f"{result.gpu_hours:.4g}", "GPU-hours"),
        (f"{result.utilization:.1%}", "of the GPUs' time executing"),
        (f"{result.padding:.1%}", "of the computed tokens padding"),
        (f"{result.demoted:.1%}", "demoted"),
        (f"{result.replacements}", "moves"),
    ]
    columns = [key for key in result.runtimes[0] if key != "name"] if result.runtimes else []
    rows = [(str(each["name"]), *(number(each[key]) for key in columns)) for each in result.runtimes]
    return report(
        "simulation",
        f"Simulation: {result.scenario}",
        label=result.scenario,
        cards=cards,
        warnings=warnings,
        charts=[
            _cdf(result),
            _outcomes(result),
            *(_over_time(result, *each) for each in _OVER_TIME),
            _instances(result),
        ],
        tables=[
            table("Runtimes", ("runtime", *(key.replace("_", " ") for key in columns)), rows) if rows else {},
            table("What was simulated", (), facts) if facts else {},
        ],
    )


def _cdf(result: Result) -> Document:
    answered = result.requests and math.isfinite(result.mean_ms) and result.cdf_ms[-1] > 0
    return chart(
        "Latency of all answers",
        "latency (ms)",
        "share of the answers (%)",
        [line(result.scenario, result.cdf_ms, result.cdf_q * 100)] if answered else [],
        x_log=True,
        y_range=[0, 101],
        marks=[{"x": result.slo_ms, "text": f"SLO {result.slo_ms:g} ms"}],
        empty="nothing was answered",
    )


def _outcomes(result: Result) -> Document:
    shares = [100 * result.outcomes.get(name, 0) / max(result.requests, 1) for name in OUTCOMES[1:]]
    bars = [line(result.scenario, OUTCOMES[1:], shares, "bars")] if any(shares) else []
    return chart("Outcomes", "", "share of the requests (%)", bars, empty="every request was on time")


def _over_time(result: Result, title: str, y: str, column: str, merge: Any) -> Document:
    time_s, values = _series(result, column, merge)
    options: dict[str, Any] = {"y_range": [0, 101]} if column == "attainment" else {}
    if column == "p98_ms":
        options["marks"] = [{"y": result.slo_ms, "text": f"SLO {result.slo_ms:g} ms"}]
        options["y_log"] = bool((values > 4 * result.slo_ms).any())
    draw: Any = "steps" if column == "present" else "lines"
    return chart(title, "time (s)", y, [line(result.scenario, time_s, values, draw)], **options)


def _instances(result: Result) -> Document:
    lines = [
        line(name.removeprefix("instances."), *_series(result, name, None), "area")
        for name in result.timeline
        if name.startswith("instances.")
    ]
    return chart("Instances of each runtime", "time (s)", "instances in service", lines)


def _series(result: Result, column: str, merge: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Time and values, at most _POINTS of them."""
    timeline = result.timeline
    time_s = np.asarray(timeline["time_s"])
    if column == "rate":
        widths = np.diff(time_s, prepend=0.0)
        values = timeline["arrived"] / np.where(widths > 0, widths, 1.0)
    else:
        values = timeline[column] * (100 if column == "attainment" else 1)
    # The last row counts answers after the workload's end; its interval has another width.
    arrived = np.flatnonzero(timeline["arrived"])
    count = int(arrived[-1]) + 1 if len(time_s) > 2 and len(arrived) else len(time_s)
    time_s, values = time_s[:count], np.asarray(values, np.float64)[:count]
    starts = np.arange(0, count, max(1, math.ceil(count / _POINTS)))
    if len(starts) == count:
        return time_s, values
    sizes = np.diff(np.append(starts, count))
    merged = merge.reduceat(values, starts) if merge is not None else np.add.reduceat(values, starts) / sizes
    return time_s[starts + sizes - 1], merged
