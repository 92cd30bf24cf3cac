"""The cost of a runtime in the solvers' form: N * g(C / N) with g(B) = B * L(B), in quadratic pieces. Pure.

g is convex where every piece bends upwards and no kink between two pieces points down; N * g(C / N) is then convex in
N and C together (it is the perspective of g). Batches can break this: a latency that grows with the rows faster than by
half of its value up to max_batch has its kink there the other way round. `groups` cuts g into convex stretches and
single concave pieces; a solver fills them in their order.
"""

from __future__ import annotations

import dataclasses
import math

from arlo.planning.allocation.problem import LatencyCurve


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """g(low + x) = g(low) + slope * x + bend * x^2 for 0 <= x <= width; B, x and width in requests per instance."""

    low: float
    width: float  # infinite for the last one
    slope: float  # milliseconds
    bend: float  # milliseconds per request

    def slope_at(self, x: float) -> float:
        """The derivative of g at low + x."""
        return self.slope + 2 * self.bend * x


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring pieces over which g is convex, or a single concave piece."""

    pieces: tuple[Piece, ...]

    @property
    def width(self) -> float:
        """Requests per instance from the group's start to its end."""
        return sum(piece.width for piece in self.pieces)


def pieces(curve: LatencyCurve, limit: float = math.inf) -> list[Piece]:
    """g of a curve from B = 0 to `limit`."""
    found = [Piece(0.0, 1.0, curve.points[0][1], 0.0)]
    for (low, low_ms), (high, high_ms) in zip(curve.points, curve.points[1:], strict=False):
        grow = (high_ms - low_ms) / (high - low)
        found.append(Piece(low, high - low, low_ms + grow * low, grow))
    rows, ms = curve.points[-1]
    found.append(Piece(rows, math.inf, 1.5 * ms, ms / (2 * rows)))
    return [
        dataclasses.replace(piece, width=min(piece.width, limit - piece.low)) for piece in found if piece.low < limit
    ]


def groups(curve: LatencyCurve, limit: float = math.inf) -> list[Group]:
    """The pieces of a curve up to `limit`, in convex groups and single concave pieces, in ascending order of B."""
    found: list[list[Piece]] = []
    for piece in pieces(curve, limit):
        before = found[-1][-1] if found else None
        # Rounding must not turn a smooth join into a kink.
        joins = before is not None and piece.slope >= before.slope_at(before.width) * (1 - 1e-12)
        if before is not None and joins and before.bend >= 0 and piece.bend >= 0:
            found[-1].append(piece)
        else:
            found.append([piece])
    return [Group(tuple(each)) for each in found]
