"""Workers as Loki's evaluation has them: its plans, followed from one second to the next."""

from __future__ import annotations

import numpy as np

from benchmarks.papers.loki.fleet import FlowRun, run
from benchmarks.papers.loki.planners import planner_of
from tests.fakes.flow_runs import evenly, toy


def test_workers_follow_the_demand() -> None:
    quiet, busy = evenly(9, 60), evenly(30, 60) + 60 * 10**9
    flow = toy(plan_period_s=5)
    planner = planner_of(flow, "loki")
    result = run(FlowRun(flow=flow, planner=planner, workers=20, arrived_ns=np.concatenate([quiet, busy])))
    assert result.seconds["workers"][10] == 2
    assert result.seconds["workers"][-1] == 6
    assert result.violations == 0
    assert result.moves == 4
    alone = run(FlowRun(flow=toy(), planner=planner_of(toy(), "loki"), workers=4, arrived_ns=evenly(9, 40)))
    assert list(alone.visits.values()) == [alone.roots, 0, 2 * alone.roots, 0], "a1 and b1: the hardware step"
    assert (alone.accuracy, alone.workers_mean, alone.violations) == (1.0, 2, 0)
