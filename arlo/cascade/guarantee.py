"""Guarantees that hold with probability 1 - delta for traffic like the tested rows (Learn then Test, fixed sequence).

They do not cover drift, pruning that the records lack, or answers that are degraded for lack of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from arlo.cascade.spec import NEVER
from arlo.errors import ConfigError

Risk = Literal["disagreement", "harm", "accuracy loss"]
STEPS = 1000  # thresholds 1, .999, ... 0: fixed before the rows are seen


def clopper_pearson(k: int, n: int, delta: float) -> tuple[float, float]:
    """Lower and upper bound of a probability, from k hits in n trials; each fails with probability at most delta."""
    from scipy.stats import beta

    low = float(beta.ppf(delta, k, n - k + 1)) if k > 0 else 0.0
    high = float(beta.ppf(1 - delta, k + 1, n - k)) if k < n else 1.0
    return low, high


def upper_risk(
    answer: ArrayLike, giant: ArrayLike, truth: ArrayLike | None, exits: ArrayLike, *, risk: Risk, delta: float
) -> float:
    """Upper bound, level delta, of a risk, from our answers, the last stage's answers, the labels (None: unknown), and
    the rows that end before the last stage; all [rows].

    disagreement: P(ends early and differs from the last stage). harm: P(last stage right and ours wrong). accuracy
    loss: P(harm) less P(last stage wrong and ours right), each bounded at delta / 2.
    """
    ours, last, early = np.asarray(answer), np.asarray(giant), np.asarray(exits, np.bool_)
    n = len(ours)
    if risk == "disagreement":
        return clopper_pearson(int((early & (ours != last)).sum()), n, delta)[1]
    if truth is None:
        raise ConfigError(f"a guarantee of {risk} needs labels; disagreement does not")
    y = np.asarray(truth)
    harm = int(((last == y) & (ours != y)).sum())
    if risk == "harm":
        return clopper_pearson(harm, n, delta)[1]
    good = int(((last != y) & (ours == y)).sum())
    return clopper_pearson(harm, n, delta / 2)[1] - clopper_pearson(good, n, delta / 2)[0]


def safe_threshold(
    at: Callable[[float], tuple[ArrayLike, ArrayLike]],
    giant: ArrayLike,
    truth: ArrayLike | None,
    *,
    epsilon: float,
    delta: float,
    risk: Risk = "disagreement",
) -> float:
    """The lowest threshold such that it and all above it have a risk of at most epsilon, with probability 1 - delta;
    1 + eps if none has. `at`: answers and early exits [rows] at a threshold."""
    if not 0 < epsilon < 1 or not 0 < delta < 1:
        raise ConfigError("epsilon and delta of a guarantee must lie between 0 and 1")
    passed = NEVER
    for step in range(STEPS, -1, -1):
        t = step / STEPS
        answer, exits = at(t)
        if upper_risk(answer, giant, truth, exits, risk=risk, delta=delta) > epsilon:
            break
        passed = t
    return passed
