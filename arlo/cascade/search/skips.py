"""Rows that should skip stages (HybridServe section IV-C)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from arlo.cascade.decide import Floats
from arlo.cascade.search.table import Table, groups


def by_benefit(table: Table, thresholds: ArrayLike, worth: float) -> tuple[tuple[float, ...], ...]:
    """The most valuable cuts on these rows, for each stage but the last. The value is `worth` per right answer, in the
    unit of cost, less the cost. The search is exact: last stage to first, with the later cuts already fixed."""
    t = np.asarray(thresholds, np.float64)
    n = table.stages
    value = table.right * worth - table.cost  # [rows, stages]: of a row sent there, the later cuts known
    cuts: list[tuple[float, ...]] = [()] * (n - 1)
    for s in range(n - 2, -1, -1):
        con = table.confidence[:, s]
        on = con < t[s]
        if not on.any():
            cuts[s] = (0.0,) * (n - 2 - s)
            continue
        cuts[s] = _parted(con[on], value[on, s + 1 :], float(t[s]))
        below = np.searchsorted(np.asarray(cuts[s]), con[on], side="right")
        target = s + 1 + len(cuts[s]) - below
        value[on, s] = value[np.nonzero(on)[0], target] - table.cost[on, s]
    return tuple(cuts)


def _parted(con: Floats, value: Floats, t: float) -> tuple[float, ...]:
    """Ascending cuts; the highest confidences go to column 0 of `value` [rows, targets], the lowest to the last."""
    group, ends = groups(con)
    count, targets = len(ends) - 1, value.shape[1]
    sums = np.zeros((targets, count + 1))
    for j in range(targets):
        sums[j, 1:] = np.cumsum(np.bincount(group, weights=value[:, j], minlength=count))
    best, back = sums[0], list[np.ndarray[tuple[int], np.dtype[np.int64]]]()
    for j in range(1, targets):
        gain = best - sums[j]
        top = np.maximum.accumulate(gain)
        # Among equals the later cut, so that a row goes to the nearer stage.
        where = np.maximum.accumulate(np.where(gain >= top, np.arange(count + 1), 0))
        back.append(where)
        best = sums[j] + gain[where]
    at, cuts = count, []
    for where in reversed(back):
        at = int(where[at])
        cuts.append(min(float(ends[at]), t, 1.0))
    return tuple(cuts)
