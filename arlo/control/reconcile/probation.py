"""Decides which workers a plan may count on: one that is lost repeatedly must first stay for a while. No clock, no I/O.

Each loss and each return of a worker moves the whole allocation. A worker that crashes every half minute would move it
twice per crash; so after the second loss it is left out of plans until it has stayed, longer each time. Its loaded
runtimes serve meanwhile.
"""

from __future__ import annotations

import dataclasses

FREE_LOSSES = 1  # after up to this many it counts at once when it is back
FIRST_S, LONGEST_S = 60.0, 1800.0  # the required stay after the next loss, and the longest one
FORGET_S = 3600.0  # a worker that has stayed this long starts over


@dataclasses.dataclass(slots=True)
class _Record:
    losses: int = 0
    back_s: float | None = None  # the moment of its return; None: it is away


class Probation:
    """Records losses and returns; workers without a record are counted on."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def lost(self, worker: str) -> None:
        """Record that it was away so long that plans leave it out. Further calls while it is away do nothing."""
        record = self._records.setdefault(worker, _Record(back_s=0.0))
        if record.back_s is not None:
            record.losses += 1
            record.back_s = None

    def back(self, worker: str, now_s: float) -> None:
        """Record that it is present (again)."""
        record = self._records.get(worker)
        if record is None:
            return
        if record.back_s is None:
            record.back_s = now_s
        elif now_s - record.back_s >= FORGET_S:
            del self._records[worker]

    def gone(self, worker: str) -> None:
        """Forget a worker that will not come back."""
        self._records.pop(worker, None)

    def must_stay_s(self, worker: str) -> float:
        """Seconds that it must stay before plans count on it."""
        record = self._records.get(worker)
        if record is None or record.losses <= FREE_LOSSES:
            return 0.0
        return min(LONGEST_S, FIRST_S * 2.0 ** min(record.losses - FREE_LOSSES - 1, 16))

    def left_out(self, worker: str, now_s: float) -> bool:
        """Whether it is present, but has not stayed long enough yet."""
        record = self._records.get(worker)
        if record is None or record.back_s is None:
            return False
        must_stay_s = self.must_stay_s(worker)
        return must_stay_s > 0 and now_s - record.back_s < must_stay_s
