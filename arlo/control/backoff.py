"""The wait before a failed operation is retried."""

from __future__ import annotations

FIRST_S, LONGEST_S = 0.1, 5.0
STEADY_S = 30.0  # a run that lasted this long resets the wait to the first one


class Backoff:
    """Waits that double with each failure, and start over after a run that lasted long enough."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, lived_s: float) -> float:
        """Seconds to wait after a run that failed after `lived_s` seconds."""
        wait_s = FIRST_S if lived_s > STEADY_S else self._next_s
        self._next_s = min(2 * wait_s, LONGEST_S)
        return wait_s
