"""A cluster that scales, under the real control plane: who scales how, the requests, and what one run brings back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console

from arlo import config as configuration
from arlo.catalog.manifest import LatencyPoint, Manifest
from arlo.clock import unix_s
from arlo.config import Config
from arlo.config.keeping import ControlConfig, ScalingConfig
from arlo.control.plane import Cluster as ControlPlane
from arlo.control.pool import make_pool
from arlo.control.serve import running
from arlo.planning.allocation.curves import curves
from arlo.planning.allocation.problem import AllocationProblem
from arlo.planning.allocation.solve import allocate, make_solver
from arlo.replay import ReplayOptions, run_replay
from arlo.replay.progress import Progress
from arlo.replay.records import latency_us
from arlo.replay.result import ReplayResult
from arlo.report.progress import LiveBar
from arlo.simulator.scenario.scenario import RuntimeModel
from arlo.simulator.scenario.schemes import SCHEMES, scheme
from arlo.traces import Synthetic, Trace, make_workload, materialise
from arlo.traces.rates import Series
from arlo.workers.emulated.repository import EmulatedRuntime, write_runtimes
from benchmarks.testbed.cluster import LATE_MS
from benchmarks.testbed.compare import curve, figures
from benchmarks.testbed.schemes import Bed, Cluster, points_us

MODEL = "bert-large"
WORKERS, MOST = 5, 10  # at the start, at most
SEGMENT = "fluctuating_a"
LOAD_S = 5.0  # means of the arrivals that are kept for plots
TIMEOUT_MS = 60_000
Event = tuple[float, str, dict[str, Any]]  # Unix seconds, name, fields
Steps = list[tuple[float, int]]  # (from this second on, so many)


@dataclasses.dataclass(frozen=True)
class Contender:
    """A scheme with a way to scale."""

    name: str
    title: str
    scheme: str  # of arlo.simulator.scenario.schemes: runtimes and dispatch policy
    scaling: str  # policy of [scaling]
    planned: str | None = None  # objective of the plans; None: one runtime, nothing to plan
    shipped: bool = True  # early plans, make before break, moves that gain something: the defaults of [control]


CONTENDERS = {
    one.name: one
    for one in (
        Contender("st", SCHEMES["st"], "st", "headroom"),
        Contender("dt", SCHEMES["dt"], "dt", "headroom"),
        Contender("paper", SCHEMES["paper"], "paper", "target", "paper", shipped=False),
        Contender("arlo", SCHEMES["arlo"], "arlo", "target", "queueing"),
        Contender("arlo-headroom", SCHEMES["arlo"], "arlo", "headroom", "queueing"),
    )
}


@dataclasses.dataclass(frozen=True)
class Course:
    """The requests, and the periods that go with how far their course is squeezed."""

    trace: Trace
    duration_s: float
    squeeze: float  # of the window's own duration
    about: str

    @property
    def period_s(self) -> float:
        return max(1.0, ControlConfig().period_s * self.squeeze)

    @property
    def scale_in_period_s(self) -> float:
        return ScalingConfig().scale_in_period_s * self.squeeze

    @property
    def cooldown_s(self) -> float:
        return ScalingConfig().cooldown_s * self.squeeze

    def load(self) -> list[tuple[float, float]]:
        """(second, arrivals per second) by LOAD_S."""
        edges = np.arange(0, self.duration_s + 1e-9, LOAD_S)
        counts, _ = np.histogram(self.trace.arrived_at_s, edges)
        return [(float(at), float(n / LOAD_S)) for at, n in zip(edges[1:], counts, strict=True)]


def course(rate_rps: float, duration_s: float, seed: int) -> Course:
    """Twitter-Bursty with the whole course of the window within `duration_s`."""
    whole = make_workload(arrivals="twitter-bursty", rate=rate_rps, segment=SEGMENT, seed=seed)
    assert isinstance(whole, Synthetic)
    assert isinstance(whole.rate, Series)
    squeeze = duration_s / whole.duration_s
    rate = dataclasses.replace(whole.rate, step_s=whole.rate.step_s * squeeze)
    workload = dataclasses.replace(whole, rate=rate, duration_s=duration_s)
    return Course(materialise(workload), duration_s, squeeze, workload.describe())


def runtimes_of(contender: Contender, bed: Bed) -> tuple[RuntimeModel, ...]:
    return bed.stretched(scheme(contender.scheme, bed.profile, workers=WORKERS).runtimes)


def first(
    contender: Contender, runtimes: Sequence[RuntimeModel], what: Course, slo_ms: float, policy: str
) -> tuple[int, ...]:
    """The instances to begin with: planned for the requests of the first period."""
    if contender.planned is None:
        return (WORKERS,)
    lengths = [r.max_length for r in runtimes]
    early = what.trace.length[what.trace.arrived_at_s < what.period_s]
    count = np.bincount(np.searchsorted(lengths, early), minlength=len(lengths))
    problem = AllocationProblem(
        WORKERS,
        slo_ms,
        tuple(lengths),
        curves(runtimes),
        tuple(float(n) * slo_ms / 1000 / what.period_s for n in count),
    )
    solver = make_solver("exact", objective=contender.planned, policy=policy)
    return tuple(allocate(problem, solver, time_limit_s=10).instances)


def configure(folder: Path, contender: Contender, cluster: Cluster, what: Course) -> Config:
    """The repository, and the configuration of the control plane beside it."""
    write_runtimes(
        folder / "repository",
        model="bench",
        runtimes=[
            EmulatedRuntime(
                name=r.name,
                max_length=r.max_length,
                max_batch=1,
                dynamic=r.dynamic,
                latency=tuple(LatencyPoint(length=n, batch=1, latency_us=us) for n, us in points_us(r)),
            )
            for r in cluster.runtimes
        ],
    )
    pairs = zip(cluster.runtimes, cluster.instances, strict=True)
    static = ", ".join(f"{r.max_length} = {n}" for r, n in pairs if n and not r.dynamic)
    placed = f"allocation = {{{static}}}" if static else f"dynamic = {WORKERS}"
    control = [f"reallocate = {str(contender.planned is not None).lower()}"]
    if contender.planned is not None:
        control.append(f'objective = "{contender.planned}"')
    if not contender.shipped:
        control += ["early = false", "make_before_break = false", "min_gain = 0.0"]
    lines = "\n".join(control)
    return configuration.parse(
        f"""[model]
repository = "repository"
slo_ms = {cluster.slo_ms:.0f}
default_timeout_ms = {TIMEOUT_MS}
[workers]
run_dir = "run"
linger_s = 0
threads = 1
[deployment]
{placed}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
log_level = "warning"
[dispatch]
policy = "{cluster.policy}"
[control]
http_address = "127.0.0.1:0"
period_s = {what.period_s}
{lines}
[scaling]
policy = "{contender.scaling}"
min_workers = 1
max_workers = {MOST}
scale_in_period_s = {what.scale_in_period_s}
cooldown_s = {what.cooldown_s}
""",
        base=folder,
    )


# --- the cluster ---


class _Kept(logging.Handler):
    """Keeps the control plane's events."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.events: list[Event] = []

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "event"):
            self.events.append((record.created, str(record.event), getattr(record, "fields", {})))


@contextlib.contextmanager
def events_kept() -> Iterator[list[Event]]:
    """What the control plane logs inside the block, instead of on the terminal."""
    log, kept = logging.getLogger("arlo.control"), _Kept()
    level, propagate = log.level, log.propagate
    log.addHandler(kept)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        yield kept.events
    finally:
        log.removeHandler(kept)
        log.setLevel(level)
        log.propagate = propagate


def presence(events: Sequence[Event], start: int, begin_s: float, duration_s: float) -> Steps:
    """Workers over the trace: each from the moment that it is asked for until its process is gone."""
    count, found = start, [(0.0, start)]
    for at_s, name, fields in events:
        if name == "scaling" and fields["action"] == "add":
            count += 1
        elif name == "worker_removed" or (name == "scaling_failed" and fields["action"] == "add"):
            count -= 1
        else:
            continue
        after_s = max(0.0, at_s - begin_s)
        if after_s >= duration_s:
            break
        found.append((round(after_s, 3), count))
    return found


def weighted(steps: Steps, duration_s: float) -> float:
    """Mean over time."""
    ends = [at for at, _ in steps[1:]] + [duration_s]
    return sum(n * (end - at) for (at, n), end in zip(steps, ends, strict=True)) / duration_s


def starts(events: Sequence[Event], known: Sequence[str]) -> list[float]:
    """Seconds from the decision to add a worker until requests go to it. `known`: workers of the beginning."""
    served, asked, took = set(known), [], []
    for at_s, name, fields in events:
        if name == "scaling" and fields["action"] == "add":
            asked.append(at_s)
        elif name == "scaling_failed" and fields["action"] == "add":
            asked.pop()
        elif name == "worker_step" and fields["step"] == "steady" and fields["worker"] not in served:
            served.add(fields["worker"])
            if asked:
                took.append(at_s - asked.pop(0))
    return took


def moves(events: Sequence[Event]) -> list[dict[str, float]]:
    """Of each worker that got another runtime while it served: how long that took, and how long it was out."""
    keys = ("seconds", "out_of_service_s")
    return [
        {key: fields[key] for key in keys}
        for _, name, fields in events
        if name == "worker_moved" and fields["after"] is not None
    ]


async def serve(folder: Path, contender: Contender, cluster: Cluster, what: Course) -> dict[str, Any]:
    """Replay the trace against the control plane's own cluster."""
    config = configure(folder, contender, cluster, what)
    control = ControlPlane(config, Manifest.load(config.model.repository), make_pool(config))
    # Nothing is decided while the load generator prepares: the calm would count.
    decides, control.scaler.policy = control.scaler.policy, "none"
    begin = [float("inf")]

    def show(at: Progress) -> None:
        control.scaler.policy = decides
        begin[0] = min(begin[0], unix_s() - at.t_s)
        line = f"{contender.title}: {at.sent} of {at.total} requests, {len(control.reconciler.infos)} workers"
        bar.show(at.sent, at.total, line)

    with LiveBar(Console(stderr=True), contender.title) as bar, events_kept() as events:
        async with running(control, asyncio.Event()) as up:
            assert up
            assert control.addresses is not None
            known, up_s = list(control.reconciler.infos), unix_s()
            options = ReplayOptions(
                endpoint=control.addresses.grpc,
                model="bench",
                slo_ms=cluster.slo_ms,
                timeout_ms=TIMEOUT_MS,
                late_ms=LATE_MS,
            )
            psutil.cpu_percent()  # since here
            replay = asyncio.create_task(asyncio.to_thread(run_replay, what.trace, options, on_progress=show))
            result = await replay
            busy = psutil.cpu_percent() / 100
        counters = dict(control.counters)
    return {
        **measured(result, what, cluster.slo_ms),
        **told(events, known, begin[0], what),
        "prepared_s": begin[0] - up_s,  # the first period began so long before the first request
        "cpu_busy": busy,
        "counters": counters,
    }


def measured(result: ReplayResult, what: Course, slo_ms: float) -> dict[str, Any]:
    """What the load generator saw."""
    records, sends = result.records, result.summary.sends
    latency_ms = np.where(records["code"] == 0, latency_us(records) / 1000, np.nan)
    outcomes = {name: count for name, count in result.summary.outcomes.items() if count}
    problems = []
    if len(records) != len(what.trace):
        problems.append(f"{len(records)} of {len(what.trace)} requests were recorded")
    if outcomes.get("failed"):
        problems.append(f"{outcomes['failed']} requests failed: {result.errors()[0]['message']}")
    if sends.p98_delay_ms > LATE_MS:
        problems.append(f"the load generator lagged: p98 {sends.p98_delay_ms:.1f} ms")
    return {
        **figures(latency_ms, slo_ms),
        "outcomes": outcomes,
        "problems": problems,
        "sends": {"p98_delay_ms": sends.p98_delay_ms, "max_delay_ms": sends.max_delay_ms},
        "curve_ms": curve(latency_ms),
    }


def told(events: Sequence[Event], known: Sequence[str], begin_s: float, what: Course) -> dict[str, Any]:
    """What the control plane said of itself."""
    steps = presence(events, len(known), begin_s, what.duration_s)
    return {
        "workers_mean": weighted(steps, what.duration_s),
        "workers_max": max(n for _, n in steps),
        "workers": steps,
        "starts_s": [round(s, 3) for s in starts(events, known)],
        "moves": moves(events),
        "steps": [
            {"at_s": round(at_s - begin_s, 2), "action": fields["action"], "reason": fields["reason"]}
            for at_s, name, fields in events
            if name == "scaling"
        ],
        "plans": [
            {"at_s": round(at_s - begin_s, 2), **{key: fields[key] for key in ("reason", "moved", "after")}}
            for at_s, name, fields in events
            if name == "plan"
        ],
    }
