"""The ControlStatus document, assembled from the parts of the control plane."""

from __future__ import annotations

from collections import Counter

from arlo.catalog.manifest import Runtime
from arlo.clock import unix_s
from arlo.control.http.status import (
    COUNTERS,
    ControlStatus,
    ModelStatus,
    RuntimeStatus,
    State,
    WorkerStatus,
)
from arlo.control.mode import ServingMode
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.placement import service_us
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch.scaler import Scaler
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.planning.allocation.curves import capacity, curve


def control_status(
    mode: ServingMode,
    *,
    reconciler: Reconciler,
    scheduler: RuntimeScheduler,
    scaler: Scaler,
    deployments: Deployments,
    counters: Counter[str],
    started_at_ms: int,
    gateway_admin: str,
    gateway_up: bool,
) -> ControlStatus:
    """The current content of `/status`."""
    config, manifest, subject = mode.config, mode.manifest, scheduler.planner.subject
    demand = scheduler.planner.demand()
    mean, peak = subject.by_runtime(demand.mean), subject.by_runtime(demand.peak)
    runtimes = sorted(manifest.runtimes, key=lambda runtime: (runtime.max_length, runtime.name))
    models = _models(mode, scheduler)
    statuses = [_runtime(runtime, runtime.name, config.model.slo_ms) for runtime in runtimes]
    if mode.dedicated:  # each against its own SLO
        of = {model.runtimes[0].name: model for model in models}
        statuses = [of[runtime.name].runtimes[0] for runtime in runtimes]
        mean = {name: sum(model.demand) for name, model in of.items()}
        peak = {name: sum(model.demand_peak) for name, model in of.items()}
    elif models:  # all models on one runtime
        mean, peak = {runtimes[0].name: sum(demand.mean)}, {runtimes[0].name: sum(demand.peak)}
    workers = [_worker(reconciler, deployments, worker) for worker in reconciler.infos]
    return ControlStatus(
        at_ms=round(unix_s() * 1000),
        started_at_ms=started_at_ms,
        state=_state(reconciler, workers, gateway_up=gateway_up),
        model=mode.models[0],
        slo_ms=config.model.slo_ms,
        gateway_admin=gateway_admin,
        gateway_up=gateway_up,
        energy=mode.energy,
        deployment_version=deployments.version,
        period_s=mode.period_s,
        next_plan_in_s=round(scheduler.next_plan_in_s, 1),
        reallocate=config.control.reallocate,
        runtimes=statuses,
        desired=dict(Counter(reconciler.desired.values())),
        observed=dict(Counter(name for names in deployments.instances.values() for name in names)),
        workers=workers,
        demand=[round(mean.get(runtime.name, 0.0), 3) for runtime in runtimes],
        demand_peak=[round(peak.get(runtime.name, 0.0), 3) for runtime in runtimes],
        plans=list(scheduler.plans),
        scaling=scaler.status(),
        counters={name: counters[name] for name in COUNTERS},
        models=models,
        cascade=mode.point(deployments),
    )


def _models(mode: ServingMode, scheduler: RuntimeScheduler) -> list[ModelStatus]:
    """The status of each of several models, in the order of the configuration; empty for one model."""
    subject, demand_of_all = scheduler.planner.subject, scheduler.planner.demand()
    demands, left = subject.by_model(demand_of_all), subject.left_ms(demand_of_all)  # ms of the SLO, for each
    statuses = []
    for served, name, model, demand, left_ms in zip(
        subject.models, mode.models, mode.config.models, demands, left, strict=False
    ):
        # With shared workers: this model's part of the runtime that they hold.
        held = served.bundle.name if mode.dedicated else mode.manifest.runtimes[0].name
        runtime = _runtime(served.bundle, held, left_ms, model=name if mode.dedicated else "")
        statuses.append(
            ModelStatus(
                name=name,
                slo_ms=model.slo_ms,
                share=model.share,
                runtimes=[runtime],
                lengths=list(demand.max_lengths),
                latency_ms=[curve(served.bundle, length).batch_ms(1) for length in demand.max_lengths],
                capacity=[capacity(served.bundle, left_ms, length) for length in demand.max_lengths],
                demand=[round(q, 3) for q in demand.mean],
                demand_peak=[round(q, 3) for q in demand.peak],
            )
        )
    return statuses


def _runtime(runtime: Runtime, name: str, slo_ms: float, *, model: str = "") -> RuntimeStatus:
    return RuntimeStatus(
        name=name,
        max_length=runtime.max_length,
        max_batch=runtime.max_batch,
        dynamic=runtime.dynamic,
        latency_ms=service_us(runtime) / 1000,
        capacity=capacity(runtime, slo_ms),
        model=model,
    )


def _worker(reconciler: Reconciler, deployments: Deployments, worker: str) -> WorkerStatus:
    info = reconciler.infos[worker]
    step, since_ms = reconciler.step(worker)
    return WorkerStatus(
        id=worker,
        endpoint=info.endpoint,
        state=info.state,
        desired=reconciler.desired.get(worker),
        serving=next(iter(deployments.instances.get(worker, ())), None),
        loaded=list(info.runtimes),
        step=step,
        step_since_ms=since_ms,
        restarts=info.restarts,
        error=reconciler.error(worker),
    )


def _state(reconciler: Reconciler, workers: list[WorkerStatus], *, gateway_up: bool) -> State:
    if not workers or not reconciler.desired:
        return "starting"
    if not gateway_up or any(worker.state != "ready" or worker.step == "failed" for worker in workers):
        return "degraded"
    return "replacing" if reconciler.busy else "serving"
