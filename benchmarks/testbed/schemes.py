"""What is compared: the schemes of the simulator with stretched latencies, as fixed clusters."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from arlo.planning.allocation.curves import curve
from arlo.planning.allocation.problem import AllocationProblem
from arlo.planning.allocation.solve import allocate, make_solver
from arlo.simulator.profiles import Profile, load_profile
from arlo.simulator.scenario.scenario import RuntimeModel
from arlo.simulator.scenario.schemes import SCHEMES, scheme
from arlo.traces import rescale, tweet_lengths

LONGEST = 512
POLICIES = ("rs", "eft", "late")  # each with the runtimes and the allocation of the scheme `arlo`
CONTENDERS = (*SCHEMES, *POLICIES)
TITLES = {**SCHEMES, **{policy: f"Arlo ({policy})" for policy in POLICIES}}
INFLIGHT_LIMIT = 2  # dispatch.inflight_limit of the serving configuration, its default


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster that stays as it is: instances of each runtime, and the policy that dispatches to them."""

    name: str  # of CONTENDERS
    policy: str
    runtimes: tuple[RuntimeModel, ...]
    instances: tuple[int, ...]
    slo_ms: float

    def placed(self) -> list[RuntimeModel]:
        """The runtime of each worker."""
        return [runtime for runtime, n in zip(self.runtimes, self.instances, strict=True) for _ in range(n)]


@dataclasses.dataclass(frozen=True)
class Bed:
    """The model that is served, on how many workers, and how many times slower than its latency profile says."""

    model: str = "bert-base"
    stretch: float = 10.0
    workers: int = 10

    @functools.cached_property
    def profile(self) -> Profile:
        return load_profile(self.model)

    @property
    def slo_ms(self) -> float:
        return self.profile.slo_ms * self.stretch

    def stretched(self, runtimes: tuple[RuntimeModel, ...]) -> tuple[RuntimeModel, ...]:
        """Batch 1, latencies in whole microseconds as the gateway and the emulated engine take them."""
        return tuple(
            dataclasses.replace(
                runtime,
                points=tuple((n, rows, round(ms * self.stretch, 3)) for n, rows, ms in runtime.points if rows == 1),
                inflight_limit=INFLIGHT_LIMIT,
            )
            for runtime in runtimes
        )

    @functools.cached_property
    def static(self) -> tuple[RuntimeModel, ...]:
        return self.stretched(scheme("arlo", self.profile, workers=self.workers).runtimes)

    @functools.cached_property
    def all_runtimes(self) -> tuple[RuntimeModel, ...]:
        """Of all schemes."""
        return (*self.static, *self.stretched(scheme("dt", self.profile, workers=self.workers).runtimes))

    @functools.cached_property
    def demand_share(self) -> NDArray[np.float64]:
        """Share of the requests whose ideal runtime is each static one."""
        drawn = tweets(200_000, np.random.default_rng(0))
        lengths = [r.max_length for r in self.static]
        return np.bincount(np.searchsorted(lengths, drawn), minlength=len(lengths)) / len(drawn)

    @property
    def full_rate_rps(self) -> float:
        """Requests per second that would keep all workers busy if each ran on its ideal runtime: load 1."""
        work_ms = float(self.demand_share @ np.array([r.points[-1][2] for r in self.static]))
        return self.workers / (work_ms / 1000)

    def planned(self, rate_rps: float, objective: str, policy: str) -> tuple[int, ...]:
        """Instances of each static runtime as the control plane's planner gives them at this rate."""
        problem = AllocationProblem(
            self.workers,
            self.slo_ms,
            tuple(r.max_length for r in self.static),
            tuple(curve(r) for r in self.static),
            tuple(float(q) for q in self.demand_share * rate_rps * self.slo_ms / 1000),
        )
        solver = make_solver("exact", objective=objective, policy=policy)
        return allocate(problem, solver, time_limit_s=10).instances

    def cluster(self, name: str, rate_rps: float) -> Cluster:
        """A contender, allocated as its scheme would be at this rate."""
        if name in POLICIES:
            pieces = scheme("arlo", self.profile, workers=self.workers, policy=name)
        else:
            pieces = scheme(name, self.profile, workers=self.workers)
        policy = pieces.dispatch.policy
        if pieces.allocate.kind == "even":
            instances = even(self.workers, len(pieces.runtimes))
        else:
            instances = self.planned(rate_rps, pieces.allocate.objective, policy)
        return Cluster(name, policy, self.stretched(pieces.runtimes), instances, self.slo_ms)


def execution_ms(runtime: RuntimeModel, length: NDArray[np.int32]) -> NDArray[np.float64]:
    """Of requests of these lengths, as the latency profile says."""
    at, _, took = zip(*runtime.points, strict=True)
    return np.asarray(np.interp(length, at, took) if runtime.dynamic else np.full(len(length), took[-1]), np.float64)


def points_us(runtime: RuntimeModel) -> tuple[tuple[int, int], ...]:
    """(length, microseconds of one row)."""
    return tuple((length, round(ms * 1000)) for length, _, ms in runtime.points)


def tweets(n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Token lengths as in the paper: tweets stretched to 512."""
    return np.asarray(rescale(tweet_lengths().sample(n, rng), LONGEST), np.int32)


def even(workers: int, runtimes: int) -> tuple[int, ...]:
    """As equal as possible; the longest runtimes get what is left over."""
    each, left = divmod(workers, runtimes)
    return tuple(each + (i >= runtimes - left) for i in range(runtimes))
