"""The ControlStatus document, put together from the parts of the control plane."""

from __future__ import annotations

from collections import Counter

from arlo.catalog.manifest import Manifest
from arlo.clock import unix_s
from arlo.config import Config
from arlo.control.http.status import COUNTERS, ControlStatus, RuntimeStatus, State, WorkerStatus
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.placement import service_us
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch.scaler import Scaler
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.planning.allocation.curves import capacity


def control_status(
    config: Config,
    manifest: Manifest,
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
    """What `/status` says now."""
    demand = scheduler.demand()
    mean, peak = scheduler.planner.by_runtime(demand.mean), scheduler.planner.by_runtime(demand.peak)
    runtimes = sorted(manifest.runtimes, key=lambda runtime: (runtime.max_length, runtime.name))
    # Of models with workers of their own, each by its own SLO.
    slo_ms = {runtime.name: config.model.slo_ms for runtime in runtimes}
    if config.dedicated:
        slo_ms = {one.name: model.slo_ms for one, model in zip(manifest.runtimes, config.models, strict=True)}
    workers = [_worker(reconciler, deployments, worker) for worker in reconciler.infos]
    return ControlStatus(
        at_ms=round(unix_s() * 1000),
        started_at_ms=started_at_ms,
        state=_state(reconciler, workers, gateway_up=gateway_up),
        model=config.model.name or manifest.model,
        slo_ms=config.model.slo_ms,
        gateway_admin=gateway_admin,
        gateway_up=gateway_up,
        deployment_version=deployments.version,
        period_s=config.control.period_s,
        next_plan_in_s=round(scheduler.next_plan_in_s, 1),
        reallocate=config.control.reallocate,
        runtimes=[
            RuntimeStatus(
                name=runtime.name,
                max_length=runtime.max_length,
                max_batch=runtime.max_batch,
                dynamic=runtime.dynamic,
                latency_ms=service_us(runtime) / 1000,
                capacity=capacity(runtime, slo_ms[runtime.name]),
            )
            for runtime in runtimes
        ],
        desired=dict(Counter(reconciler.desired.values())),
        observed=dict(Counter(name for names in deployments.instances.values() for name in names)),
        workers=workers,
        demand=[round(mean.get(runtime.name, 0.0), 3) for runtime in runtimes],
        demand_peak=[round(peak.get(runtime.name, 0.0), 3) for runtime in runtimes],
        plans=list(scheduler.plans),
        scaling=scaler.status(),
        counters={name: counters[name] for name in COUNTERS},
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
