"""The control plane's metrics: one table, read from ControlStatus, so /metrics and /status cannot disagree.

docs/metrics.md is generated from METRICS. Values are read when Prometheus scrapes; nothing is counted here. There is
no histogram of solve times: the status keeps only the last plans, and plans are minutes apart, so a gauge of the last
one loses nothing at any usual scrape interval.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from arlo.control.http.status import (
    COUNTERS,
    ControlStatus,
    ModelStatus,
    PlanRecord,
    RuntimeStatus,
    State,
    WorkerStep,
)

Samples = Iterable[tuple[tuple[str, ...], float]]  # label values, value
WORKER_STATES = ("starting", "ready", "failed", "stopped")


@dataclasses.dataclass(frozen=True, slots=True)
class ControlMetric:
    """One metric. `name` has no prefix and includes the unit; a counter's ends in `_total`."""

    name: str
    help: str
    samples: Callable[[ControlStatus], Samples]
    labels: tuple[str, ...] = ()
    prefix: str = "arlo_control"

    @property
    def full_name(self) -> str:
        """The name that Prometheus sees."""
        return f"{self.prefix}_{self.name}"

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """The metric's type."""
        return "counter" if self.name.endswith("_total") else "gauge"

    def family(self, status: ControlStatus | None) -> Metric:
        """The current samples; none without a status."""
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.full_name, self.help, labels=self.labels)
        for labels, value in self.samples(status) if status is not None else ():
            family.add_metric(labels, value)
        return family


def _one(value: Callable[[ControlStatus], float]) -> Callable[[ControlStatus], Samples]:
    return lambda status: [((), float(value(status)))]


def _last(value: Callable[[PlanRecord], float]) -> Callable[[ControlStatus], Samples]:
    return lambda status: [((), float(value(status.plans[-1])))] if status.plans else []


def _by_runtime(value: Callable[[RuntimeStatus], float]) -> Callable[[ControlStatus], Samples]:
    """Samples for each model's runtimes; runtimes that all models share are listed for each model."""
    return lambda status: [
        ((model.name, runtime.name, str(runtime.max_length)), float(value(runtime)))
        for model in status.each_model
        for runtime in model.runtimes
    ]


def _instances(count: Callable[[ControlStatus], dict[str, int]]) -> Callable[[ControlStatus], Samples]:
    """Every runtime that may be allocated, with 0 for absent ones; then those that may no longer be allocated."""

    def samples(status: ControlStatus) -> Samples:
        counts = count(status)
        yield from _by_runtime(lambda runtime: counts.get(runtime.name, 0))(status)
        known = {runtime.name for model in status.each_model for runtime in model.runtimes}
        yield from ((("", name, ""), float(counts[name])) for name in counts if name not in known)

    return samples


def _bins(values: Callable[[ModelStatus], list[float]]) -> Callable[[ControlStatus], Samples]:
    """Samples by model and by the ends of its length bins."""
    return lambda status: [
        ((model.name, str(length)), value)
        for model in status.each_model
        for length, value in zip(model.lengths, values(model), strict=False)
    ]


def _one_hot(
    words: tuple[str, ...], current: Callable[[ControlStatus], list[str]]
) -> Callable[[ControlStatus], Samples]:
    """The number of `current` equal to each word; every word is listed, so that an alert can compare with 0."""

    def samples(status: ControlStatus) -> Samples:
        now = current(status)
        return [((word,), float(now.count(word))) for word in dict.fromkeys([*words, *now])]

    return samples


def _counter(name: str) -> Callable[[ControlStatus], Samples]:
    return _one(lambda status: status.counters.get(name, 0))


METRICS: tuple[ControlMetric, ...] = (
    ControlMetric(
        "state",
        "1 for the state that the control plane is in, 0 for the others.",
        _one_hot(get_args(State), lambda status: [status.state]),
        ("state",),
    ),
    ControlMetric(
        "start_time_seconds", "Start of the control plane, Unix time.", _one(lambda status: status.started_at_ms / 1000)
    ),
    ControlMetric(
        "gateway_up", "1 while the gateway answers the control plane.", _one(lambda status: status.gateway_up)
    ),
    ControlMetric(
        "deployment_version",
        "Version of the deployment that the gateway was given last; 0: none.",
        _one(lambda status: status.deployment_version),
    ),
    ControlMetric(
        "slo_seconds",
        "The SLO of the model, that plans are made for.",
        lambda status: [((model.name,), model.slo_ms / 1000) for model in status.each_model],
        ("model",),
    ),
    ControlMetric(
        "reallocate",
        "1 when the allocation follows the demand, 0 when that of the configuration stays.",
        _one(lambda status: status.reallocate),
    ),
    ControlMetric("period_seconds", "Time between two plans.", _one(lambda status: status.period_s)),
    ControlMetric(
        "next_plan_seconds", "Time until the next plan is due.", _one(lambda status: max(0.0, status.next_plan_in_s))
    ),
    ControlMetric(
        "desired_instances",
        "Instances of the runtime that are wanted; of one that all models share, for each of them.",
        _instances(lambda status: status.desired),
        ("model", "runtime", "max_length"),
    ),
    ControlMetric(
        "observed_instances",
        "Instances of the runtime that serve; of one that all models share, for each of them.",
        _instances(lambda status: status.observed),
        ("model", "runtime", "max_length"),
    ),
    ControlMetric(
        "runtime_capacity",
        "Requests of the model that one instance of the runtime finishes within the SLO.",
        _by_runtime(lambda runtime: runtime.capacity),
        ("model", "runtime", "max_length"),
    ),
    ControlMetric(
        "runtime_latency_seconds",
        "Latency of one request of max_length, from the latency profile.",
        _by_runtime(lambda runtime: runtime.latency_ms / 1000),
        ("model", "runtime", "max_length"),
    ),
    ControlMetric(
        "demand_requests",
        "Demand of the model's length bin that ends at max_length: requests per SLO period, mean over the window.",
        _bins(lambda model: model.demand),
        ("model", "max_length"),
    ),
    ControlMetric(
        "demand_peak_requests",
        "The same in the busiest part of the window.",
        _bins(lambda model: model.demand_peak),
        ("model", "max_length"),
    ),
    ControlMetric(
        "workers",
        "Workers by the state of their process.",
        _one_hot(WORKER_STATES, lambda status: [worker.state for worker in status.workers]),
        ("state",),
    ),
    ControlMetric(
        "workers_at_step",
        "Workers by where they are on the way to the runtime that they should have.",
        _one_hot(get_args(WorkerStep), lambda status: [worker.step for worker in status.workers]),
        ("step",),
    ),
    ControlMetric(
        "worker_step_seconds",
        "Time that the worker has been at its step.",
        lambda status: [((w.id, w.step), max(0.0, (status.at_ms - w.step_since_ms) / 1000)) for w in status.workers],
        ("worker", "step"),
    ),
    ControlMetric(
        "worker_serves",
        "1 for the runtime of the worker that the gateway sends to.",
        lambda status: [((w.id, w.serving), 1.0) for w in status.workers if w.serving is not None],
        ("worker", "runtime"),
    ),
    ControlMetric(
        "worker_process_restarts_total",
        "Restarts of the worker's process since it joined the pool.",
        lambda status: [((w.id,), float(w.restarts)) for w in status.workers],
        ("worker",),
    ),
    ControlMetric(
        "last_plan_age_seconds",
        "Time since the last plan; absent before the first.",
        lambda status: [((), max(0.0, (status.at_ms - status.plans[-1].at_ms) / 1000))] if status.plans else [],
    ),
    ControlMetric(
        "last_plan_solve_seconds",
        "Time that the solver took for the last plan.",
        _last(lambda plan: plan.solve_ms / 1000),
    ),
    ControlMetric(
        "last_plan_predicted_mean_seconds",
        "Mean latency that the last plan predicts for the demand that it was made for.",
        _last(lambda plan: plan.predicted_mean_ms / 1000),
    ),
    ControlMetric(
        "last_plan_changed_workers",
        "Workers that the last plan gives another runtime.",
        _last(lambda plan: plan.changed),
    ),
    ControlMetric(
        "last_plan_info",
        "1, with why the last plan was made and what made it.",
        lambda status: [((p.reason, p.solver, p.objective), 1.0) for p in status.plans[-1:]],
        ("reason", "solver", "objective"),
    ),
    ControlMetric(
        "scaling_info", "1, with the policy of scaling.", lambda status: [((status.scaling.policy,), 1.0)], ("policy",)
    ),
    ControlMetric("scaling_workers", "Workers that scaling counts.", _one(lambda status: status.scaling.workers)),
    ControlMetric(
        "scaling_minimum_workers", "Scaling keeps at least these.", _one(lambda status: status.scaling.minimum)
    ),
    ControlMetric(
        "scaling_maximum_workers", "Scaling keeps at most these.", _one(lambda status: status.scaling.maximum)
    ),
    ControlMetric(
        "joules_per_request",
        "Energy of all workers' devices, idle time included, over the rows that arrived in the last minute; absent "
        "where it is not known, or none arrived.",
        lambda status: (
            [((status.energy.source,), status.energy.joules_per_request)]
            if status.energy is not None and status.energy.joules_per_request is not None
            else []
        ),
        ("source",),
        prefix="arlo_cascade",
    ),
    ControlMetric(
        "joules_total",
        "The same energy since the control plane's start; absent where it is not known.",
        lambda status: [((status.energy.source,), status.energy.joules)] if status.energy is not None else [],
        ("source",),
        prefix="arlo_cascade",
    ),
    *(ControlMetric(f"{name}_total", f"{text}.", _counter(name)) for name, text in COUNTERS.items()),
)


class ControlCollector(Collector):
    """Reads a fresh ControlStatus at every scrape."""

    def __init__(self, status: Callable[[], ControlStatus]) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """The metric names, for a scrape that asks for some of them."""
        return [metric.family(None) for metric in METRICS]

    def collect(self) -> Iterator[Metric]:
        """All of METRICS."""
        status = self._status()
        for metric in METRICS:
            yield metric.family(status)


def make_registry(status: Callable[[], ControlStatus]) -> CollectorRegistry:
    """The control plane's metrics, and the `process_*` metrics of this process (CPU, memory, files)."""
    registry = CollectorRegistry()
    registry.register(ControlCollector(status))
    ProcessCollector(registry=registry)
    return registry
