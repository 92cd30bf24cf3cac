"""The allocation problem of the paper, Eq. 1-7: the number of instances of each runtime. Pure.

    min  sum_i L_i(B_i) * C_i                                              (1)
    s.t. sum_i N_i = G                                                     (2)
         N_i >= floor(Q_i / M_i)                                           (3)
         R_0 = 0,  R_i = max(R_{i-1} + Q_i - N_i * M_i, 0)                 (4)
         C_i = min(R_{i-1} + Q_i, N_i * M_i) for i < I,  C_I = R_{I-1} + Q_I   (5)
         B_i = C_i / N_i                                                   (6)
         N_I >= 1                                                          (7)

G workers; I runtimes by ascending max_length; Q_i requests per SLO period in the length bin of runtime i; M_i requests
that one instance finishes within the SLO; L_i(B) mean latency of B requests given to one instance at once.
An index without instances has C_i = 0 and adds nothing to the objective.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

from arlo.catalog.latency import ms_in_ns
from arlo.errors import ConfigError

LEAST_MS = 1e-6  # least latency: a nanosecond
MOST_REQUESTS = 10**9  # per SLO period: the demand of all bins, and M; far beyond any cluster, and sums stay exact


@dataclasses.dataclass(frozen=True, slots=True)
class LatencyCurve:
    """Latency of a runtime by batch: points (rows, milliseconds of the whole batch), rows ascending from 1."""

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        rows = [row for row, _ in self.points]
        if not rows or rows[0] != 1 or rows != sorted(set(rows)):
            raise ConfigError(f"a latency curve needs points for ascending batches, the first one 1, not {rows}")
        if any(not math.isfinite(ms) or ms < LEAST_MS for _, ms in self.points):
            raise ConfigError(f"latencies must be at least {LEAST_MS:g} ms: {[ms for _, ms in self.points]}")

    @classmethod
    def single(cls, latency_ms: float) -> LatencyCurve:
        """The curve of a runtime with max_batch 1."""
        return cls(((1, latency_ms),))

    @property
    def max_batch(self) -> int:
        """Rows of the largest batch."""
        return self.points[-1][0]

    def batch_ms(self, rows: float) -> float:
        """Time of one batch of 1 to max_batch rows, linear between the points; below 1 row the time of 1."""
        if rows <= 1:
            return self.points[0][1]
        index = bisect.bisect_left(self.points, (rows, -math.inf))
        if index == len(self.points):
            return self.points[-1][1]
        (low, low_ms), (high, high_ms) = self.points[index - 1], self.points[index]
        return low_ms + (high_ms - low_ms) * (rows - low) / (high - low)

    def mean_ms(self, load: float) -> float:
        """L(B): mean latency of `load` requests given to one instance at once; continuous in `load`.

        Up to max_batch they run as one batch. Above it they run in consecutive batches of max_batch, and the
        k-th batch ends after k times its latency. With max_batch 1 that is latency * (max(B, 1) + 1) / 2.
        """
        if load <= self.max_batch:
            return self.batch_ms(load)
        return self.points[-1][1] * (load / self.max_batch + 1) / 2

    def capacity(self, slo_ms: float) -> int:
        """M of Eq. 3: requests given at once that one instance finishes within the SLO; 0 when not even one.

        In whole nanoseconds: an SLO that is an exact multiple of the latency includes the last request.
        """
        full, rest_ns = divmod(ms_in_ns(slo_ms), ms_in_ns(self.points[-1][1]))
        part = bisect.bisect_right(range(1, self.max_batch), rest_ns, key=lambda rows: ms_in_ns(self.batch_ms(rows)))
        return full * self.max_batch + part


@dataclasses.dataclass(frozen=True, slots=True)
class Variation:
    """Variation of the request rate over the time that a demand averages, without the part due to chance.

    Rates are for groups of bins, since the requests of bin k and longer have only the runtimes from k up.
    """

    spans_s: tuple[float, ...]  # consecutive spans of time
    factors: tuple[tuple[float, ...], ...]  # per span: rate of the requests of bin k and longer over its mean


@dataclasses.dataclass(frozen=True, slots=True)
class AllocationProblem:
    """A solver's input. Runtimes ascend in max_length; `demand[i]` (Q_i) belongs to `curves[i]`."""

    workers: int  # G
    slo_ms: float
    max_lengths: tuple[int, ...]
    curves: tuple[LatencyCurve, ...]
    demand: tuple[float, ...]  # Q, requests per SLO period
    burst: float = 1.0  # rate of the busiest seconds over the mean; Eq. 1-7 do not use it
    variation: Variation | None = None  # of the demand; not used by Eq. 1-7 either

    def __post_init__(self) -> None:
        if not self.max_lengths or not len(self.max_lengths) == len(self.curves) == len(self.demand):
            raise ConfigError(
                f"an allocation needs one latency and one demand for each maximum length, not {len(self.curves)} and "
                f"{len(self.demand)} for {len(self.max_lengths)}"
            )
        if list(self.max_lengths) != sorted(set(self.max_lengths)) or self.max_lengths[0] < 1:
            raise ConfigError(f"maximum lengths must ascend and be at least 1: {list(self.max_lengths)}")
        if self.workers < 1:
            raise ConfigError(f"an allocation needs at least one worker (Eq. 7), not {self.workers}")
        if not math.isfinite(self.slo_ms) or self.slo_ms <= 0:
            raise ConfigError(f"the SLO must be above 0 ms, not {self.slo_ms}")
        if any(not math.isfinite(q) or q < 0 for q in self.demand):
            raise ConfigError(f"demand must be at least 0 requests per SLO period: {list(self.demand)}")
        if sum(self.demand) > MOST_REQUESTS:
            raise ConfigError(f"demand must be at most {MOST_REQUESTS:,} requests per SLO period: {sum(self.demand):g}")
        fastest_ms = min(curve.points[-1][1] / curve.max_batch for curve in self.curves)
        if self.slo_ms > MOST_REQUESTS * fastest_ms:
            raise ConfigError(
                f"the SLO of {self.slo_ms:g} ms is more than {MOST_REQUESTS:,} times the {fastest_ms:g} ms that a "
                "request takes: one of them is in the wrong unit"
            )

    @property
    def capacities(self) -> tuple[int, ...]:
        """M of each runtime."""
        return tuple(curve.capacity(self.slo_ms) for curve in self.curves)

    @property
    def lower_bounds(self) -> tuple[int, ...]:
        """The least N of each runtime: Eq. 3, and Eq. 7 for the last. Eq. 3 sets no bound for a runtime with M = 0."""
        bounds = [math.floor(q / m) if m else 0 for q, m in zip(self.demand, self.capacities, strict=True)]
        bounds[-1] = max(bounds[-1], 1)
        return tuple(bounds)

    def infeasible(self) -> str | None:
        """The reason why Eq. 2, 3 and 7 cannot hold together; None when they can."""
        if self.capacities[-1] == 0:
            return (
                f"slo_below_latency: one request takes {self.curves[-1].points[0][1]:g} ms on the longest runtime "
                f"(max_length {self.max_lengths[-1]}), which is above the SLO of {self.slo_ms:g} ms"
            )
        needed = sum(self.lower_bounds)
        if needed > self.workers:
            return (
                f"overload: the demand needs at least {needed} instances (Eq. 3 and 7: {list(self.lower_bounds)}), "
                f"but there are {self.workers} workers"
            )
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """The result of an allocation: R, C and B of Eq. 4-6 for each runtime, and the objective of Eq. 1."""

    left_over: tuple[float, ...]  # R
    processed: tuple[float, ...]  # C
    load: tuple[float, ...]  # B; 0 where there is no instance
    objective: float  # milliseconds x requests, per SLO period

    @property
    def mean_ms(self) -> float:
        """Mean latency over the requests, 0 without any."""
        total = sum(self.processed)
        return self.objective / total if total else 0.0


def flow(problem: AllocationProblem, instances: Sequence[int]) -> Flow:
    """Eq. 4-6 and the value of Eq. 1 for a given N. Infinite if the longest runtime has work but no instance."""
    left, processed, load, objective, rest = [], [], [], 0.0, 0.0
    last = len(instances) - 1
    for i, (n, m, q) in enumerate(zip(instances, problem.capacities, problem.demand, strict=True)):
        arriving = rest + q
        c = arriving if i == last else min(arriving, float(n * m))
        rest = max(arriving - n * m, 0.0)
        b = c / n if n else 0.0
        if c > 0:
            objective += problem.curves[i].mean_ms(b) * c if n else math.inf
        left.append(rest)
        processed.append(c)
        load.append(b)
    return Flow(tuple(left), tuple(processed), tuple(load), objective)


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """A solver's answer."""

    instances: tuple[int, ...]  # N, by ascending max_length; their sum is G
    objective: float  # Eq. 1 at these instances and the problem's demand, milliseconds x requests
    solver: str
    solve_s: float
    optimal: bool  # proven (within 1e-6 relative for solvers with a tolerance)
    reason: str | None = None  # if no allocation is feasible: its name, a colon, and a sentence


class SolverError(Exception):
    """A solver failed, is not installed, or ran out of time without an allocation. The message says why."""


class Solver(Protocol):
    """A solution method. Pure but for the time it takes."""

    name: str

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        """An optimum of Eq. 1-7 for a feasible problem. SolverError when none is found in time."""
