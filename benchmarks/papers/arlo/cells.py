"""Building blocks of experiments: simulated clusters, run in parallel over processes."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from arlo.simulator.profiles import Profile, load_profile
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Scenario
from arlo.simulator.scenario.schemes import SCHEMES, runtimes_of, scheme
from arlo.traces import make_workload
from arlo.traces.workloads import Workload

Key = TypeVar("Key", bound=Hashable)
ORDER = tuple(SCHEMES)  # st, dt, infaas, paper, arlo
PAPERS = ("st", "dt", "infaas", "paper")


class Context:
    """The settings of an experiment's run: short or whole, and the number of processes."""

    def __init__(self, *, short: bool = False, jobs: int = 1) -> None:
        self.short = short
        self.jobs = jobs
        self.progress: Callable[[int, int], None] | None = None  # called with the runs done and their total
        self._pool: ProcessPoolExecutor | None = None
        self._asked = self._done = 0
        self.simulated = 0  # requests

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def pick(self, whole: Any, short: Any) -> Any:
        """A value for the whole run or for the short one."""
        return short if self.short else whole

    def simulate(self, scenarios: Mapping[Key, Scenario]) -> dict[Key, Result]:
        """All scenarios; the results by their keys, in their order."""
        self._asked += len(scenarios)
        if self.jobs <= 1:
            found = {}
            for key, scenario in scenarios.items():
                found[key] = self._took(run(scenario))
            return found
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.jobs, mp_context=multiprocessing.get_context("spawn"))
        # The longest first, so that the processes end together.
        order = sorted(scenarios, key=lambda key: -_requests(scenarios[key]))
        futures = {self._pool.submit(run, scenarios[key]): key for key in order}
        done: dict[Key, Result] = {}
        waiting = set(futures)
        while waiting:
            ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                done[futures[future]] = self._took(future.result())
        return {key: done[key] for key in scenarios}

    def _took(self, result: Result) -> Result:
        self._done += 1
        self.simulated += result.requests
        if self.progress is not None:
            self.progress(self._done, self._asked)
        return result


def _requests(scenario: Scenario) -> float:
    expected = getattr(scenario.workload, "expected", None)
    return float(expected()) if expected is not None else scenario.workload.duration_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """The setting of one of the paper's figures: a model, a trace and a number of GPUs. None: the part's default."""

    model: str
    arrivals: str  # twitter-stable or twitter-bursty
    rate: float  # requests per second
    workers: int
    duration_s: float
    length: str | None = None
    rescale: int | None = None  # 125 tokens become so many
    drift: str | None = None
    burst: float | None = None
    sojourn_ms: float | str | None = None
    segment: str | None = None
    overhead_ms: float = 0.8
    seed: int = 1

    def profile(self) -> Profile:
        """Latencies of the model."""
        return load_profile(self.model)

    def workload(self) -> Workload:
        """The trace."""
        bursts = self.arrivals == "twitter-bursty"
        return make_workload(
            arrivals=self.arrivals,
            rate=self.rate,
            duration_s=self.duration_s,
            length=self.length,
            rescale=self.rescale,
            drift=self.drift,
            burst=self.burst if bursts else None,
            sojourn_ms=self.sojourn_ms if bursts else None,
            segment=self.segment,
            seed=self.seed,
        )

    def scenario(self, name: str, *, max_lengths: Sequence[int] = (), **fields: Any) -> Scenario:
        """A scheme on this cluster. `fields`: Scenario's, in place of the scheme's."""
        profile = self.profile()
        own: dict[str, Any] = {
            "name": SCHEMES[name],
            "workload": self.workload(),
            "runtimes": runtimes_of(name, profile, max_lengths),
            "workers": self.workers,
            "slo_ms": profile.slo_ms,
            "overhead_ms": self.overhead_ms,
            "seed": self.seed,
        }
        return Scenario(**{**own, **scheme(name), **fields})

    def but(self, **changes: Any) -> Cluster:
        """A copy with changed fields."""
        return dataclasses.replace(self, **changes)

    def counts(self) -> np.ndarray[Any, Any]:
        """Requests by length, of the first requests of the trace: 200,000 of them where there are so many."""
        profile = self.profile()
        lengths: list[np.ndarray[Any, Any]] = []
        for _, length in self.workload().chunks():
            lengths.append(length)
            if sum(map(len, lengths)) >= 200_000:
                break
        return np.bincount(np.concatenate(lengths), minlength=profile.max_length + 1)

    def ideal_ms(self, max_lengths: Sequence[int] | None = None) -> tuple[float, float]:
        """Mean over the lengths of the static latency on the ideal runtime, and of the dynamic one: no queueing."""
        profile, count = self.profile(), self.counts()
        tops = max_lengths or range(profile.step, profile.max_length + 1, profile.step)
        static = dynamic = 0.0
        for length in np.flatnonzero(count).tolist():
            static += count[length] * profile.static_ms(next(top for top in tops if top >= length))
            dynamic += count[length] * profile.dynamic_ms(length)
        return static / count.sum(), dynamic / count.sum()

    def busy(self, ms: float) -> float:
        """Utilisation of the cluster if a request takes `ms`."""
        return self.rate * ms / 1000 / self.workers
