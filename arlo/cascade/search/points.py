"""Operating points of a curve, its noise, and stages that do not pay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from arlo.cascade.decide import Floats
from arlo.cascade.search.table import Front, Table

RESAMPLES = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its interval at some probability."""

    mean: float
    low: float
    high: float


def interval(values: ArrayLike, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Bootstrap interval of the mean of values in {-1, 0, 1}, such as paired differences of right and wrong. It
    resamples the counts of the values, which is equivalent to resampling rows, and fast."""
    given = np.asarray(values)
    return _counted(len(given), int((given > 0).sum()), int((given < 0).sum()), level, seed)


def _counted(n: int, more: int, less: int, level: float, seed: int) -> Interval:
    """The interval() of n values, given the numbers of 1 and -1."""
    shares = np.array([less, n - less - more, more]) / n
    drawn = np.random.default_rng(seed).multinomial(n, shares, size=RESAMPLES) @ np.array([-1, 0, 1]) / n
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval((more - less) / n, float(low), float(high))


def paired(right: ArrayLike, other: ArrayLike, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Interval of accuracy(right) - accuracy(other) over the same rows."""
    ours, theirs = np.asarray(right, np.bool_), np.asarray(other, np.bool_)
    more, less = np.count_nonzero(ours & ~theirs), np.count_nonzero(theirs & ~ours)
    return _counted(len(ours), more, less, level, seed)


def accuracy_point(
    front: Front,
    table: Table,
    *,
    giant: ArrayLike | None = None,
    tolerance: float = 0.0,
    level: float | None = 0.95,
    seed: int = 0,
) -> int | None:
    """AP (HybridServe section IV-B, Algorithm 1 line 9): the cheapest point as accurate as the last stage alone.

    Equality is judged up to noise: the lower end of the paired interval must be at least -tolerance; with level None,
    only the means are compared, as printed. None if no point qualifies. `giant` [rows]: whether the last stage is right
    on the whole text, if the table has its answers to a pruned one.
    """
    last = table.right[:, -1] if giant is None else np.asarray(giant, np.bool_)
    rows = np.arange(table.rows)
    for i in range(len(front)):
        if front.accuracy[i] + 1e-12 < last.mean() - tolerance:
            continue
        if level is None:
            return i
        right = table.right[rows, table.exits(front.thresholds[i])]
        if paired(right, last, level=level, seed=seed).low >= -tolerance - 1e-12:
            return i
    return None


def efficient_point(front: Front, table: Table) -> int | None:
    """EO (HybridServe Algorithm 1 line 10): where the curve bends most, among points at least as accurate as the
    second-to-last stage alone. The bend is the second derivative of cost over accuracy on the lower convex hull, whose
    ends have none; ties go to higher accuracy. None with fewer than three points: then AP is taken."""
    allowed = front.accuracy >= float(table.right[:, -2].mean()) - 1e-12
    hull = front.take(np.nonzero(allowed)[0]).hull()
    if len(hull) < 3:
        return None
    bends = second_derivatives(hull.accuracy, hull.cost)
    best = len(bends) - 1 - int(bends[::-1].argmax())
    return int(np.nonzero(front.accuracy == hull.accuracy[best + 1])[0][0])


def second_derivatives(a: Floats, e: Floats) -> Floats:
    """Second derivatives of e over a at the inner points, which are unevenly spaced."""
    slopes = np.diff(e) / np.diff(a)
    return np.asarray(2 * np.diff(slopes) / (a[2:] - a[:-2]))


def remove_stages(
    stages: int,
    table_of: Callable[[Sequence[int]], Table],
    search: Callable[[Table], Front],
    *,
    tolerance: float = 0.0,
) -> tuple[list[int], list[tuple[int, float]]]:
    """Stages that pay, and those removed with their benefit (HybridServe Algorithm 2).

    From small to large, a stage whose benefit is not above 0 is removed, and the search is repeated. The benefit is the
    cost of AP without the stage, searched again, less that with it. `table_of`: records of some of the stages.
    """
    kept, removed = list(range(stages)), list[tuple[int, float]]()

    def cost(of: Sequence[int]) -> float:
        table = table_of(of)
        front = search(table)
        i = accuracy_point(front, table, tolerance=tolerance, level=None)
        return float(table.cost.sum(axis=1).mean() if i is None else front.cost[i])

    while len(kept) > 1:
        whole = cost(kept)
        benefits = ((stage, cost([s for s in kept if s != stage]) - whole) for stage in kept[:-1])
        useless = next(((stage, benefit) for stage, benefit in benefits if benefit <= 0), None)
        if useless is None:
            break
        kept.remove(useless[0])
        removed.append(useless)
    return kept, removed
