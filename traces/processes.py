"""Arrival processes: Poisson, Markov-modulated Poisson, renewal with gamma or constant gaps.

Each works in *operational time*, where arrivals come at rate 1, and is then bent to the rate over time: the arrivals
in a piece of constant rate depend only on the requests that are expected in it. Arrivals are made block by block, and
a block is always BLOCK_NS long, so that a longer workload begins like a shorter one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.traces import streams
from arlo.traces.rates import SECOND_NS, Pieces, Rate

BLOCK_NS = 5 * SECOND_NS
MOST_OF_A_BLOCK = 1e8  # requests
_GAPS = 1 << 16  # gaps of a renewal process that are drawn at once

DEFAULT_BURST = 3.0
DEFAULT_SOJOURN_MS = 100.0


class Arrivals(Protocol):
    """A process of arrivals."""

    def blocks(self, rate: Rate, seed: int) -> Iterator[NDArray[np.int64]]:
        """Without end: the arrivals in [0, BLOCK_NS), [BLOCK_NS, 2 BLOCK_NS), ..., in ns from the start, ascending."""

    def describe(self) -> str:
        """In a few words, with the numbers."""


def _block(rate: Rate, number: int) -> Pieces:
    return rate.pieces(number * BLOCK_NS, (number + 1) * BLOCK_NS)


@dataclasses.dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals. Any block can be made without those before it."""

    def block(self, rate: Rate, seed: int, number: int) -> NDArray[np.int64]:
        """The arrivals of one block."""
        return _poisson(_block(rate, number), seed, number)

    def blocks(self, rate: Rate, seed: int) -> Iterator[NDArray[np.int64]]:
        number = 0
        while True:
            yield self.block(rate, seed, number)
            number += 1

    def describe(self) -> str:
        return "Poisson"


@dataclasses.dataclass(frozen=True, slots=True)
class MarkovModulated:
    """Poisson arrivals whose rate is high in one state (busy) and low in the other (quiet), of exponential sojourns.

    burst: rate while busy over rate while quiet. The mean over both states is the rate asked for.
    busy_ms, quiet_ms: mean sojourns.
    per_second: bend the arrivals only inside each second of the clock, so that the expected number of a second is that
    of the rate asked for, as the Arlo paper does with a trace that has counts per second. The seconds then hold exactly
    the arrivals that Poisson has there for the same seed.
    """

    burst: float = DEFAULT_BURST
    busy_ms: float = DEFAULT_SOJOURN_MS
    quiet_ms: float = DEFAULT_SOJOURN_MS
    per_second: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.burst) and self.burst >= 1):
            raise ConfigError(f"burst, the rate while busy over that while quiet, is 1 or more, not {self.burst:g}")
        for value in (self.busy_ms, self.quiet_ms):
            if not (math.isfinite(value) and value >= 0.01):
                raise ConfigError(f"the mean sojourn in a state is 0.01 ms or more, not {value:g}")

    def blocks(self, rate: Rate, seed: int) -> Iterator[NDArray[np.int64]]:
        share = self.busy_ms / (self.busy_ms + self.quiet_ms)
        busy = bool(streams.generator(seed, streams.FIRST_STATE).random() < share)
        quiet_factor = 1 / (1 + share * (self.burst - 1))
        factors = np.array([quiet_factor, self.burst * quiet_factor])
        number = 0
        while True:
            switches = self._switches(busy, seed, number)
            pieces = self._modulated(_block(rate, number), switches, factors if not busy else factors[::-1])
            yield _poisson(pieces, seed, number)
            busy ^= len(switches) % 2 == 1
            number += 1

    def _switches(self, busy: bool, seed: int, number: int) -> NDArray[np.int64]:
        """Times of changes of state inside a block. Sojourns are memoryless, so each block may redraw its first one."""
        random = streams.generator(seed, streams.STATES, number)
        means = np.array([self.busy_ms, self.quiet_ms] if busy else [self.quiet_ms, self.busy_ms]) * 1e6
        draws = 2 * (8 + math.ceil(BLOCK_NS / means.sum()))
        ends = np.empty(0)
        while not len(ends) or ends[-1] < BLOCK_NS:
            sojourns = random.standard_exponential((draws // 2, 2)) * means
            ends = np.concatenate((ends, np.cumsum(sojourns.ravel()) + (ends[-1] if len(ends) else 0.0)))
        return number * BLOCK_NS + ends[ends < BLOCK_NS].astype(np.int64)

    def _modulated(self, pieces: Pieces, switches: NDArray[np.int64], factors: NDArray[np.float64]) -> Pieces:
        edges, rates = pieces
        seconds = np.arange(edges[0], edges[-1], SECOND_NS) if self.per_second else edges[:1]
        merged = np.unique(np.concatenate((edges, switches, seconds)))
        starts = merged[:-1]
        plain = rates[np.searchsorted(edges, starts, side="right") - 1]
        factor = factors[np.searchsorted(switches, starts, side="right") % 2]
        if self.per_second:
            second = (starts - edges[0]) // SECOND_NS
            wanted = plain * np.diff(merged)
            whole, bent = np.bincount(second, wanted), np.bincount(second, wanted * factor)
            factor = factor * np.divide(whole, bent, out=np.ones_like(whole), where=bent > 0)[second]
        return merged, plain * factor

    def describe(self) -> str:
        inside = " inside each second" if self.per_second else ""
        return (
            f"Markov-modulated Poisson{inside} (busy {self.burst:g} times as fast as quiet, "
            f"mean sojourns {self.busy_ms:g} and {self.quiet_ms:g} ms)"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Renewal:
    """Independent gaps with a gamma distribution of coefficient of variation `cv`; 0 is constant gaps.

    With constant gaps, the first arrival comes half a gap from the start.
    """

    cv: float

    def __post_init__(self) -> None:
        if not (self.cv == 0 or 0.001 <= self.cv <= 20):
            raise ConfigError(f"cv, the coefficient of variation of the gaps, is 0, or 0.001 to 20, not {self.cv:g}")

    def blocks(self, rate: Rate, seed: int) -> Iterator[NDArray[np.int64]]:
        # Arrivals drawn so far and not given out, in operational time from the start of the block.
        pending, last, drawn, number = np.empty(0), 0.0, 0, 0
        while True:
            pieces = _block(rate, number)
            length = float((np.diff(pieces[0]) * pieces[1]).sum()) / SECOND_NS
            more = [pending]
            while last < length:
                gaps = self._gaps(seed, drawn)
                more.append(last + np.cumsum(gaps))
                last, drawn = float(more[-1][-1]), drawn + 1
            pending = np.concatenate(more)
            here = int(np.searchsorted(pending, length))
            yield _bend(pending[:here], pieces)
            pending, last, number = pending[here:] - length, last - length, number + 1

    def _gaps(self, seed: int, batch: int) -> NDArray[np.float64]:
        if self.cv > 0:
            shape = self.cv**-2
            return streams.generator(seed, streams.ARRIVALS, batch).standard_gamma(shape, _GAPS) / shape
        gaps = np.ones(_GAPS)
        gaps[0] = 0.5 if batch == 0 else 1.0
        return gaps

    def describe(self) -> str:
        return f"gamma gaps (coefficient of variation {self.cv:g})" if self.cv > 0 else "constant gaps"


def _poisson(pieces: Pieces, seed: int, number: int) -> NDArray[np.int64]:
    edges, rates = pieces
    length = float((np.diff(edges) * rates).sum()) / SECOND_NS
    if length > MOST_OF_A_BLOCK:
        raise ConfigError(f"the rate is too high to draw: {length:.3g} requests in {BLOCK_NS / SECOND_NS:g} s")
    random = streams.generator(seed, streams.ARRIVALS, number)
    # NumPy draws means below 10 and means from 10 on by different methods. The same mean, summed over other pieces,
    # may differ in its last bits; it must not be drawn by the other method then.
    count = int(random.poisson(round(length, 9)))
    # Given their number, the arrivals of a Poisson process are as n uniform numbers in order, and these are as the
    # partial sums of n + 1 exponentials over their total. That is faster than sorting.
    at = random.standard_exponential(count + 1)
    np.cumsum(at, out=at)
    at *= length / at[-1]
    return _bend(at[:-1], pieces)


def _bend(at: NDArray[np.float64], pieces: Pieces) -> NDArray[np.int64]:
    """Operational time to ns: `at` ascending, from 0 to the requests expected in all pieces. Changes `at`."""
    edges, rates = pieces
    start_ns, end_ns = int(edges[0]), int(edges[-1])
    if not len(at):
        return np.empty(0, np.int64)
    if len(rates) == 1:
        ns: NDArray[np.int64] = (at * (SECOND_NS / rates[0])).astype(np.int64)
    else:
        expected = np.diff(edges) * rates / SECOND_NS
        before = np.concatenate(([0.0], np.cumsum(expected)))
        counts = np.diff(np.concatenate(([0], np.searchsorted(at, before[1:-1]), [len(at)])))
        # Times inside a piece are counted from its edge, a whole number of ns, so that rounding cannot put the first of
        # a piece before the last of the one before it.
        at -= np.repeat(before[:-1], counts)
        at *= np.repeat(np.divide(SECOND_NS, rates, out=np.zeros_like(rates), where=rates > 0), counts)
        at += np.repeat((edges[:-1] - start_ns).astype(np.float64), counts)
        ns = at.astype(np.int64)
    ns += start_ns
    if ns[-1] >= end_ns:
        np.minimum(ns, end_ns - 1, out=ns)
    return ns
