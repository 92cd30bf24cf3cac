"""The planning problem of a flow and its answer (Loki, HPDC'24, section 4, as a program over policies).

    U1  sum_k f(root, k) = served            U2  sum_k' f(prefix, k') = f(prefix) for each child stage
    U3  rows at a pool = demand x sum f(prefix) m(prefix)        U5  rows x work <= utilisation x instances, per pool
    U6  sum of instances <= workers          U7  of a path that is used: sum of latencies <= its limit

f(prefix) is the share of the demand that takes these variants from the entry on, m(prefix) the rows that one root has
become there. A *pool* is (stage, variant, batch cap) with its instances; a worker of a pool holds all lengths of its
variant. The objective, in order: the share of the demand that is served, its value, fewer workers, fewer moves. Value
is the accuracy (mean over the exits) less the worth of the joules that workers draw for it. Latencies are seconds,
rates rows per second. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Literal, Protocol

from arlo.catalog.flow import Flow, Prefix

Step = Literal["hardware", "accuracy", "overload"]
UNSERVED = 1000.0  # worth of a share of the demand in addition to its value, if energy does not matter


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A variant with a batch cap, at a stage."""

    variant: int  # among the stage's
    batch: int
    work_s: float  # worker-seconds of a row, in full batches, over the stage's lengths
    latency_s: float  # of a full batch of the longest rows
    watts: float = 0.0  # of a worker that is busy


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One stage as a solver sees it; parents come before their children."""

    name: str
    parent: int  # -1: the root
    variants: int
    options: tuple[Option, ...]
    weight: float  # share of the accuracy's weight that the parent's exits leave
    limit_s: float  # on the latencies from the root up to and including this stage
    factor: tuple[float, ...]  # by variant of the parent: rows here for one there; root: (1,)
    exit: tuple[float, ...]  # by variant: share of the weight that ends here; a leaf's is 1
    accuracy: tuple[float, ...]  # by the variants from the root to here, the last one varying fastest


@dataclasses.dataclass(frozen=True, slots=True)
class FlowProblem:
    """A solver's input."""

    stages: tuple[Stage, ...]
    demand: float  # roots per second
    workers: int
    utilisation: float = 1.0
    single_batch: bool = False  # all instances of a variant have one batch cap (Loki's y)
    held: tuple[tuple[int, ...], ...] = ()  # by stage and variant: the most instances; empty: any number
    joule: float = 0.0  # accuracy that a joule is worth

    def load(self, policy: Sequence[int]) -> list[float]:
        """Workers [stages] that the whole demand keeps busy when it takes these options."""
        rows = [0.0] * len(self.stages)
        for i, stage in enumerate(self.stages):
            if stage.parent < 0:
                rows[i] = self.demand
            else:
                above = self.stages[stage.parent].options[policy[stage.parent]].variant
                rows[i] = rows[stage.parent] * stage.factor[above]
        return [rows[i] * stage.options[policy[i]].work_s / self.utilisation for i, stage in enumerate(self.stages)]

    def line(self, stage: int) -> tuple[int, ...]:
        """Stages from the root to this one."""
        parent = self.stages[stage].parent
        return (stage,) if parent < 0 else (*self.line(parent), stage)

    def accuracy(self, policy: Sequence[int]) -> float:
        """Accuracy of the rows that take these options: the mean over the exits."""
        weight = [1.0] * len(self.stages)
        found = 0.0
        for i, stage in enumerate(self.stages):
            own = stage.options[policy[i]].variant
            if stage.parent >= 0:
                above = self.stages[stage.parent]
                weight[i] = (
                    weight[stage.parent] * (1 - above.exit[above.options[policy[stage.parent]].variant]) * stage.weight
                )
            at = 0
            for j in self.line(i):
                at = at * self.stages[j].variants + self.stages[j].options[policy[j]].variant
            found += weight[i] * stage.exit[own] * stage.accuracy[at]
        return found

    def joules(self, policy: Sequence[int]) -> float:
        """Joules of a root whose rows take these options."""
        busy = zip(self.load(policy), self.stages, policy, strict=True)
        return math.fsum(w * stage.options[o].watts for w, stage, o in busy) * self.utilisation / self.demand

    @property
    def unserved(self) -> float:
        """The worth of a share of the demand in addition to its value: more than its energy can outweigh."""
        rows, most = [1.0] * len(self.stages), 0.0
        for i, stage in enumerate(self.stages):
            if stage.parent >= 0:
                rows[i] = rows[stage.parent] * max(stage.factor)
            most += rows[i] * max(option.work_s * option.watts for option in stage.options)
        return UNSERVED + self.joule * most

    def value(self, answer: Answer) -> float:
        """Accuracy less the worth of the energy, over the demand."""
        if self.joule == 0:
            return answer.accuracy
        return answer.accuracy - self.joule * math.fsum(share * self.joules(policy) for policy, share in answer.mixes)

    def feasible(self, policy: Sequence[int]) -> bool:
        """Whether every path of these options keeps its limit."""
        return all(
            sum(self.stages[j].options[policy[j]].latency_s for j in self.line(i)) <= stage.limit_s
            for i, stage in enumerate(self.stages)
        )

    def least_latency(self) -> tuple[float, float, int]:
        """(seconds, limit, stage) of the path that comes nearest to its limit, or exceeds it most."""
        worst = (0.0, math.inf, 0)
        for i, stage in enumerate(self.stages):
            if math.isinf(stage.limit_s):
                continue
            least = sum(min(option.latency_s for option in self.stages[j].options) for j in self.line(i))
            if math.isinf(worst[1]) or least - stage.limit_s > worst[0] - worst[1]:
                worst = (least, stage.limit_s, i)
        return worst

    def policies(self) -> list[tuple[int, ...]]:
        """All policies that keep the limits: for oracles and small problems."""
        choices = itertools.product(*(range(len(stage.options)) for stage in self.stages))
        return [policy for policy in choices if self.feasible(policy)]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A solver's answer to a FlowProblem."""

    instances: tuple[tuple[int, ...], ...]  # by stage and option
    mixes: tuple[tuple[tuple[int, ...], float], ...]  # policy, share of the demand
    accuracy: float  # sum of share x accuracy: over the demand, unserved rows counting 0
    served: float
    relaxed: float  # value with fractional instances; at least the bound
    bound: float  # proven: nothing has a greater value
    price: float  # value that one more worker would add, with fractional instances
    optimal: bool

    @property
    def workers(self) -> int:
        """The number of workers that have an instance."""
        return sum(map(sum, self.instances))


class FlowSolver(Protocol):
    """Solves one program to its optimum."""

    name: str

    def solve(
        self, problem: FlowProblem, *, served: float = 1.0, served_only: bool = False, target: float = math.inf
    ) -> Answer | None:
        """The greatest value for `served` of the demand (an unserved share costs more than any value), or, with
        `served_only`, the greatest share served. With a `target` of the value any plan that reaches it will do; None:
        no target."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """Instances of one variant with one batch cap at one stage."""

    stage: int
    variant: int
    batch: int
    instances: int
    latency_s: float  # of a full batch of the longest rows
    capacity: float  # rows per second, all instances busy all the time
    load: float  # rows per second that the plan sends there
    budget_s: float  # of a row's time, waiting included


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """A path of pools up to a stage, and the share of the demand that takes it."""

    stage: int
    pools: tuple[int, ...]  # numbers in FlowPlan.pools, from the entry on
    share: float


@dataclasses.dataclass(frozen=True)
class FlowPlan:
    """The plan that serves a flow until the next one."""

    flow: Flow
    planner: str
    step: Step
    demand: float  # roots per second that it was made for
    workers_given: int
    pools: tuple[Pool, ...]
    routes: tuple[Route, ...]  # of every stage, all with a share above 0
    feasible: tuple[tuple[int, ...], ...]  # paths of pools from the entry to a leaf that keep the limit (I of Eq. 7)
    served: float  # share of the demand
    accuracy: float  # of the served rows
    bound: float  # proven: no plan of these workers is more accurate, at this share served and for no more joules
    price: float  # accuracy, less its energy's worth, that one more worker-second would buy
    utilisation: float
    optimal: bool
    reason: str = ""
    note: str = ""  # how the utilisation was found, if by the window
    solve_s: float = 0.0
    joules: float | None = None  # per served root, in full batches; None: the variants' power is not known

    @property
    def value(self) -> float:
        """Accuracy less the worth of the energy, over the served rows."""
        return self.accuracy - self.flow.joule * (self.joules or 0.0)

    @property
    def workers(self) -> int:
        """The number of workers that have an instance."""
        return sum(pool.instances for pool in self.pools)

    def shares(self) -> dict[tuple[int, Prefix], float]:
        """The shares f by (stage, variants from the entry on): of the whole demand."""
        found: dict[tuple[int, Prefix], float] = {}
        for route in self.routes:
            key = (route.stage, tuple(self.pools[pool].variant for pool in route.pools))
            found[key] = found.get(key, 0.0) + route.share
        return found

    def instances(self) -> dict[tuple[int, int, int], int]:
        """Instances by (stage, variant, batch cap)."""
        return {(pool.stage, pool.variant, pool.batch): pool.instances for pool in self.pools}

    def backup(self) -> tuple[tuple[int, float], ...]:
        """Pools with room that the plan does not use, and that room in rows per second; the most accurate first."""
        stages = self.flow.stages
        order = sorted(
            range(len(self.pools)),
            key=lambda i: (self.pools[i].stage, -stages[self.pools[i].stage].accuracy(self.pools[i].variant), i),
        )
        left = ((i, self.pools[i].capacity - self.pools[i].load) for i in order)
        return tuple((i, room) for i, room in left if room > 1e-9 * self.pools[i].capacity)

    def moves(self, before: FlowPlan | None) -> int:
        """Workers that must load a variant that they do not hold."""
        if before is None:
            return 0
        had: dict[tuple[int, int], int] = {}
        for pool in before.pools:
            had[pool.stage, pool.variant] = had.get((pool.stage, pool.variant), 0) + pool.instances
        found = 0
        for (stage, variant), count in sorted(self._by_variant().items()):
            found += max(count - had.get((stage, variant), 0), 0)
        return found

    def _by_variant(self) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for pool in self.pools:
            found[pool.stage, pool.variant] = found.get((pool.stage, pool.variant), 0) + pool.instances
        return found
