"""A control plane and a gateway in the middle of a move, as values: one worker of five goes from 128 to 256 tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

from arlo import proto
from arlo.control.http.status import (
    COUNTERS,
    CascadeStatus,
    ControlStatus,
    ModelStatus,
    PlanRecord,
    RuntimeStatus,
    ScalingStatus,
    WorkerStatus,
)

NOW_MS = 1_700_000_600_000
LENGTHS = (64, 128, 256, 512)
LATENCY_MS = (1.15, 1.7, 2.7, 4.9)
ALLOCATIONS = ((1, 2, 1, 1), (2, 2, 0, 1), (1, 3, 0, 1), (2, 1, 1, 1))


def _plan(index: int, reason: str, **other: Any) -> PlanRecord:
    values: dict[str, Any] = {
        "at_ms": NOW_MS - 86_000 - (len(ALLOCATIONS) - 1 - index) * 120_000,
        "reason": reason,
        "instances": {f"minilm_{length}": count for length, count in zip(LENGTHS, ALLOCATIONS[index], strict=True)},
        "changed": 1,
        "moved": True,
        "demand": [96.4, 30.2, 12.5, 2.25],
        "predicted_mean_ms": 2.31,
        "solver": "exact",
        "objective": "queueing",
        "solve_ms": 2.1,
        "note": "",
    }
    return PlanRecord(**(values | other))


def control_status(*, gateway_admin: str = "127.0.0.1:8003") -> ControlStatus:
    """A new one each time, so that a test may change it."""
    runtimes = [
        RuntimeStatus(
            name=f"minilm_{length}",
            max_length=length,
            max_batch=1,
            dynamic=False,
            latency_ms=latency_ms,
            capacity=int(150 / latency_ms),
        )
        for length, latency_ms in zip(LENGTHS, LATENCY_MS, strict=True)
    ]
    desired = {"minilm_64": 2, "minilm_128": 1, "minilm_256": 1, "minilm_512": 1}
    serving = {"w0": "minilm_64", "w1": "minilm_64", "w2": "minilm_128", "w3": None, "w4": "minilm_512"}
    workers = [
        WorkerStatus(
            id=worker,
            endpoint=f"127.0.0.1:{9001 + index}",
            state="ready",
            desired=runtime if runtime is not None else "minilm_256",
            serving=runtime,
            loaded=[runtime] if runtime is not None else [],
            step="steady" if runtime is not None else "loading",
            step_since_ms=NOW_MS - (86_000 if runtime is not None else 400),
            restarts=2 if worker == "w4" else 0,
            error="killed by signal 9" if worker == "w4" else None,
        )
        for index, (worker, runtime) in enumerate(serving.items())
    ]
    plans = [
        _plan(0, "start", changed=5),
        _plan(1, "period", gain=0.124),
        _plan(2, "period", moved=False, changed=1, gain=0.011, note="gain below min_gain (3 %)"),
        _plan(3, "shift", changed=2, gain=0.186),
    ]
    return ControlStatus(
        at_ms=NOW_MS,
        started_at_ms=NOW_MS - 3_725_000,
        state="replacing",
        model="minilm",
        slo_ms=150,
        gateway_admin=gateway_admin,
        gateway_up=True,
        deployment_version=12,
        period_s=120.0,
        next_plan_in_s=34.0,
        reallocate=True,
        runtimes=runtimes,
        desired=desired,
        observed={"minilm_64": 2, "minilm_128": 1, "minilm_512": 1},
        workers=workers,
        demand=[96.4, 30.2, 12.5, 2.25],
        demand_peak=[121.0, 44.0, 20.0, 6.0],
        plans=plans,
        scaling=ScalingStatus(
            policy="target",
            workers=5,
            minimum=2,
            maximum=8,
            last_action="add w4",
            last_reason="p98 at 96 % of the SLO",
            last_at_ms=NOW_MS - 310_000,
        ),
        counters=dict.fromkeys(COUNTERS, 0) | {"plans": 31, "replacements": 7, "worker_restarts": 2, "loads": 12},
    )


def gateway_stats(*, step: int = 1, started_at_ms: int = NOW_MS - 3_720_000) -> Any:
    """arlo.v1.Stats after `step` steps of 2 s, each with 400 + 120 + 48 + 12 rows of the four levels."""
    stats = proto.message("Stats")(
        started_at_ms=started_at_ms,
        at_ms=NOW_MS - 2000 + 2000 * step,
        uptime_ns=(NOW_MS - 2000 + 2000 * step - started_at_ms) * 1_000_000,
        deployment_version=12,
        policy="eft",
        queued=3,
        in_flight=4,
        tokens=70_000 * step,
        computed_tokens=80_000 * step,
        retries=1,
    )
    arrivals = [0] * 513
    for low, high, rows in ((1, 64, 400), (65, 128, 120), (129, 256, 48), (257, 512, 12)):
        # More rows at the short end of each bin than at its long one, as in real text.
        for index in range(rows):
            arrivals[low + round((high - low) * (index / rows) ** 1.4)] += step
    stats.arrivals_by_length.extend(arrivals)
    for length, rows, demoted, instances in ((64, 392, 0, 2), (128, 122, 8, 1), (256, 0, 0, 0), (512, 60, 48, 1)):
        stats.levels.add(
            max_length=length,
            ideal={64: 400, 128: 120, 256: 48, 512: 12}[length] * step,
            dispatched=rows * step,
            demoted=demoted * step,
            instances=instances,
        )
    busy = {"w0": (196, 0.31, 1), "w1": (196, 0.30, 0), "w2": (122, 0.52, 2), "w4": (60, 0.74, 1)}
    for worker, (rows, share, in_flight) in busy.items():
        stats.instances.add(
            id=f"{worker}-1",
            worker=worker,
            runtime={"w0": "minilm_64", "w1": "minilm_64", "w2": "minilm_128", "w4": "minilm_512"}[worker],
            state="STATE_ACTIVE",
            in_flight=in_flight,
            queued=2 if worker == "w4" else 0,
            started=rows * step,
            busy_us=round(share * 2e6) * step,
        )
    stats.outcomes.on_time, stats.outcomes.late, stats.outcomes.rejected = 577 * step, 2 * step, step
    for part, scale in (("total", 1.0), ("queue", 0.4), ("execute", 0.6)):
        values = getattr(stats, part)
        values.count, values.window_s = 2900, 10
        values.mean_us, values.p50_us, values.p90_us, values.p98_us, values.p99_us, values.max_us = (
            round(scale * us) for us in (4100, 2300, 9800, 41_000, 62_000, 171_000)
        )
    return stats


def gateway_deployment() -> Any:
    """arlo.v1.Deployment that goes with gateway_stats()."""
    deployment = proto.message("Deployment")(version=12)
    deployment.model.name, deployment.model.slo_ms = "minilm", 150
    for length, latency_ms in zip(LENGTHS, LATENCY_MS, strict=True):
        runtime = deployment.runtimes.add(
            name=f"minilm_{length}", max_length=length, max_batch=1, capacity=int(150 / latency_ms)
        )
        runtime.latency.add(length=length, batch=1, latency_us=round(1000 * latency_ms))
    return deployment


# --- several models ---

BINS = {"embedder": (64, 512), "reranker": (256, 512)}
SLO_MS = {"embedder": 50, "reranker": 200}


def several_status(*, dedicated: bool, gateway_admin: str = "127.0.0.1:8003") -> ControlStatus:
    """Two models on three workers, which both share, or of which one has two and the other one."""
    status = control_status(gateway_admin=gateway_admin)

    def runtime(model: str) -> RuntimeStatus:
        held = model if dedicated else "embedder"
        return RuntimeStatus(
            name=f"{held}_bundle",
            max_length=512,
            max_batch=8,
            dynamic=True,
            latency_ms=4.9,
            capacity=SLO_MS[model] // 5,
            model=model if dedicated else "",
        )

    models = [
        ModelStatus(
            name=model,
            slo_ms=SLO_MS[model],
            share=2.0 if model == "embedder" else 1.0,
            runtimes=[runtime(model)],
            lengths=list(bins),
            latency_ms=[bins[0] / 100, 4.9],
            capacity=[SLO_MS[model] * 100 // bins[0], SLO_MS[model] // 5],
            demand=[bins[0] / 2, 7.5],
            demand_peak=[bins[0] / 1, 15.0],
        )
        for model, bins in BINS.items()
    ]
    status.models = models
    status.model, status.slo_ms, status.state = "embedder", SLO_MS["embedder"], "serving"
    status.runtimes = [model.runtimes[0] for model in models] if dedicated else models[0].runtimes
    instances = {"embedder_bundle": 2, "reranker_bundle": 1} if dedicated else {"embedder_bundle": 3}
    status.desired, status.observed = dict(instances), dict(instances)
    status.demand = [sum(model.demand) for model in models] if dedicated else [54.0]
    status.demand_peak = [sum(model.demand_peak) for model in models] if dedicated else [120.0]
    serving = [name for name, count in instances.items() for _ in range(count)]
    status.workers = [
        dataclasses.replace(worker, desired=name, serving=name, loaded=[name], step="steady", restarts=0, error=None)
        for worker, name in zip(status.workers, serving, strict=False)
    ]
    by_model = {"embedder": 39.5, "reranker": 135.5}
    planned = {"embedder_bundle": 2, "reranker_bundle": 1} if dedicated else {}
    status.plans = [dataclasses.replace(status.plans[-1], instances=planned, demand_by_model=by_model)]
    status.scaling.policy = "none"
    return status


def several_stats(model: str, *, step: int = 1) -> Any:
    """arlo.v1.Stats of one of them."""
    stats = gateway_stats(step=step)
    stats.model = model
    del stats.levels[:]
    for length in BINS[model]:
        stats.levels.add(max_length=length, ideal=100 * step, dispatched=100 * step, instances=3)
    for item in list(stats.instances)[:3]:
        item.runtime = "embedder_bundle"
    del stats.instances[3:]
    if model == "reranker":
        arrivals = [0] * 513
        arrivals[200], arrivals[400] = 50 * step, 20 * step
        del stats.arrivals_by_length[:]
        stats.arrivals_by_length.extend(arrivals)
        stats.outcomes.on_time, stats.outcomes.late, stats.outcomes.rejected = 45 * step, 5 * step, 0
        stats.queued, stats.in_flight = 9, 1
        stats.total.p98_us, stats.total.mean_us = 150_000, 60_000
    return stats


def several_deployment() -> Any:
    """arlo.v1.Deployment that goes with several_stats()."""
    deployment = proto.message("Deployment")(version=12)
    deployment.model.name, deployment.model.slo_ms = "embedder", SLO_MS["embedder"]
    deployment.more_models.add(name="reranker", slo_ms=SLO_MS["reranker"])
    for model, bins in BINS.items():
        for length in bins:
            runtime = deployment.runtimes.add(
                name=f"{model}_{length}", model=model, max_length=length, max_batch=8, capacity=10
            )
            runtime.latency.add(length=length, batch=1, latency_us=10 * length)
    return deployment


# --- a cascade ---

STAGES = ("kinds.small", "kinds.large")
CASCADE = ("kinds", *STAGES)


def cascade_status() -> ControlStatus:
    """Two stages, one worker of the first and two of the last."""
    status = several_status(dedicated=True)
    names = dict(zip(BINS, STAGES, strict=True))
    for model in status.models:
        model.runtimes = [dataclasses.replace(r, model=names[model.name]) for r in model.runtimes]
        model.name, model.slo_ms = names[model.name], 50
    status.runtimes = [model.runtimes[0] for model in status.models]
    status.model = STAGES[0]
    status.cascade = CascadeStatus(name="kinds", point="ap", reach=[1.0, 0.31], agreement=0.972)
    return status


def cascade_stats(model: str, *, step: int = 1) -> Any:
    """arlo.v1.Stats of the cascade or of one of its stages. Of 100 rows a step 60 end at the first stage, 38 at the
    last, and 2 at the first after they waited for the last."""
    stats = several_stats(dict(zip(STAGES, BINS, strict=True)).get(model, "embedder"), step=step)
    stats.model, stats.stage = model, model in STAGES
    if stats.stage:
        stats.outcomes.Clear()
        stats.total.count = 0
        stats.queued, stats.in_flight = (1, 2) if model == STAGES[0] else (4, 3)
        return stats
    del stats.levels[:]
    stats.queued = stats.in_flight = stats.parked = 0
    stats.point, stats.price = "ap", 2
    stats.shadows.rows, stats.shadows.disagreed = 50 * step, step
    first, last = (stats.stages.add(model=stage) for stage in STAGES)
    first.visits, last.visits = 100 * step, 38 * step
    first.exits.extend([58 * step, 0, 0, 2 * step, 2 * step, 0, 0])
    last.exits.extend([0, 38 * step, 0, 0, 0, 0, 0])
    first.escalations.extend([0, 40 * step])
    last.escalations.extend([0, 0])
    return stats


def cascade_deployment() -> Any:
    """arlo.v1.Deployment that goes with cascade_stats()."""
    deployment = several_deployment()
    deployment.model.name, deployment.more_models[0].name = STAGES
    for runtime in deployment.runtimes:
        runtime.model = dict(zip(BINS, STAGES, strict=True))[runtime.model]
    deployment.cascades.add(name="kinds", slo_ms=50)
    return deployment


FLOW = ("tree", "tree.topic.sure", "tree.topic.quick", "tree.tags.large")


def flow_stats(model: str, *, step: int = 1) -> Any:
    """arlo.v1.Stats of the pipeline or of one of its variants. Of 100 rows a step `sure` answers 40 and `quick` 58, two
    are dropped; 60 become two rows each at the second stage, 20 of which are rerouted."""
    stats = several_stats("embedder" if model != FLOW[-1] else "reranker", step=step)
    stats.model, stats.stage = model, model != FLOW[0]
    if stats.stage:
        stats.outcomes.Clear()
        stats.total.count = 0
        stats.queued, stats.in_flight = (2, 3) if model == FLOW[-1] else (1, 1)
        return stats
    del stats.levels[:]
    stats.queued = stats.in_flight = stats.parked = 0
    topic = stats.pipeline.add(
        stage="topic", arrived=100 * step, visits=98 * step, answered=98 * step, ends=38 * step, price=[0.5, 0.5]
    )
    topic.dropped.extend([0, 2 * step, 0, 0, 0])
    topic.variants.add(answered=40 * step, ended=20 * step, made=[40 * step])
    topic.variants.add(answered=58 * step, ended=18 * step, made=[80 * step])
    tags = stats.pipeline.add(
        stage="tags",
        arrived=120 * step,
        visits=120 * step,
        answered=120 * step,
        ends=120 * step,
        rerouted=20 * step,
        price=[0.7],
    )
    tags.dropped.extend([0] * 5)
    tags.variants.add(answered=120 * step, ended=120 * step)
    return stats


def flow_deployment() -> Any:
    """arlo.v1.Deployment that goes with flow_stats()."""
    deployment = several_deployment()
    deployment.model.name, deployment.more_models[0].name = FLOW[1], FLOW[3]
    deployment.more_models.add(name=FLOW[2], slo_ms=50)
    for runtime in deployment.runtimes:
        runtime.model = {"embedder": FLOW[1], "reranker": FLOW[3]}[runtime.model]
    pipeline = deployment.pipelines.add(name=FLOW[0], slo_ms=50)
    topic, tags = (pipeline.stages.add(name=name) for name in ("topic", "tags"))
    topic.variants.add(model=FLOW[1], accuracy=0.95)
    topic.variants.add(model=FLOW[2], accuracy=0.85)
    tags.variants.add(model=FLOW[3], accuracy=0.9)
    pipeline.edges.add(**{"from": 0, "to": -1, "guard": {"at_least": 0.7}})
    pipeline.edges.add(**{"from": 0, "to": 1, "factor": [1.0, 1.4]})
    plan = pipeline.plan
    plan.planner, plan.step, plan.served, plan.accuracy, plan.price, plan.workers = "arlo", "accuracy", 1, 0.842, 0.5, 3
    return deployment
