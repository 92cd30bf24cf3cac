"""How the distribution of lengths drifts over seconds (Fig. 1 of the Arlo paper).

The paper's clips have a median of 21 tokens at every time scale, but their 98th percentile is 71 or 72 over ten minutes
and 58 in a clip of ten seconds. The model: the logarithm of a length over the median is multiplied by e**b, where b is
an Ornstein-Uhlenbeck process (Gaussian, mean 0, correlation e**(-t/tau)) that is constant within each second. So the
median stays and the spread drifts. Separately, the logarithm of the median can drift likewise (0 in the paper).

Calibration: ln(58/21) is 0.834 of ln(71/21), that is, the mean of b over the clip was -0.18. We take this one deviation
that the paper shows as the standard deviation of ten-second means. With tau 10 s, so that ten minutes average it out,
ten-second means have 0.858 of the standard deviation of b, which makes this 0.21. The one figure can be a chosen one,
and has sampling noise in it: 0.21 is the most natural value, not a measured one.

Mixing wide and narrow clips makes the long run's tail heavier. So the deviations are scaled by one factor, chosen such
that the median and the 98th percentile of the long run are those of the distribution without drift.

The other reading of the figure is that its short clips are small samples: the public stream has about 50 tweets a
second, whose 98th percentile deviates by a fifth by chance alone. A workload of thousands of requests a second whose
lengths are those of the tweets of the second, repeated, fluctuates likewise. That is `Resampled`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.traces import streams
from arlo.traces.lengths import POINTS, Lengths

PAPER_SPREAD, PAPER_TAU_S = 0.21, 10.0
DRIFT_FORMS = "none, weak, paper, SPREAD[:TAU_S[:MEDIAN]] or sample:N"


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """spread, median: standard deviations of the logarithm of the spread and of the median. tau_s: time constant."""

    spread: float = PAPER_SPREAD
    tau_s: float = PAPER_TAU_S
    median: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.spread <= 1 and 0 <= self.median <= 1):
            raise ConfigError(f"a drift's standard deviations are from 0 to 1, not {self.spread:g} and {self.median:g}")
        if not (math.isfinite(self.tau_s) and self.tau_s > 0):
            raise ConfigError(f"a drift's time constant is above 0 seconds, not {self.tau_s:g}")

    def path(self, seconds: int, seed: int) -> NDArray[np.float32]:
        """float32[2, seconds]: the factor of the spread, and the logarithm of that of the median, in each second."""
        noise = streams.generator(seed, streams.DRIFT).standard_normal((seconds, 2))
        keep = math.exp(-1 / self.tau_s)
        noise[1:] *= math.sqrt(1 - keep**2)
        rows = noise.tolist()
        for before, now in itertools.pairwise(rows):
            now[0] += keep * before[0]
            now[1] += keep * before[1]
        process = np.array(rows, np.float64).reshape(-1, 2).T
        return np.asarray(np.stack([np.exp(self.spread * process[0]), self.median * process[1]]), np.float32)

    def correction(self, lengths: Lengths) -> float:
        """The factor of all deviations with which the long run's p98 is that of `lengths`; 1 where it has no spread."""
        deviation = lengths.deviation.astype(np.float64)
        wanted = float(deviation[math.ceil(0.98 * POINTS) - 1])
        if wanted <= 0:
            return 1.0
        nodes, weights = np.polynomial.hermite_e.hermegauss(31)  # type: ignore[no-untyped-call]  # numpy's is untyped
        weights = weights / weights.sum()
        spread, shift = np.exp(self.spread * nodes)[:, None], (self.median * nodes)[None, :]
        weight = weights[:, None] * weights[None, :]

        def above(factor: float) -> float:
            limit = (wanted - shift) / (spread * factor)
            return float((weight * (POINTS - np.searchsorted(deviation, limit, side="right"))).sum()) / POINTS

        low, high = 0.05, 2.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if above(middle) < 0.02 else (low, middle)
        return (low + high) / 2

    def describe(self) -> str:
        median = f", of the median {self.median:g}" if self.median else ""
        return f"log-spread drifts with standard deviation {self.spread:g}{median} over {self.tau_s:g} s"


@dataclasses.dataclass(frozen=True, slots=True)
class Resampled:
    """The lengths of each second are drawn from `size` lengths, which themselves are redrawn every second."""

    size: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 1_000_000:
            raise ConfigError(f"the lengths of a second are drawn from 1 to 1000000, not {self.size}")

    def draw(
        self, lengths: Lengths, counts: NDArray[np.int64], first_second: int, seed: int, random: np.random.Generator
    ) -> NDArray[np.int32]:
        """counts[i] lengths for each second from `first_second` on, int32[sum(counts)]."""
        parts = []
        for second, count in enumerate(counts.tolist(), start=first_second):
            drawn = lengths.draw(self.size, streams.generator(seed, streams.DRIFT, second + 1))
            parts.append(drawn[random.integers(0, self.size, count, np.uint32)])
        return np.concatenate(parts)

    def describe(self) -> str:
        return f"each second's are drawn from {self.size} of them"


NAMED: dict[str, Drift | None] = {"none": None, "weak": Drift(spread=PAPER_SPREAD / 4), "paper": Drift()}


def parse_drift(spec: str) -> Drift | Resampled | None:
    """One of DRIFT_FORMS."""
    if spec in NAMED:
        return NAMED[spec]
    name, _, size = spec.partition(":")
    if name == "sample" and size.isdecimal():
        return Resampled(int(size))
    try:
        numbers = [float(number) for number in spec.split(":")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3:
        raise ConfigError(f"a drift of lengths is {DRIFT_FORMS}, not {spec!r}")
    return Drift(*numbers)
