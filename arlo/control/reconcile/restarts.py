"""Tracks workers whose process is to be restarted, and those that only a restart can help. No clock, no I/O.

A worker that loads nothing while others load the same, or has a runtime that it neither serves nor unloads, does not
recover by itself: only the end of its process restores what it lost (memory, a driver's context).
"""

from __future__ import annotations

import dataclasses

LOAD_FAILURES = 3  # in a row, until a worker counts as unable to load, where others have loaded the same
LOAD_FAILURES_ALONE = 8  # where no other worker shows whether the runtime loads at all: tried once
AGAIN_S = (120.0, 3600.0)  # first and longest time between two such restarts of one worker


@dataclasses.dataclass(slots=True)
class _Record:
    failed: list[str] = dataclasses.field(default_factory=list)  # runtimes, since the last successful load
    in_vain: set[str] = dataclasses.field(default_factory=set)  # runtimes that also failed to load before a restart
    again_s: float = 0.0
    pause_s: float = AGAIN_S[0]


class Restarts:
    """`pending`: workers that will be drained and restarted."""

    def __init__(self) -> None:
        self.pending: set[str] = set()
        self._records: dict[str, _Record] = {}
        self._unfit: set[str] = set()  # workers in `pending` that may restart before they reach their target

    def ask(self, worker: str) -> None:
        """Request a restart of a worker."""
        self.pending.add(worker)

    def ask_unfit(self, worker: str, now_s: float) -> bool:
        """Request a restart as the only help for a worker. False if it recently had one for such a reason."""
        record = self._records.setdefault(worker, _Record())
        if now_s < record.again_s:
            return False
        record.again_s = now_s + record.pause_s
        record.pause_s = min(2 * record.pause_s, AGAIN_S[1])
        record.in_vain.update(record.failed)
        record.failed.clear()
        self.pending.add(worker)
        self._unfit.add(worker)
        return True

    def unfit(self, worker: str) -> bool:
        """Whether a worker restarts even before it reaches its target."""
        return worker in self._unfit

    def done(self, worker: str) -> None:
        """Record that its restart begins, or that it has gone."""
        self.pending.discard(worker)
        self._unfit.discard(worker)

    def gone(self, worker: str) -> None:
        """Forget a worker that will not come back."""
        self.done(worker)
        self._records.pop(worker, None)

    def loaded(self, worker: str, runtime: str) -> None:
        """Record that a worker has loaded a runtime, which answers."""
        if worker in self._records:
            self._records[worker].failed.clear()
            self._records[worker].in_vain.discard(runtime)

    def load_failed(self, worker: str, runtime: str) -> None:
        """Record that a worker failed to load a runtime."""
        self._records.setdefault(worker, _Record()).failed.append(runtime)

    def cannot_load(self, worker: str, *, elsewhere: set[str], serves: bool) -> bool:
        """Whether the worker, not a runtime, is at fault. `elsewhere`: the runtimes that other workers have loaded."""
        if worker not in self._records:
            return False
        record = self._records[worker]
        failed, count = set(record.failed), len(record.failed)
        if count >= LOAD_FAILURES and (failed & elsewhere or (not serves and len(failed) > 1)):
            return True
        return count >= LOAD_FAILURES_ALONE and not failed <= record.in_vain
