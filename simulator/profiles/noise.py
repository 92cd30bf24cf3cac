"""Latencies that are not as believed: noise on each execution, and profiles that are wrong."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.simulator.scenario.scenario import RuntimeModel

MOST_QUANTILES = 1 << 20  # of Simulation


def lognormal_quantiles(cv: float, n: int = 4096) -> NDArray[np.float64]:
    """Quantiles of a factor on execution times, float64[n], ascending, mean exactly 1 up to rounding.

    Lognormal with coefficient of variation `cv`, at (i + 1/2) / n; n values cut the far tail off, so theirs is a
    little below it (4,096: by 1 % at 0.3). cv 0 gives ones.
    """
    if not math.isfinite(cv) or cv < 0:
        raise ConfigError(f"a coefficient of variation is at least 0, not {cv}")
    if not 1 <= n <= MOST_QUANTILES:
        raise ConfigError(f"the number of quantiles is 1 to {MOST_QUANTILES}, not {n}")
    sigma = math.sqrt(math.log1p(cv * cv))
    normal = statistics.NormalDist()
    # Symmetric: half of the inverses suffice.
    half = np.array([normal.inv_cdf((i + 0.5) / n) for i in range((n + 1) // 2)])
    z = np.concatenate([half, -half[: n // 2][::-1]])
    values = np.exp(sigma * z)
    return np.asarray(values / values.mean(), np.float64)


def wrong(runtimes: Iterable[RuntimeModel], share: float, seed: int = 0) -> tuple[RuntimeModel, ...]:
    """Runtimes of which more or less is believed: each one's believed latency is off by `share`, too long or too short.

    The truth stays what it was; which way a runtime is off is drawn from `seed`, for each on its own. What was already
    believed wrongly becomes more wrong.
    """
    if not 0 <= share < 1:
        raise ConfigError(f"the share by which a latency profile is wrong is 0 to below 1, not {share}")
    runtimes = tuple(runtimes)
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=len(runtimes))
    return tuple(
        dataclasses.replace(
            runtime,
            points=tuple((length, batch, ms * (1 + float(sign) * share)) for length, batch, ms in runtime.points),
            truth=runtime.truth if runtime.truth is not None else runtime.points,
        )
        for runtime, sign in zip(runtimes, signs, strict=True)
    )
