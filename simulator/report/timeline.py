"""Recent events: the timeline of a run, and the sliding window that scaling decides by.

The engine counts since the last look; `Recent` takes these samples and hands each to the timeline and to the window.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arlo import _core

STARTING, SERVING, DRAINING, GONE = range(4)  # states of a worker in the engine
SECOND_NS = 1_000_000_000
COUNTS = ("arrived", "answered", "on_time", "unanswered")


class Tally:
    """Counts and latencies, added up and (as a window slides) taken away again."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = dict.fromkeys((*COUNTS, "latency_sum_ns"), 0)
        self.latencies: NDArray[np.uint64] = np.zeros(0, np.uint64)

    def add(self, sums: dict[str, float], latencies: NDArray[np.uint64], sign: int = 1) -> None:
        """Add one sample of the engine, or take it away again."""
        for name in self.sums:
            self.sums[name] += sign * sums[name]
        if len(latencies) > len(self.latencies):
            self.latencies = np.pad(self.latencies, (0, len(latencies) - len(self.latencies)))
        part = self.latencies[: len(latencies)]
        (np.add if sign > 0 else np.subtract)(part, latencies, out=part)

    @property
    def mean_ms(self) -> float:
        """Mean latency of the answers; NaN without any."""
        answered = self.sums["answered"]
        return self.sums["latency_sum_ns"] / answered / 1e6 if answered else float("nan")

    def quantile_ms(self, q: float) -> float:
        """Latency quantile, linear within a bucket, which is 1 part in 128 wide; NaN without answers."""
        cumulative = np.cumsum(self.latencies)
        total = int(cumulative[-1]) if len(cumulative) else 0
        if not total:
            return float("nan")
        rank = q * total
        bucket = int(np.searchsorted(cumulative, max(rank, 1e-9)))
        edges = bucket_edges_ns()
        inside = float(self.latencies[bucket])
        share = (rank - (float(cumulative[bucket]) - inside)) / inside
        return float(edges[bucket] + (edges[bucket + 1] - edges[bucket]) * share) / 1e6


@functools.cache
def bucket_edges_ns() -> NDArray[np.float64]:
    """Least value of each recent bucket."""
    return np.asarray(_core.Simulation.recent_bucket_ns(20_000), np.float64)  # more than 64 bits have


class Recent:
    """Samples of the engine's recent counters: for the timeline until its next row, and of the last `window_ns`."""

    def __init__(self, engine: _core.Simulation, window_ns: int | None) -> None:
        self._engine = engine
        self._window_ns = window_ns
        self._samples: deque[tuple[int, dict[str, float], NDArray[np.uint64]]] = deque()
        self._taken_ns = -1
        self.interval = Tally()
        self.window = Tally()

    def take(self, now_ns: int, *, again: bool = False) -> None:
        """Look at the engine, once for each moment; `again`: more may have happened at the same one."""
        if now_ns == self._taken_ns and not again:
            return
        self._taken_ns = now_ns
        sums, latencies = self._engine.take_recent()
        self.interval.add(sums, latencies)
        if self._window_ns is None:
            return
        self.window.add(sums, latencies)
        self._samples.append((now_ns, sums, latencies))
        while self._samples[0][0] <= now_ns - self._window_ns:
            _, old, old_latencies = self._samples.popleft()
            self.window.add(old, old_latencies, -1)

    def next_interval(self) -> Tally:
        """The counts since the last call."""
        done, self.interval = self.interval, Tally()
        return done


class Timeline:
    """One row per interval, and a last one, later than the workload's end, for the answers after it.

    Columns, float64: time_s (the end of the row's interval), arrived, answered, on_time, unanswered (rejected, expired
    or failed in it), mean_ms and p98_ms of the answers and attainment (on time, of all that ended in it; all three NaN
    where there are none), queued and in_flight (requests at its end), serving and present (workers at its end), and
    `instances.NAME` (of each runtime in service at its end). Warm-up included.
    """

    def __init__(self, engine: _core.Simulation, recent: Recent, names: Sequence[str]) -> None:
        self._engine = engine
        self._recent = recent
        self._names = tuple(names)
        self._rows: list[list[float]] = []
        self._columns = (
            "time_s",
            *COUNTS,
            "mean_ms",
            "p98_ms",
            "attainment",
            "queued",
            "in_flight",
            "serving",
            "present",
            *(f"instances.{name}" for name in self._names),
        )

    def row(self, now_ns: int) -> None:
        """End an interval now, with its row."""
        self._recent.take(now_ns)
        tally = self._recent.next_interval()
        ended = tally.sums["answered"] + tally.sums["unanswered"]
        workers = self._engine.workers()
        serving = workers["state"] == SERVING
        self._rows.append(
            [
                now_ns / SECOND_NS,
                *(float(tally.sums[name]) for name in COUNTS),
                tally.mean_ms,
                tally.quantile_ms(0.98),
                tally.sums["on_time"] / ended if ended else float("nan"),
                self._engine.queued,
                self._engine.in_flight,
                int(serving.sum()),
                int((workers["state"] != GONE).sum()),
                *np.bincount(workers["runtime"][serving], minlength=len(self._names)).tolist(),
            ]
        )

    def rest(self, now_ns: int) -> None:
        """End the run, with a last row if anything happened after the previous one."""
        self._recent.take(now_ns, again=True)
        if any(self._recent.interval.sums[name] for name in COUNTS):
            self.row(now_ns)

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """The timeline so far."""
        table = np.array(self._rows, np.float64).reshape(-1, len(self._columns))
        return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(self._columns)}
