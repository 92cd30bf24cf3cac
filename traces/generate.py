"""Generators. All randomness comes from a seed; arrivals and lengths draw from separate streams, so that changing one
leaves the other as it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.traces.lengths import PAPER_LONGEST, parse_length_spec
from arlo.traces.trace import Trace

# n, generator -> int32[n]
Lengths = Callable[[int, np.random.Generator], NDArray[np.int32]]


def arrivals(rate: float, duration_s: float, seed: int) -> NDArray[np.float64]:
    """Arrival times of a Poisson process in [0, duration_s), float64[n], ascending. `rate` in requests per second."""
    if not (np.isfinite(rate) and rate > 0 and np.isfinite(duration_s) and duration_s > 0):
        raise ConfigError(f"rate and duration must be above 0, not {rate} and {duration_s}")
    rng = np.random.default_rng([seed, 0])
    # Given their number, the arrivals of a Poisson process are independent and uniform.
    return np.sort(rng.uniform(0.0, duration_s, rng.poisson(rate * duration_s)))


def poisson(rate: float, duration_s: float, lengths: Lengths, seed: int = 0) -> Trace:
    """Poisson arrivals with lengths drawn from `lengths`; no two requests share a text."""
    at = arrivals(rate, duration_s, seed)
    drawn = lengths(len(at), np.random.default_rng([seed, 1]))
    return Trace(arrived_at_s=at, length=drawn, text_id=np.arange(len(at), dtype=np.int64))


def rescale(length: NDArray[np.int32], max_length: int = 512, longest: int = PAPER_LONGEST) -> NDArray[np.int32]:
    """Stretch lengths so that `longest` becomes `max_length`; the few above are cut to it (sec. 5, "Workloads").

    The paper stretches tweets, of at most about 125 tokens, to the 512 that BERT takes.
    """
    if max_length < 1 or longest < 1:
        raise ConfigError(f"max_length and longest must be 1 or more, not {max_length} and {longest}")
    stretched = np.rint(length * (max_length / longest))
    return np.asarray(np.clip(stretched, 1, max_length), np.int32)


def parse_lengths(spec: str) -> Lengths:
    """Lengths drawn from one of `arlo.traces.lengths.LENGTH_FORMS`."""
    return parse_length_spec(spec).draw
