"""A scenario file as a whole: its sections, those that come several times, and how they go together."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from arlo.config.field import FieldError, option, same, section
from arlo.config.model import ModelConfig
from arlo.simulator.scenario.sections import (
    DEFAULT_DURATION_S,
    AllocationSection,
    ClusterSection,
    DispatchSection,
    FaultSection,
    RunSection,
    RuntimeSection,
    ScalingSection,
    WorkloadSection,
)


@section("model")
class ModelSection:
    """One of several models on the same workers, each of which holds all runtimes of all (`cluster.bundle` all). Keys
    left out default to those of [workload] and [cluster]."""

    name: str = option(doc="What tables call it.")
    profile: str | None = same(ClusterSection, "profile", default=None, left_out="`cluster.profile`")
    max_lengths: tuple[int, ...] = option(
        default=(), doc="Maximum lengths of its runtimes.", left_out="`cluster.max_lengths`", unit="tokens", minimum=1
    )
    slo_ms: float | None = same(ClusterSection, "slo_ms", default=None, left_out="`cluster.slo_ms`")
    share: float = same(ModelConfig, "share", default=1.0)
    rate: float | str | None = same(WorkloadSection, "rate", default=None, left_out="`workload.rate`")
    length: str | None = same(WorkloadSection, "length", default=None, left_out="`workload.length`")


SECTIONS: dict[str, type] = {
    "run": RunSection,
    "workload": WorkloadSection,
    "cluster": ClusterSection,
    "dispatch": DispatchSection,
    "allocation": AllocationSection,
    "scaling": ScalingSection,
}
OF_SERVED = ("router", "drop", "tokens", "point", "price")  # keys of [dispatch] that go with cluster.serves
ARRAYS: dict[str, type] = {
    "runtime": RuntimeSection,
    "fault": FaultSection,
    "model": ModelSection,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScenarioConfig:
    """A whole scenario file. config.build() makes the Scenario of it."""

    run: RunSection = dataclasses.field(default_factory=RunSection)
    workload: WorkloadSection = dataclasses.field(default_factory=WorkloadSection)
    cluster: ClusterSection = dataclasses.field(default_factory=ClusterSection)
    dispatch: DispatchSection = dataclasses.field(default_factory=DispatchSection)
    allocation: AllocationSection = dataclasses.field(default_factory=AllocationSection)
    scaling: ScalingSection = dataclasses.field(default_factory=ScalingSection)
    runtime: tuple[RuntimeSection, ...] = ()
    fault: tuple[FaultSection, ...] = ()
    model: tuple[ModelSection, ...] = ()

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.model:
            self._check_models()
        if self.cluster.serves is not None:
            self._check_served()
        else:
            for where, key, given in (
                *(("dispatch", key, getattr(self.dispatch, key)) for key in OF_SERVED),
                ("cluster", "texts", self.cluster.texts),
                ("scaling", "kind", self.scaling.kind == "plan"),
            ):
                if given:
                    raise FieldError(
                        where, key, "goes with a flow, cascade or token counts: name one in cluster.serves"
                    )
        cluster, allocation, scaling = self.cluster, self.allocation, self.scaling
        duration_s = self.workload.duration_s
        if duration_s is None and self.workload.drawn:
            duration_s = DEFAULT_DURATION_S
        if duration_s is not None and self.run.warmup_s >= duration_s:
            raise FieldError(
                "run", "warmup_s", f"must be below workload.duration_s ({duration_s:g}): nothing is counted"
            )
        if self.runtime:
            for key in ("profile", "max_lengths", "max_batch", "dynamic"):
                if getattr(cluster, key):
                    raise FieldError("cluster", key, "is of a latency profile; leave it out with [[runtime]]")
            lengths = [runtime.max_length for runtime in self.runtime]
            if lengths != sorted(set(lengths)):
                raise FieldError("runtime", "max_length", f"must ascend, without one twice: {lengths}")
        if allocation.instances and sum(allocation.instances) != cluster.workers:
            raise FieldError(
                "allocation",
                "instances",
                f"are {sum(allocation.instances)} in all, but there are {cluster.workers} workers",
            )
        if scaling.kind != "none" and not scaling.min_workers <= cluster.workers <= scaling.max_workers:
            raise FieldError(
                "cluster",
                "workers",
                f"must be from scaling.min_workers ({scaling.min_workers}) to max_workers ({scaling.max_workers}), "
                f"not {cluster.workers}",
            )
        if cluster.bundle == "all":
            if cluster.scheme not in ("arlo", "paper"):
                raise FieldError("cluster", "bundle", f"is one with the scheme {cluster.scheme}, which has one runtime")
            if self.dispatch.batching == "fifo":
                raise FieldError("cluster", "bundle", "is one with batching fifo, which has one runtime")
            if scaling.kind != "none":
                raise FieldError("cluster", "bundle", "is one with scaling: that of bundles is not simulated yet")
        most = scaling.max_workers if scaling.kind != "none" else cluster.workers
        for fault in self.fault:
            if fault.worker >= most:
                raise FieldError("fault", "worker", f"must be from 0 to {most - 1}, not {fault.worker}")

    def _check_models(self) -> None:
        names = [model.name for model in self.model]
        if not all(names) or len(set(names)) != len(names):
            raise FieldError("model", "name", f"is needed for each [[model]], one of its own: {names}")
        if self.cluster.bundle != "all":
            raise FieldError("cluster", "bundle", 'must be "all" with [[model]]: the workers hold all of every model')
        if self.runtime:
            raise FieldError("model", "profile", "is needed: [[runtime]] is of one model")

    def _check_served(self) -> None:
        ours = ("profile", "max_lengths", "max_batch", "dynamic")
        for where, key, given in (
            ("runtime", "max_length", self.runtime),
            ("model", "name", self.model),
            *(("cluster", key, getattr(self.cluster, key)) for key in ours),
            ("cluster", "scheme", self.cluster.scheme != "arlo"),
            ("dispatch", "policy", self.dispatch.policy),
            ("dispatch", "batching", self.dispatch.batching == "fifo"),
            ("allocation", "kind", self.allocation.kind),
            ("workload", "bulk_share", self.workload.bulk_share),
        ):
            if given:
                raise FieldError(where, key, "does not go with cluster.serves, which says what runs: leave it out")

    def of(self, model: ModelSection) -> ScenarioConfig:
        """The same of one of the models alone."""

        def given(section: Any, keys: tuple[str, ...]) -> Any:
            values = {key: getattr(model, key) for key in keys if getattr(model, key) not in (None, ())}
            return dataclasses.replace(section, **values)

        number = self.model.index(model)
        return dataclasses.replace(
            self,
            model=(),
            run=dataclasses.replace(self.run, name=model.name, seed=self.run.seed + number),
            workload=given(self.workload, ("rate", "length")),
            cluster=given(self.cluster, ("profile", "max_lengths", "slo_ms")),
        )

    def _check_numbers(self) -> None:
        """Reject inf, which TOML has, but which is meaningless for every key."""
        for name in SECTIONS:
            part = getattr(self, name)
            for field in dataclasses.fields(part):
                value = getattr(part, field.name)
                if isinstance(value, float) and not math.isfinite(value):
                    raise FieldError(name, field.name, f"must be a finite number, not {value}")
