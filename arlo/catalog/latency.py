"""How a latency table is read: the only reader in Python, equal to src/base/latency_table.h to the nanosecond. Pure.

A table has points: the latency of a whole batch, by its rows and the tokens of each. There is one curve over the length
for each measured batch. Between two lengths it is linear, outside them flat; between two measured batches it is linear,
below the smallest flat, above the largest proportional to the rows (as if run in turns). All values are whole
nanoseconds, fractions cut off, so that every reader finds the same number.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Iterable, Sequence

from arlo.errors import ConfigError


def ms_in_ns(ms: float) -> int:
    """Nanoseconds, to the nearest."""
    return round(ms * 1_000_000)


@dataclasses.dataclass(frozen=True, slots=True)
class LatencyTable:
    """See the module. Points are (tokens, rows, ns of the batch), no two for the same tokens and rows."""

    points: tuple[tuple[int, int, int], ...]

    @classmethod
    def from_us(cls, points: Iterable[tuple[int, int, float]]) -> LatencyTable:
        """A table of points in microseconds; repeated measurements are averaged."""
        found: dict[tuple[int, int], list[float]] = {}
        for length, batch, us in points:
            found.setdefault((length, batch), []).append(us)
        return cls(tuple((*at, round(sum(us) * 1000 / len(us))) for at, us in found.items()))

    def at_ns(self, length: int, rows: int) -> int:
        """Nanoseconds of a batch of `rows` rows of `length` tokens. ConfigError for a table without points."""
        if not self.points:
            raise ConfigError("a latency table needs at least one point: measure it with `arlo compile profile`")
        curves = _curves(self.points)
        index = bisect.bisect_left(curves, rows, key=lambda curve: curve[0])
        if index == 0:
            return _line(curves[0][1], length)
        if index == len(curves):
            largest, curve = curves[-1]
            return _line(curve, length) * rows // largest
        (low, below), (high, above) = curves[index - 1], curves[index]
        return _between(low, _line(below, length), high, _line(above, length), rows)

    def batches(self) -> list[int]:
        """The measured batches, ascending."""
        return sorted({batch for _, batch, _ in self.points})


@functools.lru_cache(maxsize=1024)
def _curves(points: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
    """The curve of each batch, by ascending batch: its (length, ns) by ascending length."""
    found: dict[int, list[tuple[int, int]]] = {}
    for length, batch, ns in points:
        found.setdefault(batch, []).append((length, ns))
    return tuple((batch, tuple(sorted(curve))) for batch, curve in sorted(found.items()))


def _line(curve: Sequence[tuple[int, int]], length: int) -> int:
    index = bisect.bisect_left(curve, length, key=lambda point: point[0])
    if index == 0:
        return curve[0][1]
    if index == len(curve):
        return curve[-1][1]
    return _between(*curve[index - 1], *curve[index], length)


def _between(x0: int, y0: int, x1: int, y1: int, x: int) -> int:
    """The line through two points at x, cut towards y0 as C++ divides."""
    rise = (y1 - y0) * (x - x0)
    return y0 + (rise // (x1 - x0) if rise >= 0 else -(-rise // (x1 - x0)))
