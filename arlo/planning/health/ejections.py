"""Finds workers that the gateway takes out of service again and again. Pure: no clock, no I/O.

One ejection may be a momentary fault, and the gateway readmits the worker by itself. A worker with a broken device
answers health checks, comes back, and fails the next rows; only a restart helps it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

EJECTIONS = 3
WITHIN_S = 600.0


class EjectionWatch:
    """Gets counts of ejections by instance, as the gateway counts them from its start."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}  # instance -> ejections when last seen
        self._times: dict[str, deque[float]] = {}  # worker -> when it was ejected

    def observe(self, now_s: float, instances: Iterable[tuple[str, str, int]]) -> list[str]:
        """Workers that were ejected EJECTIONS times within WITHIN_S. `instances`: id, worker, ejections so far.

        A worker is named once for these ejections. No worker is named while more than half of them are ejected now and
        then: a restart would not fix a common cause, such as a busy machine.
        """
        seen: dict[str, int] = {}
        workers: set[str] = set()
        for instance, worker, count in instances:
            seen[instance] = count
            workers.add(worker)
            before = self._counts.get(instance, 0)
            new = count - before if count >= before else count  # fewer: the gateway or the instance restarted
            self._times.setdefault(worker, deque(maxlen=EJECTIONS)).extend([now_s] * min(new, EJECTIONS))
        self._counts = seen
        for times in self._times.values():
            while times and now_s - times[0] > WITHIN_S:
                times.popleft()
        self._times = {worker: times for worker, times in self._times.items() if times}
        if len(self._times.keys() & workers) > max(1, len(workers) / 2):
            return []
        found = [worker for worker, times in self._times.items() if len(times) == EJECTIONS]
        for worker in found:
            del self._times[worker]
        return found

    def restarted(self, worker: str) -> None:
        """Forget the ejections of a worker whose process was restarted."""
        self._times.pop(worker, None)
