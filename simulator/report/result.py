"""The results of a simulation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

OUTCOMES = ("on_time", "late", "rejected", "expired", "cancelled", "failed")
ENGINE_OUTCOMES = ("on_time", "late", "rejected", "expired", "failed")  # by the engine's numbers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures on answers that several models, or token counts, may give. None: unknown."""

    accuracy: float | None = None  # of the answers: share that is right, or expected to be
    utility: float | None = None  # that the answers on time earned; of a flow their accuracy, over all requests
    degraded: float = 0.0  # share of the requests that were answered with less than was asked for
    joules: float | None = None  # of a request, where it is not what busy workers drew
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for JSON


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run's figures. Latencies are of answers (on_time and late), attainment is over all arrivals."""

    scenario: str
    requests: int  # arrivals counted: those after the warm-up
    duration_s: float  # in which they arrived
    outcomes: Mapping[str, int]  # every arrival counted is in exactly one
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p98_ms: float
    p99_ms: float
    max_ms: float
    mean_wait_ms: float  # arrival to begin of execution
    mean_execution_ms: float
    slo_ms: float
    slo_attainment: float
    goodput_rps: float
    workers_mean: float  # time-weighted, those that start or drain included
    workers_max: int
    gpu_hours: float
    utilization: float  # executing, of the workers' time
    padding: float  # share of the computed tokens that is padding
    demoted: float  # share of the answers
    mean_batch: float  # rows of an execution
    bulk: int  # requests of the class bulk, which are in none of the figures above but utilization, padding and batches
    bulk_answered: int
    bulk_rps: float  # answered
    bulk_mean_ms: float | None  # arrival to answer; None without one
    retried: int
    figures: Figures = Figures()
    joules: float | None  # of an answered request: what busy workers drew beyond idle; None: some watts are not known
    joules_total: float | None
    replacements: int
    allocations: int  # solved
    wall_s: float
    cdf_ms: NDArray[np.float64]  # latency at the quantiles below
    cdf_q: NDArray[np.float64]
    runtimes: tuple[Mapping[str, Any], ...]  # per runtime: name, max_length, served, demoted, batches, busy_s
    models: tuple[Mapping[str, Any], ...] = ()  # of several models: name, requests, on_time, mean_ms, p98_ms, ...
    timeline: Mapping[str, NDArray[np.float64]]  # columns, one row per interval; see simulator/report/timeline.py
    columns: Mapping[str, NDArray[Any]] | None = None  # one row per request, when recorded

    @property
    def kept(self) -> float:
        """Share of the requests that is on time, or that is not degraded: the smaller one."""
        return min(self.slo_attainment, 1 - self.figures.degraded)

    def summary(self) -> dict[str, Any]:
        """The figures without arrays, for JSON; latencies and shares rounded to their significant digits."""
        figures: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            if field.name in ("cdf_ms", "cdf_q", "timeline", "columns"):
                continue
            value = getattr(self, field.name)
            if field.name == "models" and not value:
                continue
            if field.name.startswith("joules") and value is None and not self.figures.more:
                continue
            if field.name == "figures":
                known = {name: getattr(value, name) for name in ("accuracy", "utility", "degraded")}
                figures |= {name: _known(each) for name, each in known.items() if value.more}
                figures |= _known(value.more)
                continue
            if field.name in ("outcomes", "runtimes", "models"):
                value = dict(value) if field.name == "outcomes" else [_plain(row) for row in value]
            elif isinstance(value, (int, float, np.number)):
                value = _rounded(value, _DIGITS.get(field.name, 6))
            figures[field.name] = value
        return figures


# Quantiles are known to 1 part in 1,000 (buckets of the engine's histogram), sums to the last bit.
_DIGITS = {"p50_ms": 4, "p90_ms": 4, "p98_ms": 4, "p99_ms": 4}


def _known(value: Any) -> Any:
    """The value for JSON: numbers rounded to six digits, None for those that are not finite."""
    if isinstance(value, Mapping):
        return {key: _known(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_known(each) for each in value]
    return _rounded(value, 6) if isinstance(value, (float, np.number)) else value


def _rounded(value: Any, digits: int) -> float | int | None:
    """The value rounded to significant digits; integers are unchanged; None for NaN (no answer, no mean)."""
    if isinstance(value, (int, np.integer)):
        return int(value)
    if not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _plain(runtime: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _rounded(v, 6) if isinstance(v, (float, np.number)) else v for key, v in runtime.items()}
