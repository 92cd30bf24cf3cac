"""Demand from the gateway's statistics: the requests of each length in one SLO period. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from arlo.planning.allocation.problem import Variation

LEAST_SPANS = 20  # needed to judge how much the rate varies
RESOLUTION_S = 0.2  # of a window: bursts last less than a second
CLIPS_S = (0.2, 1.0, 5.0)  # over which requests are counted to tell a varying rate from chance
CHANCE = 3.0  # standard deviations by which chance may raise a dispersion
LEAST_SWING = 0.01  # smallest swing of a rate, as a share, that matters


@dataclasses.dataclass(frozen=True, slots=True)
class Demand:
    """Q of Eq. 1-7 for the bins that end at `max_lengths`, over a window.

    A bin holds the lengths above the previous maximum length up to its own; longer requests are in the last bin.
    """

    max_lengths: tuple[int, ...]
    mean: tuple[float, ...]  # requests per SLO period, average over the window
    peak: tuple[float, ...]  # the same, for the busiest sub-window of each bin
    rows: int  # requests counted
    span_s: float  # time over which they were counted; less than the window after gaps or a restart

    @property
    def total(self) -> float:
        """Requests per SLO period in all bins."""
        return sum(self.mean)

    def pooled(self) -> Demand:
        """All bins combined into one."""
        return Demand(self.max_lengths[-1:], (sum(self.mean),), (sum(self.peak),), self.rows, self.span_s)


class _Span:
    """Arrivals between two samples. `counts[n]`: requests of n tokens. Sorted into bins once."""

    __slots__ = ("_binned", "_lengths", "begin_s", "counts", "end_s")

    def __init__(self, begin_s: float, end_s: float, counts: npt.NDArray[np.int64]) -> None:
        self.begin_s = begin_s
        self.end_s = end_s
        self.counts = counts
        self._lengths: tuple[int, ...] = ()
        self._binned: npt.NDArray[np.float64] = np.zeros(0)

    def binned(self, max_lengths: Sequence[int]) -> npt.NDArray[np.float64]:
        """Requests per bin."""
        wanted = tuple(max_lengths)
        if wanted != self._lengths:
            self._lengths, self._binned = wanted, bins(self.counts, wanted)
        return self._binned


class DemandWindow:
    """A sliding window over the gateway's arrival counters.

    `add` takes each sample of the counters as it comes. Arrivals during a gap between samples are spread over the gap.
    A restarted gateway counts from zero: the time between the last sample and its start is left out, because nothing
    was counted then. Memory is bounded: spans are merged until they are `resolution_s` long, or `window_s / 600` if
    that is more. Bursts shorter than the spans are invisible here; `variation` reports longer ones to the planner.
    """

    def __init__(self, *, window_s: float, resolution_s: float = RESOLUTION_S) -> None:
        self._window_s = window_s
        self._resolution_s = max(resolution_s, window_s / 600)
        self._spans: collections.deque[_Span] = collections.deque()
        self._last: tuple[float, float, npt.NDArray[np.int64]] | None = None

    def add(self, at_s: float, started_s: float, counts: Sequence[int]) -> None:
        """Add a sample: its moment and that at which the counters began at 0 (of one monotonic clock, see stamp.py),
        and requests so far by length (index = tokens)."""
        now = np.asarray(counts, dtype=np.int64)
        before, self._last = self._last, (at_s, started_s, now)
        if before is None:
            return
        begin_s, started, old = before
        if started != started_s:
            begin_s, old = max(begin_s, started_s), np.zeros(0, dtype=np.int64)
        size = max(len(now), len(old))
        delta = _fit(now, size) - _fit(old, size)
        if at_s <= begin_s or (delta < 0).any():
            return  # two samples at one moment, or inconsistent counters: start again from this sample
        last = self._spans[-1] if self._spans else None
        if last is not None and last.end_s == begin_s and at_s - last.begin_s <= self._resolution_s:
            size = max(size, len(last.counts))
            self._spans[-1] = _Span(last.begin_s, at_s, _fit(last.counts, size) + _fit(delta, size))
        else:
            self._spans.append(_Span(begin_s, at_s, delta))
        while self._spans and self._spans[0].end_s <= at_s - self._window_s:
            self._spans.popleft()

    def estimate(self, max_lengths: Sequence[int], slo_ms: float, *, since_s: float | None = None) -> Demand:
        """Demand of the window that ends at the last sample; with `since_s`, only of the part after it."""
        empty = tuple(0.0 for _ in max_lengths)
        if self._last is None or not max_lengths:
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
            binned = span.binned(max_lengths)
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

    def restart(self, source: DemandWindow, since_s: float) -> None:
        """Forget everything, and take over the data of `source` (it may be this window) since then."""
        self._spans = collections.deque(span for span in source._spans if span.begin_s >= since_s)

    def tails(
        self, max_lengths: Sequence[int]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The moment of each sample in the window but the last, latest first, and the arrivals since it.

        Moments [n], counted seconds [n], requests per bin [n, bins].
        """
        spans = list(reversed(self._spans))
        if not spans:
            return np.zeros(0), np.zeros(0), np.zeros((0, len(max_lengths)))
        seconds = np.cumsum([span.end_s - span.begin_s for span in spans])
        counts = np.cumsum([span.binned(max_lengths) for span in spans], axis=0)
        return np.array([span.begin_s for span in spans]), seconds, counts

    def variation(self, max_lengths: Sequence[int]) -> Variation | None:
        """The variation of the rates of the bins from each up over the window; None if chance explains it.

        The counts contain chance and variation; the deviations are reduced to the variance in excess of a Poisson
        process's. That part is estimated for each group over short and longer clips, and the largest one is taken: slow
        changes of few requests are visible only in the longer clips.
        """
        spans = self._spans
        if len(spans) < LEAST_SPANS or not max_lengths:
            return None
        seconds = np.array([span.end_s - span.begin_s for span in spans])
        counts = np.array([span.binned(max_lengths) for span in spans])[:, ::-1].cumsum(axis=1)[:, ::-1]
        sizes = {max(1, round(clip_s / seconds.mean())) for clip_s in CLIPS_S}
        part = np.max([_not_chance(counts, seconds, size) for size in sorted(sizes)], axis=0)
        if not part.any():
            return None
        mean = np.maximum(counts.sum(axis=0) / seconds.sum(), 1e-300)
        factors = 1 + part * (counts / seconds[:, None] / mean - 1)
        return Variation(tuple(seconds.tolist()), tuple(tuple(row) for row in factors.tolist()))

    def dispersion(self, max_lengths: Sequence[int], *, clip_s: float = 0.0, least: int = LEAST_SPANS) -> float | None:
        """Variance over mean of the requests per clip, pooled over the bins: 1 for Poisson arrivals, more for bursts.

        Clips are of whole spans, at least `clip_s` long. None with fewer than `least` of them.
        """
        clips: list[tuple[float, npt.NDArray[np.float64]]] = []
        seconds, counts = 0.0, np.zeros(len(max_lengths))
        for span in self._spans:
            seconds += span.end_s - span.begin_s
            counts = counts + span.binned(max_lengths)
            if seconds > clip_s * 0.99:
                clips.append((seconds, counts))
                seconds, counts = 0.0, np.zeros(len(max_lengths))
        if len(clips) < least or not max_lengths:
            return None
        lengths = np.array([seconds for seconds, _ in clips])
        return max(1.0, _dispersion(np.array([counts for _, counts in clips]) / lengths[:, None], lengths))


def _dispersion(rates: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64]) -> float:
    """Variance over mean of counts, pooled over the bins; `rates` is [spans, bins], 1 for Poisson arrivals."""
    mean = (rates * seconds[:, None]).sum(axis=0) / seconds.sum()
    expected = mean[None, :] * seconds[:, None]
    deviation = (rates - mean[None, :]) * seconds[:, None]
    return float((deviation**2).sum() / expected.sum()) * len(seconds) / (len(seconds) - 1) if expected.any() else 1.0


def _not_chance(
    counts: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64], size: int
) -> npt.NDArray[np.float64]:
    """The share of a group's standard deviation due to its rate, from counts [spans, groups] in clips of `size` spans.

    0 if chance may well explain it all, and if the rate swings too little to matter.
    """
    clips = len(seconds) // size
    if clips < 2:
        return np.zeros(counts.shape[1])
    clipped = counts[-clips * size :].reshape(clips, size, -1).sum(axis=1)
    lengths = seconds[-clips * size :].reshape(clips, size).sum(axis=1)[:, None]
    expected = clipped.sum(axis=0) / lengths.sum() * lengths
    mean = np.maximum(expected.mean(axis=0), 1e-300)
    dispersion = ((clipped - expected) ** 2).sum(axis=0) / (clips - 1) / mean
    beyond = np.maximum(dispersion - 1, 0.0)
    sure = (beyond > CHANCE * np.sqrt(2 / (clips - 1))) & (beyond > LEAST_SWING**2 * mean)
    return np.where(sure, np.sqrt(beyond / np.maximum(dispersion, 1.0)), 0.0)


def bins(counts: Sequence[int] | npt.NDArray[np.int64], max_lengths: Sequence[int]) -> npt.NDArray[np.float64]:
    """Requests per bin from requests by length; those above the last maximum length are in the last bin."""
    sums = np.concatenate(([0], np.cumsum(np.asarray(counts, dtype=np.int64))))
    edges = [min(length + 1, len(sums) - 1) for length in max_lengths]
    edges[-1] = len(sums) - 1
    return np.diff(sums[[0, *edges]]).astype(np.float64)


@dataclasses.dataclass(frozen=True, slots=True)
class Shift:
    """The moment at which the traffic most likely changed."""

    since_s: float  # the samples' clock
    score: float  # log-likelihood ratio of "another rate since then" over "still the same", summed over the bins
    demand: Demand  # since then


def latest_shift(window: DemandWindow, old: Demand, slo_ms: float, *, min_rows: int) -> Shift | None:
    """The most likely moment at which the traffic stopped matching `old`; None when too few requests came to tell.

    For each sample in the window, the arrivals since are compared with `old` bin by bin, both as Poisson counts with
    unknown rates (the two-sample likelihood ratio, which also accounts for an `old` that rests on little). The largest
    ratio wins, so a fraction of a second suffices for a plain shift, and a small one takes as long as it needs. Bursty
    arrivals vary more than Poisson ones: divide the score by `dispersion`.
    """
    moments, seconds, after = window.tails(old.max_lengths)
    before = np.array(old.mean) * old.span_s * 1000 / slo_ms
    expected = old.rows / old.span_s * seconds
    enough = (after.sum(axis=1) >= min_rows) | (expected >= min_rows)
    if not enough.any():
        return None
    moments, seconds, after = moments[enough], seconds[enough, None], after[enough]
    both = (before + after) / (old.span_s + seconds)
    scores = (_likelihood(before, before / old.span_s, both) + _likelihood(after, after / seconds, both)).sum(axis=1)
    best = int(scores.argmax())
    since_s = float(moments[best])
    return Shift(since_s, float(scores[best]), window.estimate(old.max_lengths, slo_ms, since_s=since_s))


def _likelihood(
    counts: npt.NDArray[np.float64], rates: npt.NDArray[np.float64], others: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """How much likelier the counts are under their rates than under the other ones; both sums are the same."""
    some = np.broadcast_to(counts > 0, others.shape)
    ratio = np.divide(rates, others, out=np.ones_like(others), where=some)
    return np.asarray(counts * np.log(ratio))


def _fit(counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    return counts if len(counts) == size else np.pad(counts, (0, size - len(counts)))
