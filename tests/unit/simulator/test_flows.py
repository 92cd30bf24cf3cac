"""Flows in the simulator: planners, workers that change, and what the figures say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo import _core
from arlo.catalog.flow import Expand, Flow, FlowEdge, FlowStage, FlowVariant, RouterName, table_of_ms
from arlo.errors import ConfigError
from arlo.planning.flows.curve import capacity
from arlo.planning.flows.planners import make_plan
from arlo.simulator.flows import FlowResult, FlowRun, Shape, planner_of, run
from benchmarks.papers.loki.planners import planner_of as loki_of
from benchmarks.papers.loki.routing import maf
from tests.fakes.flows import metered


def variant(name: str, accuracy: float, ms: float, batch: int = 1, load_ms: float = 0) -> FlowVariant:
    points = [(1, rows, ms * (1 + (rows - 1) / 4)) for rows in (1, 2, 4, 8) if rows <= batch]
    return FlowVariant(name=name, accuracy=(accuracy,), table=table_of_ms(points), max_batch=batch, load_ms=load_ms)


def toy(**changes: object) -> Flow:
    """Loki's toy of two tasks: a1 (accuracy 1, 10/s, 2 children), a2 (.8, 40/s, 1); b1 (1, 20/s), b2 (.9, 80/s)."""
    first = FlowStage(name="A", variants=(variant("a1", 1, 100), variant("a2", 0.8, 25)), entry=True)
    second = FlowStage(name="B", variants=(variant("b1", 1, 50), variant("b2", 0.9, 12.5)))
    edge = FlowEdge(tail="A", head="B", expand=Expand(kind="spans", factor=(2.0, 1.0), distribution="constant"))
    flow = Flow(name="toy", slo_ms=10_000, stages=(first, second), edges=(edge,), router="maf", drop="none")
    return dataclasses.replace(flow, **changes)  # type: ignore[arg-type]


def evenly(rate: float, seconds: float) -> NDArray[np.int64]:
    return (np.arange(round(rate * seconds)) * (1e9 / rate)).astype(np.int64)


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


def test_joules_are_what_busy_workers_draw() -> None:
    """Rows one at a time: .1 s at 100 W and two times .05 s at 10 W. Not known where one variant's watts are not."""
    watts = {"a1": 100.0, "a2": 100.0, "b1": 10.0, "b2": 10.0}
    for warmup_s in (0.0, 20.0):
        result = simulate(metered(toy(), 0, watts), 9, 4, warmup_s=warmup_s)
        assert result.joules == pytest.approx(10 + 1, rel=2e-3)
        assert result.joules_total == pytest.approx(result.joules * result.roots)
    watts["b2"] = 0
    unknown = simulate(metered(toy(), 0, watts), 9, 4)
    assert (unknown.joules, unknown.joules_total) == (None, None)


def test_the_dearer_a_joule_the_fewer_are_drawn() -> None:
    """Workers that hold everything, and room for all: rows take what is worth its energy, by the price rule alone
    (loki's plan knows of none) and planned for; none is late for it."""
    flow = toy(router="price", drop="slack")
    for name in ("loki", "arlo"):
        runs = []
        for joule in (0.0, 0.015, 0.0205, 0.03):
            metered_flow = metered(flow, joule, 100)
            planner = planner_of(metered_flow) if name == "arlo" else loki_of(metered_flow, "loki")
            runs.append(simulate(metered_flow, 2, 6, hold="all", fixed=True, planner=planner))
        assert [run.accuracy for run in runs] == pytest.approx([1, 0.9, 0.8, 0.72])
        assert [run.joules for run in runs] == pytest.approx([20, 12.5, 7.5, 3.75], rel=0.02)
        assert all(run.violations == 0 for run in runs)


def test_prefixes_are_numbered_as_in_the_core() -> None:
    shape = Shape(toy())
    assert list(shape.node) == [(0, (0,)), (0, (1,)), (1, (0, 0)), (1, (0, 1)), (1, (1, 0)), (1, (1, 1))]
    assert shape.accuracy == pytest.approx([1, 0.8, 1, 0.9, 0.8, 0.72])
    assert shape.draws() == [("constant", [1.0, 1.0], [2.0, 1.0], [], 1 << 16, [])]


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


def test_the_window_is_counted_as_time_goes_by() -> None:
    """Even arrivals leave next to nothing free once they were seen; where every tenth second brings three times as
    many, more workers stay than for the mean."""
    flow = toy(router="price", drop="slack", utilisation="window", plan_period_s=5, slo_ms=1000)
    even = evenly(40, 150)
    bursts = np.concatenate([evenly(80, 1) + second * 10**9 for second in range(30, 150, 10)])
    found = [
        run(FlowRun(flow=flow, planner=planner_of(flow), workers=200, arrived_ns=np.sort(arrived), counted=True))
        for arrived in (even, np.concatenate([even, bursts]))
    ]
    assert found[0].utilisation > 0.9 - 0.15 * 5 / 30, "the first plans knew too little"
    assert found[0].violations == 0
    assert found[1].utilisation < 0.75
    assert found[1].workers_mean > 1.4 * found[0].workers_mean
    uncounted = run(FlowRun(flow=flow, planner=planner_of(flow), workers=200, arrived_ns=even))
    assert uncounted.utilisation == pytest.approx(0.8)


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
            dataclasses.replace(first, variants=(variant("a1", 1, 100, load_ms=4000), first.variants[1])),
            second,
        ),
    )
    quick = dataclasses.replace(slow, stages=(first, second))
    arrived = np.concatenate([evenly(5, 20), evenly(30, 20) + 20 * 10**9])
    found = [run(FlowRun(flow=f, planner=loki_of(f, "loki"), workers=20, arrived_ns=arrived)) for f in (quick, slow)]
    assert found[0].violations < found[1].violations


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
    result = simulate(flow, 1, 4, seconds=800, planner=planner_of(flow))
    assert result.mean_ms == pytest.approx(mean_ms, rel=0.1 if 0 < share < 1 else 0.001)


def test_workers_that_hold_everything_need_no_moves() -> None:
    flow = toy(router="price", drop="slack", slo_ms=1000)
    result = simulate(flow, 39, 4, hold="all", batching="deadline")
    assert result.moves == 0
    assert result.violations == 0
    assert result.accuracy > 0.78


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_roots_take_what_a_trace_says_of_them(factor: float) -> None:
    """One after the other, then from the first again, scaled to the factor."""
    expand = Expand(kind="spans", factor=(factor,), distribution="trace", counts=(4, 0, 3, 1))
    flow = toy(edges=(FlowEdge(tail="A", head="B", expand=expand),), router="plan")
    for roots, rows in zip(range(1, 7), (4, 4, 7, 8, 12, 12), strict=True):
        visits = simulate(flow, 1, 8, roots).visits
        assert visits["B:b1"] + visits["B:b2"] == rows * factor / 2


def test_many_children_by_poisson() -> None:
    """Also where e^-mean is too small for a number."""
    expand = Expand(kind="spans", factor=(2000.0,), distribution="poisson")
    flow = toy(edges=(FlowEdge(tail="A", head="B", expand=expand),), slo_ms=1e7, router="plan", max_children=4096)
    visits = simulate(flow, 1, 8, 20).visits
    assert visits["B:b1"] + visits["B:b2"] == pytest.approx(20 * 2000, abs=4 * np.sqrt(20 * 2000))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        simulate(toy(), 9, 0)
    with pytest.raises(ConfigError, match="no arrivals"):
        run(FlowRun(flow=toy(), planner=loki_of(toy(), "loki"), workers=1, arrived_ns=np.empty(0, np.int64)))


@pytest.mark.parametrize("demand", [9.0, 18.0, 39.0, 55.0])
def test_the_core_and_the_planner_have_one_most_accurate_first(demand: float) -> None:
    flow = toy()
    plan = make_plan(flow, demand=demand, workers=4)
    shape = Shape(flow)
    capacity = [0.0] * len(shape.variant)
    for pool in plan.pools:
        capacity[shape.variant[pool.stage, pool.variant]] += pool.capacity
    parts = _core.pipeline_table(shape.spec(), shape.plan(plan, "plan"), capacity)
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

    def served(router: RouterName) -> FlowResult:
        return run(
            FlowRun(
                flow=dataclasses.replace(flow, router=router),
                planner=planner_of(flow),
                workers=6,
                arrived_ns=arrived,
                hold="all",
                batching="deadline",
                fixed=True,
                warmup_s=10,
            )
        )

    price, plan = served("price"), served("plan")
    assert price.violations < 0.005
    assert price.violations <= plan.violations
    assert price.accuracy >= plan.accuracy
