"""The only place that reads clocks; everything else takes `now` as an argument or calls these."""

from __future__ import annotations

import time


def monotonic_s() -> float:
    """Seconds from an arbitrary origin; never steps back. For durations."""
    return time.monotonic()


def unix_s() -> float:
    """Seconds since 1970. For records that people read, never for durations."""
    return time.time()  # noqa: TID251  # the one place
