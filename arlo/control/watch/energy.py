"""The energy cost of a served cascade's answers: all workers' devices, idle time included, over the rows that arrived
meanwhile (HybridServe section VI-C, per request of one row).

Reported where a counter can be read: those of the GPUs that local workers are given, or see; without GPUs, the
machine's CPU packages, with everything else that runs there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence

from arlo.cascade.energy import Counter, NvmlCounter, RaplCounter, gpus, per_request
from arlo.clock import monotonic_s
from arlo.config.model import WorkersConfig
from arlo.control.http.status import EnergyStatus
from arlo.control.watch.feed import Snapshot
from arlo.errors import EnvironmentProblem

WINDOW_S = 60.0


class SumCounter:
    """The sum of several devices' counters."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self._counters = counters
        self.source = counters[0].source

    def joules(self) -> float:
        """Joules of all devices together."""
        return sum(counter.joules() for counter in self._counters)


def counter_of(workers: WorkersConfig) -> Counter | None:
    """The counter of the workers' devices; None if none can be read."""
    if workers.kind == "local":
        with contextlib.suppress(EnvironmentProblem):
            found = list(dict.fromkeys(workers.gpus)) or [str(number) for number in range(gpus())]
            if found:
                return SumCounter([NvmlCounter(gpu) for gpu in found])
        if not workers.gpus:
            with contextlib.suppress(EnvironmentProblem):
                return RaplCounter()
    return None


class EnergyWatch:
    """Joules and rows of the last minute."""

    def __init__(self, workers: WorkersConfig) -> None:
        self._counter = counter_of(workers)
        self._looks: deque[tuple[float, float, int]] = deque()  # s, J since some moment, rows so far
        self._first_j: float | None = None

    @property
    def status(self) -> EnergyStatus | None:
        """The energy status; None before anything is known."""
        if self._counter is None or self._first_j is None:
            return None
        (_, first_j, first_rows), (_, joules, rows) = self._looks[0], self._looks[-1]
        arrived = rows - first_rows
        return EnergyStatus(
            source=self._counter.source,
            joules=joules - self._first_j,
            joules_per_request=per_request(joules - first_j, arrived) if arrived else None,
        )

    async def on_stats(self, seen: Snapshot) -> None:
        """Read the counter together with the number of rows so far."""
        if self._counter is not None and seen.whole is not None:
            joules = await asyncio.to_thread(self._counter.joules)
            self.add(monotonic_s(), joules, sum(seen.whole.arrivals_by_length))

    def add(self, at_s: float, joules: float, rows: int) -> None:
        """Add a reading. Fewer rows than before, from a restarted gateway, start the window over."""
        if self._looks and rows < self._looks[-1][2]:
            self._looks.clear()
        self._first_j = joules if self._first_j is None else self._first_j
        self._looks.append((at_s, joules, rows))
        while len(self._looks) > 2 and self._looks[1][0] <= at_s - WINDOW_S:
            self._looks.popleft()
