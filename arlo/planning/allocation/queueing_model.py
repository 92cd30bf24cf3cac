"""Mean latency of an allocation under random arrivals. Pure; the model behind `queueing.py`.

Requests arrive one by one, at random (Poisson), and the gateway sends each to the instance that will finish it first.
A level of c instances with service time s is then one queue with c servers. Its state is the wait W: the time until its
first instance is free. Two parts are added:

1. Every level alone, the levels taken as independent. A request of class k (whose shortest fitting level is k)
   joins level j at W_j = w when no other fitting level i finishes it sooner, with probability prod_i P(W_i > w + s_j -
   s_i). That makes the arrival rate of a level a falling function lambda_j(w): as its wait grows, its requests go to
   longer levels. Below c requests the level is an Erlang loss system; above, W is a diffusion with drift
   lambda_j(w) s / c - 1, whose density is exp(-K integral (c/s - lambda_j)) with K = 2 for a fixed service time: for a
   constant rate this is P(W > 0) of Erlang C and the mean wait of M/D/1 exactly, of M/D/c nearly. The levels'
   assumptions about each other are iterated to a fixed point.
2. Levels are not independent under load: they are busy together. For each k the levels from k up
   are the only ones that serve the classes from k up; together they are one server of rate mu_k = sum N_i / s_i with
   utilisation x_k. Its wait x^5 / (2 mu (1 - x)), the factor x^4 being fitted to simulation, is added for the
   worst k that a class belongs to. To keep overload finite, and more of it worse, the wait is that of a queue
   which starts empty and lasts `horizon_ms` (the coordinate-transformed curve of time-dependent delay). For a single
   level this part is too large: its mean latency is at most 1.4 times that of M/D/c up to 90 % of capacity, 1.6 above.

Under a policy that demotes only when a level is congested (`rs`), level j keeps its own requests until W reaches
`spill_ms[j]`.

A WaitModel assumes constant rates. `Replay` adds the cost of rates that vary.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

K = 2.0
POINTS = 36  # in a level's grid of waits
THRESHOLDS = 6  # longer levels whose jump in lambda_j(w) gets a separate cell
JUMP = 1e-6
ROUNDS = 12
STEP = 0.9  # of a round towards the fixed point
LAST = 8.0  # longest wait of the grid, in times of the longest level
LARGE = 1e6  # bound of one term of the Erlang formula
SWING = 1.5  # exponent of the factors of a Variation
MARGIN = 0.03  # share by which the rates may rise, or workers be lost to replacement
LEAST_FACTOR = 0.02  # so that the exponent has an effect
CAPACITIES = 64  # capacities of a group of levels, at which a Replay is computed
LOWEST = 0.5  # the lowest of them, over the mean rate


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """P(W > w) at the fixed point, float64[allocations, levels, waits]."""

    survival: Array


class WaitModel:
    """Levels ascend in max_length. Rates in requests per ms, times in ms."""

    def __init__(
        self,
        *,
        alone_ms: Array,
        share_ms: Array,
        full_ms: Array,
        rate: Array,
        slo_ms: float,
        horizon_ms: float,
        spill_ms: Array | None = None,
    ) -> None:
        """`alone_ms[j]`: one request on an idle instance. `share_ms[j]`: a request's time on a busy one; less than
        alone where requests are batched. `full_ms[j]`: a full batch. `spill_ms`: see the module; None: earliest finish.
        """
        self.alone, self.share, self.full, self.rate = alone_ms, share_ms, full_ms, rate
        self._horizon = horizon_ms
        self._spill = spill_ms
        last = LAST * float(alone_ms.max())
        if spill_ms is not None:
            last = max(last, 2 * slo_ms)
        self.waits = np.stack([_grid(alone_ms, j, last) for j in range(len(rate))])
        self._cell = np.diff(self.waits)
        self._middle = (self.waits[:, 1:] + self.waits[:, :-1]) / 2
        self._own = np.tril(np.ones((len(rate), len(rate))))[:, :, None]  # [j, k]: class k may run on level j
        self._shift, self._sure = self._shifts()

    def _shifts(self) -> tuple[Array, Array]:
        """Matrices [i, w', (j, w)] that turn P(W_i > w') into P(W_i > w + s_j - s_i), and where that is 1 for any W_i.
        For i = j it is 1: a level does not compete with itself."""
        levels, points = self.waits.shape
        shift = np.zeros((levels, points, levels, points))
        sure = np.zeros((levels, levels, points))
        for i in range(levels):
            for j in range(levels):
                at = self.waits[j] + (self.alone[j] - self.alone[i])
                sure[i, j] = (i == j) | (at < self.alone[0] * JUMP / 10) if i >= j else at < 0
                low = np.clip(np.searchsorted(self.waits[i], at, side="right") - 1, 0, points - 2)
                part = np.clip((at - self.waits[i, low]) / self._cell[i, low], 0, 1)
                for w in np.flatnonzero(sure[i, j] == 0):
                    shift[i, low[w], j, w] = 1 - part[w]
                    shift[i, low[w] + 1, j, w] = part[w]
        return shift.reshape(levels, points, levels * points), sure

    def mean_ms(
        self, counts: NDArray[np.int64], start: State | None = None, rounds: int = ROUNDS
    ) -> tuple[Array, State]:
        """Mean latency for each row of `counts` [allocations, levels], and the final state. `start` (of one allocation
        or of each) saves rounds."""
        n = counts.astype(np.float64)
        absent = (counts == 0)[:, :, None]
        if start is None:
            survival = np.broadcast_to(0.3 * np.exp(-self.waits / self.alone.min()), (*n.shape, POINTS))
        else:
            survival = np.broadcast_to(start.survival, (*n.shape, POINTS))
        survival = np.where(absent, 1.0, survival)
        for _ in range(rounds):
            _, _, found = self._levels(n, self._arrivals(survival))
            survival = np.where(absent, 1.0, survival + STEP * (found - survival))
        arrivals = self._arrivals(survival)
        idle, mass, _ = self._levels(n, arrivals)
        within = (arrivals[:, :, 1:] + arrivals[:, :, :-1]) / 2 * mass
        at_once = arrivals[:, :, 0] * idle
        batch = np.clip(self._middle / self.share[:, None], 0, 1) * (self.full - self.alone)[:, None]
        latency = at_once * self.alone + (within * (self._middle + self.alone[:, None] + batch)).sum(-1)
        there = counts > 0
        flow = ((at_once + within.sum(-1)) * there).sum(-1)
        return (latency * there).sum(-1) / np.maximum(flow, 1e-300) + self.common_ms(n), State(survival)

    def _arrivals(self, survival: Array) -> Array:
        """lambda_j(w) of each level."""
        allocations, levels, points = survival.shape
        if self._spill is not None:
            return self._arrivals_kept(survival)
        total = np.zeros((allocations, levels, points))
        for i in range(levels):
            beyond = (survival[:, i] @ self._shift[i]).reshape(allocations, levels, points) + self._sure[i]
            total += self.rate[i] * self._own[:, i]
            total *= beyond
        return total

    def _arrivals_kept(self, survival: Array) -> Array:
        assert self._spill is not None
        over = np.stack(
            [
                np.array([np.interp(self._spill[i], self.waits[i], row) for row in survival[:, i]])
                for i in range(survival.shape[1])
            ],
            axis=1,
        )
        total = np.empty_like(survival)
        came = np.zeros(len(survival))
        for j in range(survival.shape[1]):
            came = came + self.rate[j]
            back = self.rate[j] * np.prod(over[:, j + 1 :], axis=1)
            total[:, j] = np.where(self.waits[j] < self._spill[j], came[:, None], back[:, None])
            came = came * over[:, j]
        return total

    def _levels(self, n: Array, arrivals: Array) -> tuple[Array, Array, Array]:
        """P(W = 0), the mass of W in each cell, and P(W > w), of each level by its arrival rates."""
        servers = np.maximum(n, 1)
        first = np.maximum(arrivals[:, :, 0], 1e-12)
        below = _below(servers, np.minimum(first * self.alone, np.maximum(first * self.share, servers * 0.999)))
        fall = K * ((servers / self.share)[:, :, None] - arrivals)
        drop = np.clip((fall[:, :, 1:] + fall[:, :, :-1]) / 2 * self._cell, -300, 300)
        drop = np.where(np.abs(drop) < 1e-6, 1e-6, drop)
        log = np.concatenate([np.zeros((*n.shape, 1)), -np.cumsum(drop, -1)], -1)
        top = log.max(-1, keepdims=True)
        mass = np.exp(log[:, :, :-1] - top) * self._cell * (-np.expm1(-drop) / drop) * (K * first)[:, :, None]
        idle = below * np.exp(-top[:, :, 0])
        total = idle + mass.sum(-1)
        mass /= total[:, :, None]
        survival = np.concatenate([np.cumsum(mass[:, :, ::-1], -1)[:, :, ::-1], np.zeros((*n.shape, 1))], -1)
        return idle / total, mass, survival

    def utilisation(self, n: Array) -> tuple[Array, Array]:
        """x and mu of each suffix of levels, [allocations, levels]: the classes from k up on the levels from k up.
        The allocation is stable when no x reaches 1."""
        capacity = np.cumsum((n / self.share)[:, ::-1], 1)[:, ::-1]
        offered = np.cumsum(self.rate[::-1])[::-1]
        capacity = np.maximum(capacity, 1e-9)
        return offered / capacity, capacity

    def common_ms(self, n: Array) -> Array:
        """The wait that levels share (part 2), as the mean over the requests."""
        x, mu = self.utilisation(n)
        factor = 4 * np.minimum(x, 1) ** 4 * x / (mu * self._horizon)
        wait = self._horizon / 4 * ((x - 1) + np.sqrt((x - 1) ** 2 + factor))
        return np.asarray((np.maximum.accumulate(wait, 1) * self.rate).sum(1) / self.rate.sum())


class Replay:
    """The wait caused by rates that vary over seconds: for each k, the recorded requests of the classes from k up, as a
    fluid, through the levels from k up.

    While more arrives than the group can carry, a backlog grows by the difference; afterwards it drains at the spare
    capacity. A request waits for the backlog that it finds. Of the groups that a class belongs to, the one with the
    longest mean wait counts. The recorded path is one of many, and the next one may be worse: the factors are
    raised to the power SWING.

    A group's backlog depends only on its capacity, so the mean waits are tabulated once.
    """

    def __init__(self, *, rate: Array, share_ms: Array, spans_ms: Array, factors: Array) -> None:
        """`rate`, `share_ms`: as in WaitModel. `spans_ms` [spans] and `factors` [spans, levels] of a Variation."""
        levels = len(rate)
        self._share = share_ms
        group = np.cumsum(rate[::-1])[::-1]
        some = group > 0
        factors = np.maximum(factors, LEAST_FACTOR) ** SWING
        offered = factors * ((1 + MARGIN) * group / (spans_ms @ factors / spans_ms.sum()))
        requests = np.maximum(-np.diff(offered, axis=1, append=0.0), 0.0) * spans_ms[:, None]  # by class
        requests /= max(float(requests.sum()), 1e-300)
        self._low = np.where(some, LOWEST * group, 1.0)
        # At the rate of its busiest span a group has no backlog.
        high = np.where(some, offered.max(axis=0), 2.0)
        self._step = np.log(high / self._low) / (CAPACITIES - 1)
        self._wait = np.zeros((levels, CAPACITIES, levels))  # [group, capacity, class]
        for k in np.flatnonzero(some).tolist():
            capacity = self._low[k] * np.exp(self._step[k] * np.arange(CAPACITIES))[:, None]
            level = np.cumsum((offered[:, k] - capacity) * spans_ms, axis=1)
            backlog = level - np.minimum(np.minimum.accumulate(level, axis=1), 0)
            backlog[:, 1:] = (backlog[:, 1:] + backlog[:, :-1]) / 2
            backlog[:, 0] /= 2
            self._wait[k, :, k:] = backlog / capacity @ requests[:, k:]

    def mean_ms(self, n: Array) -> Array:
        """Mean wait over all requests, for each row of `n` [allocations, levels]."""
        capacity = np.cumsum((n / self._share)[:, ::-1], 1)[:, ::-1]
        at = np.log(np.maximum(capacity, 1e-9) / self._low) / self._step
        at = np.clip(at, 0, CAPACITIES - 1)
        low = np.minimum(at.astype(np.int64), CAPACITIES - 2)
        part = (at - low)[:, :, None]
        group = np.arange(len(self._share))
        wait = self._wait[group, low] * (1 - part) + self._wait[group, low + 1] * part
        return np.asarray(wait.max(axis=1).sum(axis=1))


def _grid(alone: Array, level: int, last: float) -> Array:
    """Waits of a level, float64[POINTS] from 0: on both sides of each wait at which an idle longer level would be as
    soon, and between, denser near 0."""
    longer = np.unique(alone[level + 1 :] - alone[level])
    fixed = longer[longer > 0][:THRESHOLDS]
    jump = JUMP * alone[0]
    grid = sorted({0.0, last, *(w for t in fixed.tolist() for w in (t, t + jump) if t + jump < last)})
    while len(grid) < POINTS:
        widths = [(b - a) / (a + b + alone[level] / 5) for a, b in itertools.pairwise(grid)]
        at = int(np.argmax(widths))
        grid.insert(at + 1, (grid[at] + grid[at + 1]) / 2)
    return np.array(grid)


def _below(servers: Array, offered: Array) -> Array:
    """P(fewer than c requests) / P(c - 1 requests) of an Erlang loss system with c servers and A erlangs.

    That is 1 / B(c - 1, A) = sum over m of (c-1)! / (c-1-m)! A^-m.
    """
    # Far more servers than the load needs: they are never all busy, and the terms would overflow.
    servers = np.minimum(servers, np.ceil(offered + 9 * np.sqrt(offered) + 9))
    falling = np.maximum(servers[:, :, None] - np.arange(1, int(servers.max())), 0) / offered[:, :, None]
    return np.asarray(1 + np.cumprod(np.minimum(falling, LARGE), -1).sum(-1))
