"""The planner of a flow that is served: counters in, workers per variant and what the gateway is told out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from arlo.catalog.flow import Flow, FlowStage, FlowVariant, table_of_ms
from arlo.control.reconcile.pipeline import plan_message
from arlo.planning.flows import build
from arlo.planning.flows.exact import ExactFlowSolver
from arlo.planning.flows.live import FlowTraffic, StageCounts, VariantCounts
from arlo.planning.flows.numbers import Numbers
from arlo.planning.flows.problem import FlowPlan
from arlo.planning.flows.serving import FlowAnswer, Variants
from arlo.planning.planner import Plan, Planner, PlannerSettings, Seen
from arlo.planning.traffic.demand import Demand
from tests.fakes.flow_programs.highs import HighsFlowSolver
from tests.fakes.flows import cascade, metered, toy
from tests.fakes.planned_models import SETTINGS, served

FLOW = dataclasses.replace(toy(), utilisation=1.0)  # a1 10/s, 2 rows; a2 40/s, 1 row; b1 20/s; b2 80/s


class One(Variants):
    """With the planner that asks."""

    def __init__(self, settings: PlannerSettings, *about: Any, **more: Any) -> None:
        super().__init__(settings, *about, **more)
        self.by = Planner(settings, self)


def planner(flow: Flow = FLOW, settings: PlannerSettings = SETTINGS, most: int = 0) -> One:
    names = [f"{flow.stages[s].name}.{variant.name}" for s in flow.order for variant in flow.stages[s].variants]
    return One(settings, [served(name, (16,)) for name in names], flow, most=most)


def feed(one: One, rate: float, seconds: int = 20, *, begin: int = 0, exits: float = 0.0) -> None:
    """Roots per second, all by a1, which makes 2 rows of each."""
    for second in range(begin, begin + seconds + 1):
        roots = round(rate * (second - begin))
        ended = round(exits * roots)
        first = VariantCounts(roots, ended, (2 * (roots - ended),))
        none = VariantCounts(0, 0, (0,))
        rows = [VariantCounts(2 * (roots - ended), 2 * (roots - ended), ()), VariantCounts(0, 0, ())]
        counts = [StageCounts(roots, (first, none)), StageCounts(2 * (roots - ended), tuple(rows))]
        one.traffic.add(float(second), float(begin), counts)


def decide(one: One, wanted: Sequence[int]) -> Plan:
    question = one.by._question("period", sum(wanted), None, wanted, forced=False)
    return one.by.conclude(question, question.solve())


def test_energy_alone_moves_workers() -> None:
    """There is room for the most accurate variants, and they draw more than they are worth."""
    one = planner(metered(FLOW, 0.03, 100))
    feed(one, 10)
    plan = decide(one, (2, 0, 1, 1))
    assert plan.moves
    assert one.in_force is not None
    assert (one.in_force.accuracy, one.in_force.joules) == (pytest.approx(0.72), pytest.approx(3.75))
    assert one.in_force.price == pytest.approx(0)


def test_demand_moves_workers_to_the_faster_variants_and_back() -> None:
    one = planner()
    feed(one, 10)
    plan = decide(one, (2, 0, 1, 1))
    assert (plan.best, plan.moves) == ((2, 0, 1, 1), False), "what the plan does not need stays where it is"
    assert one.in_force is not None
    assert (one.in_force.step, one.in_force.accuracy) == ("hardware", 1.0)
    assert one.in_force.demand == pytest.approx(10)
    feed(one, 60, begin=100)
    plan = decide(one, (2, 0, 1, 1))
    assert plan.moves
    assert plan.gain is not None
    assert plan.gain > 0
    assert one.in_force.step == "accuracy"
    assert one.in_force.accuracy < 0.85
    assert one.in_force.served == pytest.approx(1)
    assert sum(plan.best) == 4
    feed(one, 10, begin=200)
    back = decide(one, plan.best)
    assert back.moves
    assert one.in_force.accuracy == 1.0
    values = one.numbers.values(one.in_force, shared=False)
    assert values.share == pytest.approx([1, 0, 1, 0, 0, 0])
    assert values.rate[0] == pytest.approx(10)


def test_plans_are_for_the_lengths_that_came() -> None:
    """The file says nothing of lengths: the shortest, until rows were counted. Long ones need the faster variant."""
    variants = tuple(
        FlowVariant(
            name=name,
            accuracy=(right,),
            table=table_of_ms([(16, 1, ms), (128, 1, 9 * ms)]),
            max_lengths=(16, 128),
        )
        for name, right, ms in (("large", 1.0, 10), ("small", 0.8, 2))
    )
    flow = Flow(name="f", slo_ms=10_000, stages=(FlowStage(name="A", variants=variants),), edges=(), utilisation=1.0)
    one = One(SETTINGS, [served(name, (16, 128)) for name in ("A.large", "A.small")], flow)
    for second in range(21):
        roots = 100 * second
        one.traffic.add(float(second), 0.0, [StageCounts(roots, (VariantCounts(roots, roots, ()),) * 2)])

    def planned(rows: int, mean: tuple[float, ...]) -> FlowPlan:
        question = one.by._question(
            "period", 4, Seen(Demand(one.lengths, mean, mean, rows, 20.0)), (4, 0), forced=False
        )
        plan = one.by.conclude(question, question.solve())
        assert sum(plan.best) == 4
        assert one.in_force is not None
        return one.in_force

    assert planned(50, (0, 90, 0, 10)).accuracy == 1, "too few rows to go by"
    assert planned(5000, (90, 0, 10, 0)).accuracy == 1
    long = planned(5000, (0, 90, 0, 10))
    assert long.accuracy < 0.9
    assert long.served == pytest.approx(1)
    assert one.numbers.flow.stages[0].lengths == ((128, 1.0),)
    half = planned(5000, (45, 50, 5, 0))
    assert long.accuracy < half.accuracy < 1
    assert planned(10, (90, 0, 10, 0)).accuracy == half.accuracy, "too few again: as before"
    assert planned(5000, (90, 0, 10, 0)).accuracy == 1


def test_a_change_that_gains_little_is_not_made_and_the_gateway_gets_shares_for_what_is_held() -> None:
    one = planner(settings=dataclasses.replace(SETTINGS, min_gain=1.0))
    feed(one, 60)
    plan = decide(one, (1, 1, 1, 1))
    assert not plan.moves
    assert "min_gain" in plan.note
    assert one.in_force is not None
    held = one.numbers.instances(one.in_force)
    assert all(n <= 1 for n in held)


def test_loading_is_weighed_against_what_it_gains() -> None:
    one = planner(settings=dataclasses.replace(SETTINGS, period_s=1.0, min_gain=0.0))
    one.planned = [dataclasses.replace(each, load_ms=1_000_000) for each in one.planned]
    feed(one, 30)
    assert decide(one, (1, 1, 1, 1)).best != (1, 1, 1, 1)
    feed(one, 40, begin=100)  # the plan in force has a price now
    plan = decide(one, (1, 1, 1, 1))
    assert not plan.moves
    assert "load(s)" in plan.note


def test_what_the_window_says_holds_for_all_that_is_compared() -> None:
    """Every other second brings nothing, the next ones twice as much: what is held, too, is planned for with the
    utilisation that the plan has, and the seconds count from the first plan on."""
    one = planner(dataclasses.replace(FLOW, utilisation="window", slo_ms=1500), most=200)
    feed(one, 10)
    decide(one, (2, 0, 1, 1))
    assert one.in_force is not None
    assert one.in_force.utilisation == 0.8
    assert "0 are known" in one.in_force.note
    rows = 0
    for second in range(101, 161):
        rows += 20 * (second % 2)
        first, none = VariantCounts(rows, 0, (2 * rows,)), VariantCounts(0, 0, (0,))
        last = (VariantCounts(2 * rows, 2 * rows, ()), VariantCounts(0, 0, ()))
        one.traffic.add(float(second), 100.0, [StageCounts(rows, (first, none)), StageCounts(2 * rows, last)])
    question = one.by._question("period", 4, None, (2, 0, 1, 1), forced=False)
    answer = question.solve()
    assert isinstance(answer, FlowAnswer)
    assert answer.plan.utilisation < 0.8
    assert answer.kept.utilisation == answer.plan.utilisation
    assert answer.size >= answer.plan.workers == 4
    one.by.conclude(question, answer)
    assert (one.in_force.utilisation, one.in_force.note) == (answer.plan.utilisation, answer.plan.note)
    told = plan_message(one.numbers, one.in_force, shared=False)
    assert (told.utilisation, told.note) == (answer.plan.utilisation, answer.plan.note)


def test_the_number_of_workers_is_that_of_the_plan_with_all_there_may_be() -> None:
    one = planner(most=10)
    feed(one, 30)
    plan = decide(one, (2, 0, 1, 1))
    assert sum(plan.best) == 4, "of those that there are"
    assert one.size == 6, "3 of a1, and 3 of b1 for 60 rows a second"
    feed(one, 10, begin=100)
    decide(one, plan.best)
    assert one.size == 2


def test_workers_that_are_lost_leave_no_stage_empty() -> None:
    one = planner()
    feed(one, 100)
    question = one.by._question("worker_lost", 2, None, (2, 0, 1, 1), forced=True)
    plan = one.by.conclude(question, question.solve())
    assert plan.moves
    assert sum(plan.best) == 2
    assert plan.best[0] + plan.best[1] == plan.best[2] + plan.best[3] == 1
    assert plan.allocation.reason


def test_factors_and_exits_are_counted() -> None:
    one = FlowTraffic(FLOW)
    assert one.seen().demand == 0
    made = [0, 0]
    for second in range(30):  # a1 makes 3 rows of each of 100, and ends one in ten
        made = [made[0] + 100, made[1] + 270]
        counts = [
            StageCounts(made[0], (VariantCounts(made[0], made[0] // 10, (made[1],)), VariantCounts(0, 0, (0,)))),
            StageCounts(made[1], (VariantCounts(0, 0, ()), VariantCounts(0, 0, ()))),
        ]
        one.add(second + 0.5, 0.0, counts)
        one.add(second + 0.6, 0.0, counts)  # too soon after: passed over
    seen = one.seen()
    assert seen.demand == pytest.approx(100)
    assert 2.5 < seen.factors[0, 0] < 2.7, "50 rows of the flow's own factor of 2 are in it"
    assert 0.07 < seen.exits[0, 0] < 0.1
    assert (0, 1) not in seen.factors
    one.add(40.0, 39.0, [StageCounts(0, ()), StageCounts(0, ())])  # the gateway began again
    one.add(41.0, 39.0, [StageCounts(100, ()), StageCounts(0, ())])
    assert one.seen().demand == pytest.approx(100)


@pytest.mark.parametrize("held", [((1, 1), (1, 1)), ((2, 0), (1, 1)), ((1, 0), (0, 3)), ((0, 2), (2, 2))])
@pytest.mark.parametrize("demand", [10.0, 45.0, 90.0])
def test_what_is_held_bounds_the_plan_as_another_solver_finds(held: tuple[tuple[int, ...], ...], demand: float) -> None:
    pytest.importorskip("highspy")
    for flow in (FLOW, dataclasses.replace(cascade(), utilisation=1.0)):
        counts = [each[: len(stage.variants)] for each, stage in zip(held, flow.stages, strict=True)]
        if not all(map(any, counts)):
            continue
        asked = build.problem(flow, demand=demand, workers=sum(map(sum, counts)), utilisation=1.0, held=counts)
        exact, other = ExactFlowSolver().solve(asked), HighsFlowSolver().solve(asked)
        assert exact is not None
        assert other is not None
        assert exact.served == pytest.approx(other.served, abs=1e-4)
        assert exact.accuracy == pytest.approx(other.accuracy, abs=2e-4)
        for at, stage in enumerate(asked.stages):
            for k in range(stage.variants):
                mine = sum(n for n, o in zip(exact.instances[at], stage.options, strict=True) if o.variant == k)
                assert mine <= counts[at][k]


def test_the_core_numbers_prefixes_as_they_are_numbered_here() -> None:
    numbers = Numbers(FLOW)
    assert list(numbers.node) == [(0, (0,)), (0, (1,)), (1, (0, 0)), (1, (0, 1)), (1, (1, 0)), (1, (1, 1))]
    assert list(numbers.variant) == [(0, 0), (0, 1), (1, 0), (1, 1)]
