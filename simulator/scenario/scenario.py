"""A scenario: everything that a simulation depends on. Frozen values, checked once, written and read as TOML.

The parts of a run: a workload (arlo.traces), latency profiles of runtimes (simulator/profiles.py), a cluster of workers
with these runtimes, a dispatch policy, and what the control plane does (simulator/control.py). A *scheme* of the paper
(ST, DT, INFaaS, Arlo) is a choice of these (simulator/scenario/schemes.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import LatencyPoint, Runtime
from arlo.config.keeping import ControlConfig, ScalingConfig
from arlo.config.model import DispatchConfig
from arlo.planning.stages import proportional
from arlo.simulator.report.result import Figures

if TYPE_CHECKING:
    from arlo import _core
    from arlo.planning.planner import PlannerSettings

AllocationKind = Literal["periodic", "even", "global", "oracle", "fixed"]
ScalingKind = Literal["none", "target", "headroom", "plan"]
REPLACEMENT_S = 1.0  # where the profile does not know how long a load takes; the paper: about 1 s
# The defaults of `arlo serve`. A simulation uses them unless its scenario, with a reason, sets others.
_SERVED, _CONTROL, _SCALING = DispatchConfig(), ControlConfig(), ScalingConfig()


class Workload(Protocol):
    """A stream of requests that can be read again and again: the same seed gives the same requests."""

    @property
    def name(self) -> str:
        """A short name."""

    @property
    def duration_s(self) -> float:
        """Seconds in which requests arrive."""

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Arrivals in order, some seconds at a time: ns from the start [n], tokens [n]. Memory is that of a chunk."""

    def describe(self) -> str:
        """One line: the parameters and where the data come from."""


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """A workload that is known: ns of the arrivals, ascending, and tokens of each (None: 1)."""

    arrived_ns: NDArray[np.int64]
    length: NDArray[np.int32] | None = None
    name: str = "listed"

    @property
    def duration_s(self) -> float:
        """Up to the last arrival."""
        return (int(self.arrived_ns[-1]) + 1) / 1e9 if len(self.arrived_ns) else 0.0

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """All at once."""
        yield self.arrived_ns, np.ones(len(self.arrived_ns), np.int32) if self.length is None else self.length

    def expected(self) -> float:
        """How many there are."""
        return float(len(self.arrived_ns))

    def describe(self) -> str:
        """One line."""
        return f"{len(self.arrived_ns)} requests in {self.duration_s:g} s"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeModel(Runtime):
    """A runtime with facts that only a simulation knows: its true latency, and limits that are set by hand."""

    max_batch: int = 1
    dynamic: bool = False
    engine: str = "simulated"
    precision: str = ""
    device: str = ""
    latency: tuple[LatencyPoint, ...] = dataclasses.field(init=False)  # as `points`
    points: tuple[tuple[int, int, float], ...]  # believed latency: (length in tokens, batch in rows, ms of the batch)
    inflight_limit: int | None = None  # rows; None: by the rule that serves, Dispatch.inflight_limit batches
    capacity: int | None = None  # M; None: by the rule that serves, from the believed latency and the SLO
    truth: tuple[tuple[int, int, float], ...] | None = None  # real latency; None: as believed
    variant: int = 0  # number of its variant, or model, among those served
    watts: float = 0.0  # that a worker draws beyond idle while it executes a batch; 0: not known

    def __post_init__(self) -> None:
        latency = tuple(LatencyPoint(length=at, batch=batch, latency_us=ms * 1000) for at, batch, ms in self.points)
        object.__setattr__(self, "latency", latency)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """The request scheduler."""

    policy: str = _SERVED.policy
    lambda_: float = _SERVED.lambda_
    alpha: float = _SERVED.alpha
    max_peek: int = _SERVED.max_peek
    max_queued: int = 1_000_000_000  # the paper's queues have no bound
    inflight_limit: int = _SERVED.inflight_limit  # batches sent to an instance at a time
    # worker: rows are sent one by one, and the worker joins them; the others: src/dispatch/batching.
    batching: Literal["worker", "one", "fill", "deadline"] = "worker"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    """The number of instances of each runtime, and when it is decided.

    periodic: even at the start unless `start` sets another, then every period from the observed demand. even: as equal
    as possible, the longest first. global: solved once for the demand of the whole workload. oracle: every period, for
    the demand of the period that begins. fixed: `start`, for good. `start` "first" is solved for the demand of the
    first period, read ahead. Only static runtimes are planned; dynamic ones next to them keep the counts of a numeric
    `start`.
    """

    kind: AllocationKind = "periodic"
    start: tuple[int, ...] | Literal["even", "global", "first"] = "first"  # first: solved for the first period's demand
    period_s: float = _CONTROL.period_s
    solver: str = _CONTROL.solver
    objective: str = _CONTROL.objective
    replacement_s: float | None = None  # loading the other runtime; None: its load_ms, or REPLACEMENT_S
    make_before_break: bool = False  # a worker serves on while it loads the other runtime; in the paper it does not
    max_parallel: int | None = None  # workers that change at a time; None: by the next two shares, at least 1
    max_unavailable: float = 0.1  # of the workers, without make_before_break: the paper's
    max_moving: float = _CONTROL.max_moving  # of the workers, with it; all of them where the gain is large
    cover_after_s: float | None = None  # without an instance of the longest runtime, until another worker covers it
    min_gain: float = (
        0.0  # least predicted saving of mean latency, as a share, for which workers are moved; the paper has none
    )
    shift: bool = False  # periodic: plan before the period is over when the traffic has clearly shifted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Automatic scaling, as [scaling] of the serving configuration."""

    kind: ScalingKind = "none"
    min_workers: int = _SCALING.min_workers
    max_workers: int = 1000  # there is no count of workers to start from, as [scaling] has
    scale_out_share: float = _SCALING.scale_out_share
    scale_in_share: float = _SCALING.scale_in_share
    scale_in_period_s: float = _SCALING.scale_in_period_s
    headroom: float = _SCALING.headroom
    cooldown_s: float = 5.0  # the paper states none; a worker that was added serves after start_s
    window_s: float = 10.0
    start_s: float = 1.0  # a new worker serves so long after it was asked for
    # The runtime that a new worker loads. least_headroom: the one whose own requests (those that it is the ideal
    # runtime of) leave it the least spare capacity, as INFaaS adds a replica to the variant that lacks one; the load is
    # then what the requests took on the runtimes they ran on, instead of what they take on their ideal ones.
    new_runtime: Literal["longest", "least_headroom"] = "longest"
    replan: bool = (
        False  # plan at once when the worker count changes, as `arlo serve` does; the paper waits for its next plan
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a worker (by its number from 0)."""

    at_s: float
    worker: int
    kind: Literal["fail", "slow"]
    restart_s: float | None = 1.0  # fail: None is for good
    factor: float = 1.0  # slow: on execution times, from then on


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedModel:
    """One of several models on the same workers. Its runtimes are among those of the scenario."""

    name: str
    runtimes: int  # how many of the scenario's, after those of the models before it
    workload: Workload
    slo_ms: float
    timeout_ms: float | None = None
    share: float = 1.0


class Rows:
    """The requests of one run, whose figures they give at its end. By default they are fed as they come, and nothing
    plans for them."""

    plans = False  # plans are made regardless of the runtimes that workers hold

    def feed(
        self, arrived: NDArray[np.int64], length: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint16] | None]:
        """The engine's input for the next requests: ns [n], tokens [n], variants [n] (None: all of the first)."""
        return arrived, length, None

    def sample(self, planner: Any, now_s: float) -> None:
        """Report the arrivals to the planner."""

    def tell(self, planner: Any) -> None:
        """Pass on the plan that is in force."""

    def figures(self) -> Figures:
        """The figures after the last request."""
        return Figures()


class Served(Protocol):
    """The served unit, if it is neither one model nor several: a flow, a cascade, token counts."""

    @property
    def ahead(self) -> int:
        """Batches sent to a worker at a time; 0: as Dispatch says."""

    @property
    def work_s(self) -> float:
        """Worker-seconds that a request takes where there are workers enough."""

    def planner(self, settings: PlannerSettings, scenario: Scenario) -> Any:
        """The planner; None if nothing plans."""

    def begin(self, engine: _core.Simulation, scenario: Scenario) -> Rows:
        """Prepare an engine that has the scenario's runtimes. ConfigError or ValueError for meaningless settings."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run. Times in the units of their names."""

    name: str
    workload: Workload
    runtimes: tuple[RuntimeModel, ...]  # ascending max_length; of several models one after the other
    workers: int
    slo_ms: float
    dispatch: Dispatch = Dispatch()
    allocate: Allocate = Allocate()
    bundle: Literal["one", "all", "variant"] = "one"  # the runtimes that a worker holds
    models: tuple[SharedModel, ...] = ()  # on the same workers; empty: there is one
    served: Served | None = None  # None: the runtimes are of one model, or of `models`
    scale: Scale = Scale()
    faults: tuple[Fault, ...] = ()
    overhead_ms: float = 0.8  # section 5.2.1
    hop_out_ms: float = 0.0
    hop_back_ms: float = 0.0
    timeout_ms: float | None = None
    bulk_share: float = 0.0  # of the requests, that are of the class bulk
    retries: int = 2
    noise_cv: float = 0.0  # coefficient of variation of execution times (lognormal, mean 1)
    warmup_s: float = 0.0
    interval_s: float = 1.0  # of the timeline
    seed: int = 0
    record: bool = False  # keep a row for each request

    def on(self, workers: int) -> Scenario:
        """The same on another number of workers, divided in the proportions that are given."""
        start = self.allocate.start
        if isinstance(start, str) or self.served is None:
            return dataclasses.replace(self, workers=workers)
        counts = tuple(proportional([1.0] * len(start), [float(each) for each in start], workers))
        return dataclasses.replace(self, workers=workers, allocate=dataclasses.replace(self.allocate, start=counts))

    def of_runtimes(self) -> list[tuple[int, float]]:
        """The number of each runtime's model, and the model's SLO in ms."""
        if not self.models:
            return [(runtime.variant, self.slo_ms) for runtime in self.runtimes]
        return [(number, model.slo_ms) for number, model in enumerate(self.models) for _ in range(model.runtimes)]
