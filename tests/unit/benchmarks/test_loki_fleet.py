"""Workers as Loki's evaluation has them: its plans, followed from one second to the next."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from arlo.catalog.flow import Flow
from benchmarks.papers.loki.fleet import FlowResult, FlowRun, run
from benchmarks.papers.loki.planners import planner_of as loki_of
from tests.fakes.flow_runs import evenly, quick, toy


def simulate(flow: Flow, rate: float, workers: int, seconds: float = 40, **more: object) -> FlowResult:
    job = FlowRun(flow=flow, planner=loki_of(flow, "loki"), workers=workers, arrived_ns=evenly(rate, seconds))
    return run(dataclasses.replace(job, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("demand", "accuracy", "visits"),
    [
        (9, 1.0, (1, 0, 2, 0)),  # the hardware step: a1 and b1 alone
        (39, 0.8154, (0.2308, 0.7692, 0, 1.2308)),  # by the plan for 4 workers: (2, 1, 0, 1)
    ],
)
def test_loki_as_printed_on_its_toy(demand: float, accuracy: float, visits: tuple[float, ...]) -> None:
    result = simulate(toy(), demand, 4)
    each = [count / result.roots for count in result.visits.values()]
    if demand == 9:
        assert each == list(visits)
        assert result.accuracy == accuracy
        assert result.workers_mean == 2
        assert result.violations == 0
    else:  # what the plan says, as far as whole roots can
        assert sum(each[:2]) == 1
        assert each[3] == pytest.approx(2 * each[0] + each[1], rel=1e-9)
        assert result.accuracy == pytest.approx(0.9 * (each[0] + 0.8 * each[1]), rel=1e-3)
        assert result.workers_mean == 4
        assert 0.25 < each[0] < 0.6


def test_workers_follow_the_demand() -> None:
    quiet, busy = evenly(9, 60), evenly(30, 60) + 60 * 10**9
    flow = toy(plan_period_s=5)
    result = run(
        FlowRun(flow=flow, planner=loki_of(flow, "loki"), workers=20, arrived_ns=np.concatenate([quiet, busy]))
    )
    assert result.seconds["workers"][10] == 2
    assert result.seconds["workers"][-1] == 6
    assert result.violations == 0
    assert result.moves == 4


def test_a_change_of_demand_is_planned_for_at_once() -> None:
    arrived = np.concatenate([evenly(9, 12), evenly(30, 20) + 12 * 10**9])
    flow = toy(plan_period_s=1000)
    late = run(FlowRun(flow=flow, planner=loki_of(flow, "loki"), workers=20, arrived_ns=arrived))
    soon = run(FlowRun(flow=flow, planner=loki_of(flow, "loki"), workers=20, arrived_ns=arrived, shift=0.3))
    assert late.plans == 1
    assert soon.plans > 1
    assert soon.workers_most > late.workers_most


def test_loading_takes_time() -> None:
    first, second = toy().stages
    slow = dataclasses.replace(
        toy(slo_ms=400, plan_period_s=5, drop="slack", router="plan"),
        stages=(
            dataclasses.replace(first, variants=(quick("a1", 1, 100, load_ms=4000), first.variants[1])),
            second,
        ),
    )
    fast = dataclasses.replace(slow, stages=(first, second))
    arrived = np.concatenate([evenly(5, 20), evenly(30, 20) + 20 * 10**9])
    found = [run(FlowRun(flow=f, planner=loki_of(f, "loki"), workers=20, arrived_ns=arrived)) for f in (fast, slow)]
    assert found[0].violations < found[1].violations
