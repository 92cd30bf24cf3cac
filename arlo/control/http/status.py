"""The control plane's status: the document behind `/status`, `arlo top` and the control metrics.

Values only. Times are Unix milliseconds or seconds as named; runtimes are named as in the manifest.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from arlo.catalog.structured import structured

# A worker's progress towards the runtime it should have. In order, except for `waiting`, `recycling` and `failed`;
# `warming`: the runtime answers its first requests, and the answers are checked.
WorkerStep = Literal[
    "steady", "waiting", "draining", "unloading", "loading", "warming", "joining", "recycling", "failed"
]
State = Literal["starting", "serving", "replacing", "degraded"]


@dataclasses.dataclass(slots=True, kw_only=True)
class RuntimeStatus:
    """One runtime that may be allocated."""

    name: str
    max_length: int
    max_batch: int
    dynamic: bool
    latency_ms: float  # of one request of max_length
    capacity: int  # M within the SLO
    model: str = ""  # the model it belongs to, where each of several has separate workers


@dataclasses.dataclass(slots=True, kw_only=True)
class ModelStatus:
    """One of several models; its times are counted against its own SLO."""

    name: str
    slo_ms: int
    share: float
    runtimes: list[RuntimeStatus]  # as this model sees them: all models may share them
    lengths: list[int]  # upper ends of its length bins, ascending
    latency_ms: list[float]  # latency of one request of each of these lengths
    capacity: list[int]  # M of each of these lengths
    demand: list[float]  # now, requests per SLO period of this model, by `lengths`
    demand_peak: list[float]


@dataclasses.dataclass(slots=True, kw_only=True)
class WorkerStatus:
    """One worker."""

    id: str
    endpoint: str
    state: str  # of its process: starting, ready, failed, stopped
    desired: str | None  # the runtime it should have
    serving: str | None  # the runtime that the gateway sends to
    loaded: list[str]
    step: WorkerStep
    step_since_ms: int
    restarts: int
    error: str | None


@dataclasses.dataclass(slots=True, kw_only=True)
class PlanRecord:
    """One decision of the runtime scheduler."""

    at_ms: int
    reason: str  # start, period, shift, point, scale_out, scale_in, worker_lost, worker_back, restored
    instances: dict[str, int]  # runtime -> how many, as planned
    changed: int  # workers that change their runtime for this plan
    moved: bool  # False: the gain did not pay for the move, or nothing had to change
    demand: list[float]  # requests per SLO period, by ascending max_length of `runtimes`
    predicted_mean_ms: float
    solver: str
    objective: str  # paper, queueing
    solve_ms: float
    note: str  # why not moved, why infeasible, which fallback; empty otherwise
    gain: float | None = (
        None  # share by which the predicted mean is below that of the allocation in force; None: unknown
    )
    # With several models: total requests per SLO period of each; `demand` is then by model and length, ascending, in
    # SLO periods of the first.
    demand_by_model: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, kw_only=True)
class ScalingStatus:
    """Auto-scaling."""

    policy: str  # none, target, headroom
    workers: int
    minimum: int
    maximum: int
    last_action: str  # add w4, remove w2; empty: none yet
    last_reason: str
    last_at_ms: int  # 0: never


@dataclasses.dataclass(slots=True, kw_only=True)
class EnergyStatus:
    """Energy cost of a cascade's answers: all workers' devices, idle time included, over the rows that arrived."""

    source: str  # where the counter is read
    joules: float  # since the start
    joules_per_request: float | None  # per row, over the last minute; None: no row arrived


@dataclasses.dataclass(slots=True, kw_only=True)
class CascadeStatus:
    """The expected behaviour of the operating point in force, as searched."""

    name: str
    point: str
    reach: list[float]  # share of the rows that run on each stage; plans begin with it
    agreement: float  # share of the rows that have the last stage's answer


@dataclasses.dataclass(slots=True, kw_only=True)
class ControlStatus:
    """The complete status."""

    at_ms: int
    started_at_ms: int
    state: State
    model: str
    slo_ms: int
    gateway_admin: str  # host:port
    gateway_up: bool
    deployment_version: int
    period_s: float
    next_plan_in_s: float
    reallocate: bool
    runtimes: list[RuntimeStatus]  # ascending max_length
    desired: dict[str, int]  # desired instances per runtime
    observed: dict[str, int]  # serving instances per runtime
    workers: list[WorkerStatus]
    demand: list[float]  # now, requests per SLO period, by ascending max_length of `runtimes`
    demand_peak: list[float]
    plans: list[PlanRecord]  # the last ones, oldest first
    scaling: ScalingStatus
    counters: dict[str, int]  # see COUNTERS
    models: list[ModelStatus] = dataclasses.field(default_factory=list)  # of several, as configured; else empty
    energy: EnergyStatus | None = None  # for a cascade, where it is known
    cascade: CascadeStatus | None = None

    @property
    def each_model(self) -> list[ModelStatus]:
        """`models`, or the only one."""
        if self.models:
            return self.models
        lengths = list(dict.fromkeys(runtime.max_length for runtime in self.runtimes))
        first = {runtime.max_length: runtime for runtime in reversed(self.runtimes)}

        def binned(values: list[float]) -> list[float]:
            """Values summed over the runtimes of each length (static and dynamic)."""
            pairs = list(zip(self.runtimes, values, strict=False))
            return [sum(value for runtime, value in pairs if runtime.max_length == length) for length in lengths]

        return [
            ModelStatus(
                name=self.model,
                slo_ms=self.slo_ms,
                share=1.0,
                runtimes=self.runtimes,
                lengths=lengths,
                latency_ms=[first[length].latency_ms for length in lengths],
                capacity=[first[length].capacity for length in lengths],
                demand=binned(self.demand),
                demand_peak=binned(self.demand_peak),
            )
        ]

    def to_json(self) -> dict[str, Any]:
        """The status as JSON-serialisable values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ControlStatus:
        """The reverse of to_json(). Unknown keys (a newer version) are ignored; ValueError for missing ones."""
        try:
            found: ControlStatus = structured(cls, document, ignore_unknown=True)
            return found
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a status document of this version of Arlo: {error}") from None


# Name -> help. Each grows from the control plane's start.
COUNTERS = {
    "plans": "Plans made by the runtime scheduler",
    "plan_fallbacks": "Plans for which the solver failed or ran out of time, so that the last one was kept",
    "infeasible_plans": "Plans whose demand no allocation carries within the SLO",
    "replacements": "Workers moved from one runtime to another",
    "replacement_failures": "Moves of a worker that failed and were tried again",
    "repair_failures": "Attempts to give a worker the runtime that it lacks that failed and were tried again",
    "no_room_for_two": "Times that a worker's memory did not hold two engines",
    "covers": "Times that another worker served the longest runtime for one that could not",
    "loads": "Runtimes loaded",
    "load_failures": "Loads that failed or took too long",
    "workers_added": "Workers added by auto-scaling",
    "workers_removed": "Workers removed by auto-scaling",
    "scaling_failures": "Steps of auto-scaling that failed",
    "worker_restarts": "Restarts of workers that were seen",
    "workers_recycled": "Workers restarted because their latency crept up",
    "gateway_restarts": "Restarts of the managed gateway",
    "gateway_restart_failures": "Restarts of the managed gateway that failed and were tried again",
    "loop_failures": "Loops of the control plane that failed unexpectedly and were started again",
    "drift_alarms": "Operating points whose early answers were found to differ too often from the last stage's",
    "shift_signs": "Times that lengths or confidences of a cascade's rows were no longer those of the test split",
    "deployments_applied": "Deployments that the gateway was given",
}
