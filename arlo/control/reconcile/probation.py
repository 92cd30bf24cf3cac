"""Which workers a plan may count on: one that is lost again and again must first stay for a while. No clock, no I/O.

Each loss and each return of a worker moves the whole allocation. A worker that crashes every half minute would have it
moved twice a round; so after the second loss it is left out of plans until it has stayed, longer each time. What it has
loaded serves meanwhile.
"""

from __future__ import annotations

import dataclasses

FREE_LOSSES = 1  # after so many it is counted on at once when it is back
FIRST_S, LONGEST_S = 60.0, 1800.0  # that it must stay after the next one, and at most
FORGET_S = 3600.0  # a worker that has stayed for so long starts anew


@dataclasses.dataclass(slots=True)
class _Record:
    losses: int = 0
    back_s: float | None = None  # since when it has been here again; None: it is away


class Probation:
    """Told of losses and returns; workers it was told nothing of are counted on."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def lost(self, worker: str) -> None:
        """It has been away for so long that a plan is made without it. Told again while it is away: nothing more."""
        record = self._records.setdefault(worker, _Record(back_s=0.0))
        if record.back_s is not None:
            record.losses += 1
            record.back_s = None

    def back(self, worker: str, now_s: float) -> None:
        """It is here (again)."""
        record = self._records.get(worker)
        if record is None:
            return
        if record.back_s is None:
            record.back_s = now_s
        elif now_s - record.back_s >= FORGET_S:
            del self._records[worker]

    def gone(self, worker: str) -> None:
        """It will not come back."""
        self._records.pop(worker, None)

    def must_stay_s(self, worker: str) -> float:
        """How long it must stay before plans count on it."""
        record = self._records.get(worker)
        if record is None or record.losses <= FREE_LOSSES:
            return 0.0
        return min(LONGEST_S, FIRST_S * 2.0 ** min(record.losses - FREE_LOSSES - 1, 16))

    def left_out(self, worker: str, now_s: float) -> bool:
        """Whether it is here, but not for long enough yet."""
        record = self._records.get(worker)
        if record is None or record.back_s is None:
            return False
        must_stay_s = self.must_stay_s(worker)
        return must_stay_s > 0 and now_s - record.back_s < must_stay_s
