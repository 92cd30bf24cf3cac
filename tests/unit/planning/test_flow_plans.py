"""Plans of flows that can be worked out by hand (Loki, HPDC'24, section 4)."""

from __future__ import annotations

import dataclasses

import pytest

from arlo.catalog.flow import Flow, FlowEdge, FlowStage
from arlo.errors import ConfigError
from arlo.planning.flows.demand import Demand, LiveFactors, ewma, worth
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan
from benchmarks.papers.loki.planners import PlannerName, plan_as
from tests.fakes.flow_evaluate import evaluate
from tests.fakes.flows import branches, cascade, metered, toy, variant


def counts(plan: FlowPlan) -> tuple[int, ...]:
    """Instances of (a1, a2, b1, b2)."""
    found = [0, 0, 0, 0]
    for (stage, kind, _), n in plan.instances().items():
        found[2 * stage + kind] += n
    return tuple(found)


@pytest.mark.parametrize("planner", ["loki", "arlo"])
@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        (10, ("hardware", 1.0, (1, 0, 1, 0), {"A:a1>B:b1": 1.0})),
        (20, ("hardware", 1.0, (2, 0, 2, 0), {"A:a1>B:b1": 1.0})),
        (30, ("accuracy", 0.9, (3, 0, 0, 1), {"A:a1>B:b2": 1.0})),
        (40, ("accuracy", 0.81, (2, 1, 0, 1), {"A:a1>B:b2": 0.5, "A:a2>B:b2": 0.5})),
        (60, ("accuracy", 0.78, (2, 1, 0, 1), {"A:a1>B:b2": 1 / 3, "A:a2>B:b2": 2 / 3})),
    ],
)
def test_a_chain_of_two(
    planner: PlannerName, demand: float, expected: tuple[str, float, tuple[int, ...], dict[str, float]]
) -> None:
    step, accuracy, instances, shares = expected
    flow = dataclasses.replace(toy(), utilisation=1.0)
    plan = plan_as(flow, planner, demand=demand, workers=4)
    assert (plan.step, plan.reason, plan.served, plan.optimal) == (step, "", 1, True)
    assert counts(plan) == instances
    assert plan.accuracy == pytest.approx(accuracy)
    found = {flow.label(*key): share for key, share in plan.shares().items() if key[0] == 1}
    assert found == pytest.approx(shares)
    verdict = evaluate(plan)
    assert verdict.problems == ()
    assert verdict.accuracy == pytest.approx(plan.accuracy)


@pytest.mark.parametrize(
    ("joule", "expected"),
    [
        (0.01, (1.0, 20.0, {"A:a1>B:b1": 1.0})),
        (0.015, (0.9, 12.5, {"A:a1>B:b2": 1.0})),  # 7.5 J for a tenth of the answers: worth it up to .0133
        (0.0205, (0.8, 7.5, {"A:a2>B:b1": 1.0})),  # from .02 on
        (0.03, (0.72, 3.75, {"A:a2>B:b2": 1.0})),  # from .0213 on
    ],
)
def test_what_a_joule_is_worth(joule: float, expected: tuple[float, float, dict[str, float]]) -> None:
    """100 W each, and workers enough for all: energy alone gives accuracy up, and says so."""
    accuracy, joules, shares = expected
    flow = metered(dataclasses.replace(toy(), utilisation=1.0), joule, 100)
    plan = make_plan(flow, demand=10, workers=4)
    assert {flow.label(*key): share for key, share in plan.shares().items() if key[0] == 1} == pytest.approx(shares)
    assert (plan.accuracy, plan.joules) == (pytest.approx(accuracy), pytest.approx(joules))
    assert plan.bound == pytest.approx(accuracy, abs=2e-4), "none is more accurate and draws as little"
    assert (plan.step, plan.price) == ("hardware", pytest.approx(0))
    assert plan_as(flow, "loki", demand=10, workers=4).accuracy == 1.0, "as printed"


def test_a_variant_that_draws_little_may_take_its_time() -> None:
    """b1 takes four times as long as b2, and draws a tenth: .5 J and not 1.25."""
    watts = {"a1": 100.0, "a2": 100.0, "b1": 10.0, "b2": 100.0}
    plan = make_plan(metered(dataclasses.replace(toy(), utilisation=1.0), 0.03, watts), demand=10, workers=4)
    assert (plan.accuracy, plan.joules) == (pytest.approx(0.8), pytest.approx(2.5 + 0.5))
    assert counts(plan) == (0, 1, 1, 0)


def test_the_price_is_that_of_capacity_beside_energy() -> None:
    """A worker-second buys a tenth of an answer for .05 s, less the .5 that it draws."""
    stage = FlowStage(name="one", variants=(variant("good", 0.9, 10), variant("quick", 0.8, 20)))
    flow = Flow(name="one", slo_ms=1e9, stages=(stage,), utilisation=1.0)
    plain = make_plan(flow, demand=60, workers=4)
    dear = make_plan(metered(flow, 0.005, 100), demand=60, workers=4)
    assert (plain.price, dear.price) == (pytest.approx(0.1 / 0.05), pytest.approx(0.1 / 0.05 - 0.5))
    assert plain.shares() == pytest.approx(dear.shares())
    assert plain.accuracy == pytest.approx(dear.accuracy)


@pytest.mark.parametrize("planner", ["loki", "arlo"])
def test_more_than_can_be_served(planner: PlannerName) -> None:
    plan = plan_as(dataclasses.replace(toy(), utilisation=1.0), planner, demand=100, workers=4)
    assert plan.step == "overload"
    assert plan.served == pytest.approx(0.8), "b2 alone serves 80 rows/s, a2 two times 40"
    assert plan.reason.startswith("overload: 4 workers serve 0.8 of 100 requests per second")
    assert evaluate(plan).problems == ()


def test_inferline_keeps_its_variants() -> None:
    plan = plan_as(toy(), "inferline", demand=20, workers=4)
    assert (counts(plan), plan.step) == ((2, 0, 2, 0), "hardware")
    plan = plan_as(toy(), "inferline", demand=60, workers=4)
    assert (plan.step, plan.accuracy, counts(plan)) == ("overload", 1.0, (2, 0, 2, 0))
    assert plan.served == pytest.approx(20 / 60)


def test_proteus_scales_every_stage_for_itself_on_all_workers() -> None:
    plan = plan_as(toy(), "proteus", demand=10, workers=4)
    assert plan.workers == 4
    assert plan.accuracy == pytest.approx(1.0)
    # Told that B sees 40 rows per second, it gives up B's accuracy, though A's would have cost less.
    busy = plan_as(toy(), "proteus", demand=30, workers=4, stage_demand=[30, 60])
    assert (busy.workers, counts(busy)[3] > 0) == (4, True)


def test_every_branch_gets_all_rows() -> None:
    planners: tuple[PlannerName, ...] = ("loki", "arlo", "inferline")
    for planner in planners:
        plan = plan_as(dataclasses.replace(branches(), utilisation=1.0), planner, demand=10, workers=20)
        assert [pool.instances for pool in plan.pools] == [1, 1, 1]
        assert [pool.load for pool in plan.pools] == pytest.approx([10, 20, 5])


def test_a_cascade_needs_few_large_ones() -> None:
    plan = plan_as(dataclasses.replace(cascade(), utilisation=1.0), "loki", demand=50, workers=20)
    assert [pool.instances for pool in plan.pools] == [1, 2]
    assert plan.accuracy == pytest.approx(0.7 * 0.9 + 0.3 * 0.95)
    alone = Flow(name="large", slo_ms=1e9, stages=(FlowStage(name="large", variants=(variant("l", 0.95, 10),)),))
    assert plan_as(alone, "loki", demand=50, workers=20).workers == 5


def chain(batches: list[tuple[int, float]], first_ms: float, slo_ms: float, hop_ms: float = 0.0) -> Flow:
    return Flow(
        name="latency",
        slo_ms=slo_ms,
        stages=(
            FlowStage(name="x", variants=(variant("x", 1, 1000 / first_ms),)),
            FlowStage(name="y", variants=(variant("y", 1, 1, batches),)),
        ),
        edges=(FlowEdge(tail="x", head="y", hop_ms=hop_ms),),
    )


def test_half_of_the_slo_is_for_executing() -> None:
    flow = chain([(8, 55.9), (16, 95.9)], 40.6, 250)
    plan = plan_as(flow, "loki", demand=1, workers=4)
    assert plan.reason == ""
    assert [pool.batch for pool in plan.pools] == [1, 8], "40.6 + 55.9 = 96.5 ms of 125; + 95.9 is too long"
    hops = chain([(1, 84.0)], 40.6, 250, hop_ms=2)  # 124.6 ms; the limit is 124
    late = plan_as(hops, "loki", demand=1, workers=4)
    assert late.served == 0
    assert late.reason.startswith("slo_below_latency(x>y): executing takes 124.6 ms at least")
    assert plan_as(dataclasses.replace(hops, slo_ms=252), "loki", demand=1, workers=4).served == 1


def test_budgets_are_twice_the_latency_or_fill_the_slo() -> None:
    flow = chain([(8, 60.0)], 40, 250)
    printed = plan_as(flow, "loki", demand=1, workers=4)
    assert [pool.budget_s for pool in printed.pools] == pytest.approx([0.080, 0.120])
    ours = make_plan(flow, demand=1, workers=4)
    assert [pool.budget_s for pool in ours.pools] == pytest.approx([0.1, 0.15]), "together all of the 250 ms"


def test_the_price_is_the_slope_between_two_variants() -> None:
    # Two variants that differ by .00474 in accuracy and by .0433 worker-seconds a row, and a demand between them.
    flow = Flow(
        name="price",
        slo_ms=1e9,
        utilisation=1.0,
        stages=(FlowStage(name="t", variants=(variant("b5", 0.99526, 1 / 0.0900), variant("b6", 1.0, 1 / 0.1333))),),
    )
    plan = make_plan(flow, demand=150, workers=16)
    assert plan.step == "accuracy"
    assert plan.price == pytest.approx(0.00474 / 0.0433, rel=1e-6), "accuracy for a worker-second: .11"
    assert worth(1.0, 0.05, 0.1, 0.4)
    assert not worth(1.0, 0.05, 0.1, 0.6)


def test_demand_is_an_average_that_forgets() -> None:
    assert ewma([100, 200]) == pytest.approx(161.905, abs=5e-4)
    assert ewma([0, 100]) == pytest.approx(61.905, abs=5e-4)
    assert ewma([100] * 19 + [200]) == pytest.approx(138.464, abs=5e-4)
    seen = Demand()
    assert seen.rate() == 0
    for count in [999.0] * 3 + [100.0] * 19 + [200.0]:
        seen.add(count)
    assert seen.rate() == pytest.approx(138.464, abs=5e-4), "of the last 20 seconds"


def test_factors_start_as_the_flow_says() -> None:
    live = LiveFactors(toy())
    assert live.factors() == {}
    live.add(0, 0, 50, 200)
    assert live.factors() == {(0, 0): pytest.approx((50 * 2 + 200) / 100)}
    for _ in range(100):
        live.add(0, 0, 5000, 20_000)
    assert live.factors()[0, 0] == pytest.approx(4, rel=0.01)
    plan = make_plan(dataclasses.replace(toy(), utilisation=1.0), demand=10, workers=8, factors=live.factors())
    assert counts(plan) == (1, 0, 2, 0), "40 rows of B instead of 20"


def test_of_equal_plans_the_one_that_moves_less() -> None:
    # Both variants are alike: whichever is there stays.
    twins = (variant("l", 0.9, 10), variant("r", 0.9, 10))
    flow = Flow(name="twins", slo_ms=1e9, utilisation=1.0, stages=(FlowStage(name="t", variants=twins),))
    first = make_plan(flow, demand=15, workers=4)
    (pool,) = first.pools
    other = dataclasses.replace(first, pools=(dataclasses.replace(pool, variant=1 - pool.variant),))
    again = make_plan(flow, demand=16, workers=4, before=other)
    assert [each.variant for each in again.pools] == [1 - pool.variant]
    assert again.moves(other) == 0
    assert first.moves(other) == 2


def test_fewer_workers_for_a_little_accuracy() -> None:
    flow = dataclasses.replace(toy(), utilisation=1.0)
    assert make_plan(flow, demand=20, workers=4).workers == 4
    cheap = make_plan(flow, demand=20, workers=4, within=0.1)
    assert (cheap.workers, cheap.accuracy >= 0.9) == (3, True)


def test_wrong_questions() -> None:
    with pytest.raises(ConfigError, match="demand must be above 0"):
        make_plan(toy(), demand=0, workers=1)
    with pytest.raises(ConfigError, match="workers must be at least 1"):
        make_plan(toy(), demand=1, workers=0)
