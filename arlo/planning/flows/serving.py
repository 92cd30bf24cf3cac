"""The planner of a served flow: demand from the counters, workers per variant, and the gateway's plan.

Its models (arlo/planning/models.py) are the variants. It requests a plan from the flow's planner for the counted roots,
factors and exits; workers that the plan does not need keep their variants, so that no worker moves in
vain and a burst finds them. It minimises the share of the demand that gets no right answer: the unserved share, and
the share answered wrongly according to the accuracies of its paths; if `flow.joule` is set, it adds the worth of the
energy.

`arlo` moves workers if that falls by `min_gain` of it, and if the fall until the next plan exceeds the worth of the
worker-seconds of loading at the plan's price; if no worker moves, the gateway gets the best shares for the present
instances. The papers' planners move whenever their plan asks for it, as printed. Pure; the time is an argument.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from arlo.catalog.flow import Flow
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.planning.allocation.problem import Allocation
from arlo.planning.flows import build
from arlo.planning.flows.exact import ExactFlowSolver
from arlo.planning.flows.live import FlowTraffic, StageCounts, Traffic
from arlo.planning.flows.numbers import Numbers
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan
from arlo.planning.flows.steps import most_accurate
from arlo.planning.models import OfModels, Served
from arlo.planning.planner import Answer, PlannerSettings, Problem, Seen

LENGTHS_FROM = 100  # counted rows of a stage from which its lengths are planned for
LEAST_DEMAND = 1e-3  # roots per second: planned for before any came


@dataclasses.dataclass(frozen=True, slots=True)
class FlowAnswer(Answer):
    """An allocation, the plan that it carries out, and the best plan for the instances wanted now."""

    plan: FlowPlan
    kept: FlowPlan
    size: int  # wanted workers, of all that there may be


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ByFlow(Problem):
    """Divides workers among the variants of a flow, in the core's order. Pure."""

    numbers: Numbers
    workers: int
    traffic: Traffic
    held: tuple[int, ...]  # instances wanted now
    before: FlowPlan | None  # the plan in force
    outcomes: RowOutcomes | None
    most: int = 0  # workers that there may be
    utilisation: float | None = None  # of an earlier plan, for comparisons with it; None: not known yet

    minimises_ms = False

    @property
    def _flow(self) -> Flow:
        return self.numbers.flow

    @property
    def _demand(self) -> float:
        return max(self.traffic.demand, LEAST_DEMAND)

    def plan(self, workers: int, instances: Sequence[int] = ()) -> FlowPlan:
        """A plan for these workers; with `instances`, the best one for these."""
        return make_plan(
            self._flow,
            demand=self._demand,
            workers=workers,
            factors=self.traffic.factors,
            exits=self.traffic.exits,
            outcomes=self.outcomes,
            held=self._by_stage(instances) if instances else (),
            before=None if instances else self.before,
            window=self.traffic.window,
            utilisation=self.utilisation,
        )

    def solve(self, last: Allocation | None, *, time_limit_s: float) -> FlowAnswer:
        """A plan, and workers for it; spare workers stay where they are, else help the busiest variant."""
        del last, time_limit_s
        plan = self.plan(self.workers)
        wanted = self._with_spares(plan)
        held = self.held if sum(self.held) == self.workers else wanted
        kept = plan if held == wanted else self._beside(plan).plan(self.workers, held)
        kept = dataclasses.replace(kept, note=kept.note or plan.note)
        if not all(any(counts) for counts in self._by_stage(wanted)):  # a stage would be empty: keep the present ones
            wanted, plan = held, kept
        found = Allocation(
            instances=wanted,
            objective=1 - plan.served * plan.value,
            solver="exact",
            solve_s=plan.solve_s,
            optimal=plan.optimal,
            reason=plan.reason or None,
        )
        size = plan.workers if self.most <= self.workers else self.plan(self.most).workers
        return FlowAnswer(found, "", plan, kept, size)

    def compared(self, answer: Answer) -> ByFlow:
        """The problem at the utilisation that the window gave for the answer."""
        assert isinstance(answer, FlowAnswer)
        return self._beside(answer.plan)

    def _beside(self, plan: FlowPlan) -> ByFlow:
        found = self._flow.utilisation == "window"
        return dataclasses.replace(self, utilisation=plan.utilisation) if found else self

    def loss(self, instances: Sequence[int]) -> float:
        """Share of the demand without a right answer, plus the worth of its energy; infinity if a stage has no
        instance."""
        held = self._by_stage(instances)
        if not all(any(counts) for counts in held):
            return math.inf
        asked = build.problem(
            self._flow,
            demand=self._demand,
            workers=sum(instances),
            utilisation=self._flow.known_utilisation if self.utilisation is None else self.utilisation,
            factors=self.traffic.factors,
            exits=self.traffic.exits,
            outcomes=self.outcomes,
            held=held,
            joule=self._flow.joule,
        )
        return max(1 - asked.value(most_accurate(asked, ExactFlowSolver())), 0.0)

    def outweighed(
        self, wanted: Sequence[int], best: Sequence[int], load_ms: Sequence[float | None], period_s: float
    ) -> str:
        """The reason why the worker-seconds of loading, at the price in force, outweigh the change's gain."""
        more = [max(0, b - a) for a, b in zip(wanted, best, strict=True)]
        load_s = sum(count * (each or 0.0) / 1000 for count, each in zip(more, load_ms, strict=True))
        before = self.loss(wanted)
        gained = (before - self.loss(best)) * self.traffic.demand * period_s
        cost = load_s * (self.before.price if self.before is not None else 0.0)
        if math.isinf(before) or cost <= gained:
            return ""
        return (
            f"{sum(more)} load(s) of {load_s:.3g} s in all are worth {cost:.3g} right answers, and the change "
            f"gains {gained:.3g} in {period_s:g} s"
        )

    def _by_stage(self, instances: Sequence[int]) -> list[list[int]]:
        """Instances [stages][variants] from numbers by variant in the core's order."""
        stages = self._flow.stages
        return [
            [instances[self.numbers.variant[s, k]] for k in range(len(stage.variants))]
            for s, stage in enumerate(stages)
        ]

    def _with_spares(self, plan: FlowPlan) -> tuple[int, ...]:
        counts = self.numbers.instances(plan)
        spare = self.workers - sum(counts)
        for v, had in enumerate(self.held):
            more = min(max(had - counts[v], 0), spare)
            counts[v] += more
            spare -= more
        load = [0.0] * len(counts)  # workers' worth of constant work
        for pool in plan.pools:
            if pool.capacity > 0:
                v = self.numbers.variant[pool.stage, pool.variant]
                load[v] += pool.load / pool.capacity * pool.instances
        for _ in range(spare):
            counts[max(range(len(counts)), key=lambda v: (load[v] / counts[v] if counts[v] else 0.0, -v))] += 1
        return tuple(counts)


class Variants(OfModels):
    """See the module. Numbers of instances are by variant, in the core's order."""

    def __init__(
        self,
        settings: PlannerSettings,
        variants: Sequence[Served],
        flow: Flow,
        *,
        divides: bool = True,
        outcomes: RowOutcomes | None = None,
        most: int = 0,
    ) -> None:
        """`variants`: in the core's order. `divides`: False if all workers hold all of them. `most`: workers that there
        may be; 0: the present number."""
        super().__init__(settings, variants, divides=divides)
        self.numbers = Numbers(flow)
        self.traffic = FlowTraffic(flow)
        self._outcomes, self._most = outcomes, most

    def count(self, at_s: float, started_s: float, stages: Sequence[StageCounts]) -> None:
        """Add the flow's counters."""
        self.traffic.add(at_s, started_s, stages)

    def problem(self, workers: int, seen: Seen | None, wanted: Sequence[int]) -> ByFlow:
        """The problem for the traffic so far. `seen` counts visits: only their lengths matter, not their number."""
        if (flow := self._with_lengths(seen)) != self.numbers.flow:
            self.numbers = Numbers(flow)
        return ByFlow(
            numbers=self.numbers,
            workers=workers,
            traffic=self.traffic.seen(),
            held=tuple(wanted),
            before=self.in_force,
            outcomes=self._outcomes,
            most=self._most,
        )

    def _with_lengths(self, seen: Seen | None) -> Flow:
        """The flow with the lengths of its stages' rows, to a hundredth of them; a stage with few rows keeps its
        earlier lengths, at first the file's."""
        flow = self.numbers.flow
        if seen is None:
            return flow
        by_variant, stages = self.by_model(seen.demand), []
        for s, stage in enumerate(flow.stages):
            of_stage = [by_variant[self.numbers.variant[s, k]] for k in range(len(stage.variants))]
            longest = min(variant.max_lengths[-1] for variant in stage.variants)
            counted: dict[int, float] = {}
            for demand in of_stage:
                for length, mean in zip(demand.max_lengths, demand.mean, strict=True):
                    counted[min(length, longest)] = counted.get(min(length, longest), 0.0) + mean
            total, rows = sum(counted.values()), sum(demand.rows for demand in of_stage)
            lengths = stage.lengths
            if rows >= LENGTHS_FROM and total > 0:
                shares = [(length, round(mean / total, 2)) for length, mean in sorted(counted.items())]
                lengths = tuple(each for each in shares if each[1] > 0)
            stages.append(dataclasses.replace(stage, lengths=lengths))
        return dataclasses.replace(flow, stages=tuple(stages))

    def routing(self, workers: int) -> Callable[[], FlowPlan] | None:
        """The plan for workers that hold all variants."""
        return None if self.planned else functools.partial(self.problem(workers, None, ()).plan, workers)

    def adopt(self, answer: Answer, *, moves: bool) -> None:
        """Set `in_force` to the plan for the resulting instances."""
        assert isinstance(answer, FlowAnswer)
        self.size = answer.size
        self.follow(answer.plan if moves else answer.kept)

    def follow(self, plan: FlowPlan) -> None:
        """Put a plan for the traffic counted so far in force."""
        self.in_force = plan
        self.traffic.planned()
