"""The input of all searches, and the curve that they return: accuracy against cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.decide import Bools, Floats, Ints
from arlo.cascade.spec import NEVER
from arlo.errors import ConfigError

# A threshold lies this far below the confidence of the last row that exits, or half way to the next. The last bit,
# which may differ between two implementations of exp(), then decides nothing.
_CLEARANCE = 1e-10


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows by stages. `right[r, s]`: whether row r is answered right if it ends at s after running on all stages
    before; `cost[r, s]`: the cost of stage s alone, in any one unit (ms, mJ)."""

    confidence: Floats  # [rows, stages]; that of the last is not used
    right: Bools  # [rows, stages]
    cost: Floats  # [rows, stages]

    def __post_init__(self) -> None:
        shape = self.confidence.shape
        if len(shape) != 2 or shape[0] < 1 or self.right.shape != shape or self.cost.shape != shape:
            raise ConfigError("a table needs rows, and confidence, right and cost of one shape [rows, stages]")

    @classmethod
    def of(cls, confidence: ArrayLike, right: ArrayLike, cost: ArrayLike) -> Table:
        """`cost`: [rows, stages], or [stages] for all rows alike. Of `confidence` the last column may be left out."""
        ok = np.asarray(right, np.bool_)
        con = np.asarray(confidence, np.float64)
        if con.shape[1] == ok.shape[1] - 1:
            con = np.column_stack([con, np.ones(len(con))])
        return cls(con, ok, np.broadcast_to(np.asarray(cost, np.float64), ok.shape).copy())

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.right)

    @property
    def stages(self) -> int:
        """How many."""
        return self.right.shape[1]

    def take(self, rows: NDArray[np.int64] | Bools) -> Table:
        """Some of the rows."""
        return Table(self.confidence[rows], self.right[rows], self.cost[rows])

    def only(self, stages: Sequence[int]) -> Table:
        """The table of some stages. (`right` of an ensemble would change: build a new table instead.)"""
        at = list(stages)
        return Table(self.confidence[:, at], self.right[:, at], self.cost[:, at])

    def exits(self, thresholds: ArrayLike) -> Ints:
        """The stage at which each row [rows] ends, with hard thresholds [stages - 1], or [rows, stages - 1]."""
        t = np.broadcast_to(np.asarray(thresholds, np.float64), (self.rows, self.stages - 1))
        out = np.full(self.rows, self.stages - 1)
        for s in range(self.stages - 2, -1, -1):
            out[self.confidence[:, s] >= t[:, s]] = s
        return out

    def at(self, exits: Ints) -> tuple[Bools, Floats]:
        """Right and cost [rows] of rows that end at these stages, having run on all before."""
        rows = np.arange(self.rows)
        return self.right[rows, exits], np.cumsum(self.cost, axis=1)[rows, exits]

    def measure(self, thresholds: ArrayLike) -> tuple[float, float]:
        """Accuracy and mean cost."""
        right, cost = self.at(self.exits(thresholds))
        return float(right.mean()), float(cost.mean())


@dataclasses.dataclass(frozen=True, slots=True)
class Front:
    """Pareto-optimal points; accuracy and cost ascend. `thresholds`: [points, stages - 1]."""

    accuracy: Floats
    cost: Floats
    thresholds: Floats

    def __len__(self) -> int:
        return len(self.accuracy)

    def take(self, points: Sequence[int] | NDArray[np.int64]) -> Front:
        """Some of the points."""
        at = np.asarray(points, np.int64)
        return Front(self.accuracy[at], self.cost[at], self.thresholds[at])

    def hull(self) -> Front:
        """The points on the lower convex hull of cost over accuracy."""
        kept: list[int] = []
        for i in range(len(self)):
            while len(kept) >= 2 and self._slope(kept[-2], kept[-1]) >= self._slope(kept[-1], i) - 1e-15:
                kept.pop()
            kept.append(i)
        return self.take(kept)

    def _slope(self, a: int, b: int) -> float:
        return float((self.cost[b] - self.cost[a]) / (self.accuracy[b] - self.accuracy[a]))


def pareto(accuracy: ArrayLike, cost: ArrayLike, thresholds: ArrayLike) -> Front:
    """The front of some points; of equal points, the one with the larger thresholds stays."""
    a, e, t = (np.asarray(each, np.float64) for each in (accuracy, cost, thresholds))
    order = np.lexsort((*(-t[:, ::-1]).T, -a, e))
    best = np.maximum.accumulate(a[order])
    first = np.concatenate([[True], best[1:] > best[:-1]])
    return Front(a[order][first], e[order][first], t[order][first])


def join(fronts: Sequence[Front]) -> Front:
    """The front of several fronts together."""
    return pareto(*(np.concatenate([getattr(f, name) for f in fronts]) for name in ("accuracy", "cost", "thresholds")))


def groups(confidence: Floats) -> tuple[Ints, Floats]:
    """Rows grouped by confidence [rows]: each row's group, 0 for the highest value, and thresholds [groups + 1]. The
    i-th threshold lets the first i groups exit."""
    values, group = np.unique(-confidence, return_inverse=True)
    down = -values
    below = np.append(down[1:], -np.inf)
    return group, np.concatenate([[NEVER], np.clip(down - np.minimum(_CLEARANCE, (down - below) / 2), 0.0, NEVER)])
