"""The utilisation that a window says: seconds as they are counted, replayed through plans."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from arlo.catalog.flow import Expand, Flow, FlowEdge, FlowStage
from arlo.planning.flows.live import FlowTraffic, StageCounts, VariantCounts, drawn
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan
from arlo.planning.flows.window import HIGHEST, LEAST_SECONDS, LOWEST, ON_TIME, STEP, SWING, Second, on_time
from tests.fakes.flows import variant

# 20 ms a row: 50/s; then 2 rows of each, 10 ms: 100/s. Half of the 200 ms are left to wait in any case.
FLOW = Flow(
    name="chain",
    slo_ms=200,
    utilisation="window",
    stages=(
        FlowStage(name="A", variants=(variant("good", 1, 50), variant("quick", 0.7, 400))),
        FlowStage(name="B", variants=(variant("b", 1, 100),)),
    ),
    edges=(FlowEdge(tail="A", head="B", expand=Expand(kind="spans", factor=(2,))),),
)


def window(*loads: tuple[float, float], times: int = 1) -> list[Second]:
    return [Second(1000 * root, (root, row)) for root, row in loads] * times


def planned(seconds: list[Second], workers: int = 300, flow: Flow = FLOW) -> FlowPlan:
    return make_plan(flow, demand=1000, workers=workers, window=seconds)


def test_seconds_are_replayed_as_worked_out_by_hand() -> None:
    """Of 1 worker each that is 80 % busy and may let 0.1 s of work wait: 1.5 times comes, 0.1 of 1.2 s is late."""
    plan = make_plan(dataclasses.replace(FLOW, utilisation=0.8), demand=40, workers=30)
    pools = tuple(
        dataclasses.replace(pool, instances=1, capacity=100.0, load=80.0, latency_s=0.1, budget_s=0.2)
        for pool in plan.pools
    )
    plan = dataclasses.replace(plan, pools=pools)
    late = 0.1 / 1.2  # of the rows of a second with half as many again

    def share(*loads: tuple[float, float]) -> float:
        """Of seconds with as many roots each, by what the replay makes of their loads: see SWING."""
        return on_time(plan, [Second(1, (root ** (1 / SWING), row ** (1 / SWING))) for root, row in loads])

    assert share((1, 1)) == 1
    assert share((1.375, 1)) == pytest.approx(1), "0.1 s waits, as long as it may"
    assert share((1.5, 1)) == pytest.approx(1 - late)
    assert share((1, 1.5)) == pytest.approx(1 - late), "of the second stage alone"
    assert share((1.5, 1.5)) == pytest.approx(1 - late), "one root is late once"
    assert share((1.5, 1), (1.45, 1)) == pytest.approx(1 - (late + 0.16 / 1.16) / 2), "what waits is carried over"
    assert share((1.5, 1), (1, 1), (1.375, 1)) == pytest.approx(1 - late / 3), "and done when less comes"
    assert on_time(plan, window((1.5, 1), (0, 0))) > 1 - 0.5 ** (SWING / 2), "by roots, not by seconds"
    assert on_time(dataclasses.replace(plan, served=0.5), window((1, 1))) == 0.5
    assert on_time(plan, []) == 1


def test_a_steady_stream_leaves_little_free_and_bursts_more() -> None:
    steady = planned(window((1, 1), times=40))
    assert steady.utilisation == HIGHEST
    some = planned(window(*[(1.0, 1.0)] * 9, (1.5, 1.5), times=4))
    many = planned(window(*[(1.0, 1.0)] * 4, (2.0, 2.0), times=8))
    assert HIGHEST > some.utilisation > many.utilisation >= LOWEST
    assert steady.workers < some.workers < many.workers
    assert steady.accuracy == some.accuracy == many.accuracy == 1


def test_factors_count_as_demand_does() -> None:
    frames = planned(window(*[(1.0, 1.0)] * 4, (1.0, 2.5), times=8))
    assert frames.utilisation < planned(window((1, 1), times=40)).utilisation - 0.1


def test_it_is_the_largest_that_keeps_what_is_asked() -> None:
    seconds = window(*[(1.0, 1.0)] * 4, (1.6, 1.5), times=8)
    found = planned(seconds)
    assert on_time(found, seconds) >= ON_TIME
    assert f"{found.utilisation:.3g}" in found.note
    more = make_plan(FLOW, demand=1000, workers=300, utilisation=found.utilisation + 2 * STEP)
    assert on_time(more, seconds) < ON_TIME


def test_few_workers_give_up_accuracy_before_they_leave_requests_late() -> None:
    seconds = window(*[(1.0, 1.0)] * 4, (1.5, 1.5), times=8)
    rich, poor = planned(seconds), planned(seconds, workers=48)
    assert rich.accuracy == 1 > poor.accuracy
    assert on_time(poor, seconds) >= ON_TIME


def test_where_nothing_keeps_it_no_more_is_late_than_with_the_number() -> None:
    seconds = window((1, 1), (6, 6), times=20)
    found = planned(seconds, workers=25)
    fixed = make_plan(dataclasses.replace(FLOW, utilisation=0.8), demand=1000, workers=25)
    assert ON_TIME > on_time(found, seconds) >= on_time(fixed, seconds) - 1e-3


@pytest.mark.parametrize("known", [0, LEAST_SECONDS - 1])
def test_few_seconds_say_nothing_and_the_plan_says_so(known: int) -> None:
    silent = [Second(0.0, (0.0, 0.0))] * 50
    found = planned([*silent, *window((2, 2), times=known)])
    assert found.utilisation == 0.8
    assert found.note == f"utilisation 0.8: a window needs {LEAST_SECONDS} seconds with traffic, {known} are known"
    assert found.reason == ""
    assert planned(window((2, 2), times=LEAST_SECONDS)).utilisation != 0.8


def test_a_number_does_not_look_at_the_window() -> None:
    seconds = window((3, 3), times=40)
    assert planned(seconds, flow=dataclasses.replace(FLOW, utilisation=0.7)).utilisation == 0.7
    assert make_plan(FLOW, demand=1000, workers=300, window=seconds, utilisation=0.6).utilisation == 0.6


def test_seconds_are_held_against_the_plan_that_was_in_force() -> None:
    traffic = FlowTraffic(FLOW)
    roots = rows = 0

    def second(at: int, came: int, each: float) -> None:
        nonlocal roots, rows
        roots, rows = roots + came, rows + round(came * each)
        none = VariantCounts(0, 0, (0,))
        counts = [
            StageCounts(roots, (VariantCounts(roots, 0, (rows,)), none)),
            StageCounts(rows, (VariantCounts(rows, rows, ()),)),
        ]
        traffic.add(float(at), 0.0, counts)

    for at in range(10):
        second(at, 100, 2)
    assert traffic.seen().window == (), "no plan was made"
    traffic.planned()
    second(10, 150, 2)
    second(11, 100, 3)
    second(12, 50, 1)
    one, two, three = traffic.seen().window
    assert (one.roots, one.load) == (150, pytest.approx((1.5, 1.5)))
    assert two.load == pytest.approx((1, 1.5))
    assert three.load == pytest.approx((0.5, 0.25))
    traffic.planned()
    second(13, 100, 2)
    assert traffic.seen().window[-1].load[0] > 1, "the plan was made for less"


def test_draws_come_near_what_they_are_drawn_from() -> None:
    random = np.random.default_rng(3)
    few, many = (drawn(FLOW, random.poisson(rate, 130).tolist(), random) for rate in (10, 1000))
    for seconds in (few, many):
        assert len(seconds) == 120
        assert np.mean([second.load for second in seconds]) == pytest.approx(1, abs=0.1)
    spread = [np.std([second.load for second in seconds], axis=0) for seconds in (few, many)]
    assert all(spread[0] > 3 * spread[1])
    assert planned(few).utilisation < planned(many).utilisation, "many requests differ less from their mean"
