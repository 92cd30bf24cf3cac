"""Exhaustive search over all cuts for two and three stages; for more, exact sweeps over one threshold at a time.

Only the order of confidences matters, so between two neighbouring rows there is only one place for a threshold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.cascade.decide import Floats, Ints
from arlo.cascade.search import sampling
from arlo.cascade.search.table import Front, Table, groups, join, pareto
from arlo.errors import ConfigError

MOST_PAIRS = 1 << 30  # of cuts, for three stages
_BLOCK = 1 << 20  # pairs at a time
_STARTS = 24
_ROUNDS = 50


def search(table: Table, *, seed: int = 0) -> Front:
    """The front over all thresholds; for four stages and more, the front of sweeps that start at the best samples."""
    if table.stages == 1:
        right, cost = table.at(np.zeros(table.rows, np.int64))
        return Front(np.array([right.mean()]), np.array([cost.mean()]), np.zeros((1, 0)))
    if table.stages == 2:
        return _two(table)
    if table.stages == 3:
        return _three(table)
    return _sweeps(table, seed)


def _two(table: Table) -> Front:
    group, thresholds = groups(table.confidence[:, 0])
    hits, cost = _cuts(group, len(thresholds) - 1, table.right, np.cumsum(table.cost, axis=1))
    return pareto(hits / table.rows, cost / table.rows, thresholds[:, None])


def _cuts(group: Ints, count: int, right: NDArray[Any], total: Floats) -> tuple[Floats, Floats]:
    """Hits and costs [count + 1] when the first i groups end with column 0, and the others with column 1."""
    out = []
    for values in (right.astype(np.int64), total):
        gain = np.bincount(group, weights=values[:, 0] - values[:, 1], minlength=count)
        out.append(values[:, 1].sum() + np.concatenate([[0], np.cumsum(gain)]))
    return out[0], out[1]


def _three(table: Table) -> Front:
    """All pairs, in blocks of cuts of the first threshold. In a pair (i, j), groups below i exit at the first stage;
    of the others, those below j exit at the second. Right answers and cost are then prefix sums over both ranks."""
    (g0, t0), (g1, t1) = groups(table.confidence[:, 0]), groups(table.confidence[:, 1])
    n0, n1 = len(t0) - 1, len(t1) - 1
    if (n0 + 1) * (n1 + 1) > MOST_PAIRS:
        raise ConfigError(
            f"three stages with {table.rows} rows make more pairs of thresholds than can be tried: use fewer rows"
        )
    total = np.cumsum(table.cost, axis=1)
    right = table.right.astype(np.int64)
    # With cut i, rows of group i and above escalate: the totals if none of them ends at the second stage ...
    base_hits, base_cost = _cuts(g0, n0, right[:, [0, 2]], total[:, [0, 2]])
    # ... and the change by each row that ends there.
    gain, saved = right[:, 1] - right[:, 2], total[:, 1] - total[:, 2]
    order = np.argsort(g0, kind="stable")
    starts = np.searchsorted(g0[order], np.arange(n0 + 1))
    carried = np.zeros((2, n1))
    best = np.full(table.rows + 1, np.inf)
    where = np.zeros((table.rows + 1, 2), np.int64)
    block = max(1, _BLOCK // (n1 + 1))
    for high in range(n0, -1, -block):
        cuts = np.arange(high, max(high - block, -1), -1)
        # Rows that join with each cut, from the highest cut down: those of the cut's group (cut n0 has none).
        rows = order[starts[cuts[-1]] : starts[min(high + 1, n0)] if high < n0 else table.rows]
        at = (high - g0[rows]) * n1 + g1[rows]
        size = len(cuts) * n1
        both = np.zeros((2, len(cuts), n1 + 1))
        for which, values in enumerate((gain, saved)):
            added = np.bincount(at, weights=values[rows], minlength=size).reshape(len(cuts), n1)
            added[0] += carried[which]
            np.cumsum(added, axis=0, out=added)
            carried[which] = added[-1]
            np.cumsum(added, axis=1, out=both[which, :, 1:])
        hits = (both[0] + base_hits[cuts][:, None]).round().astype(np.int64).ravel()
        cost = (both[1] + base_cost[cuts][:, None]).ravel()
        lowest = np.full(table.rows + 1, np.inf)
        np.minimum.at(lowest, hits, cost)
        better = lowest <= best
        better &= np.isfinite(lowest)
        (found,) = np.nonzero((cost == lowest[hits]) & better[hits])
        # Ties take the larger thresholds: a low first cut, then a low second one. Blocks come from high cuts to low.
        for flat in found[np.lexsort((-(found % (n1 + 1)), found // (n1 + 1)))]:
            where[hits[flat]] = cuts[flat // (n1 + 1)], flat % (n1 + 1)
        best = np.minimum(best, lowest)
    (known,) = np.nonzero(np.isfinite(best))
    pairs = np.column_stack([t0[where[known, 0]], t1[where[known, 1]]])
    return pareto(known / table.rows, best[known] / table.rows, pairs)


def _sweeps(table: Table, seed: int) -> Front:
    """From the sampled points at each slope of their hull, sweep all cuts of one threshold after the other."""
    found = sampling.search(table, seed=seed)
    hull = found.hull()
    if len(hull) < 2:
        return found
    slopes = np.diff(hull.cost) / np.diff(hull.accuracy)
    picks = np.unique(np.linspace(0, len(slopes) - 1, _STARTS).round().astype(np.int64))
    fronts = [found]
    for slope in slopes[picks]:
        worth = hull.accuracy * slope - hull.cost
        thresholds, value = hull.thresholds[worth.argmax()].copy(), float(worth.max())
        for _ in range(_ROUNDS):
            before = value
            for stage in range(table.stages - 1):
                cut = _sweep(table, thresholds, stage)
                fronts.append(cut)
                worth = cut.accuracy * slope - cut.cost
                if worth.max() > value + 1e-12:
                    value, thresholds = float(worth.max()), cut.thresholds[worth.argmax()].copy()
            if value <= before + 1e-12:
                break
    return join(fronts)


def _sweep(table: Table, thresholds: Floats, stage: int) -> Front:
    """The front over one stage's threshold, with the others fixed."""
    passing = np.array(thresholds, np.float64)
    passing[stage] = np.inf
    exits = table.exits(passing)
    right, cost = table.at(exits)
    here = exits > stage  # rows that the stage decides about
    if not here.any():
        return pareto([right.mean()], [cost.mean()], thresholds[None])
    ended_right, ended_cost = table.at(np.full(table.rows, stage))
    group, cuts = groups(table.confidence[here, stage])
    hits, costs = _cuts(
        group,
        len(cuts) - 1,
        np.column_stack([ended_right, right])[here],
        np.column_stack([ended_cost, cost])[here],
    )
    made = np.tile(thresholds, (len(cuts), 1))
    made[:, stage] = cuts
    return pareto((hits + right[~here].sum()) / table.rows, (costs + cost[~here].sum()) / table.rows, made)
