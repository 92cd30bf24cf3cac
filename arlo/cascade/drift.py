"""Tests whether traffic still resembles the rows that the cascade was searched on.

A small share of the rows that exit early also runs on the last stage (shadow rows). A test after every row, without a
time limit, shows whether their answers differ too often: a bet against "disagreement is at most epsilon", whose capital
ever exceeds 1 / alpha with probability at most alpha (Ville; Waudby-Smith and Ramdas, 2024).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from arlo.cascade.guarantee import clopper_pearson
from arlo.cascade.manifest import DataUsed, Point

ALPHA = 1e-5  # chance of a false alarm, over all time
_MOST = 0.95  # share of rows that differ; a larger one would promise nothing


def allowed(point: Point, data: DataUsed | None = None) -> float:
    """The share of early exits that may differ from the last stage before traffic no longer matches an operating point:
    its guarantee, or the upper 99 % bound from the test split. The share is of the rows that exit early, not of all
    rows. 0 if none does: there is nothing to test."""
    early = 1 - point.reach[-1]
    if early <= 0:
        return 0.0
    promised = point.guarantee
    if promised is not None and promised.risk == "disagreement":
        return min(_MOST, promised.epsilon / early)
    rows = max(1, round(early * (data.rows * data.split[2] if data is not None else 1000)))
    differ = min(rows, round((1 - point.agreement) / early * rows))
    return min(_MOST, clopper_pearson(differ, rows, 0.01)[1])


QUANTILES = 129


def quantiles(values: ArrayLike) -> tuple[float, ...]:
    """QUANTILES of them, ascending, evenly spaced from the least to the greatest value."""
    found = np.quantile(np.asarray(values, np.float64), np.linspace(0, 1, QUANTILES), method="inverted_cdf")
    return tuple(round(float(each), 6) for each in found)


def shift(known: ArrayLike, rows: int, now: ArrayLike) -> tuple[float, float]:
    """An early sign of drift: the distance, 0 to 1, of current values [rows] from `rows` earlier ones with these
    quantiles, and a bound on the chance of that distance without a change: 2 exp(-2 d^2 nm / (n + m))
    (Kolmogorov-Smirnov distance; Dvoretzky, Kiefer and Wolfowitz). The distance that quantiles leave open is
    subtracted. Call it now and then, not after every row."""
    before, after = np.sort(np.asarray(known, np.float64)), np.sort(np.asarray(now, np.float64))
    at = np.unique(np.concatenate([before, after]))
    apart = [np.searchsorted(each, at, side="right") / len(each) for each in (before, after)]
    distance = max(0.0, float(np.abs(apart[0] - apart[1]).max()) - 1 / len(before))
    both = rows * len(after) / (rows + len(after))
    return distance, min(1.0, 2 * math.exp(-2 * both * distance**2))
