"""Two sides of one trace set against each other: figures, errors, and how sure one can be of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES = np.concatenate([np.arange(0, 0.98, 0.02), np.arange(0.98, 1.0001, 0.002)])
LATENCIES = ("mean_ms", "p50_ms", "p98_ms", "p99_ms")


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a run, by request: seconds of arrival, tokens, latency in ms (NaN without an answer), and the level
    that it ran on (-1 without an answer)."""

    arrived_s: NDArray[np.float64]
    length: NDArray[np.int32]
    latency_ms: NDArray[np.float64]
    level: NDArray[np.int32]

    def after(self, warmup_s: float) -> Side:
        """Without the requests that arrived in the warm-up."""
        kept = self.arrived_s >= warmup_s
        return Side(*(getattr(self, field.name)[kept] for field in dataclasses.fields(self)))


def figures(latency_ms: NDArray[np.float64], slo_ms: float) -> dict[str, float]:
    """Latencies are of answers, the attainment is over all arrivals."""
    answered = latency_ms[~np.isnan(latency_ms)]
    if not len(answered):
        raise ValueError("nothing was answered")
    p50, p98, p99 = np.percentile(answered, [50, 98, 99])
    return {
        "requests": len(latency_ms),
        "answered": len(answered),
        "mean_ms": float(answered.mean()),
        "p50_ms": float(p50),
        "p98_ms": float(p98),
        "p99_ms": float(p99),
        "attainment": float((answered <= slo_ms).sum() / len(latency_ms)),
    }


def errors_percent(simulated: dict[str, float], real: dict[str, float]) -> dict[str, float]:
    """How much the simulator says above what was measured. Attainment, and the share answered, in percentage points."""
    found = {name: 100 * (simulated[name] / real[name] - 1) for name in LATENCIES}
    found["attainment"] = 100 * (simulated["attainment"] - real["attainment"])
    found["answered"] = 100 * (simulated["answered"] / simulated["requests"] - real["answered"] / real["requests"])
    return found


def spread_percent(real: Side, simulated: Side, *, block_s: float = 1.0, resamples: int = 400) -> dict[str, float]:
    """Standard error of the errors in mean and p98, by resampling blocks of time, the same ones on both sides.

    Both sides serve the same requests, so most of the noise of a short trace cancels; what is left is in this figure.
    """
    block = ((real.arrived_s - real.arrived_s[0]) // block_s).astype(int)
    members = [np.flatnonzero(block == b) for b in np.unique(block)]
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {"mean_ms": [], "p98_ms": []}
    for _ in range(resamples):
        rows = np.concatenate([members[i] for i in rng.integers(0, len(members), len(members))])
        a, b = real.latency_ms[rows], simulated.latency_ms[rows]
        found["mean_ms"].append(100 * (np.nanmean(b) / np.nanmean(a) - 1))
        found["p98_ms"].append(100 * (np.nanpercentile(b, 98) / np.nanpercentile(a, 98) - 1))
    return {name: float(np.std(values)) for name, values in found.items()}


def by_request(real: Side, simulated: Side) -> dict[str, float]:
    """Where the two part: request by request, simulated minus real, ms."""
    difference = simulated.latency_ms - real.latency_ms
    difference = difference[~np.isnan(difference)]
    known = (real.level >= 0) & (simulated.level >= 0)
    return {
        "mean_ms": float(difference.mean()),
        "median_ms": float(np.median(difference)),
        "within_2_ms": float((np.abs(difference) <= 2).mean()),
        "same_level": float((real.level == simulated.level)[known].mean()) if known.any() else float("nan"),
    }


def curve(latency_ms: NDArray[np.float64]) -> list[float]:
    """Latency at QUANTILES, for plots of the distribution."""
    return [round(float(v), 3) for v in np.nanpercentile(latency_ms, 100 * np.minimum(QUANTILES, 1.0))]


def compare(real: Side, simulated: Side, slo_ms: float) -> dict[str, Any]:
    """Everything about one pair. Both sides must hold the same requests in the same order."""
    if len(real.length) != len(simulated.length) or (real.length != simulated.length).any():
        raise ValueError("the two sides served different requests")
    of_real, of_simulated = figures(real.latency_ms, slo_ms), figures(simulated.latency_ms, slo_ms)
    return {
        "simulated": of_simulated,
        "error_percent": errors_percent(of_simulated, of_real),
        "spread_percent": spread_percent(real, simulated),
        "by_request": by_request(real, simulated),
        "curve_ms": curve(simulated.latency_ms),
    }
