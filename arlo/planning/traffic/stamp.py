"""When a gateway's statistics were taken, by a clock that never goes back. Pure; `now_s` is an argument.

A gateway reports its uptime when it takes its statistics. That and its start are converted to the reader's
clock: the distance between two statistics of one life of the gateway is exactly the gateway's, and a restarted
gateway follows the one before. Wall clocks, which may be set back, have no part in it.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """The times of one reading of the counters; both on the reader's monotonic clock."""

    at_s: float
    started_s: float  # when the counters began at 0; another value: they restarted


class StampClock:
    """Makes stamps for one gateway."""

    def __init__(self) -> None:
        self._life: int | None = None
        self._uptime_s = 0.0
        self._started_s = 0.0

    def stamp(self, life: int, uptime_ns: int, now_s: float) -> Stamp:
        """`life` names the gateway's life (Stats.started_at_ms), `uptime_ns` its age; `now_s` is the reader's clock."""
        uptime_s = uptime_ns / 1e9
        if life != self._life or uptime_s < self._uptime_s:
            earliest_s = self._started_s + self._uptime_s if self._life is not None else now_s - uptime_s
            self._started_s = max(now_s - uptime_s, earliest_s)
        self._life, self._uptime_s = life, uptime_s
        return Stamp(self._started_s + uptime_s, self._started_s)
