"""How many instances of each runtime: the planner that serves (arlo.planning), given a scenario's runtimes.

`Planner` turns a demand into instances. `Foresight` reads a workload ahead of the simulation and says the demand of a
span of it, for the allocations that know what the real control plane cannot know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.planning.allocation.problem import Allocation, AllocationProblem, LatencyCurve, Variation, flow
from arlo.planning.allocation.queueing import burst_factor, predicted_mean_ms
from arlo.planning.allocation.solve import allocate_or_keep, make_solver
from arlo.planning.traffic.demand import Demand, DemandWindow
from arlo.planning.view import RuntimeView
from arlo.simulator.profiles import capacity, latency_curve
from arlo.simulator.scenario.scenario import RuntimeModel, Scenario, Workload

SECOND_NS = 1_000_000_000
SAMPLE_NS = SECOND_NS  # between two looks at the arrival counters
# A limit in wall time is the one thing that could make two runs differ: far above what the solvers need.
TIME_LIMIT_S = 60.0
BURST_POLICIES = ("eft", "late")  # of which the control plane tells the solver how bursty the arrivals are


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """The demand of a span of time, and how much its arrivals vary from second to second."""

    demand: Demand
    dispersion: float | None  # of all requests, see DemandWindow.dispersion
    variation: Variation | None = None  # see DemandWindow.variation


class Planner:
    """Allocations for the scenario's runtimes. Its state is the last allocation, kept for a solver that fails.

    Demand is planned for the static runtimes; of several with one max_length, for the quickest. Dynamic runtimes beside
    static ones keep the instances that a `start` in numbers gives them, and have none otherwise. Without static
    runtimes there is nothing to solve: the workers are shared evenly.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        models = scenario.runtimes
        if not models:
            raise ConfigError("a scenario needs at least one runtime")
        if len({model.name for model in models}) != len(models):
            raise ConfigError(f"runtimes need names of their own: {', '.join(model.name for model in models)}")
        self.names = tuple(model.name for model in models)
        self.index = {name: index for index, name in enumerate(self.names)}
        self.capacities = tuple(capacity(model, scenario.slo_ms) for model in models)  # M
        self.static = _planned(models)
        self.lengths = tuple(models[i].max_length for i in self.static)
        self._curves: tuple[LatencyCurve, ...] = tuple(latency_curve(models[i]) for i in self.static)
        order = sorted(range(len(models)), key=lambda i: (models[i].max_length, models[i].dynamic, i))
        self.ascending = tuple(order)  # by max_length, a dynamic runtime after a static one
        self.longest = self.static[-1] if self.static else order[-1]
        self.max_length = max(model.max_length for model in models)
        # What a request of a length takes on its ideal runtime: bins that end at load_lengths, and their times.
        self.load_lengths, self.load_s = self._loads(models[self.longest])
        allocate = scenario.allocate
        self._solver = make_solver(allocate.solver, objective=allocate.objective, policy=scenario.dispatch.policy)
        self._last: Allocation | None = None
        self.solved = 0

    def views(self) -> list[RuntimeView]:
        """The runtimes as the replacement planner takes them, by ascending max_length."""
        models = self._scenario.runtimes
        return [
            RuntimeView(name=self.names[i], max_length=models[i].max_length, capacity=self.capacities[i])
            for i in self.ascending
        ]

    def quantities(self, demand: Demand | None) -> list[float]:
        """Demand for each of views(): what orders the steps of a replacement."""
        found = [0.0] * len(self.names)
        if demand is not None and self.static:
            for i, requests in zip(self.static, demand.mean, strict=True):
                found[i] = requests
        return [found[i] for i in self.ascending]

    def window(self, window_s: float, resolution_s: float = 1.0) -> DemandWindow:
        """An empty window of the arrival counters, that begins at 0 s."""
        window = DemandWindow(window_s=window_s, resolution_s=resolution_s)
        window.add(0.0, 0, [0])
        return window

    def clip(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Arrivals by length without those that no runtime takes."""
        return counts[: self.max_length + 1]

    def seen(self, window: DemandWindow, *, since_s: float | None = None) -> Seen:
        """The demand of a window."""
        demand = window.estimate(self.lengths, self._scenario.slo_ms, since_s=since_s)
        return self.seen_of(demand, window)

    def seen_of(self, demand: Demand, window: DemandWindow) -> Seen:
        """A demand, with how the arrivals vary in a window."""
        return Seen(demand, window.dispersion(self.lengths[-1:]), window.variation(self.lengths))

    def even(self, workers: int) -> tuple[int, ...]:
        """As equal as possible, the longest first; over the static runtimes where there are any."""
        counts = [0] * len(self.names)
        among = self.static or self.ascending
        for turn in range(workers):
            counts[among[-1 - turn % len(among)]] += 1
        return tuple(counts)

    def given(self, counts: Sequence[int], workers: int) -> tuple[int, ...]:
        """A `start` in numbers, checked."""
        if len(counts) != len(self.names) or min(counts) < 0 or sum(counts) != workers:
            raise ConfigError(
                f"a start needs one number of instances for each of the {len(self.names)} runtimes, {workers} in all, "
                f"not {list(counts)}"
            )
        return tuple(counts)

    def dynamic(self) -> tuple[int, ...]:
        """Instances that are not planned: those of dynamic runtimes beside static ones."""
        start = self._scenario.allocate.start
        counts = [0] * len(self.names)
        if self.static and not isinstance(start, str):
            for i, model in enumerate(self._scenario.runtimes):
                counts[i] = start[i] if model.dynamic and i < len(start) else 0
        return tuple(counts)

    def problem(self, workers: int, seen: Seen) -> AllocationProblem:
        """The allocation problem of `workers` static instances."""
        burst = 1.0
        if self._scenario.dispatch.policy in BURST_POLICIES:
            burst = burst_factor(seen.demand.pooled(), seen.dispersion, slo_ms=self._scenario.slo_ms)
        return AllocationProblem(
            workers,
            float(self._scenario.slo_ms),
            self.lengths,
            self._curves,
            seen.demand.mean,
            burst=burst,
            variation=seen.variation,
        )

    def solve(self, workers: int, seen: Seen) -> tuple[int, ...]:
        """Instances of each runtime for a demand."""
        beside = self.dynamic()
        free = workers - sum(beside)
        if not self.static or free < 1:
            return self.even(workers)
        if len(self.static) == 1:
            found: Sequence[int] = (free,)
        else:
            allocation, _ = allocate_or_keep(
                self.problem(free, seen), self._solver, self._last, time_limit_s=TIME_LIMIT_S
            )
            self._last, found = allocation, allocation.instances
            self.solved += 1
        counts = list(beside)
        for i, instances in zip(self.static, found, strict=True):
            counts[i] += instances
        return tuple(counts)

    def gain(self, now: Sequence[int], best: Sequence[int], seen: Seen) -> float:
        """Share of the predicted mean latency that `best` saves over `now`; 1 where `now` serves no long request."""
        before, after = self._mean_ms(now, seen), self._mean_ms(best, seen)
        if before == float("inf"):
            return 1.0
        return 1 - after / before if before > 0 else 0.0

    def _mean_ms(self, counts: Sequence[int], seen: Seen) -> float:
        instances = [counts[i] for i in self.static]
        if not instances or not instances[-1]:
            return float("inf")
        problem = self.problem(sum(instances), seen)
        if self._scenario.allocate.objective == "queueing":
            return predicted_mean_ms(problem, instances, policy=self._scenario.dispatch.policy)
        return flow(problem, instances).mean_ms

    def _loads(self, longest: RuntimeModel) -> tuple[tuple[int, ...], NDArray[np.float64]]:
        if self.static:
            return self.lengths, np.array([item.batch_ms(1) for item in self._curves]) / 1000
        lengths = tuple(sorted({length for length, _, _ in longest.points}))  # that its latency was measured at
        return lengths, np.array([latency_curve(longest, length).batch_ms(1) for length in lengths]) / 1000


def _planned(models: Sequence[RuntimeModel]) -> tuple[int, ...]:
    """The static runtimes by ascending max_length; of several with the same one, that with the most rows per second."""
    best: dict[int, int] = {}
    for i, model in enumerate(models):
        other = best.get(model.max_length)
        if not model.dynamic and (other is None or _row_ms(model) < _row_ms(models[other])):
            best[model.max_length] = i
    return tuple(i for _, i in sorted(best.items()))


def _row_ms(model: RuntimeModel) -> float:
    full = latency_curve(model)
    return full.points[-1][1] / full.max_batch


class Foresight:
    """The demand of spans of a workload, read ahead of the simulation; spans in ascending order."""

    def __init__(self, planner: Planner, workload: Workload) -> None:
        self._planner = planner
        self._seconds = _by_second(workload, planner.max_length)
        self._duration_s = workload.duration_s
        self._held: tuple[int, NDArray[np.int64]] | None = None  # read, but not asked for yet

    def span(self, begin_ns: int, end_ns: int) -> Seen:
        """Demand of [begin, end), cut at the workload's end, in whole seconds of its clock: those that begin in it."""
        begin_s = begin_ns / SECOND_NS
        end_s = max(min(end_ns / SECOND_NS, self._duration_s), begin_s + 1e-9)
        window = DemandWindow(window_s=end_s - begin_s)
        total = np.zeros(self._planner.max_length + 1, np.int64)
        window.add(begin_s, 0, total)  # type: ignore[arg-type]  # an array is a sequence of ints to it
        for second, counts in self._until(end_s):
            if second >= begin_s:
                total = total + counts
                window.add(min(second + 1.0, end_s), 0, total)  # type: ignore[arg-type]
        window.add(end_s, 0, total)  # type: ignore[arg-type]
        return self._planner.seen(window)

    def _until(self, end_s: float) -> Iterator[tuple[int, NDArray[np.int64]]]:
        while True:
            item = self._held if self._held is not None else next(self._seconds, None)
            self._held = None
            if item is None:
                return
            if item[0] >= end_s:
                self._held = item
                return
            yield item


def _by_second(workload: Workload, max_length: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Seconds with arrivals, ascending, and the arrivals in them by length; those that no runtime takes left out."""
    current, counts = 0, np.zeros(max_length + 1, np.int64)
    for arrived, length in workload.chunks():
        seconds = arrived // SECOND_NS
        edges = np.flatnonzero(np.diff(seconds)) + 1
        for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(seconds)], strict=True):
            if begin == end:
                continue
            if seconds[begin] != current:
                yield current, counts
                current, counts = int(seconds[begin]), np.zeros(max_length + 1, np.int64)
            some = length[begin:end]
            counts += np.bincount(some[(some > 0) & (some <= max_length)], minlength=max_length + 1)
    yield current, counts
