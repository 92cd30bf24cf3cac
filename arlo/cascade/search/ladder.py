"""One price for time: thresholds by length, and the ladder of ever cheaper rules.

A long row costs more than a short one, so at equal accuracy its threshold should be lower. Given a price for cost, each
length bin takes the point on its curve where the slope equals that price; a price list walks all bins at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.decide import Floats
from arlo.cascade.search.table import Front, Table
from arlo.cascade.spec import MAX_PRICES, Rule, hard

LEAST_ROWS = 200  # a length bin with fewer has no separate curve


@dataclasses.dataclass(frozen=True, slots=True)
class Binned:
    """Points of several length bins together, accuracy and cost ascending; `thresholds` [points, bins, stages - 1]."""

    bins: tuple[int, ...]  # longest row of each
    accuracy: Floats
    cost: Floats
    thresholds: Floats


def merge(table: Table, length: ArrayLike, bins: Sequence[int], search: Callable[[Table], Front]) -> Binned:
    """The hulls of all bins merged, from the steepest gain in accuracy per cost to the flattest. Bins are
    joined where there are few rows."""
    lengths = np.asarray(length)
    ends = joined(lengths, bins)
    which = np.minimum(np.searchsorted(ends, lengths), len(ends) - 1)
    hulls = [search(table.take(which == b)).hull() for b in range(len(ends))]
    share = np.bincount(which, minlength=len(ends)) / table.rows
    steps = sorted(
        (
            (h.cost[i + 1] - h.cost[i]) / (h.accuracy[i + 1] - h.accuracy[i]),
            b,
            i + 1,
        )
        for b, h in enumerate(hulls)
        for i in range(len(h) - 1)
    )
    at = [0] * len(hulls)
    states = [tuple(at)]
    for _, b, i in steps:
        at[b] = i
        states.append(tuple(at))
    return Binned(
        tuple(ends),
        np.array([sum(share[b] * hulls[b].accuracy[i] for b, i in enumerate(state)) for state in states]),
        np.array([sum(share[b] * hulls[b].cost[i] for b, i in enumerate(state)) for state in states]),
        np.array([[hulls[b].thresholds[i] for b, i in enumerate(state)] for state in states]),
    )


def joined(length: NDArray[np.int64], ends: Sequence[int]) -> list[int]:
    """The bins (longest row of each), with those of fewer than LEAST_ROWS rows joined with the next longer one, the
    last with the one before."""
    found: list[int] = []
    for end in ends:
        if int(((length > (found[-1] if found else 0)) & (length <= end)).sum()) >= LEAST_ROWS:
            found.append(int(end))
    return [*found[:-1], int(ends[-1])]


def as_rules(thresholds: Floats, bins: Sequence[int] = ()) -> tuple[Rule, ...]:
    """Hard rules of thresholds [stages - 1], or [bins, stages - 1]."""
    if thresholds.ndim == 1:
        return tuple(hard(t) for t in thresholds)
    return tuple(
        Rule(t=tuple((int(end), float(t)) for end, t in zip(bins, thresholds[:, s], strict=True)))
        for s in range(thresholds.shape[1])
    )


def ladder(points: Front | Binned, point: int, *, floor: float = 0.0, steps: int = MAX_PRICES) -> Floats:
    """Thresholds by price [up to `steps`, ...]: the point itself, then ever cheaper points of the curve, down to the
    accuracy `floor`, evenly spaced in cost. Thresholds never rise with the price, so that every row that exits at one
    price also exits at a higher one."""
    front = points.hull() if isinstance(points, Front) else points
    own: Floats = points.thresholds[point]
    cheaper = (front.cost < points.cost[point]) & (front.accuracy >= floor)
    if not cheaper.any():
        return np.asarray(own[None])
    cost, thresholds = front.cost[cheaper], front.thresholds[cheaper]
    wanted = np.linspace(points.cost[point], cost[0], steps)[1:]
    picks = dict.fromkeys(int(np.abs(cost - each).argmin()) for each in wanted)
    return np.asarray(np.minimum.accumulate(np.concatenate([own[None], thresholds[list(picks)]]), axis=0))


def slope_at(front: Front, point: int) -> float:
    """The worth of a right answer at a point, in the unit of cost: the slope of the hull there."""
    hull = front.hull()
    if len(hull) < 2:
        return 0.0
    at = int(np.clip(np.searchsorted(hull.accuracy, front.accuracy[point]), 1, len(hull) - 1))
    return float((hull.cost[at] - hull.cost[at - 1]) / (hull.accuracy[at] - hull.accuracy[at - 1]))
