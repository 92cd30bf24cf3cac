"""Whether traffic is still what the cascade was searched on.

A small share of the rows that exit early also runs on the last stage (shadow rows). Whether their answers differ too
often is tested after every row, for as long as one likes: a bet against "disagreement is at most epsilon" whose capital
is not above 1 / alpha but with probability alpha, ever (Ville; Waudby-Smith and Ramdas, 2024).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.guarantee import clopper_pearson
from arlo.cascade.manifest import DataUsed, Point
from arlo.errors import ConfigError

ALPHA = 1e-5  # chance of a false alarm, over all time
_BETS = 24
_MOST = 0.95  # of rows that differ: more is no promise


@dataclasses.dataclass(slots=True)
class DisagreementTest:
    """One-sided sequential test of P(disagree) <= epsilon, with capital spread over several bets.

    A bet of size b multiplies its capital by 1 + b (x - epsilon), x being 1 where the answers differ. Sizes lie between
    0 and 1/epsilon, so no capital is ever below 0. Rows must be a random sample of the exits; where shares differ, test
    each share apart.
    """

    epsilon: float
    alpha: float = ALPHA
    rows: int = 0
    disagreed: int = 0
    _bets: NDArray[np.float64] = dataclasses.field(init=False)
    _log_capital: NDArray[np.float64] = dataclasses.field(init=False)
    _most: float = dataclasses.field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 1 or not 0 < self.alpha < 1:
            raise ConfigError("epsilon and alpha of a drift test must lie between 0 and 1")
        self._bets = np.geomspace(0.01, 0.95, _BETS) / self.epsilon
        self._log_capital = np.zeros(_BETS)

    def add(self, disagreed: bool) -> bool:
        """One more shadow row; whether the alarm is on, which it stays."""
        self.rows += 1
        self.disagreed += disagreed
        self._log_capital += np.log1p(self._bets * (float(disagreed) - self.epsilon))
        top = float(self._log_capital.max())
        self._most = max(self._most, top + math.log(float(np.exp(self._log_capital - top).mean())))
        return self.alarm

    @property
    def alarm(self) -> bool:
        """Whether P(disagree) <= epsilon is refuted."""
        return self._most >= -math.log(self.alpha)


def allowed(point: Point, data: DataUsed | None = None) -> float:
    """How often rows that end early may differ from the last stage, before traffic is not what an operating point was
    found on: its guarantee, or the upper 99 % bound of what the test split showed. Of the rows that end early, not of
    all. 0 where none does: there is nothing to test."""
    early = 1 - point.reach[-1]
    if early <= 0:
        return 0.0
    promised = point.guarantee
    if promised is not None and promised.risk == "disagreement":
        return min(_MOST, promised.epsilon / early)
    rows = max(1, round(early * (data.rows * data.split[2] if data is not None else 1000)))
    differ = min(rows, round((1 - point.agreement) / early * rows))
    return min(_MOST, clopper_pearson(differ, rows, 0.01)[1])


def lower_bound(disagreed: ArrayLike, *, alpha: float = 0.05, steps: int = 400) -> float:
    """Lower end of the confidence sequence of P(disagree) after these shadow rows [rows] of 0 and 1: the largest
    epsilon that the test above has refuted by now. Holds at all times at once with probability 1 - alpha."""
    x = np.asarray(disagreed, np.float64)
    low, high = 0.0, 1.0
    for _ in range(max(1, math.ceil(math.log2(steps)))):
        middle = (low + high) / 2
        bets = np.geomspace(0.01, 0.95, _BETS) / middle
        path = np.log1p(bets[:, None] * (x[None, :] - middle)).cumsum(axis=1)
        top = path.max(axis=0)
        capital = top + np.log(np.exp(path - top).mean(axis=0))
        if len(x) and capital.max() >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return low


QUANTILES = 129


def quantiles(values: ArrayLike) -> tuple[float, ...]:
    """QUANTILES of them, ascending, evenly spaced from the least to the greatest value."""
    found = np.quantile(np.asarray(values, np.float64), np.linspace(0, 1, QUANTILES), method="inverted_cdf")
    return tuple(round(float(each), 6) for each in found)


def shift(known: ArrayLike, rows: int, now: ArrayLike) -> tuple[float, float]:
    """Early sign: how far, 0 to 1, values [rows] of now lie from those of which `rows` rows had these quantiles, and a
    bound on the chance of that where nothing has changed: 2 exp(-2 d^2 nm / (n + m)) (Kolmogorov-Smirnov distance;
    Dvoretzky, Kiefer and Wolfowitz). What quantiles leave open is taken off. For a look now and then, not after every
    row."""
    before, after = np.sort(np.asarray(known, np.float64)), np.sort(np.asarray(now, np.float64))
    at = np.unique(np.concatenate([before, after]))
    apart = [np.searchsorted(each, at, side="right") / len(each) for each in (before, after)]
    distance = max(0.0, float(np.abs(apart[0] - apart[1]).max()) - 1 / len(before))
    both = rows * len(after) / (rows + len(after))
    return distance, min(1.0, 2 * math.exp(-2 * both * distance**2))
