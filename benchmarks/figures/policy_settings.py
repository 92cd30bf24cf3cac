"""Settings of the policy study: what differs from the plain one, and the scenarios that come of it.

The plain setting: the estimated BERT-base profile (8 static runtimes), SLO 150 ms, 0.8 ms of overhead, the paper's
lengths. All policies have the same fixed deployment, solved for the rate and for the long-run mix of lengths, and serve
the same requests (the same seeds). Load is the rate over the one at which the ideal levels' work fills all workers;
where a setting takes capacity away, over what is left (`capacity`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve
from arlo.planning.allocation.solve import allocate, make_solver
from arlo.simulator.profiles import Profile, load_profile
from arlo.simulator.scenario.scenario import Dispatch, Fault, Scenario, Workload
from arlo.simulator.scenario.schemes import scheme
from arlo.traces import make_workload

REQUESTS = 250_000  # of a run, about
LEAST_S, MOST_S = 5.0, 80.0
WARM = 0.1  # share of a run that is not counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What differs from the plain setting."""

    name: str
    group: str
    arrivals: str = "twitter-stable"
    drift: str = "none"
    length: str = "paper"
    planned_length: str | None = None  # what the allocation was made for, where that is out of date
    objective: str = "queueing"
    model: str = "bert-base"
    burst: float | None = None
    sojourn_ms: float | None = None
    noise_cv: float = 0.0
    truth: tuple[float, ...] | None = None  # real over believed latency, by runtime
    slow: tuple[float, float] = (0.0, 1.0)  # share of the workers, and how many times as long they take
    failing: float = 0.0  # share of the workers that die at 30 % of the run and are back after 20 % of it
    hop_ms: float = 0.0  # each way
    inflight: int | None = None
    max_batch: int = 1
    capacity: float = 1.0  # left by what the setting does
    workers: tuple[int, ...] = (10, 90)
    loads: tuple[float, ...] = (0.5, 0.8, 0.92)


_TILT = (1.3, 1.2, 1.1, 1.0, 1.0, 0.9, 0.8, 0.7)
_RANDOM = (0.94, -1.33, -0.24, 0.24, 0.93, -0.59, -0.91, 1.1)  # standard normal, drawn once
_ALL = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


def _both(group: str, **changes: Any) -> list[Setting]:
    return [
        Setting(name=f"{group}, {kind}", group=group, arrivals=f"twitter-{kind}", **changes)
        for kind in ("stable", "bursty")
    ]


def settings() -> list[Setting]:
    """All of them."""
    found = _both("plain", loads=_ALL)
    found += _both("Eq. 1 allocation", objective="paper", loads=_ALL)
    found += _both("drift", drift="paper", loads=_ALL)
    found += _both("weak drift", drift="weak")
    for tau in (1, 3, 30):
        found += [Setting(name=f"drift over {tau} s", group="drift", arrivals="twitter-bursty", drift=f"0.21:{tau}")]
    found += _both("tweet lengths", length="tweets")
    found += _both("stale allocation", planned_length="lognormal:19:60:125")
    for ratio, sojourn in ((2.0, 100.0), (5.0, 100.0), (3.0, 10.0), (3.0, 1000.0)):
        name = f"bursts {ratio:g} times, {sojourn:g} ms"
        found.append(Setting(name=name, group="bursts", arrivals="twitter-bursty", burst=ratio, sojourn_ms=sojourn))
    for cv in (0.05, 0.15, 0.3):
        found += _both(f"noise {100 * cv:.0f} %", noise_cv=cv)
    for size in (0.05, 0.1, 0.2, 0.3):
        found.append(_wrong(f"wrong profile, {100 * size:.0f} % at random", tuple(1 + size * z for z in _RANDOM)))
    found.append(_wrong("wrong profile, short ones slower", _TILT))
    found.append(_wrong("wrong profile, long ones slower", _TILT[::-1]))
    for factor in (1.5, 2.0, 3.0):
        left = 1 - 0.1 * (1 - 1 / factor)
        found += _both(f"a tenth {factor:g} times slower", slow=(0.1, factor), capacity=left)
    found += _both("a tenth fails", failing=0.1, capacity=0.9)
    for limit in (1, 2, 3):
        found += _both(f"hops 0.3 ms, limit {limit}", hop_ms=0.3, inflight=limit, capacity=0.75 if limit == 1 else 1.0)
    found += _both("hops 0.5 ms, limit 2", hop_ms=0.5, inflight=2)
    for limit in (8, 16):
        found += _both(f"batches of 8, limit {limit}", max_batch=8, inflight=limit)
    found += _both("30 instances", workers=(30,))
    found += _both("300 instances", workers=(300,))
    found += _both("BERT-large, weak drift", model="bert-large", drift="weak", workers=(10, 40))
    return found


def _wrong(name: str, truth: tuple[float, ...]) -> Setting:
    return Setting(name=name, group="wrong profile", arrivals="twitter-bursty", truth=truth)


@functools.lru_cache(maxsize=64)
def mix(length: str, drift: str) -> tuple[float, ...]:
    """Share of the requests in each bin of 64 tokens, over ten minutes of the drift."""
    rescale = 512 if length != "paper" else None
    workload = make_workload(
        arrivals="twitter-stable", rate=1000, duration_s=600, length=length, rescale=rescale, drift=drift, seed=99
    )
    counts = np.zeros(8)
    for _, lengths in workload.chunks():
        counts += np.bincount((lengths - 1) // 64, minlength=8)
    return tuple((counts / counts.sum()).tolist())


@functools.lru_cache(maxsize=8)
def profile_of(model: str) -> Profile:
    """An estimated profile."""
    return load_profile(model)


def times_ms(setting: Setting) -> NDArray[np.float64]:
    """What a request alone takes on each runtime, really."""
    profile = profile_of(setting.model)
    believed = np.array([profile.static_ms(64 * i) for i in range(1, 9)])
    return believed * np.array(setting.truth) if setting.truth else believed


def full_rate(setting: Setting, workers: int) -> float:
    """Requests per second at load 1."""
    share = np.array(mix(setting.length, setting.drift))
    if setting.max_batch > 1:
        runtimes = _pieces(setting, workers, (1,) * 8).runtimes
        each = (
            np.array([max(p for p in r.points if p[1] == setting.max_batch)[2] for r in runtimes]) / setting.max_batch
        )
    else:
        each = times_ms(setting)
    return float(1000 * workers / (share @ each) * setting.capacity)


@functools.lru_cache(maxsize=4096)
def deployment(setting: Setting, workers: int, rate: float) -> tuple[int, ...]:
    """Instances by runtime, as planned from what is believed."""
    profile = profile_of(setting.model)
    share = np.array(mix(setting.planned_length or setting.length, setting.drift))
    curves = tuple(LatencyCurve.single(profile.static_ms(64 * i)) for i in range(1, 9))
    if setting.max_batch > 1:
        curves = tuple(
            LatencyCurve(tuple(sorted({(rows, ms) for length, rows, ms in r.points if length == r.max_length})))
            for r in _pieces(setting, workers, (1,) * 8).runtimes
        )
    problem = AllocationProblem(
        workers,
        profile.slo_ms,
        tuple(range(64, 513, 64)),
        curves,
        tuple((share * rate * profile.slo_ms / 1000).tolist()),
    )
    return tuple(allocate(problem, make_solver("exact", setting.objective), time_limit_s=20.0).instances)


def _pieces(setting: Setting, workers: int, instances: tuple[int, ...]) -> Any:
    profile = profile_of(setting.model)
    if len(instances) == 8 and sum(instances) != workers:
        workers = sum(instances)
    return scheme("paper", profile, workers=workers, max_batch=setting.max_batch, allocation=instances)


def scenario(setting: Setting, workers: int, load: float, policy: str, seed: int) -> Scenario:
    """A run of a setting."""
    rate = load * full_rate(setting, workers)
    duration_s = float(np.clip(REQUESTS / rate, LEAST_S, MOST_S))
    instances = deployment(setting, workers, rate)
    pieces = _pieces(setting, workers, instances)
    runtimes = pieces.runtimes
    if setting.truth is not None:
        runtimes = tuple(
            dataclasses.replace(r, truth=tuple((n, rows, ms * factor) for n, rows, ms in r.points))
            for r, factor in zip(runtimes, setting.truth, strict=True)
        )
    if setting.inflight is not None:
        runtimes = tuple(dataclasses.replace(r, inflight_limit=setting.inflight) for r in runtimes)
    bursts = setting.arrivals == "twitter-bursty"
    workload = make_workload(
        arrivals=setting.arrivals,
        rate=rate,
        duration_s=duration_s,
        length=setting.length,
        rescale=512 if setting.length != "paper" else None,
        drift=setting.drift,
        burst=setting.burst if bursts else None,
        sojourn_ms=setting.sojourn_ms if bursts else None,
        seed=seed,
    )
    fields: dict[str, Any] = {
        "name": f"{setting.name} {workers} {load:.2f} {policy}",
        "runtimes": runtimes,
        "dispatch": Dispatch(policy=policy),
        "faults": _faults(setting, workers, duration_s),
        "noise_cv": setting.noise_cv,
        "hop_out_ms": setting.hop_ms,
        "hop_back_ms": setting.hop_ms,
        "warmup_s": WARM * duration_s,
        "interval_s": duration_s,
        "seed": seed,
    }
    made: Scenario = pieces.scenario(workload, **fields)
    return made


def _faults(setting: Setting, workers: int, duration_s: float) -> tuple[Fault, ...]:
    """Of workers drawn once; never of the last, which may be the only one for the longest requests."""
    drawn = np.random.default_rng(3).permutation(workers - 1).tolist()
    share, factor = setting.slow
    faults = [Fault(at_s=0.0, worker=worker, kind="slow", factor=factor) for worker in drawn[: round(share * workers)]]
    for place, worker in enumerate(drawn[: round(setting.failing * workers)]):
        at_s = 0.3 * duration_s + 0.001 * place
        faults.append(Fault(at_s=at_s, worker=worker, kind="fail", restart_s=0.2 * duration_s))
    return tuple(faults)


@dataclasses.dataclass(frozen=True)
class OnlyLong:
    """The requests of a workload that are above a length, each as short as can be: any instance takes them."""

    workload: Workload
    above: int

    @property
    def name(self) -> str:
        """As of the workload."""
        return f"{self.workload.name} above {self.above}"

    @property
    def duration_s(self) -> float:
        """As of the workload."""
        return self.workload.duration_s

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """The requests above the length."""
        for arrived, length in self.workload.chunks():
            kept = length > self.above
            yield arrived[kept], np.ones(int(kept.sum()), np.int32)

    def describe(self) -> str:
        """As of the workload."""
        return self.workload.describe()


def relaxed(whole: Scenario, level: int) -> Scenario | None:
    """What only the requests of `level` and above would see, any of which may run on all of these levels' instances.

    No policy serves them quicker on average with the others there: it could ignore the others. None: no instances.
    """
    start = whole.allocate.start
    assert isinstance(start, tuple), "the study's deployments are fixed"
    if sum(start[level:]) == 0:
        return None
    return dataclasses.replace(
        whole,
        name=f"{whole.name} relaxed {level}",
        workload=OnlyLong(whole.workload, 64 * level),
        runtimes=whole.runtimes[level:],
        workers=sum(start[level:]),
        allocate=dataclasses.replace(whole.allocate, start=start[level:]),
        dispatch=Dispatch(policy="late"),
    )
