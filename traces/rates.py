"""How the rate of arrivals changes over time: constant, steps, ramp, sine, or a series of counts.

A rate is given to the generators as pieces of constant rate, with edges in whole nanoseconds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError

SECOND_NS = 1_000_000_000
_FINE_NS = SECOND_NS // 10  # pieces of a ramp or a sine; each has the exact mean of its tenth of a second

Pieces = tuple[NDArray[np.int64], NDArray[np.float64]]

RATE_FORMS = "R, steps:AT=R,AT=R,..., ramp:FROM:TO[:SECONDS] or sine:MEAN:DEPTH:PERIOD_S"


class Rate(Protocol):
    """Requests per second as a function of time, for any time from 0."""

    def pieces(self, start_ns: int, end_ns: int) -> Pieces:
        """Edges int64[m + 1], the first `start_ns` and the last `end_ns`; requests per second between them [m]."""

    def describe(self) -> str:
        """In a few words, with the numbers."""


def expected_requests(rate: Rate, duration_s: float) -> float:
    """The mean number of requests in [0, duration_s)."""
    end_ns = round(duration_s * SECOND_NS)
    total = 0.0
    for start in range(0, end_ns, 1000 * SECOND_NS):
        edges, value = rate.pieces(start, min(end_ns, start + 1000 * SECOND_NS))
        total += float((np.diff(edges) * value).sum()) / SECOND_NS
    return total


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """rate[i] from at_s[i] on; at_s begins with 0. One step is a constant rate."""

    at_s: tuple[float, ...]
    rate: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in itertools.pairwise(self.at_s))
        if not self.at_s or self.at_s[0] != 0 or not rising or len(self.at_s) != len(self.rate):
            raise ConfigError("the steps of a rate begin at 0 and go on in ascending order, as in steps:0=100,60=200")
        _check(self.rate)

    def pieces(self, start_ns: int, end_ns: int) -> Pieces:
        at = np.rint(np.array(self.at_s) * SECOND_NS).astype(np.int64)
        return cut(at, np.array(self.rate), start_ns, end_ns)

    def describe(self) -> str:
        if len(self.rate) == 1:
            return f"{self.rate[0]:g}/s"
        return "steps of " + ", ".join(f"{r:g}/s from {a:g} s" for a, r in zip(self.at_s, self.rate, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Ramp:
    """From `first` to `last` in a straight line over `over_s`, then `last`."""

    first: float
    last: float
    over_s: float

    def __post_init__(self) -> None:
        _check((self.first, self.last))
        if not (math.isfinite(self.over_s) and self.over_s > 0):
            raise ConfigError(f"a ramp lasts more than 0 seconds, not {self.over_s:g}")

    def pieces(self, start_ns: int, end_ns: int) -> Pieces:
        edges = _fine(start_ns, end_ns)
        at = edges / SECOND_NS
        # The integral of the rate; its differences are exact also where the ramp ends inside a piece.
        on = np.minimum(at, self.over_s)
        area = self.first * on + (self.last - self.first) * on**2 / (2 * self.over_s) + self.last * (at - on)
        return edges, np.maximum(np.diff(area) / np.diff(at), 0.0)

    def describe(self) -> str:
        return f"{self.first:g}/s to {self.last:g}/s within {self.over_s:g} s"


@dataclasses.dataclass(frozen=True, slots=True)
class Sine:
    """mean * (1 + depth * sin(2 pi t / period_s)); depth from 0 to 1."""

    mean: float
    depth: float
    period_s: float

    def __post_init__(self) -> None:
        _check((self.mean,))
        if not 0 <= self.depth <= 1:
            raise ConfigError(f"the depth of a sine is from 0 to 1, not {self.depth:g}")
        if not (math.isfinite(self.period_s) and self.period_s > 0):
            raise ConfigError(f"the period of a sine is above 0 seconds, not {self.period_s:g}")

    def pieces(self, start_ns: int, end_ns: int) -> Pieces:
        edges = _fine(start_ns, end_ns)
        at = edges / SECOND_NS
        turn = 2 * math.pi / self.period_s
        mean_sine = -np.diff(np.cos(turn * at)) / (turn * np.diff(at))
        return edges, np.maximum(self.mean * (1 + self.depth * mean_sine), 0.0)

    def describe(self) -> str:
        return f"{self.mean:g}/s +- {100 * self.depth:g} % over {self.period_s:g} s"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Series:
    """rate[i] for `step_s` seconds each, and then again from the first."""

    rate: NDArray[np.float64]
    step_s: float
    source: str

    def __post_init__(self) -> None:
        _check(tuple(self.rate.tolist()))
        if not (math.isfinite(self.step_s) and self.step_s > 0):
            raise ConfigError(f"a step of a series lasts more than 0 seconds, not {self.step_s:g}")

    def pieces(self, start_ns: int, end_ns: int) -> Pieces:
        step_ns = round(self.step_s * SECOND_NS)
        first, last = start_ns // step_ns, -(-end_ns // step_ns)
        number = np.arange(first, last, dtype=np.int64)
        return cut(number * step_ns, self.rate[number % len(self.rate)], start_ns, end_ns)

    def describe(self) -> str:
        low, mean, high = self.rate.min(), self.rate.mean(), self.rate.max()
        return f"mean {mean:g}/s, {low:g} to {high:g} in steps of {self.step_s:g} s, {self.source}"


def constant(rate: float) -> Steps:
    """The same rate always."""
    return Steps((0.0,), (rate,))


def parse_rate(spec: str | float, duration_s: float) -> Rate:
    """One of RATE_FORMS; a ramp without seconds takes the whole duration."""
    if not isinstance(spec, str):
        return constant(float(spec))
    name, _, rest = spec.strip().partition(":")
    try:
        if name == "steps":
            pairs = [pair.split("=") for pair in rest.split(",")]
            return Steps(tuple(float(at) for at, _ in pairs), tuple(float(rate) for _, rate in pairs))
        numbers = [float(number) for number in rest.split(":")] if rest else []
        if name == "ramp" and len(numbers) in {2, 3}:
            return Ramp(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else duration_s)
        if name == "sine" and len(numbers) == 3:
            return Sine(numbers[0], numbers[1], numbers[2])
        if not rest:
            return constant(float(name))
    except ValueError:
        pass
    raise ConfigError(f"a rate is {RATE_FORMS}, in requests per second, not {spec!r}")


def cut(at: NDArray[np.int64], rate: NDArray[np.float64], start_ns: int, end_ns: int) -> Pieces:
    """The pieces in [start_ns, end_ns) of a rate that is rate[i] from at[i] on; at[0] <= start_ns."""
    first = int(np.searchsorted(at, start_ns, side="right")) - 1
    last = int(np.searchsorted(at, end_ns, side="left"))
    return np.concatenate(([start_ns], at[first + 1 : last], [end_ns])).astype(np.int64), rate[first:last]


def _fine(start_ns: int, end_ns: int) -> NDArray[np.int64]:
    inner = np.arange(start_ns // _FINE_NS + 1, -(-end_ns // _FINE_NS), dtype=np.int64) * _FINE_NS
    return np.concatenate(([start_ns], inner, [end_ns])).astype(np.int64)


def _check(rates: tuple[float, ...]) -> None:
    if not all(math.isfinite(rate) and rate >= 0 for rate in rates) or not any(rates):
        raise ConfigError("rates must be finite, 0 or more, and at least one of them above 0")
