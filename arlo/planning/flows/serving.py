"""The planner of a flow that is served: demand as it is counted, workers per variant, and what the gateway is told.

Its models (arlo/planning/models.py) are the variants. What it asks for is a plan of the flow's planner for the roots,
factors and exits that were counted; workers that the plan does not need keep what they hold, so that nothing moves in
vain and a burst finds them. What is minimised is the share of the demand that gets no right answer: what is not served,
and what is answered wrongly by the accuracies of its paths; and beside it what the energy is worth, where `flow.joule`
says so.

`arlo` moves workers where that falls by `min_gain` of it, and by more until the next plan than the worker-seconds of
loading are worth at the plan's price; where nothing moves, the gateway gets the best shares for what is held. The
planners of papers move whenever their plan says so, as printed. Pure; the time is an argument.
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

LENGTHS_FROM = 100  # rows of a stage that were counted: from so many on their lengths are planned for
LEAST_DEMAND = 1e-3  # roots per second: what is planned for before any came


@dataclasses.dataclass(frozen=True, slots=True)
class FlowAnswer(Answer):
    """An allocation, the plan that it carries out, and the best plan for the instances as they are wanted now."""

    plan: FlowPlan
    kept: FlowPlan
    size: int  # workers that are wanted, of all that there may be


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ByFlow(Problem):
    """Workers divided among the variants of a flow, in the core's order. Pure."""

    numbers: Numbers
    workers: int
    traffic: Traffic
    held: tuple[int, ...]  # instances, as they are wanted now
    before: FlowPlan | None  # in force
    outcomes: RowOutcomes | None
    most: int = 0  # workers that there may be
    utilisation: float | None = None  # of a plan that was made, for what is compared with it; None: not known yet

    minimises_ms = False

    @property
    def _flow(self) -> Flow:
        return self.numbers.flow

    @property
    def _demand(self) -> float:
        return max(self.traffic.demand, LEAST_DEMAND)

    def plan(self, workers: int, instances: Sequence[int] = ()) -> FlowPlan:
        """On so many workers; with `instances`, the best for these."""
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
        """A plan, and workers for it; those that it does not need stay where they are, else help the busiest."""
        del last, time_limit_s
        plan = self.plan(self.workers)
        wanted = self._with_spares(plan)
        held = self.held if sum(self.held) == self.workers else wanted
        kept = plan if held == wanted else self._beside(plan).plan(self.workers, held)
        kept = dataclasses.replace(kept, note=kept.note or plan.note)
        if not all(any(counts) for counts in self._by_stage(wanted)):  # no row would end: better what there is
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
        """At the utilisation that the window said for the answer."""
        assert isinstance(answer, FlowAnswer)
        return self._beside(answer.plan)

    def _beside(self, plan: FlowPlan) -> ByFlow:
        found = self._flow.utilisation == "window"
        return dataclasses.replace(self, utilisation=plan.utilisation) if found else self

    def loss(self, instances: Sequence[int]) -> float:
        """Share of the demand without a right answer, and what its energy is worth; infinity where a stage has no
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
        """Why the worker-seconds of loading are worth more, at the price in force, than the change gains."""
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
        """Instances [stages][variants] of numbers by variant in the core's order."""
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
        load = [0.0] * len(counts)  # workers that are busy all the time
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
        """`variants`: in the core's order. `divides`: False where all workers hold all of them. `most`: workers that
        there may be; 0: those that there are."""
        super().__init__(settings, variants, divides=divides)
        self.numbers = Numbers(flow)
        self.traffic = FlowTraffic(flow)
        self._outcomes, self._most = outcomes, most

    def count(self, at_s: float, started_s: float, stages: Sequence[StageCounts]) -> None:
        """Counters of the flow."""
        self.traffic.add(at_s, started_s, stages)

    def problem(self, workers: int, seen: Seen | None, wanted: Sequence[int]) -> ByFlow:
        """For what was counted until now. `seen` counts visits: of these the lengths matter, not how many came."""
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
        """The flow with the lengths that its stages' rows had, to a hundredth of them; where few came, those of before,
        at first the file's."""
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
        """The plan of workers that hold all variants."""
        return None if self.planned else functools.partial(self.problem(workers, None, ()).plan, workers)

    def adopt(self, answer: Answer, *, moves: bool) -> None:
        """`in_force` is then the plan for what will be held."""
        assert isinstance(answer, FlowAnswer)
        self.size = answer.size
        self.follow(answer.plan if moves else answer.kept)

    def follow(self, plan: FlowPlan) -> None:
        """A plan for what was counted until now is in force."""
        self.in_force = plan
        self.traffic.planned()
