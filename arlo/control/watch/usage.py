"""Recent work of each worker, and outcomes of the rows, from the growing counters of the gateway's statistics.

One event loop, no I/O.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One worker's work over a while."""

    runtime: str  # the last runtime that it served
    rows: int  # rows started
    busy_s: float  # with at least one row in flight
    span_s: float

    @property
    def busy(self) -> float:
        """Share of the time with work, 0 to 1."""
        return min(1.0, self.busy_s / self.span_s) if self.span_s > 0 else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float  # the gateway's uptime
    instances: dict[str, tuple[str, str, int, int]]  # id -> worker, runtime, rows started, busy us
    lost: int  # rows expired or refused so far
    missing: int  # rows so far that arrived and got no answer for want of capacity, or still wait for one


class UsageWindow:
    """Differences of an arlo.v1.Stats to the one `window_s` before it. A gateway restart clears it."""

    def __init__(self, *, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[_Sample] = deque()
        self._started_at_ms = 0

    def add(self, stats: Any) -> None:
        """Add one arlo.v1.Stats."""
        at_s = stats.uptime_ns / 1e9
        if stats.started_at_ms != self._started_at_ms or (self._samples and at_s < self._samples[-1].at_s):
            self._samples.clear()
            self._started_at_ms = stats.started_at_ms
        ended = stats.outcomes
        # A row refused for its content never arrived; a waiting row is not lost yet.
        missing = sum(stats.arrivals_by_length) - ended.on_time - ended.late - ended.cancelled - ended.failed
        self._samples.append(
            _Sample(
                at_s,
                {i.id: (i.worker, i.runtime, i.started, i.busy_us) for i in stats.instances},
                ended.expired + ended.rejected,
                missing - stats.queued - stats.in_flight,
            )
        )
        while len(self._samples) > 2 and self._samples[1].at_s <= at_s - self._window_s:
            self._samples.popleft()

    @property
    def span_s(self) -> float:
        """Time between the oldest and the newest kept statistics."""
        return self._samples[-1].at_s - self._samples[0].at_s if self._samples else 0.0

    @property
    def unanswered(self) -> int:
        """Rows that expired, or were refused for want of capacity."""
        if not self._samples:
            return 0
        old, new = self._samples[0], self._samples[-1]
        return max(0, min(new.lost - old.lost, new.missing - old.missing))

    def by_worker(self) -> dict[str, Usage]:
        """Worker -> its usage. An instance that appeared meanwhile counts from its start."""
        if len(self._samples) < 2:
            return {}
        old, new = self._samples[0].instances, self._samples[-1].instances
        found: dict[str, Usage] = {}
        for key, (worker, runtime, started, busy_us) in new.items():
            _, _, started_before, busy_before = old.get(key, (worker, runtime, 0, 0))
            if started < started_before or busy_us < busy_before:
                started_before, busy_before = 0, 0  # it left and came back: its counters are new
            had = found.get(worker)
            found[worker] = Usage(
                runtime=runtime,
                rows=started - started_before + (had.rows if had else 0),
                busy_s=(busy_us - busy_before) / 1e6 + (had.busy_s if had else 0.0),
                span_s=self.span_s,
            )
        return found

    def clear(self) -> None:
        """Restart the window at the last statistics."""
        while len(self._samples) > 1:
            self._samples.popleft()
