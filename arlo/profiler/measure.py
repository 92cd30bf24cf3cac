"""Measuring one point: warm-up until stable, then repetitions until the interval is narrow enough.

It blocks, so run it in a separate thread. The call and the clock are arguments, so that tests need neither.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

from arlo.profiler.interval import half_width

WARM_LEAST = 10
WARM_MOST = 50
WARM_SHARE = 0.2  # of max_seconds
_WARM_WINDOW = 5
_STABLE = 0.05  # change of the mean from one window to the next
LEAST_SAMPLES = 50
LEAST_S = 0.25  # long enough to see what else the machine does
LEAST_AT_LIMIT = 3  # samples that are always taken
_LOOK_AGAIN = 1.1  # the interval is looked at each time there are this many times more samples


class Stopped(Exception):  # noqa: N818  # not an error: the user asked for it
    """Measuring was stopped from outside."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """When a point is done."""

    confidence: float
    precision: float
    max_seconds: float


def warm_up(call: Callable[[], None], until: Until, *, now: Callable[[], float], stopped: Callable[[], bool]) -> int:
    """Call until the time of a call is stable, at most 50 times or a fifth of max_seconds; returns the calls made."""
    times: list[float] = []
    start_s = now()
    while len(times) < WARM_MOST:
        times.append(_timed(call, now, stopped))
        if now() - start_s > WARM_SHARE * until.max_seconds:
            break
        if len(times) >= WARM_LEAST:
            last = statistics.fmean(times[-_WARM_WINDOW:])
            before = statistics.fmean(times[-2 * _WARM_WINDOW : -_WARM_WINDOW])
            if abs(last - before) <= _STABLE * before:
                break
    return len(times)


def repeat(
    call: Callable[[], None], until: Until, *, now: Callable[[], float], stopped: Callable[[], bool]
) -> list[float]:
    """Seconds of each call, repeated until the interval of their mean is within the precision, or max_seconds are over.

    It makes at least 50 calls in at least a quarter of a second, unless max_seconds end first; always at least 3.
    """
    times: list[float] = []
    start_s, look_at = now(), LEAST_SAMPLES
    while True:
        times.append(_timed(call, now, stopped))
        spent_s = now() - start_s
        if spent_s >= until.max_seconds and len(times) >= LEAST_AT_LIMIT:
            return times
        if len(times) >= look_at and spent_s >= LEAST_S:
            if half_width(times, until.confidence) <= until.precision * statistics.fmean(times):
                return times
            look_at = int(len(times) * _LOOK_AGAIN) + 1


def _timed(call: Callable[[], None], now: Callable[[], float], stopped: Callable[[], bool]) -> float:
    if stopped():
        raise Stopped
    start_s = now()
    call()
    return now() - start_s
