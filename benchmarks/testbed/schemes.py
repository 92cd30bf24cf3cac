"""What is compared: runtimes with stretched latency profiles, and the paper's schemes as clusters of them."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from arlo.planning.problem import AllocationProblem, LatencyCurve
from arlo.planning.solve import allocate, make_solver
from arlo.simulator.profiles.estimated import bert_base, bert_large
from arlo.simulator.profiles.model import Profile
from arlo.traces import rescale, tweet_lengths

LENGTHS = tuple(range(64, 513, 64))  # max_length of the paper's eight runtimes
SCHEMES = ("st", "dt", "infaas", "rs", "eft", "late")
TITLES = {"st": "ST", "dt": "DT", "infaas": "INFaaS", "rs": "Arlo (rs)", "eft": "Arlo (eft)", "late": "Arlo (late)"}
INFLIGHT_LIMIT = 2  # dispatch.inflight_limit of the serving configuration, its default


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Points (length, ms of one row), stretched; a static runtime has one."""

    name: str
    max_length: int
    points: tuple[tuple[int, float], ...]
    dynamic: bool = False

    def ms(self, length: NDArray[np.int32]) -> NDArray[np.float64]:
        """Execution time of requests of these lengths: linear between points, flat outside."""
        at, took = zip(*self.points, strict=True)
        return np.asarray(np.interp(length, at, took) if self.dynamic else np.full(len(length), took[-1]), np.float64)

    @property
    def points_us(self) -> tuple[tuple[int, int], ...]:
        """As profiles are written: whole microseconds."""
        return tuple((length, round(ms * 1000)) for length, ms in self.points)

    def capacity(self, slo_ms: float) -> int:
        """M of Eq. 3: requests within the SLO, at the longest length."""
        return int(slo_ms * 1000 // self.points_us[-1][1])


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A cluster: instances of each runtime, and the policy that dispatches to them."""

    name: str
    policy: str
    runtimes: tuple[Runtime, ...]
    instances: tuple[int, ...]
    slo_ms: float

    def placed(self) -> list[Runtime]:
        """The runtime of each worker."""
        return [runtime for runtime, n in zip(self.runtimes, self.instances, strict=True) for _ in range(n)]


@dataclasses.dataclass(frozen=True)
class Bed:
    """The model that is served, on how many workers, and how many times slower than the latency profile says."""

    model: str = "bert-base"
    stretch: float = 10.0
    workers: int = 10

    @functools.cached_property
    def profile(self) -> Profile:
        return {"bert-base": bert_base, "bert-large": bert_large}[self.model]()

    @property
    def slo_ms(self) -> float:
        return self.profile.slo_ms * self.stretch

    @functools.cached_property
    def static(self) -> tuple[Runtime, ...]:
        return tuple(Runtime(f"bench_len{n}", n, ((n, self.profile.static_ms(n) * self.stretch),)) for n in LENGTHS)

    @functools.cached_property
    def dynamic(self) -> Runtime:
        points = tuple((n, ms * self.stretch) for n, rows, ms in sorted(self.profile.dynamic) if rows == 1)
        return Runtime("bench_dynamic", LENGTHS[-1], points, dynamic=True)

    @functools.cached_property
    def demand_share(self) -> NDArray[np.float64]:
        """Share of the requests whose ideal runtime is each static one."""
        drawn = tweets(200_000, np.random.default_rng(0))
        return np.bincount(np.searchsorted(LENGTHS, drawn), minlength=len(LENGTHS)) / len(drawn)

    @property
    def full_rate_rps(self) -> float:
        """Requests per second that would keep all workers busy if each ran on its ideal runtime: load 1."""
        work_ms = self.demand_share @ np.array([r.points[-1][1] for r in self.static])
        return float(self.workers / (work_ms / 1000))

    def planned(self, rate_rps: float, policy: str) -> tuple[int, ...]:
        """Instances of each static runtime as the control plane's planner gives them at this rate."""
        problem = AllocationProblem(
            self.workers,
            self.slo_ms,
            LENGTHS,
            tuple(LatencyCurve.single(r.points[-1][1]) for r in self.static),
            tuple(float(q) for q in self.demand_share * rate_rps * self.slo_ms / 1000),
        )
        solver = make_solver("exact", objective="queueing", policy=policy)
        return allocate(problem, solver, time_limit_s=10).instances

    def scheme(self, name: str, rate_rps: float) -> Scheme:
        """ST and DT have one runtime and take the least loaded instance; INFaaS has all runtimes, evenly, and packs;
        the others are Arlo with that policy and the planner's allocation."""
        if name == "st":
            return Scheme(name, "uniform", self.static[-1:], (self.workers,), self.slo_ms)
        if name == "dt":
            return Scheme(name, "uniform", (self.dynamic,), (self.workers,), self.slo_ms)
        if name == "infaas":
            return Scheme(name, "infaas", self.static, even(self.workers, len(self.static)), self.slo_ms)
        return Scheme(name, name, self.static, self.planned(rate_rps, name), self.slo_ms)


def tweets(n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Token lengths as in the paper: tweets stretched to 512."""
    return rescale(tweet_lengths().sample(n, rng), LENGTHS[-1])


def even(workers: int, runtimes: int) -> tuple[int, ...]:
    """As equal as possible; the longest runtimes get what is left over."""
    each, left = divmod(workers, runtimes)
    return tuple(each + (i >= runtimes - left) for i in range(runtimes))
