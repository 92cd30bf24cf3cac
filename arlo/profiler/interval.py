"""The confidence interval of a mean latency. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

_LEAST = 50  # samples, for groups
_GROUPS = (10, 30)  # least and most
_PER_GROUP = 20


def half_width(samples: Sequence[float], confidence: float) -> float:
    """Half the width of the confidence interval of the mean; infinite for fewer than 2 samples.

    Requests that follow each other are alike (clock frequency, caches, a neighbour that comes and goes), so the
    interval is taken over the means of 10 to 30 consecutive groups (batch means), and over the samples themselves only
    while there are fewer than 50.
    """
    if len(samples) < 2:
        return math.inf
    values: Sequence[float] = samples
    if len(samples) >= _LEAST:
        groups = min(max(len(samples) // _PER_GROUP, _GROUPS[0]), _GROUPS[1])
        bounds = [round(index * len(samples) / groups) for index in range(groups + 1)]
        values = [statistics.fmean(samples[low:high]) for low, high in itertools.pairwise(bounds)]
    return student_t(0.5 + confidence / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def student_t(probability: float, freedom: int) -> float:
    """Quantile of Student's t distribution, for a probability above one half.

    Exact for 1 and 2 degrees of freedom; otherwise the root of the distribution function, which has a closed form for
    whole degrees of freedom.
    """
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        p = 2 * probability - 1
        return p * math.sqrt(2 / (1 - p * p))
    low, high = 0.0, 1.0
    while _cumulative(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if _cumulative(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def _cumulative(t: float, freedom: int) -> float:
    """P(T <= t) for t >= 0: the finite sums for odd and even degrees of freedom (Abramowitz and Stegun 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine2 = math.cos(angle) ** 2
    if freedom % 2:
        term = total = math.cos(angle)
        for index in range(3, freedom - 1, 2):
            term *= cosine2 * (index - 1) / index
            total += term
        inside = 2 / math.pi * (angle + math.sin(angle) * (total if freedom > 1 else 0.0))
    else:
        term = total = 1.0
        for index in range(2, freedom - 1, 2):
            term *= cosine2 * (index - 1) / index
            total += term
        inside = math.sin(angle) * total
    return 0.5 + inside / 2


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
