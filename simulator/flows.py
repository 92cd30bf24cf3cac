"""Flows: roots that become visits of a tree of stages, with the planner that serves.

The engine decides with src/flow/pipeline, as the gateway does. Workers hold all variants of all stages, or (`bundle`
"variant") the one that the planner assigns. The planner receives the counts each second; at the start it receives
those of the first second to come.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.catalog.bundle import bundle_of
from arlo.catalog.flow import Flow
from arlo.catalog.flow_accuracy import path_accuracy, way
from arlo.catalog.flow_exits import gain, work_s
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.errors import ConfigError
from arlo.planning.flows.live import StageCounts, VariantCounts
from arlo.planning.flows.numbers import SECOND_NS, Numbers
from arlo.planning.flows.problem import FlowPlan
from arlo.planning.models import Served as Model
from arlo.planning.planner import PlannerSettings
from arlo.planning.serving import planner_for
from arlo.simulator.report.result import Figures
from arlo.simulator.scenario.scenario import Allocate, Dispatch, Rows, RuntimeModel, Scenario, Workload

MS_NS = 1_000_000

Draw = tuple[str, list[float], list[float], list[int], int, list[tuple[int, float]]]
Guard = tuple[int, str, float, float, list[list[tuple[float, float]]], list[int]]
StageRows = tuple[list[Guard], bool, list[float], list[int]]
Recorded = tuple[int, list[int], list[StageRows]]  # as _core.Simulation.set_pipeline takes them


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
        spec = self.flow.stages[stage]
        return self.variant[stage, k], spec.accuracy(k), spec.least_ns(k), spec.work_ns(k) / SECOND_NS

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
            ):  # the share is of a row's contents, not of rows: each part goes its way
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

    def rows(self) -> Recorded | None:
        """The recorded rows, of which each root is one. None if some path was not recorded on them."""
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

    def plan(self, plan: FlowPlan, *, shared: bool) -> _core.PipelinePlan:
        """The part of a plan that the core needs. `shared`: every worker holds all variants."""
        values = self.values(plan, shared=shared)
        return _core.PipelinePlan(
            demand=values.demand,
            price=values.price,
            share=values.share,
            feasible=values.feasible,
            rate=values.rate,
            budget=values.budget_ns,
            time=values.time_ns,
        )


def scenario_of(
    flow: Flow, workload: Workload, *, outcomes: RowOutcomes | None = None, slo_ms: float | None = None, **fields: Any
) -> Scenario:
    """Roots that arrive as the workload says; their lengths are those of the flow's entry. `outcomes`: recorded rows.
    `fields`: others of Scenario."""
    if slo_ms is not None:
        flow = dataclasses.replace(flow, slo_ms=slo_ms)
    own: dict[str, Any] = {
        "name": flow.name,
        "workload": workload,
        "workers": 20,
        "dispatch": Dispatch(batching="deadline" if flow.drop == "slack" else "fill"),
        "allocate": Allocate(period_s=flow.plan_period_s),
        "bundle": "variant",
        "overhead_ms": 0.0,
    } | fields
    runtimes = [
        runtime
        for stage in range(len(flow.stages))
        for k in range(len(flow.stages[stage].variants))
        for runtime in _runtimes(flow, stage, k, own["dispatch"].batching)
    ]
    return Scenario(**own, runtimes=tuple(runtimes), slo_ms=flow.slo_ms, served=ServedFlow(flow, outcomes))


def _runtimes(flow: Flow, stage: int, k: int, batching: str) -> list[RuntimeModel]:
    """The runtimes of a variant. Where deadlines form batches, its largest cap applies, as when served; otherwise the
    largest cap with which a path of such stages fits half the SLO, split evenly."""
    spec, most = flow.stages[stage].variants[k], max(flow.stages[stage].variants[k].batch_caps)
    if batching != "deadline":
        limit = flow.slo_ms * MS_NS / 2 / max(len(flow.line(leaf)) for leaf in range(len(flow.stages)))
        caps = [rows for rows in spec.batch_caps if spec.latency_ns(rows, len(spec.max_lengths) - 1) <= limit]
        most = max(caps, default=min(spec.batch_caps))
    points = [rows for rows in sorted({*spec.table.batches(), 1, most}) if rows <= most]
    return [
        RuntimeModel(
            name=f"{flow.stages[stage].name}:{spec.name}/{length}",
            max_length=length,
            points=tuple((length, rows, spec.latency_ns(rows, i) / MS_NS) for rows in points),
            max_batch=most,
            capacity=max(1, int(flow.slo_ms * MS_NS * most / spec.latency_ns(most, i))),
            variant=Numbers(flow).variant[stage, k],
            load_ms=0 if i else round(spec.load_ms),  # of all of them together
            watts=spec.watts,
        )
        for i, length in enumerate(spec.max_lengths)
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class ServedFlow:
    """A flow, and the recorded rows that roots are drawn from."""

    flow: Flow
    outcomes: RowOutcomes | None = None
    ahead: int = 0

    @property
    def work_s(self) -> float:
        """Worker-seconds of a root on the most accurate variants."""
        flow = self.flow
        best = [max(range(len(stage.variants)), key=stage.accuracy) for stage in flow.stages]
        return math.fsum(
            flow.multiplicity(s, tuple(best[at] for at in flow.line(s))) * work_s(stage, best[s])
            for s, stage in enumerate(flow.stages)
        )

    def planner(self, settings: PlannerSettings, scenario: Scenario) -> Any:
        by_variant: dict[int, list[RuntimeModel]] = {}
        for runtime in scenario.runtimes:
            by_variant.setdefault(runtime.variant, []).append(runtime)
        models = [
            Model(bundle=bundle_of(runtimes[0].name.rpartition("/")[0], runtimes), slo_ms=scenario.slo_ms)
            for _, runtimes in sorted(by_variant.items())
        ]
        return planner_for(
            settings,
            models=models,
            divides=scenario.bundle == "variant",
            flow=self.flow,
            outcomes=self.outcomes,
            most=scenario.scale.max_workers if scenario.scale.kind == "plan" else 0,
        )

    def begin(self, engine: _core.Simulation, scenario: Scenario) -> Roots:
        shape = Shape(self.flow, self.outcomes)
        rows = shape.rows()
        follows = [edge for edge in self.flow.edges if edge.when.follows]
        if follows and (rows is None or any(not rows[2][shape.place[self.flow.index[e.tail]]][0] for e in follows)):
            raise ConfigError(
                "exits that follow the load are simulated on recorded rows: flow.records, of all variants"
            )
        engine.set_pipeline(
            shape.spec(),
            shape.draws(),
            exits=shape.exits(),
            deadline=round(self.flow.slo_ms * MS_NS) if self.flow.drop == "slack" else None,
            rows=rows,
        )
        return Roots(shape, engine, scenario)


class Roots(Rows):
    """The roots of one run, and the planner's statistics of them."""

    plans = True

    def __init__(self, shape: Shape, engine: _core.Simulation, scenario: Scenario) -> None:
        self._shape, self._engine = shape, engine
        self._shared = scenario.bundle == "all"
        self._workload, self._seed = scenario.workload, scenario.seed
        self._random = np.random.default_rng([scenario.seed, 1])
        self._sums: list[float] = []  # utilisations of the plans
        self._primed = False

    def feed(
        self, arrived: NDArray[np.int64], length: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], None]:
        given = self._shape.flow.stages[self._shape.flow.order[0]].lengths
        if not given:
            return arrived, np.ones(len(arrived), np.int32), None
        shares = np.array([share for _, share in given])
        drawn = self._random.choice([n for n, _ in given], len(arrived), p=shares / shares.sum())
        return arrived, np.ascontiguousarray(drawn, np.int32), None

    def sample(self, planner: Any, now_s: float) -> None:
        if not self._primed:
            self._primed = True
            arrived = next((part for part, _ in self._workload.chunks() if len(part)), np.zeros(0, np.int64))
            for at_s, roots in ((-1.0, 0), (0.0, int(np.searchsorted(arrived, SECOND_NS)))):
                planner.subject.count(at_s, -1.0, self.counts(roots))
        by_variant = [self._engine.arrivals_by_length(v) for v in range(len(self._shape.variant))]
        planner.add(now_s, 0.0, planner.subject.joined(by_variant))
        planner.subject.count(now_s, 0.0, self.counts(int(self._engine.arrivals_by_length().sum())))

    def counts(self, roots: int) -> list[StageCounts]:
        """The counts of each stage, given the number of roots that have arrived so far."""
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

    def tell(self, planner: Any) -> None:
        plan = planner.subject.in_force
        self._sums.append(plan.utilisation)
        self._engine.plan(self._shape.plan(plan, shared=self._shared))

    def figures(self) -> Figures:
        totals, shape = self._engine.pipeline_totals(), self._shape
        roots, dropped = max(totals["roots"], 1), sum(totals["dropped"].values())
        leaves = totals["leaves_on_time"] + totals["leaves_late"]
        return Figures(
            accuracy=totals["accuracy_sum"] / max(totals["on_time"] + totals["late"], 1),
            utility=totals["on_time_accuracy_sum"] / roots,
            degraded=totals["partial"] / roots,
            more={
                "leaf_violations": (totals["leaves_late"] + dropped) / max(leaves + dropped, 1),
                "leaf_accuracy": totals["leaf_accuracy_sum"] / max(leaves, 1),
                "fell_back": totals["fell_back"],
                "dropped": totals["dropped"],
                "rerouted": totals["rerouted"],
                "visits": {
                    f"{shape.flow.stages[stage].name}:{shape.flow.stages[stage].variants[k].name}": totals["visits"][v]
                    for (stage, k), v in shape.variant.items()
                },
                "rows": int(self._engine.totals()["rows"]),
                "planned_utilisation": float(np.mean(self._sums or [0.0])),
            },
        )
