"""The properties of a trace in numbers: load, burstiness, lengths, and their drift."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.traces.readers import Counts
from arlo.traces.trace import Trace

WINDOWS_S = (0.01, 0.1, 1.0, 10.0)
CLIP_S = 10.0
_FEW = 20  # requests; a clip with fewer has no meaningful 98th percentile
_MOST_CLIPS, _PER_CLIP = 300, 1000
_SHUFFLES = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Clips:
    """The distribution of lengths in clips of CLIP_S.

    sd_log_median, sd_log_p98: standard deviation of the logarithm over the clips. sampling_*: the same after the
    lengths were shuffled, that is, the deviation of clips of so few requests without any drift. drift_*: the deviation
    left for drift, that is, the square root of the difference of the squares, 0 if that is negative.
    """

    clips: int
    requests_per_clip: float
    median: tuple[float, float]
    p98: tuple[float, float]
    sd_log_median: float
    sampling_log_median: float
    sd_log_p98: float
    sampling_log_p98: float

    @property
    def drift_log_median(self) -> float:
        return float(np.sqrt(max(0.0, self.sd_log_median**2 - self.sampling_log_median**2)))

    @property
    def drift_log_p98(self) -> float:
        return float(np.sqrt(max(0.0, self.sd_log_p98**2 - self.sampling_log_p98**2)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Numbers of a trace. dispersion: variance over mean of the counts in windows of so many seconds; None where there
    are fewer than two whole windows. Poisson arrivals at a constant rate have 1 in all."""

    requests: int
    duration_s: float
    mean_rate: float
    peak_rate: float
    dispersion: dict[float, float | None]
    mean_length: float
    p50: int
    p90: int
    p98: int
    longest: int
    above_512: float
    clips: Clips | None

    def to_json(self) -> dict[str, Any]:
        """The figures for --json."""
        raw = _json_of(self)
        if self.clips is not None:
            raw["clips"] |= {
                "clip_s": CLIP_S,
                "drift_log_median": self.clips.drift_log_median,
                "drift_log_p98": self.clips.drift_log_p98,
            }
        return raw


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CountsSummary:
    """Numbers of a series of counts; dispersion in windows of 1, 10 and 60 steps."""

    arrivals: int
    duration_s: float
    step_s: float
    mean_rate: float
    peak_rate: float
    least_rate: float
    dispersion: dict[float, float | None]

    def to_json(self) -> dict[str, Any]:
        """The figures for --json."""
        return _json_of(self)


def _json_of(found: Summary | CountsSummary) -> dict[str, Any]:
    dispersion = {f"{window:g}s": value for window, value in found.dispersion.items()}
    return dataclasses.asdict(found) | {"dispersion": dispersion}


def summarise(trace: Trace, duration_s: float | None = None) -> Summary:
    """The numbers of a trace with at least one request; its duration is until the last arrival unless it is given."""
    duration = trace.duration_s if duration_s is None else duration_s
    p50, p90, p98 = (int(v) for v in np.percentile(trace.length, [50, 90, 98], method="inverted_cdf"))
    return Summary(
        requests=len(trace),
        duration_s=duration,
        mean_rate=len(trace) / duration if duration > 0 else 0.0,
        peak_rate=float(rates(trace, 1.0)[1].max()),
        dispersion={window: dispersion(counts(trace, window, duration)) for window in WINDOWS_S},
        mean_length=float(trace.length.mean()),
        p50=p50,
        p90=p90,
        p98=p98,
        longest=int(trace.length.max()),
        above_512=float((trace.length > 512).mean()),
        clips=_clips(trace),
    )


def summarise_counts(series: Counts) -> CountsSummary:
    """The numbers of a series of counts."""
    count, step_s = series.count, series.step_s
    windows = {
        width * step_s: dispersion(count[: len(count) // width * width].reshape(-1, width).sum(axis=1))
        for width in (1, 10, 60)
    }
    return CountsSummary(
        arrivals=int(count.sum()),
        duration_s=series.duration_s,
        step_s=step_s,
        mean_rate=float(count.mean()) / step_s,
        peak_rate=float(count.max()) / step_s,
        least_rate=float(count.min()) / step_s,
        dispersion=windows,
    )


def counts(trace: Trace, window_s: float, duration_s: float) -> NDArray[np.int64]:
    """Arrivals in each whole window of `duration_s`."""
    whole = int(duration_s / window_s + 1e-9)
    if whole < 1:
        return np.empty(0, np.int64)
    where = (trace.arrived_at_s / window_s).astype(np.int64)
    return np.bincount(where[: int(np.searchsorted(where, whole))], minlength=whole)


def rates(trace: Trace, window_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start of each window in seconds, and arrivals per second in it. The last one may be cut short by the end."""
    found = counts(trace, window_s, trace.duration_s + window_s)
    return np.arange(len(found)) * window_s, found / window_s


def dispersion(count: NDArray[np.int64]) -> float | None:
    """Variance over mean; None where it is meaningless."""
    if len(count) < 2 or not count.any():
        return None
    return float(count.var(ddof=1) / count.mean())


def clip_percentiles(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start in seconds of each clip with enough requests, and its median and 98th percentile, float64[n, 2]."""
    number = (trace.arrived_at_s / CLIP_S).astype(np.int64)
    found, starts = np.unique(number, return_index=True)
    ends = np.append(starts[1:], len(trace))
    enough = ends - starts >= _FEW
    rows = [
        np.percentile(trace.length[start:end], [50, 98])
        for start, end in zip(starts[enough], ends[enough], strict=True)
    ]
    return found[enough] * CLIP_S, np.array(rows, np.float64).reshape(-1, 2)


def _clips(trace: Trace) -> Clips | None:
    at, rows = clip_percentiles(trace)
    if len(at) < 2:
        return None
    number = np.floor(trace.arrived_at_s / CLIP_S)
    per_clip = int(np.isin(number, np.round(at / CLIP_S)).sum()) / len(at)
    # The deviation by sampling alone is found on a part of a long trace; the trace's own deviation, on the same part.
    last = int(np.searchsorted(trace.arrived_at_s, at[:_MOST_CLIPS][-1] + CLIP_S))
    kept = slice(0, last, max(1, int(per_clip // _PER_CLIP)))
    part = Trace(arrived_at_s=trace.arrived_at_s[kept], length=trace.length[kept])
    own = np.log(clip_percentiles(part)[1]).var(axis=0)
    random = np.random.default_rng(0)
    noise = np.zeros(2)
    for _ in range(_SHUFFLES):
        mixed = dataclasses.replace(part, length=random.permutation(part.length))
        noise += np.log(clip_percentiles(mixed)[1]).var(axis=0) / _SHUFFLES
    return Clips(
        clips=len(at),
        requests_per_clip=per_clip,
        median=(float(rows[:, 0].min()), float(rows[:, 0].max())),
        p98=(float(rows[:, 1].min()), float(rows[:, 1].max())),
        sd_log_median=float(np.sqrt(own[0])),
        sampling_log_median=float(np.sqrt(noise[0])),
        sd_log_p98=float(np.sqrt(own[1])),
        sampling_log_p98=float(np.sqrt(noise[1])),
    )
