"""The pure parts: the grid of rates, the search for the highest one that is served on time, the figures of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

STEP = 1.25  # from one rate of the grid to the next
SHARE = 0.99  # of the rows that must be on time


def grid(low: float, high: float) -> tuple[float, ...]:
    """Rates from `low` to `high` rows/s, in steps of a quarter, to three digits."""
    rates = [low]
    while rates[-1] * STEP <= high * 1.001:
        rates.append(rates[-1] * STEP)
    return tuple(float(f"{rate:.3g}") for rate in rates)


class Search:
    """Bisection over the grid: the highest rate that passes, with all below it taken to pass. One per server."""

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = tuple(rates)
        self._low, self._high = -1, len(self.rates)  # indices: passed, failed

    @property
    def next(self) -> float | None:
        """The rate to try; None when it is found."""
        return self.rates[(self._low + self._high) // 2] if self._high - self._low > 1 else None

    def tell(self, passed: bool) -> None:
        """Record the result of the rate from `next`."""
        middle = (self._low + self._high) // 2
        if passed:
            self._low = middle
        else:
            self._high = middle

    @property
    def found(self) -> float | None:
        """The highest rate that passed so far; None: none did."""
        return self.rates[self._low] if self._low >= 0 else None

    @property
    def at_end(self) -> bool:
        """The highest rate of the grid passed: the server carries more than was tried."""
        return self._low == len(self.rates) - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of one run at one rate."""

    rate: float  # rows/s that were asked for
    sent: int
    on_time: int
    failed: int  # refused, broken or never answered
    p50_ms: float | None  # of the answers; None: there was none
    p98_ms: float | None
    on_time_rows_s: float
    cpu_ms: float | None = None  # per answer, user + system, of the server's whole process tree
    rss_mb: float | None = None
    cut_short: bool = False  # too much was late already
    passed: bool = False


def judge(
    rate: float, latencies_s: Sequence[float | None], *, slo_s: float, duration_s: float, planned: int, cut_short: bool
) -> Run:
    """The figures of a run. `latencies_s` from the moment each request was due to its answer; None: no answer.

    A run that was cut short has failed, whatever the rest would have been.
    """
    answered = np.array([each for each in latencies_s if each is not None])
    on_time = int((answered <= slo_s).sum())
    return Run(
        rate=rate,
        sent=len(latencies_s),
        on_time=on_time,
        failed=len(latencies_s) - len(answered),
        p50_ms=float(np.percentile(answered, 50) * 1e3) if len(answered) else None,
        p98_ms=float(np.percentile(answered, 98) * 1e3) if len(answered) else None,
        on_time_rows_s=on_time / duration_s,
        cut_short=cut_short,
        passed=not cut_short and on_time >= SHARE * planned,
    )


def equal_rate(rates: Sequence[float], found: Sequence[float | None]) -> float:
    """A rate that all carry: the highest of the grid at no more than half of the least; else the lowest."""
    least = min((each for each in found if each is not None), default=0.0)
    return max((rate for rate in rates if rate <= least / 2), default=rates[0])
