"""Demand from the gateway's statistics: how many requests of each length come in one SLO period. Pure."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True, slots=True)
class Demand:
    """Q of Eq. 1-7 for the bins that end at `max_lengths`, over a window.

    A bin holds the lengths above the previous maximum length up to its own; longer requests are in the last bin.
    """

    max_lengths: tuple[int, ...]
    mean: tuple[float, ...]  # requests per SLO period, average over the window
    peak: tuple[float, ...]  # the same, of the busiest sub-window of each bin
    rows: int  # requests counted
    span_s: float  # time they were counted over; less than the window when there were gaps or a restart

    @property
    def total(self) -> float:
        """Requests per SLO period in all bins."""
        return sum(self.mean)


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """What came between two samples. `counts[n]`: requests of n tokens."""

    begin_s: float
    end_s: float
    counts: npt.NDArray[np.int64]


class DemandWindow:
    """A sliding window over the gateway's arrival counters.

    `add` takes each sample of the counters as it comes. A gap between samples spreads what came over the gap. A gateway
    that restarted counts from zero: the time between the last sample and its start is left out, because nobody counted
    then. Memory is bounded: spans are merged to about `window_s / 600`, and not below one second.
    """

    def __init__(self, *, window_s: float) -> None:
        self._window_s = window_s
        self._resolution_s = max(1.0, window_s / 600)
        self._spans: collections.deque[_Span] = collections.deque()
        self._last: tuple[float, int, npt.NDArray[np.int64]] | None = None

    def add(self, at_s: float, started_at_ms: int, counts: Sequence[int]) -> None:
        """One sample: the gateway's clock in seconds, its start, and requests so far by length (index = tokens)."""
        now = np.asarray(counts, dtype=np.int64)
        before, self._last = self._last, (at_s, started_at_ms, now)
        if before is None:
            return
        begin_s, started, old = before
        if started != started_at_ms:
            begin_s, old = max(begin_s, started_at_ms / 1000), np.zeros(0, dtype=np.int64)
        size = max(len(now), len(old))
        delta = _fit(now, size) - _fit(old, size)
        if at_s <= begin_s or (delta < 0).any():
            return  # a clock that was set back, or counters that are not what they seem: start again from this sample
        last = self._spans[-1] if self._spans else None
        if last is not None and last.end_s == begin_s and at_s - last.begin_s <= self._resolution_s:
            size = max(size, len(last.counts))
            self._spans[-1] = _Span(last.begin_s, at_s, _fit(last.counts, size) + _fit(delta, size))
        else:
            self._spans.append(_Span(begin_s, at_s, delta))
        while self._spans and self._spans[0].end_s <= at_s - self._window_s:
            self._spans.popleft()

    def estimate(self, max_lengths: Sequence[int], slo_ms: float, *, since_s: float | None = None) -> Demand:
        """Demand of the window that ends at the last sample; with `since_s`, of no more than what came after it."""
        empty = tuple(0.0 for _ in max_lengths)
        if self._last is None:
            return Demand(tuple(max_lengths), empty, empty, 0, 0.0)
        begin_s = self._last[0] - self._window_s
        if since_s is not None:
            begin_s = max(begin_s, since_s)
        total = np.zeros(len(max_lengths))
        peak = np.zeros(len(max_lengths))
        span_s = 0.0
        for span in self._spans:
            length_s = span.end_s - span.begin_s
            inside_s = span.end_s - max(span.begin_s, begin_s)
            if inside_s <= 0:
                continue
            binned = bins(span.counts, max_lengths)
            total += binned * (inside_s / length_s)
            span_s += inside_s
            peak = np.maximum(peak, binned / length_s)
        if span_s <= 0:
            return Demand(tuple(max_lengths), empty, empty, 0, 0.0)
        slo_s = slo_ms / 1000
        mean = total / span_s * slo_s
        return Demand(
            tuple(max_lengths),
            tuple(float(q) for q in mean),
            tuple(float(q) for q in np.maximum(peak * slo_s, mean)),
            round(float(total.sum())),
            span_s,
        )


def bins(counts: Sequence[int] | npt.NDArray[np.int64], max_lengths: Sequence[int]) -> npt.NDArray[np.float64]:
    """Requests per bin of requests by length; what is longer than the last maximum length is in the last bin."""
    sums = np.concatenate(([0], np.cumsum(np.asarray(counts, dtype=np.int64))))
    edges = [min(length + 1, len(sums) - 1) for length in max_lengths]
    edges[-1] = len(sums) - 1
    return np.diff(sums[[0, *edges]]).astype(np.float64)


def shift_score(old: Demand, new: Demand) -> float:
    """How surely `new` is not a sample of `old`: the largest of the bins' and the total's deviations, in sigmas.

    Arrivals are taken as Poisson; bursty ones deviate more, so the caller's threshold is well above 3.
    """
    if new.span_s <= 0 or old.span_s <= 0 or not old.rows:
        return 0.0
    per_rows = new.rows / new.total if new.total else old.rows * new.span_s / old.span_s / old.total
    scores = []
    for was, now in zip((*old.mean, old.total), (*new.mean, new.total), strict=True):
        expected, seen = was * per_rows, now * per_rows
        # Both are counts: the old one's own error counts too, which matters while the old window is short.
        variance = expected * (1 + new.span_s / old.span_s) + 1
        scores.append(abs(seen - expected) / math.sqrt(variance))
    return max(scores)


def _fit(counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    return counts if len(counts) == size else np.pad(counts, (0, size - len(counts)))
