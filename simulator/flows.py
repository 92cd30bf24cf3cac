"""Flows simulated: roots that become visits of a tree of stages, workers that a planner gives to variants, plans anew.

The engine decides with src/flow/pipeline, as the gateway does. Between its steps the planner sees the demand of the
seconds before and says what each worker holds; a worker that changes drains and loads for the variant's `load_ms`.
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
from arlo.catalog.flow_accuracy import path_accuracy, way
from arlo.catalog.flow_exits import gain
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.errors import ConfigError
from arlo.planning.flows.demand import Demand
from arlo.planning.flows.live import FlowTraffic, StageCounts, Traffic, VariantCounts
from arlo.planning.flows.numbers import SECOND_NS, Numbers
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan

MS_NS = 1_000_000

# (demand per second, workers, the plan so far, rows per second that each stage saw, factors and exits as counted)
Planner = Callable[[float, int, "FlowPlan | None", "Sequence[float] | None", "Traffic | None"], FlowPlan]
Hold = Literal["plan", "all"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """A simulation of one flow under one load."""

    flow: Flow  # its router, drop rule, SLO and plan period hold
    planner: Planner
    workers: int  # that there are at most
    arrived_ns: NDArray[np.int64]  # of roots, ascending, from 0
    hold: Hold = "plan"  # what a worker holds: the variant that the plan gives it, or all variants of all stages
    fixed: bool = False  # with hold="all": all workers stay, however few the plan needs
    batching: str = "fill"
    shift: float = math.inf  # a demand that is off the plan's by this part is planned for at once
    seed: int = 0
    warmup_s: float = 0.0
    hop_ms: float = 0.0  # the way to a worker, and back: each
    noise: tuple[float, ...] = ()  # quantiles of a factor on execution times
    outcomes: RowOutcomes | None = None
    counted: bool = (
        False  # plans are for the factors and exits that were counted so far, as when served; else the flow's
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult:
    """Figures over the roots that arrived after the warm-up."""

    roots: int
    violations: float  # share of the roots that were late, dropped, or answered in part
    accuracy: float  # of the roots that were answered: expected, or of recorded rows the share that is right
    utility: float  # the same over all roots, those not on time counting 0
    fell_back: int  # visits whose further answer did not come: the one before counts
    leaf_violations: float  # share of the visits without children, and of those dropped, that were not on time
    leaf_accuracy: float
    mean_ms: float  # of the roots that were answered, by the end of the last of what they became
    workers_mean: float
    workers_most: int
    dropped: dict[str, int]  # visits, by reason
    rerouted: int
    visits: dict[str, int]  # by "stage:variant"
    plans: int
    moves: int  # workers that had to load
    utilisation: float  # mean over the plans
    solve_ms_mean: float
    rows: int  # visits that were executed
    joules: float | None  # of an answered root: what busy workers drew beyond idle; None: some watts are not known
    joules_total: float | None
    seconds: dict[str, list[float]]  # by second of arrival: demand, workers, accuracy, violations

    def as_dict(self, *, seconds: bool = False) -> dict[str, Any]:
        """For JSON."""
        found = dataclasses.asdict(self)
        if not seconds:
            del found["seconds"]
        return found


def planner_of(flow: Flow, outcomes: RowOutcomes | None = None) -> Planner:
    """The planner that serves."""

    def plan(
        demand: float,
        workers: int,
        before: FlowPlan | None,
        rows: Sequence[float] | None,
        traffic: Traffic | None = None,
    ) -> FlowPlan:
        return make_plan(
            flow,
            demand=demand,
            workers=workers,
            outcomes=outcomes,
            before=before,
            factors=traffic.factors if traffic else None,
            exits=traffic.exits if traffic else None,
            window=traffic.window if traffic else (),
        )

    return plan


Draw = tuple[str, list[float], list[float], list[int], int, list[tuple[int, float]]]
Guard = tuple[int, str, float, float, list[list[tuple[float, float]]], list[int]]
StageRows = tuple[list[Guard], bool, list[float], list[int]]
Rows = tuple[int, list[int], list[StageRows]]  # as _core.Simulation.set_pipeline takes them


class Shape(Numbers):
    """A flow as the core takes it."""

    def __init__(self, flow: Flow, outcomes: RowOutcomes | None = None) -> None:
        super().__init__(flow)
        self._outcomes = outcomes
        self.edges = [edge for edge in flow.in_order if flow.edges[edge].head is not None]
        self.accuracy = [path_accuracy(flow, stage, prefix, outcomes) for stage, prefix in self.node]

    def head(self, edge: int) -> int:
        """Place of the stage that an edge leads to."""
        head = self.flow.edges[edge].head
        assert head is not None
        return self.place[self.flow.index[head]]

    def tail(self, edge: int) -> int:
        """Number of the stage that an edge comes from."""
        return self.flow.index[self.flow.edges[edge].tail]

    def spec(self) -> _core.Pipeline:
        """The flow as the core takes it."""
        flow = self.flow
        stages = [[self._variant(stage, k) for k in range(len(flow.stages[stage].variants))] for stage in self.order]
        edges = [
            (
                self.place[self.tail(edge)],
                self.head(edge),
                [flow.factor(edge, k) for k in range(len(flow.stages[self.tail(edge)].variants))],
                round(flow.edges[edge].hop_ms * MS_NS),
            )
            for edge in self.edges
        ]
        return _core.Pipeline(
            stages,
            edges,
            accuracy=self.accuracy,
            router=flow.router,
            drop=flow.drop,
            on_drop=flow.on_drop,
            max_open=flow.max_children,
            falls_back=[at for at, edge in enumerate(self.edges) if flow.edges[edge].falls_back],
            follows_load=any(edge.when.follows for edge in flow.edges),
            joins=[
                (at, self.place[flow.index[flow.edges[edge].join]])
                for at, edge in enumerate(self.edges)
                if flow.edges[edge].join
            ],
            energy=[flow.joule * variant.watts for stage in self.order for variant in flow.stages[stage].variants],
        )

    def _variant(self, stage: int, k: int) -> tuple[int, float, int, float]:
        spec = self.flow.stages[stage].variants[k]
        shares = self.flow.stages[stage].bins(k)
        least = min(spec.latency_ns(1, i) for i, share in enumerate(shares) if share > 0)
        work = min(
            math.fsum(share * spec.latency_ns(rows, i) for i, share in enumerate(shares)) / rows
            for rows in spec.batch_caps
        )
        return self.variant[stage, k], self.flow.stages[stage].accuracy(k), least, work / SECOND_NS

    def draws(self) -> list[Draw]:
        """What each edge makes of a row, as the simulation takes it."""
        found: list[Draw] = []
        for edge in self.edges:
            spec = self.flow.edges[edge]
            tail = self.tail(edge)
            variants = range(len(self.flow.stages[tail].variants))
            if spec.join:
                head = self.flow.stages[self.order[self.head(edge)]]
                take = [1 - self.flow.exit_share(tail, k) for k in variants]
                found.append(("constant", take, [1.0] * len(take), [], 1, list(head.lengths) or [(1, 1.0)]))
                continue
            rows = [min(spec.expand.factor[k if len(spec.expand.factor) > 1 else 0], spec.expand.max) for k in variants]
            take = [min(self.flow.factor(edge, k) / rows[k], 1.0) if rows[k] > 0 else 0.0 for k in variants]
            if spec.expand.kind not in (
                "same",
                "prune",
            ):  # the share is of what a row contains, not of rows: each goes its way
                rows = [
                    row * share / (1 - self.flow.exit_share(tail, k) or 1.0)
                    for k, (row, share) in enumerate(zip(rows, take, strict=True))
                ]
                take = [1 - self.flow.exit_share(tail, k) for k in variants]
            found.append(
                (
                    spec.expand.distribution,
                    take,
                    [float(x) for x in rows],
                    list(spec.expand.counts),
                    spec.expand.max,
                    self._lengths(edge),
                )
            )
        return found

    def _lengths(self, edge: int) -> list[tuple[int, float]]:
        """(tokens, share) of the rows that an edge makes. None: they have those of their parents."""
        head, tail = self.flow.stages[self.order[self.head(edge)]], self.flow.stages[self.tail(edge)]
        if head.lengths == tail.lengths and (not head.lengths or self.flow.edges[edge].expand.kind == "same"):
            return []
        return list(head.lengths) or [(1, 1.0)]

    def exits(self) -> list[list[float]]:
        """Share of the rows that end, by stage and variant."""
        return [
            [self.flow.exit_share(stage, k) for k in range(len(self.flow.stages[stage].variants))]
            for stage in self.order
        ]

    def rows(self) -> Rows | None:
        """The recorded rows, of which each root is one. None: some way was not recorded on them."""
        flow, outcomes = self.flow, self._outcomes
        if outcomes is None or not outcomes.rows:
            return None
        right: list[NDArray[np.bool_]] = []
        for stage, prefix in self.node:
            found = way(flow, flow.line(stage), prefix, outcomes)
            if found is None:
                return None
            right.append(found[0].right)
        return outcomes.rows, np.concatenate(right).astype(int).tolist(), [self._guards(s) for s in self.order]

    def _guards(self, stage: int) -> StageRows:
        flow, outcomes = self.flow, self._outcomes
        assert outcomes is not None
        spec, guards, scores = flow.stages[stage], list[Guard](), list[float]()
        for e in flow.out(stage):
            when = flow.edges[e].when
            each = [outcomes.signal((spec.name, v.name), when.score or "calibrated_max") for v in spec.variants]
            names = [outcomes.labels.get((spec.name, v.name), ()) for v in spec.variants]
            if any(one is None for one in each) or (when.label_in and any(one != names[0] or not one for one in names)):
                return [], False, [], []
            bounds = [x if isinstance(x, float | int) else 0.0 for x in (when.at_least, when.below)]
            variants = range(len(spec.variants)) if when.follows else ()
            curves = [gain(flow.stages, flow.edges, e, k, outcomes) for k in variants]
            guards.append(
                (
                    -1 if flow.edges[e].head is None else self.edges.index(e),
                    when.follows or "fixed",
                    bounds[0],
                    bounds[1],
                    [list(curve) for curve in curves],
                    [n for n, name in enumerate(names[0]) if name in when.label_in],
                )
            )
            scores += [float(x) for one in each for x in np.asarray(one)]
        told = [outcomes.label((spec.name, v.name)) for v in spec.variants]
        labels = [int(x) for one in told for x in (np.zeros(outcomes.rows) if one is None else one)]
        return guards, spec.fire == "first", scores, labels

    def plan(self, plan: FlowPlan, hold: Hold) -> _core.PipelinePlan:
        """What the core needs of a plan."""
        values = self.values(plan, shared=hold == "all")
        return _core.PipelinePlan(
            demand=values.demand,
            price=values.price,
            share=values.share,
            feasible=values.feasible,
            rate=values.rate,
            budget=values.budget_ns,
            time=values.time_ns,
        )


class _Fleet:
    """The workers, and what each of them holds."""

    def __init__(self, job: FlowRun, shape: Shape, engine: _core.Simulation) -> None:
        self._job, self._shape, self._engine = job, shape, engine
        self._pools: dict[tuple[int, int, int], int] = {}  # (stage, variant, batch) -> the engine's bundle
        self._holds: dict[int, tuple[int, int, int]] = {}  # worker -> that
        self._all: int | None = None
        self._watts: dict[int, float] = {}  # by the engine's runtime
        self.moves = 0

    @property
    def size(self) -> int:
        """Workers that there are."""
        return len(self._holds)

    def joules(self) -> float | None:
        """What busy workers have drawn so far, beyond idle; None: some watts are not known."""
        if not self._shape.flow.metered:
            return None
        busy = self._engine.runtimes()["busy_ns"]
        return math.fsum(float(busy[r]) * watts for r, watts in self._watts.items()) / SECOND_NS

    def follow(self, plan: FlowPlan, now: int) -> None:
        """Changes what the workers hold to what the plan says."""
        if self._job.hold == "all":
            few = self._job.workers if self._job.fixed else max(min(plan.workers, self._job.workers), 1)
            self._resize(few, now)
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
        """Rows. Where deadlines form batches the variant's own cap, as when served; else the largest with which a path
        of such stages keeps half of the SLO, as an even split of it."""
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
            runtime = self._engine.add_runtime(
                length,
                max(1, int(slo_ns * key[2] / ns)),
                [(length, rows, spec.latency_ns(rows, i)) for rows in points if rows <= key[2]],
                max_batch=key[2],
                variant=self._shape.variant[key[:2]],
            )
            self._watts[runtime] = spec.watts
            found.append(runtime)
        return found


class _Seen:
    """Rows that entered each stage, second by second."""

    def __init__(self, shape: Shape, engine: _core.Simulation) -> None:
        self._shape, self._engine = shape, engine
        self._before = [0] * len(shape.flow.stages)
        self._demands = [Demand() for _ in shape.flow.stages]
        self._traffic = FlowTraffic(shape.flow)
        self._any = False

    def look(self, second: int, roots: int) -> None:
        """At the end of a second, with the roots that have arrived so far."""
        now = [0] * len(self._before)
        visits = self._engine.pipeline_totals()["visits"]
        for (stage, _), v in self._shape.variant.items():
            now[stage] += visits[v]
        for demand, count, before in zip(self._demands, now, self._before, strict=True):
            demand.add(float(count - before))
        self._before, self._any = now, self._any or sum(now) > 0
        self._traffic.add(second + 1.0, 0.0, self._counts(roots))

    def _counts(self, roots: int) -> list[StageCounts]:
        made, shape = self._engine.pipeline_totals()["made"], self._shape
        found = []
        for stage in shape.order:
            own = [e for e in shape.flow.out(stage) if shape.flow.edges[e].head is not None]
            variants = [made[shape.variant[stage, k]] for k in range(len(shape.flow.stages[stage].variants))]
            edge = shape.flow.parent_edge[stage]
            arrived = roots if edge is None else sum(one[2][shape.edges.index(edge)] for one in made)
            counts = tuple(
                VariantCounts(answered, ended, tuple(children[shape.edges.index(e)] for e in own))
                for answered, ended, children in variants
            )
            found.append(StageCounts(arrived, counts))
        return found

    def traffic(self) -> Traffic:
        """Factors and exits until now."""
        return self._traffic.seen()

    def planned(self) -> None:
        """A plan was made for what was seen."""
        self._traffic.planned()

    def rows(self) -> list[float] | None:
        """Rows per second of each stage [stages]; None: nothing was seen yet."""
        return [max(demand.rate(), 1e-3) for demand in self._demands] if self._any else None


def run(job: FlowRun) -> FlowResult:
    """Simulate. ConfigError, ValueError for a job that makes no sense."""
    flow = job.flow
    if job.workers < 1:
        raise ConfigError(f"workers must be at least 1, not {job.workers}")
    if not len(job.arrived_ns):
        raise ConfigError("there are no arrivals to simulate")
    shape = Shape(flow, job.outcomes)
    slo = round(flow.slo_ms * MS_NS)
    engine = _core.Simulation(
        "late",
        slo=slo,
        batching=job.batching,
        seed=job.seed,
        max_queued=1 << 30,
        hop_out=round(job.hop_ms * MS_NS),
        hop_back=round(job.hop_ms * MS_NS),
        warmup=round(job.warmup_s * SECOND_NS),
        record=True,
        noise=np.array(job.noise) if job.noise else None,
    )
    rows = shape.rows()
    lacks = rows is None or any(
        not rows[2][shape.place[flow.index[edge.tail]]][0] for edge in flow.edges if edge.when.follows
    )
    if lacks and any(edge.when.follows for edge in flow.edges):
        raise ConfigError("exits that follow the load are simulated on recorded rows: flow.records, of all variants")
    engine.set_pipeline(
        shape.spec(),
        shape.draws(),
        exits=shape.exits(),
        deadline=slo if flow.drop == "slack" else None,
        rows=rows,
    )
    arrived = np.ascontiguousarray(job.arrived_ns, np.int64)
    counts = np.bincount(arrived // SECOND_NS)
    fleet, demand = _Fleet(job, shape, engine), Demand()
    seen = _Seen(shape, engine)
    period = round(flow.plan_period_s)
    plan: FlowPlan | None = None
    plans, utilisation, solve_s, workers = 0, 0.0, 0.0, []
    start, before_j = 0, 0.0
    lengths = _root_lengths(job, len(arrived))
    for second, count in enumerate(counts):
        now = second * SECOND_NS
        engine.advance(now)
        if now <= job.warmup_s * SECOND_NS:
            before_j = fleet.joules() or 0.0
        guess = demand.rate() if second else float(count)
        off = plan is not None and guess > 0 and not 1 / (1 + job.shift) <= guess / plan.demand <= 1 + job.shift
        if guess > 0 and (plan is None or second % max(period, 1) == 0 or off):
            plan = job.planner(guess, job.workers, plan, seen.rows(), seen.traffic() if job.counted else None)
            seen.planned()
            plans += 1
            utilisation += plan.utilisation
            solve_s += plan.solve_s
            fleet.follow(plan, now)
            engine.plan(shape.plan(plan, job.hold))
        workers.append(fleet.size)
        end = start + int(count)
        engine.feed(arrived[start:end], lengths[start:end])
        start = end
        demand.add(float(count))
        seen.look(second, end)
    engine.finish()
    spent_j = fleet.joules()
    planned = {
        "plans": plans,
        "moves": fleet.moves,
        "utilisation": utilisation / max(plans, 1),
        "solve_ms_mean": solve_s * 1e3 / max(plans, 1),
        "joules_total": None if spent_j is None else spent_j - before_j,
    }
    return _result(engine, job, counts, np.array(workers), planned)


def _root_lengths(job: FlowRun, count: int) -> NDArray[np.int32]:
    """Tokens [count] of the roots, drawn from those of the stage where they come in."""
    given = job.flow.stages[job.flow.order[0]].lengths
    if not given:
        return np.ones(count, np.int32)
    shares = np.array([share for _, share in given])
    drawn = np.random.default_rng([job.seed, 1]).choice([n for n, _ in given], count, p=shares / shares.sum())
    return np.ascontiguousarray(drawn, np.int32)


def _result(
    engine: _core.Simulation,
    job: FlowRun,
    counts: NDArray[np.int64],
    workers: NDArray[np.int64],
    planned: dict[str, Any],
) -> FlowResult:
    totals, columns = engine.pipeline_totals(), engine.columns()
    roots = max(totals["roots"], 1)
    served = max(totals["on_time"] + totals["late"], 1)
    leaves = totals["leaves_on_time"] + totals["leaves_late"]
    dropped = sum(totals["dropped"].values())
    second = columns["arrived_ns"] // SECOND_NS
    good = columns["outcome"] == 0
    answered = columns["accuracy"] >= 0
    mine = answered & (columns["arrived_ns"] >= job.warmup_s * SECOND_NS)
    each, shape = len(counts), Numbers(job.flow)
    arrived = np.maximum(np.bincount(second, minlength=each), 1)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(second[answered], columns["accuracy"][answered], each) / np.maximum(
            np.bincount(second[answered], minlength=each), 1
        )
    counted = workers[round(job.warmup_s) :] if len(workers) > job.warmup_s else workers
    return FlowResult(
        roots=totals["roots"],
        violations=(totals["failed"] + totals["late"] + totals["partial"]) / roots,
        accuracy=totals["accuracy_sum"] / served,
        utility=totals["on_time_accuracy_sum"] / roots,
        fell_back=totals["fell_back"],
        leaf_violations=(totals["leaves_late"] + dropped) / max(leaves + dropped, 1),
        leaf_accuracy=totals["leaf_accuracy_sum"] / max(leaves, 1),
        mean_ms=float(columns["latency_ns"][mine].mean()) / MS_NS if mine.any() else 0.0,
        workers_mean=float(counted.mean()),
        workers_most=int(counted.max()),
        dropped=totals["dropped"],
        rerouted=totals["rerouted"],
        visits={
            f"{job.flow.stages[stage].name}:{job.flow.stages[stage].variants[k].name}": totals["visits"][v]
            for (stage, k), v in shape.variant.items()
        },
        **planned,
        rows=int(engine.totals()["rows"]),
        joules=None if planned["joules_total"] is None else planned["joules_total"] / served,
        seconds={
            "demand": counts.astype(float).tolist(),
            "workers": workers.astype(float).tolist(),
            "accuracy": accuracy.tolist(),
            "violations": (1 - np.bincount(second[good], minlength=each) / arrived).tolist(),
        },
    )
