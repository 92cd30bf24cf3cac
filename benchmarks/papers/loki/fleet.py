"""Workers as in Loki's evaluation: exactly those that a plan needs, from the next second on.

Between steps of the simulator's engine a planner sees the demand of the previous seconds and assigns a variant to each
worker; a changed worker drains and loads for the variant's `load_ms`. `arlo simulate` runs the planner that serves
instead (simulator/flows.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.catalog.flow import Flow
from arlo.planning.flows.demand import Demand
from arlo.planning.flows.numbers import SECOND_NS
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan
from arlo.simulator.flows import Roots, ServedFlow, Shape, scenario_of
from arlo.simulator.scenario.scenario import Listed

MS_NS = 1_000_000

# (demand per second, workers, the plan so far, rows per second that each stage saw)
Planner = Callable[[float, int, "FlowPlan | None", "Sequence[float] | None"], FlowPlan]
Hold = Literal["plan", "all"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """A simulation of one flow under one load."""

    flow: Flow  # its router, drop rule, SLO and plan period hold
    planner: Planner
    workers: int  # that there are at most
    arrived_ns: NDArray[np.int64]  # of roots, ascending, from 0
    hold: Hold = "plan"  # what a worker holds: the variant that the plan gives it, or all variants of all stages
    batching: str = "fill"
    shift: float = math.inf  # a demand that is off the plan's by this part is planned for at once
    seed: int = 0
    warmup_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult:
    """Figures over the roots that arrived after the warm-up."""

    roots: int
    violations: float  # share of the roots that were late, dropped, or answered in part
    accuracy: float  # of the roots that were answered
    utility: float  # the same over all roots, those not on time counting 0
    leaf_violations: float  # share of the visits without children, and of those dropped, that were not on time
    workers_mean: float
    workers_most: int
    rerouted: int
    visits: dict[str, int]  # by "stage:variant"
    plans: int
    moves: int  # workers that had to load
    solve_ms_mean: float
    seconds: dict[str, list[float]]  # by second of arrival: demand, workers, accuracy, violations


def planner_of(flow: Flow) -> Planner:
    """The planner that serves."""

    def plan(demand: float, workers: int, before: FlowPlan | None, _: Sequence[float] | None) -> FlowPlan:
        return make_plan(flow, demand=demand, workers=workers, before=before)

    return plan


class _Fleet:
    """The workers, and what each of them holds."""

    def __init__(self, job: FlowRun, shape: Shape, engine: _core.Simulation) -> None:
        self._job, self._shape, self._engine = job, shape, engine
        self._pools: dict[tuple[int, int, int], int] = {}  # (stage, variant, batch) -> the engine's bundle
        self._holds: dict[int, tuple[int, int, int]] = {}  # worker -> that
        self._all: int | None = None
        self.moves = 0

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._holds)

    def follow(self, plan: FlowPlan, now: int) -> None:
        """Change the workers' variants to those of the plan."""
        if self._job.hold == "all":
            self._resize(max(min(plan.workers, self._job.workers), 1), now)
            return
        wanted = {key: count for key, count in plan.instances().items() if count > 0}
        idle: list[int] = []
        for worker, key in sorted(self._holds.items()):
            if wanted.get(key, 0) > 0:
                wanted[key] -= 1
            else:
                idle.append(worker)
        missing = [key for key, count in sorted(wanted.items()) for _ in range(count)]
        for key in [*missing]:  # another batch cap of what it holds costs nothing
            same = next((worker for worker in idle if self._holds[worker][:2] == key[:2]), None)
            if same is None:
                continue
            self._engine.replace(same, self._pool(key), 0)
            self._holds[same] = key
            idle.remove(same)
            missing.remove(key)
        for key in missing:
            delay = round(self._spec(key).load_ms * MS_NS)
            if idle:
                worker = idle.pop(0)
                self._engine.replace(worker, self._pool(key), delay)
            else:
                worker = self._engine.add_worker(self._pool(key), now + (delay if now > 0 else 0))
            self.moves += 1 if now > 0 else 0
            self._holds[worker] = key
        for worker in idle:
            self._engine.remove(worker)
            del self._holds[worker]

    def _resize(self, count: int, now: int) -> None:
        if self._all is None:
            stages = enumerate(self._shape.flow.stages)
            keys = [(s, k, self._batch(s, k)) for s, stage in stages for k in range(len(stage.variants))]
            self._all = self._engine.add_bundle([r for key in keys for r in self._runtimes(key)], inflight_limit=1)
        load = math.fsum(v.load_ms for stage in self._shape.flow.stages for v in stage.variants)
        while len(self._holds) < count:
            at = now + (round(load * MS_NS) if now > 0 else 0)
            self._holds[self._engine.add_worker(self._all, at)] = (-1, -1, -1)
        for worker in sorted(self._holds)[count:]:
            self._engine.remove(worker)
            del self._holds[worker]

    def _batch(self, stage: int, k: int) -> int:
        """Rows of a batch. If deadlines form batches, the variant's own cap, as in serving; else the largest batch with
        which a path of such stages keeps half of the SLO, split evenly."""
        flow = self._shape.flow
        if self._job.batching == "deadline":
            return max(flow.stages[stage].variants[k].batch_caps)
        depth = max(len(flow.line(leaf)) for leaf in range(len(flow.stages)))
        spec = flow.stages[stage].variants[k]
        limit = flow.slo_ms * MS_NS / 2 / depth
        caps = [rows for rows in spec.batch_caps if spec.latency_ns(rows, len(spec.max_lengths) - 1) <= limit]
        return max(caps, default=min(spec.batch_caps))

    def _spec(self, key: tuple[int, int, int]) -> Any:
        return self._shape.flow.stages[key[0]].variants[key[1]]

    def _pool(self, key: tuple[int, int, int]) -> int:
        if key not in self._pools:
            self._pools[key] = self._engine.add_bundle(self._runtimes(key), inflight_limit=1)
        return self._pools[key]

    def _runtimes(self, key: tuple[int, int, int]) -> list[int]:
        spec = self._spec(key)
        slo_ns = self._shape.flow.slo_ms * MS_NS
        found = []
        for i, length in enumerate(spec.max_lengths):
            ns = spec.latency_ns(key[2], i)
            points = sorted({*spec.table.batches(), 1, key[2]})
            found.append(self._engine.add_runtime(
                length,
                max(1, int(slo_ns * key[2] / ns)),
                [(length, rows, spec.latency_ns(rows, i)) for rows in points if rows <= key[2]],
                max_batch=key[2],
                variant=self._shape.variant[key[:2]],
            ))  # fmt: skip
        return found


class _Seen:
    """Rows that entered each stage, second by second."""

    def __init__(self, shape: Shape, engine: _core.Simulation) -> None:
        self._shape, self._engine = shape, engine
        self._before = [0] * len(shape.flow.stages)
        self._demands = [Demand() for _ in shape.flow.stages]

    def look(self) -> None:
        """Record the end of a second."""
        now = [0] * len(self._before)
        visits = self._engine.pipeline_totals()["visits"]
        for (stage, _), v in self._shape.variant.items():
            now[stage] += visits[v]
        for demand, count, before in zip(self._demands, now, self._before, strict=True):
            demand.add(float(count - before))
        self._before = now

    def rows(self) -> list[float] | None:
        """Rows per second of each stage [stages]; None: nothing was seen yet."""
        return [max(demand.rate(), 1e-3) for demand in self._demands] if any(self._before) else None


def run(job: FlowRun) -> FlowResult:
    """Simulate."""
    flow, shape = job.flow, Shape(job.flow)
    engine = _core.Simulation(
        "late",
        slo=round(flow.slo_ms * MS_NS),
        batching=job.batching,
        seed=job.seed,
        max_queued=1 << 30,
        warmup=round(job.warmup_s * SECOND_NS),
        record=True,
    )
    arrived = np.ascontiguousarray(job.arrived_ns, np.int64)
    rows = ServedFlow(flow).begin(engine, scenario_of(flow, Listed(arrived), seed=job.seed))
    counts = np.bincount(arrived // SECOND_NS)
    fleet, demand, seen = _Fleet(job, shape, engine), Demand(), _Seen(shape, engine)
    period = round(flow.plan_period_s)
    plan: FlowPlan | None = None
    plans, solve_s, workers, start = 0, 0.0, [], 0
    for second, count in enumerate(counts):
        now = second * SECOND_NS
        engine.advance(now)
        guess = demand.rate() if second else float(count)
        off = plan is not None and guess > 0 and not 1 / (1 + job.shift) <= guess / plan.demand <= 1 + job.shift
        if guess > 0 and (plan is None or second % max(period, 1) == 0 or off):
            plan = job.planner(guess, job.workers, plan, seen.rows())
            plans += 1
            solve_s += plan.solve_s
            fleet.follow(plan, now)
            engine.plan(shape.plan(plan, shared=job.hold == "all"))
        workers.append(fleet.size)
        end = start + int(count)
        engine.feed(*rows.feed(arrived[start:end], np.ones(end - start, np.int32)))
        start = end
        demand.add(float(count))
        seen.look()
    engine.finish()
    own: dict[str, Any] = {"plans": plans, "moves": fleet.moves, "solve_ms_mean": solve_s * 1e3 / max(plans, 1)}
    return _result(engine, job, rows, np.array(workers), own)


def _result(
    engine: _core.Simulation,
    job: FlowRun,
    rows: Roots,
    workers: NDArray[np.int64],
    own: dict[str, Any],
) -> FlowResult:
    counts = np.bincount(job.arrived_ns // SECOND_NS)
    totals, columns, figures = engine.pipeline_totals(), engine.columns(), rows.figures()
    second, each = columns["arrived_ns"] // SECOND_NS, len(counts)
    good, answered = columns["outcome"] == 0, columns["accuracy"] >= 0
    arrived = np.maximum(np.bincount(second, minlength=each), 1)
    right = np.bincount(second[answered], columns["accuracy"][answered], each)
    counted = workers[round(job.warmup_s) :] if len(workers) > job.warmup_s else workers
    return FlowResult(
        roots=totals["roots"],
        violations=(totals["failed"] + totals["late"] + totals["partial"]) / max(totals["roots"], 1),
        accuracy=figures.accuracy or 0.0,
        utility=figures.utility or 0.0,
        leaf_violations=figures.more["leaf_violations"],
        workers_mean=float(counted.mean()),
        workers_most=int(counted.max()),
        rerouted=totals["rerouted"],
        visits=figures.more["visits"],
        **own,
        seconds={
            "demand": counts.astype(float).tolist(),
            "workers": workers.astype(float).tolist(),
            "accuracy": (right / np.maximum(np.bincount(second[answered], minlength=each), 1)).tolist(),
            "violations": (1 - np.bincount(second[good], minlength=each) / arrived).tolist(),
        },
    )
