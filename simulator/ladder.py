"""The runtimes of a scenario by number, in the order in which the scenario and the engine have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from arlo.catalog.bundle import load_ms
from arlo.errors import ConfigError
from arlo.planning.planner import PlannerSettings
from arlo.planning.serving import planner_for
from arlo.planning.view import RuntimeView
from arlo.simulator.profiles import capacity
from arlo.simulator.scenario.scenario import RuntimeModel, Scenario

# A limit in wall time is the one thing that could make two runs differ: far above what the solvers need.
TIME_LIMIT_S = 60.0


class Ladder:
    """Numbers, names and lengths of runtimes, and the runtimes that workers get without a plan."""

    def __init__(self, scenario: Scenario) -> None:
        models = scenario.runtimes
        if not models:
            raise ConfigError("a scenario needs at least one runtime")
        if len({model.name for model in models}) != len(models):
            raise ConfigError(f"runtimes need names of their own: {', '.join(model.name for model in models)}")
        self.names = tuple(model.name for model in models)
        self.index = {name: index for index, name in enumerate(self.names)}
        slos = [slo_ms for _, slo_ms in scenario.of_runtimes()]
        self.capacities = tuple(capacity(model, slo_ms) for model, slo_ms in zip(models, slos, strict=True))  # M
        # Runtimes that a worker holds together, named and numbered like more runtimes.
        self.bundles = _bundles(scenario)
        # Until a worker has loaded each; None: the profile does not know.
        self.load_ms = (
            *(model.load_ms for model in models),
            *(load_ms([models[i] for i in members]) for members in self.bundles.values()),
        )
        order = sorted(range(len(models)), key=lambda i: (models[i].max_length, models[i].dynamic, i))
        self.ascending = tuple(order)  # by max_length, a dynamic runtime after a static one
        self.max_length = max(model.max_length for model in models)
        self.views = [
            RuntimeView(name=self.names[i], max_length=models[i].max_length, capacity=self.capacities[i])
            for i in self.ascending
        ]
        start = scenario.allocate.start
        any_static = any(not model.dynamic for model in models)
        # Unplanned instances: dynamic runtimes next to static ones.
        self.beside = tuple(
            start[i] if model.dynamic and any_static and not isinstance(start, str) and i < len(start) else 0
            for i, model in enumerate(models)
        )
        settings = _settings(scenario, sum(self.beside))
        planner = scenario.served.planner(settings, scenario) if scenario.served is not None else None
        self.planner = planner if planner is not None else planner_for(settings, _of_first(scenario))
        if not self.bundles:
            self.static = tuple(self.index[runtime.name] for runtime in self.planner.planned)
            self.longest = self.static[-1] if self.static else order[-1]
            return
        self.ascending = tuple(range(len(models), len(models) + len(self.bundles)))
        self.names, self.beside = (*self.names, *self.bundles), (*self.beside, *[0] * len(self.bundles))
        self.index |= {self.names[i]: i for i in self.ascending}
        longest = [max(members, key=lambda i: models[i].max_length) for members in self.bundles.values()]
        self.views = [
            RuntimeView(name=name, max_length=models[i].max_length, capacity=self.capacities[i])
            for name, i in zip(self.bundles, longest, strict=True)
        ]
        self.static = tuple(self.index[runtime.name] for runtime in planner.planned) if planner is not None else ()
        self.longest = self.index[max(self.views, key=lambda view: view.max_length).name]

    def even(self, workers: int) -> tuple[int, ...]:
        """Counts as equal as possible, the longest first; over the static runtimes if there are any."""
        counts = [0] * len(self.names)
        among = self.static or self.ascending
        for turn in range(workers):
            counts[among[-1 - turn % len(among)]] += 1
        return tuple(counts)

    def given(self, counts: Sequence[int], workers: int) -> tuple[int, ...]:
        """A `start` in numbers, checked; where workers hold bundles, it is of these."""
        counts = (*[0] * (len(self.names) - len(counts)), *counts) if len(counts) == len(self.bundles) else counts
        if len(counts) != len(self.names) or min(counts) < 0 or sum(counts) != workers:
            raise ConfigError(
                f"a start needs one number of instances for each of the {len(self.names)} runtimes, {workers} in all, "
                f"not {list(counts)}"
            )
        return tuple(counts)

    def with_beside(self, static: Sequence[int]) -> tuple[int, ...]:
        """Instances of each runtime, from those of the static ones."""
        counts = list(self.beside)
        for i, instances in zip(self.static, static, strict=True):
            counts[i] += instances
        return tuple(counts)

    def quantities(self, demand: Sequence[float]) -> list[float]:
        """Demand for each of `views`, from that of the static runtimes: what orders the steps of a replacement."""
        found: Mapping[str, float] = self.planner.subject.by_runtime(demand) if demand else {}
        return [found.get(self.names[i], 0.0) for i in self.ascending]


def _bundles(scenario: Scenario) -> dict[str, tuple[int, ...]]:
    """Numbers of runtimes that are held together, by name. Of a variant: its runtimes are VARIANT/LENGTH."""
    if scenario.bundle == "one":
        return {}
    if scenario.bundle == "all":
        return {"all": tuple(range(len(scenario.runtimes)))}
    found: dict[str, tuple[int, ...]] = {}
    for i, runtime in sorted(enumerate(scenario.runtimes), key=lambda pair: pair[1].variant):
        name = runtime.name.rpartition("/")[0]
        found[name] = (*found.get(name, ()), i)
    return found


def _of_first(scenario: Scenario) -> Sequence[RuntimeModel]:
    """Those of the first model; for several there are no plans."""
    if scenario.models:
        return scenario.runtimes[: scenario.models[0].runtimes]
    return [runtime for runtime in scenario.runtimes if runtime.variant == 0]


def _settings(scenario: Scenario, beside: int) -> PlannerSettings:
    allocate = scenario.allocate
    return PlannerSettings(
        slo_ms=float(scenario.slo_ms),
        policy=scenario.dispatch.policy,
        objective=allocate.objective,
        solver=allocate.solver,
        solver_time_limit_s=TIME_LIMIT_S,
        window_s=allocate.period_s,
        min_gain=allocate.min_gain,
        early=allocate.shift and allocate.kind == "periodic",
        dynamic=beside,
        load_window_s=scenario.scale.window_s,
        period_s=allocate.period_s,
    )
