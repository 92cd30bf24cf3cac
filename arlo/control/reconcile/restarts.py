"""Workers whose process is to be restarted, and those that only a restart can help. No clock, no I/O.

A worker that loads nothing while others load the same, or that has a runtime which it neither serves nor lets go, does
not get well by itself: what it lost (memory, a driver's context) only its end gives back.
"""

from __future__ import annotations

import dataclasses

LOAD_FAILURES = 3  # in a row, until a worker is thought unable to load, where others have loaded the same
LOAD_FAILURES_ALONE = 8  # where no other worker tells whether the runtime loads at all: it is tried once
AGAIN_S = (120.0, 3600.0)  # between two restarts of one worker for such a reason: first, longest


@dataclasses.dataclass(slots=True)
class _Record:
    failed: list[str] = dataclasses.field(default_factory=list)  # runtimes, since the last one that was loaded
    in_vain: set[str] = dataclasses.field(default_factory=set)  # runtimes that did not load before a restart either
    again_s: float = 0.0
    pause_s: float = AGAIN_S[0]


class Restarts:
    """`pending`: workers that are to be drained and restarted."""

    def __init__(self) -> None:
        self.pending: set[str] = set()
        self._records: dict[str, _Record] = {}
        self._unfit: set[str] = set()  # of `pending`, those that need not be where they should be first

    def ask(self, worker: str) -> None:
        """It is to be restarted."""
        self.pending.add(worker)

    def ask_unfit(self, worker: str, now_s: float) -> bool:
        """Only a restart helps it. False when it had one for such a reason not long ago."""
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
        """Whether it is restarted wherever it is."""
        return worker in self._unfit

    def done(self, worker: str) -> None:
        """Its restart begins, or it has gone."""
        self.pending.discard(worker)
        self._unfit.discard(worker)

    def gone(self, worker: str) -> None:
        """It will not come back."""
        self.done(worker)
        self._records.pop(worker, None)

    def loaded(self, worker: str, runtime: str) -> None:
        """It has loaded a runtime, which answers."""
        if worker in self._records:
            self._records[worker].failed.clear()
            self._records[worker].in_vain.discard(runtime)

    def load_failed(self, worker: str, runtime: str) -> None:
        """It has not."""
        self._records.setdefault(worker, _Record()).failed.append(runtime)

    def cannot_load(self, worker: str, *, elsewhere: set[str], serves: bool) -> bool:
        """Whether the worker, and not a runtime, is the reason. `elsewhere`: the runtimes that other workers have."""
        if worker not in self._records:
            return False
        record = self._records[worker]
        failed, count = set(record.failed), len(record.failed)
        if count >= LOAD_FAILURES and (failed & elsewhere or (not serves and len(failed) > 1)):
            return True
        return count >= LOAD_FAILURES_ALONE and not failed <= record.in_vain
