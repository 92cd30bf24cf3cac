"""Noise on each execution."""

from __future__ import annotations

import math
import statistics

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError

NEGLIGIBLE = 1e-9  # a coefficient of variation that rounding hides


def lognormal_quantiles(cv: float, n: int = 4096) -> NDArray[np.float64]:
    """Quantiles of a factor on execution times, float64[n], ascending: their mean is 1, their deviation `cv`.

    They are those of a lognormal at (i + 1/2) / n. As n values cut the far tail off, in which much of a wide one's
    variance lies, the lognormal is taken so much wider that the values themselves have the coefficient of variation
    asked for. cv 0 gives ones. ConfigError where n values cannot vary so much: above sqrt(n - 1) / 2.
    """
    if not math.isfinite(cv) or cv < 0:
        raise ConfigError(f"a coefficient of variation is at least 0, not {cv}")
    if cv < NEGLIGIBLE or n == 1:
        return np.ones(n)
    if cv > math.sqrt(n - 1) / 2:
        most = math.sqrt(n - 1) / 2
        raise ConfigError(f"{n} values cannot have a coefficient of variation of {cv:g}: at most {most:g}")
    normal = statistics.NormalDist()
    # Symmetric: half of the inverses suffice.
    half = np.array([normal.inv_cdf((i + 0.5) / n) for i in range((n + 1) // 2)])
    z = np.concatenate([half, -half[: n // 2][::-1]])
    low = math.sqrt(math.log1p(cv * cv))  # of a lognormal that is not cut
    high = 2 * low
    while _scaled(high, z).std() < cv:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _scaled(middle, z).std() < cv else (low, middle)
    return _scaled(high, z)


def _scaled(sigma: float, z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lognormal values of mean 1 from those of a standard normal distribution, ascending."""
    values = np.exp(sigma * (z - z[-1]))
    return np.asarray(values / values.mean(), np.float64)
