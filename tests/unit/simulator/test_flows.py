"""Flows in the simulator: planners, workers that change, and what the figures say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from arlo import _core
from arlo.catalog.flow import Expand, Flow, FlowEdge, FlowStage, FlowVariant, RouterName, table_of_ms
from arlo.errors import ConfigError
from arlo.planning.flows.curve import capacity
from arlo.planning.flows.planners import make_plan
from arlo.simulator.flows import Shape, scenario_of
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Listed, Scale
from benchmarks.papers.loki.routing import maf
from tests.fakes.flow_runs import evenly, toy
from tests.fakes.flows import metered


def simulate(flow: Flow, rate: float, workers: int, seconds: float = 40, **more: object) -> Result:
    return run(scenario_of(flow, Listed(evenly(rate, seconds)), workers=workers, **more))


def visits(result: Result) -> dict[str, int]:
    return dict(result.figures.more["visits"])


def test_joules_are_what_busy_workers_draw() -> None:
    """Rows one at a time: .1 s at 100 W and two times .05 s at 10 W. Not known where one variant's watts are not."""
    watts = {"a1": 100.0, "a2": 100.0, "b1": 10.0, "b2": 10.0}
    for warmup_s in (0.0, 20.0):
        result = simulate(metered(toy(), 0, watts), 9, 4, warmup_s=warmup_s)
        assert result.joules == pytest.approx(10 + 1, rel=5e-3)
        assert result.joules_total == pytest.approx(result.joules * result.requests)
    watts["b2"] = 0
    unknown = simulate(metered(toy(), 0, watts), 9, 4)
    assert (unknown.joules, unknown.joules_total) == (None, None)


def test_the_dearer_a_joule_the_fewer_are_drawn() -> None:
    """Workers that hold everything, and room for all: rows take what is worth its energy, and none is late for it."""
    runs = [
        simulate(metered(toy(router="price", drop="slack"), joule, 100), 2, 6, bundle="all")
        for joule in (0.0, 0.015, 0.0205, 0.03)
    ]
    assert [run.figures.accuracy for run in runs] == pytest.approx([1, 0.9, 0.8, 0.72])
    assert [run.joules for run in runs] == pytest.approx([20, 12.5, 7.5, 3.75], rel=0.02)
    assert all(run.kept == 1 for run in runs)


def test_prefixes_are_numbered_as_in_the_core() -> None:
    shape = Shape(toy())
    assert list(shape.node) == [(0, (0,)), (0, (1,)), (1, (0, 0)), (1, (0, 1)), (1, (1, 0)), (1, (1, 1))]
    assert shape.accuracy == pytest.approx([1, 0.8, 1, 0.9, 0.8, 0.72])
    assert shape.draws() == [("constant", [1.0, 1.0], [2.0, 1.0], [], 1 << 16, [])]


def test_the_window_is_counted_as_time_goes_by() -> None:
    """Even arrivals leave next to nothing free once they were seen; bursts keep more workers than their mean needs."""
    flow = toy(router="price", drop="slack", utilisation="window", plan_period_s=5, slo_ms=1000)
    even = evenly(40, 150)
    bursts = np.concatenate([evenly(80, 1) + second * 10**9 for second in range(30, 150, 10)])
    found = [
        run(scenario_of(flow, Listed(np.sort(arrived)), workers=200)).figures
        for arrived in (even, np.concatenate([even, bursts]))
    ]
    assert found[0].more["planned_utilisation"] > 0.9 - 0.15 * 5 / 30, "the first plans knew too little"
    assert found[1].more["planned_utilisation"] < 0.75


def test_workers_move_to_where_the_demand_is() -> None:
    """The planner that serves: at first all rows take the accurate variants; more of them do not."""
    quiet, busy = evenly(9, 60), evenly(60, 60) + 60 * 10**9
    flow = toy(plan_period_s=5, router="price", drop="slack", slo_ms=1000)
    result = run(scenario_of(flow, Listed(np.concatenate([quiet, busy])), workers=5))
    assert result.timeline["instances.A:a1"][30] >= 1
    assert result.timeline["instances.A:a2"][-10] + result.timeline["instances.B:b2"][-10] >= 3
    assert result.replacements >= 2
    assert result.allocations == 24
    assert result.workers_mean == 5


def test_workers_that_the_plan_does_not_want_go() -> None:
    flow = toy(plan_period_s=5, router="price", drop="slack")
    scale = Scale(kind="plan", min_workers=1, max_workers=20, scale_in_period_s=5, replan=True)
    result = run(scenario_of(flow, Listed(evenly(9, 120)), workers=8, scale=scale))
    assert result.timeline["present"][5] == 8
    assert result.timeline["present"][-2] <= 4
    assert result.kept == 1


def by_length(share: float, more: tuple[tuple[int, float], ...] = ()) -> Flow:
    """Two stages of one variant with runtimes of 16 tokens (10 ms) and 128 (90 ms)."""
    model = FlowVariant(
        name="m", accuracy=(1.0,), table=table_of_ms([(16, 1, 10), (128, 1, 90)]), max_lengths=(16, 128)
    )
    lengths = ((10, 1 - share), (100, share))
    stages = (
        FlowStage(name="A", variants=(model,), lengths=lengths),
        FlowStage(name="B", variants=(model,), lengths=more or lengths),
    )
    edge = FlowEdge(tail="A", head="B", expand=Expand(factor=(1.0,), distribution="constant"))
    return Flow(name="lengths", slo_ms=10_000, stages=stages, edges=(edge,), router="plan", drop="none")


@pytest.mark.parametrize(
    ("share", "more", "mean_ms"),
    [(0, (), 20), (1, (), 180), (0.25, (), 0.75 * 20 + 0.25 * 180), (0, ((100, 1.0),), 100), (1, ((10, 1.0),), 100)],
)
def test_rows_have_the_lengths_of_the_file(share: float, more: tuple[tuple[int, float], ...], mean_ms: float) -> None:
    """Rarely enough that none waits: the mean is that of the runtimes."""
    flow = by_length(share, more)
    result = simulate(flow, 1, 4, seconds=800)
    assert result.mean_ms == pytest.approx(mean_ms, rel=0.1 if 0 < share < 1 else 0.001)


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_roots_take_what_a_trace_says_of_them(factor: float) -> None:
    """One after the other, then from the first again, scaled to the factor."""
    expand = Expand(kind="spans", factor=(factor,), distribution="trace", counts=(4, 0, 3, 1))
    flow = toy(edges=(FlowEdge(tail="A", head="B", expand=expand),), router="plan")
    for roots, rows in zip(range(1, 7), (4, 4, 7, 8, 12, 12), strict=True):
        made = visits(simulate(flow, 1, 8, roots))
        assert made["B:b1"] + made["B:b2"] == rows * factor / 2


def test_many_children_by_poisson() -> None:
    """Also where e^-mean is too small for a number."""
    expand = Expand(kind="spans", factor=(2000.0,), distribution="poisson")
    flow = toy(edges=(FlowEdge(tail="A", head="B", expand=expand),), slo_ms=1e7, router="plan", max_children=4096)
    made = visits(simulate(flow, 1, 8, 20))
    assert made["B:b1"] + made["B:b2"] == pytest.approx(20 * 2000, abs=4 * np.sqrt(20 * 2000))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one worker"):
        simulate(toy(), 9, 0)
    with pytest.raises(ConfigError, match="some duration"):
        run(scenario_of(toy(), Listed(np.empty(0, np.int64))))


@pytest.mark.parametrize("demand", [9.0, 18.0, 39.0, 55.0])
def test_the_core_and_the_planner_have_one_most_accurate_first(demand: float) -> None:
    flow = toy()
    plan = make_plan(flow, demand=demand, workers=4)
    shape = Shape(flow)
    capacity = [0.0] * len(shape.variant)
    for pool in plan.pools:
        capacity[shape.variant[pool.stage, pool.variant]] += pool.capacity
    parts = _core.pipeline_table(shape.spec(), shape.plan(plan, shared=False), capacity)
    for (source, stage), table in maf(plan, demand).tables.items():
        prefix = () if source < 0 else (plan.pools[source].variant,)
        for pool, part in table:
            assert parts[shape.node[stage, (*prefix, plan.pools[pool].variant)]] == pytest.approx(part, abs=1e-9)


@pytest.mark.parametrize("load", [0.75, 0.95])
def test_prices_of_shared_workers_spend_no_room_that_is_not_there(load: float) -> None:
    """All workers hold all variants, near what they carry: `price` is on time, and as accurate as the plan's shares."""

    def wide(name: str, accuracy: float, ms: float) -> FlowVariant:
        table = table_of_ms([(1, 1, ms), (1, 8, 3 * ms)])
        return FlowVariant(name=name, accuracy=(accuracy,), table=table, max_batch=8)

    stages = (
        FlowStage(name="topic", variants=(wide("sure", 0.95, 160), wide("quick", 0.85, 40)), entry=True),
        FlowStage(name="tags", variants=(wide("large", 0.95, 200), wide("small", 0.8, 60))),
    )
    edge = FlowEdge(tail="topic", head="tags", expand=Expand(factor=(0.5,)))
    flow = Flow(name="two", slo_ms=2600, stages=stages, edges=(edge,), plan_period_s=5)
    rate = load * capacity(flow, 6)
    gaps = np.random.default_rng(2).exponential(1e9 / rate, round(60 * rate))
    arrived = np.cumsum(gaps).astype(np.int64)

    def served(router: RouterName) -> Result:
        one = dataclasses.replace(flow, router=router)
        return run(scenario_of(one, Listed(arrived), workers=6, bundle="all", warmup_s=10))

    price, plan = served("price"), served("plan")
    assert price.kept > 0.995
    assert price.kept >= plan.kept
    assert price.figures.accuracy >= plan.figures.accuracy
