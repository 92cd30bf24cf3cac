"""The objective `queueing`: mean latency under random arrivals, which Eq. 1 does not count. Pure.

Eq. 1 gives each instance its requests of one SLO period at once; at a load that the cluster can carry it hardly shows
which requests wait. `queueing` predicts the mean latency of requests that arrive at random and are dispatched by the
gateway's rules (queueing_model.py), and searches for the instances that minimise it: from the best of a few starts, it
moves workers between levels, in steps that halve, until no tried move helps. It is a local search of a model:
nothing is proven. For comparisons see benchmarks/README.md, "Allocation objective".

Eq. 2 and 7 hold. Eq. 3 need not: where longer levels have room for a level's excess, it may get less, and a level may
get none. Instead, if some allocation is stable (for every k the levels from k up carry the requests from k up, in the
mean), the returned one is stable as well, provided that latency rises with max_length. If none is, the result is the
one with the lowest mean latency over a minute of that overload.

Where the traffic is bursty (`AllocationProblem.burst` above 1), half of the value is that of a second at the busy rate.

Where the rates vary over seconds (`AllocationProblem.variation`), the value includes the wait that the recorded rates
would have caused. So every group of levels from k up gets room for the busy moments of its requests, as far as it is
cheap: short requests find room everywhere, the longest only on the longest runtimes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arlo.clock import monotonic_s
from arlo.planning.allocation.bounds import proportional
from arlo.planning.allocation.problem import Allocation, AllocationProblem, LatencyCurve, flow
from arlo.planning.allocation.queueing_model import ROUNDS, Replay, State, WaitModel
from arlo.planning.traffic.demand import Demand

Counts = NDArray[np.int64]

# Dispatch policies that keep requests on their level, and the wait up to which they do, as a share of the SLO.
STAYING = {"rs": 0.85, "ilb": 1e9}
HORIZON_MS = 60_000.0  # time over which overload is counted
BURST_MS = 1_000.0  # duration of the busy rate
LEAST_DEVIATION, MOST_BURST = 0.05, 3.0  # limits of burst_factor
NEAR_ROUNDS = 4  # of the fixed point for a neighbour, which starts where its origin ended
BUSY = 0.97  # quantile of a group's rate that counts as busy
MOVES = 12  # moves that are examined closely
MIN_GAIN = 1e-6
LEAST_DEMAND = 1e-6  # requests per SLO period


def predicted_mean_ms(problem: AllocationProblem, instances: Sequence[int], *, policy: str = "eft") -> float:
    """Mean latency of `instances` (any number in total, the last at least 1) under random arrivals; 0 without demand.

    Finite under overload, and larger with more overload. `policy` is the gateway's dispatch policy.
    """
    if not sum(problem.demand):
        return 0.0
    problem = _some(problem)
    return float(QueueingObjective(problem, policy).values(np.array([instances], np.int64))[0][0])


def burst_factor(demand: Demand, dispersion: float | None, *, slo_ms: float, span_s: float = 1.0) -> float:
    """`AllocationProblem.burst` from the dispersion of the requests per span (DemandWindow.dispersion).

    A rate common to all bins with a mean deviation of the share v makes the pooled dispersion 1 + v^2 sum m^2 /
    sum m, with m the requests of a bin in a span. The factor is 1 + v, up to MOST_BURST; 1 if chance explains v,
    and if the dispersion is not known.
    """
    counts = np.array(demand.mean) * (span_s * 1000 / slo_ms)
    if dispersion is None or not counts.sum():
        return 1.0
    deviation = float(np.sqrt(max(dispersion - 1, 0.0) * counts.sum() / (counts**2).sum()))
    return 1.0 if deviation < LEAST_DEVIATION else min(1 + deviation, MOST_BURST)


class QueueingSolver:
    """See the module. Deterministic except for its time limit; no state between calls."""

    name = "exact"
    objective = "queueing"

    def __init__(self, policy: str = "eft") -> None:
        """`policy`: the gateway's dispatch policy."""
        self._policy = policy

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        """Instances for any problem, infeasible ones included. `Allocation.objective` is Eq. 1 at them, to compare
        with the other solvers; `optimal` is False, as nothing is proven. After the time limit: the best so far."""
        started_s = monotonic_s()
        instances = self._search(problem, started_s + time_limit_s)
        return Allocation(
            instances=instances,
            objective=flow(problem, instances).objective,
            solver=self.name,
            solve_s=monotonic_s() - started_s,
            optimal=False,
            reason=problem.infeasible(),
        )

    def predicted_mean_ms(self, problem: AllocationProblem, instances: Sequence[int]) -> float:
        """The mean latency predicted by the module's function, for this solver's policy."""
        return predicted_mean_ms(problem, instances, policy=self._policy)

    def _search(self, problem: AllocationProblem, until_s: float) -> tuple[int, ...]:
        levels = len(problem.curves)
        if levels == 1 or not sum(problem.demand):
            return (0,) * (levels - 1) + (problem.workers,)
        problem = _some(problem)
        objective = QueueingObjective(problem, self._policy)
        widest = np.array(largest_capacity(problem), np.int64)
        found = [proportional(problem), widest, *square_root(problem)]
        if problem.variation is not None:
            busy = _busy(problem)
            found += [largest_capacity(busy), *square_root(busy)]
        starts = np.array(found, np.int64)
        start = starts[int(np.argmin(objective.values(starts)[0]))]
        best = _descend(objective, start, until_s)
        if objective.stable(widest) and not objective.stable(best):
            best = widest
        return tuple(int(n) for n in best)


class QueueingObjective:
    """The predicted mean latency of allocations of one problem, in ms."""

    def __init__(self, problem: AllocationProblem, policy: str) -> None:
        stay = STAYING.get(policy)

        def model(rate: float, horizon_ms: float) -> WaitModel:
            return WaitModel(
                alone_ms=np.array([curve.batch_ms(1) for curve in problem.curves]),
                share_ms=np.array([_share_ms(curve) for curve in problem.curves]),
                full_ms=np.array([curve.points[-1][1] for curve in problem.curves]),
                rate=np.array(problem.demand) * (rate / problem.slo_ms),
                slo_ms=problem.slo_ms,
                horizon_ms=horizon_ms,
                spill_ms=None if stay is None else np.full(len(problem.curves), stay * problem.slo_ms),
            )

        self._models = [model(1.0, HORIZON_MS)]
        if problem.burst > 1:
            self._models.append(model(problem.burst, BURST_MS))
        self._replay: Replay | None = None
        if problem.variation is not None:
            self._replay = Replay(
                rate=self._models[0].rate,
                share_ms=self._models[0].share,
                spans_ms=np.array(problem.variation.spans_s) * 1000.0,
                factors=np.array(problem.variation.factors),
            )

    def values(
        self, counts: Counts, start: Sequence[State] | None = None, rounds: int = ROUNDS
    ) -> tuple[NDArray[np.float64], list[State]]:
        """The value of each row of `counts`, and the final states of the models; `start` as in WaitModel."""
        total, states = np.zeros(len(counts)), []
        for i, model in enumerate(self._models):
            value, state = model.mean_ms(counts, None if start is None else start[i], rounds)
            total += value / len(self._models)
            states.append(state)
        if self._replay is not None:
            total += self._replay.mean_ms(counts.astype(np.float64))
        return total, states

    def stable(self, counts: Counts) -> bool:
        """Whether the mean demand can be carried indefinitely."""
        return bool((self._models[0].utilisation(counts[None].astype(np.float64))[0] < 1).all())


def _some(problem: AllocationProblem) -> AllocationProblem:
    """The problem with enough demand that the model's numbers do not vanish. So few requests never meet: their
    mean latency depends only on their shares."""
    total = sum(problem.demand)
    if total >= LEAST_DEMAND:
        return problem
    return dataclasses.replace(problem, demand=tuple(q / total * LEAST_DEMAND for q in problem.demand))


def _busy(problem: AllocationProblem) -> AllocationProblem:
    """The problem with each group's demand in its busy moments: where the search begins."""
    assert problem.variation is not None
    weights = np.array(problem.variation.spans_s)
    factors = np.array(problem.variation.factors)
    group = np.cumsum(problem.demand[::-1])[::-1]
    for k in range(len(group)):
        order = np.argsort(factors[:, k])
        group[k] *= factors[order, k][np.searchsorted(np.cumsum(weights[order]), BUSY * weights.sum())]
    group = np.maximum.accumulate(group[::-1])[::-1]
    return dataclasses.replace(problem, demand=tuple(np.maximum(-np.diff(group, append=0.0), 0.0).tolist()))


def _share_ms(curve: LatencyCurve) -> float:
    """Time that a request takes on a busy instance: its part of the batch with the best rate."""
    return min(ms / rows for rows, ms in curve.points)


def largest_capacity(problem: AllocationProblem) -> list[int]:
    """The instances that carry the largest multiple of the demand.

    The levels from k up must carry the requests from k up. From the longest level down, each gets the fewest that this
    requires (an instance of a shorter level carries more, so adding them above gains nothing); the multiple is
    found by bisection, and spare instances go where the utilisation is highest.
    """
    share = [_share_ms(curve) for curve in problem.curves]
    rate = [q / problem.slo_ms for q in problem.demand]

    def needed(multiple: float) -> list[int]:
        counts, carried, asked = [0] * len(rate), 0.0, 0.0
        for k in range(len(rate) - 1, -1, -1):
            asked += rate[k] * multiple
            counts[k] = max(int(np.ceil((asked - carried) * share[k])), int(k == len(rate) - 1))
            carried += counts[k] / share[k]
        return counts

    low, high = 0.0, problem.workers / (sum(rate) * min(share)) + 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(needed(middle)) <= problem.workers else (low, middle)
    counts = needed(low)
    while sum(counts) < problem.workers:
        carried = np.cumsum([n / s for n, s in zip(counts[::-1], share[::-1], strict=True)])[::-1]
        counts[int(np.argmax(np.cumsum(rate[::-1])[::-1] / carried))] += 1
    return counts


def square_root(problem: AllocationProblem) -> list[list[int]]:
    """Square-root staffing: each level gets its work in workers, and a part of the rest by the root of its work.

    Whole numbers by rounding the sums from the longest level down, to the nearest (first list) and up (second).
    """
    work = np.array([q / problem.slo_ms * _share_ms(c) for q, c in zip(problem.demand, problem.curves, strict=True)])
    spare = problem.workers - work.sum()
    root = np.sqrt(work)
    wanted = work + spare * root / root.sum() if spare > 0 else problem.workers * work / work.sum()
    sums = np.cumsum(wanted[::-1])
    found = []
    for rounded in (np.rint(sums), np.ceil(sums - 1e-9)):
        whole = np.clip(rounded, 1, problem.workers)
        whole[-1] = problem.workers
        found.append(np.diff(whole, prepend=0).astype(int)[::-1].tolist())
    return found


def _descend(objective: QueueingObjective, start: Counts, until_s: float) -> Counts:
    """Moves `step` workers between levels while that lowers the value; then half as many, down to 1; then whole levels
    (step 0)."""
    best = start
    values, states = objective.values(best[None])
    value, step = float(values[0]), max(1, int(best.sum()) // 64)
    while monotonic_s() < until_s:
        moves = _moves(objective, best, states, step) if step else _merges(best)
        if len(moves):
            values, found = objective.values(moves, states, NEAR_ROUNDS)
            chosen = int(np.argmin(values))
            if values[chosen] < value * (1 - MIN_GAIN):
                best, value = moves[chosen], float(values[chosen])
                states = [State(state.survival[chosen : chosen + 1]) for state in found]
                step = max(step, 1)
                continue
        if not step:
            break
        step //= 2
    return best


def _moves(objective: QueueingObjective, best: Counts, states: Sequence[State], step: int) -> Counts:
    """The most promising moves of `step` workers: by one level's gain from more, and another's loss with fewer."""
    levels = len(best)
    unit = step * np.eye(levels, dtype=np.int64)
    givers = [i for i in range(levels) if best[i] - step >= int(i == levels - 1)]
    pairs = [(i, j) for i in givers for j in range(levels) if i != j]
    if len(pairs) > MOVES:
        values, _ = objective.values(np.concatenate([best + unit, best - unit[givers]]), states, NEAR_ROUNDS)
        more, less = values[:levels], dict(zip(givers, values[levels:], strict=True))
        pairs = sorted(pairs, key=lambda pair: (less[pair[0]] + more[pair[1]], pair))[:MOVES]
    return np.array([best - unit[i] + unit[j] for i, j in pairs], np.int64).reshape(-1, levels)


def _merges(best: Counts) -> Counts:
    """Merges of a level into the next: from two instances on, single moves need not lead there downhill."""
    found = []
    for i in range(len(best) - 1):
        if best[i] > 1:
            found.append(best.copy())
            found[-1][i : i + 2] = 0, best[i] + best[i + 1]
    return np.array(found, np.int64).reshape(-1, len(best))
