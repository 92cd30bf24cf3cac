"""How long to wait before what has failed is tried again."""

from __future__ import annotations

FIRST_S, LONGEST_S = 0.1, 5.0
STEADY_S = 30.0  # what has lived this long starts over with the first


class Backoff:
    """Twice as long each time, until something has lived long enough."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, lived_s: float) -> float:
        """Seconds to wait now that it has failed after `lived_s` seconds."""
        wait_s = FIRST_S if lived_s > STEADY_S else self._next_s
        self._next_s = min(2 * wait_s, LONGEST_S)
        return wait_s
