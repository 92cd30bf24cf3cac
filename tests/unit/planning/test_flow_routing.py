"""Tables of routers: what can be worked out by hand (Loki, HPDC'24, Algorithm 1)."""

from __future__ import annotations

import dataclasses

import pytest

from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan
from benchmarks.papers.loki.planners import plan_as
from benchmarks.papers.loki.routing import FRONT, accuracy, by_plan, maf
from tests.fakes.flows import toy


def one_each() -> FlowPlan:
    """The chain of two with one instance of each variant: a1, a2, b1, b2."""
    flow = toy()
    plan = plan_as(flow, "loki", demand=10, workers=4)
    pools = []
    for stage in (0, 1):
        for variant in (0, 1):
            rate = 1e9 / flow.stages[stage].variants[variant].latency_ns(1)
            pools.append(dataclasses.replace(plan.pools[0], stage=stage, variant=variant, instances=1, capacity=rate))
    return dataclasses.replace(
        plan, pools=tuple(pools), routes=(), feasible=tuple((a, b) for a in (0, 1) for b in (2, 3))
    )


def test_most_accurate_first() -> None:
    found = maf(one_each(), 40)
    assert found.tables == {
        (FRONT, 0): ((0, 0.25), (1, 0.75)),
        (0, 1): ((2, 1.0),),
        (1, 1): ((3, 1.0),),
    }
    assert found.incoming == (10, 30, 20, 30)
    assert found.backup == ((1, 10), (3, 50))
    assert found.overloaded == frozenset()
    assert accuracy(one_each(), found) == pytest.approx(0.79), "the best routing has .805"


def test_the_best_routing_of_these_instances() -> None:
    plan = make_plan(dataclasses.replace(toy(), utilisation=1.0), demand=40, workers=4, held=((1, 1), (1, 1)))
    shares = {plan.flow.label(*key): share for key, share in plan.shares().items() if key[0] == 1 and share > 1e-9}
    assert shares == pytest.approx({"A:a1>B:b2": 0.25, "A:a2>B:b1": 0.5, "A:a2>B:b2": 0.25})
    assert plan.accuracy == pytest.approx(0.805)
    assert accuracy(plan, by_plan(plan, 40)) == pytest.approx(0.805), "and a table that follows it comes to that"


def test_a_plan_that_knows_the_factors_is_better() -> None:
    flow = dataclasses.replace(toy(), utilisation=1.0)
    plan = make_plan(flow, demand=40, workers=4)
    found = by_plan(plan, 40)
    assert found.overloaded == frozenset()
    assert accuracy(plan, found) == pytest.approx(plan.accuracy)
    assert accuracy(plan, maf(plan, 40)) <= plan.accuracy + 1e-9


def test_rows_that_fit_nowhere_are_spread_by_capacity() -> None:
    found = maf(one_each(), 100)
    assert 0 in found.overloaded
    table = dict(found.tables[FRONT, 0])
    assert sum(table.values()) == pytest.approx(1)
    assert table == pytest.approx({0: 0.1 + 0.5 * 0.2, 1: 0.4 + 0.5 * 0.8}), "half is too much, and parts 1 to 4"


def test_pairs_that_take_too_long_are_left_out() -> None:
    plan = dataclasses.replace(one_each(), feasible=((0, 3), (1, 2), (1, 3)))
    assert maf(plan, 40).tables[0, 1] == ((3, 1.0),)


def test_a_pool_without_rows_has_a_table() -> None:
    found = maf(one_each(), 5)
    assert found.incoming[1] == 0
    assert dict(found.tables[1, 1]) == pytest.approx({2: 0.2, 3: 0.8}), "by capacity"


def test_what_a_pool_cannot_carry_now_goes_to_its_neighbours() -> None:
    flow = dataclasses.replace(toy(), utilisation=1.0)
    plan = make_plan(flow, demand=40, workers=4)  # two a1, one a2, one b2
    capacity = [pool.capacity for pool in plan.pools]
    (a1, a2) = (next(i for i, p in enumerate(plan.pools) if (p.stage, p.variant) == (0, k)) for k in (0, 1))
    capacity[a1] /= 2  # one a1 is gone
    found = by_plan(plan, 40, capacity)
    assert (found.incoming[a1], found.incoming[a2]) == pytest.approx((10, 30))
    assert found.overloaded == frozenset()


def test_measured_factors_go_before_the_flows_own() -> None:
    assert maf(one_each(), 10).incoming == (10, 0, 20, 0)
    assert maf(one_each(), 10, factors={(0, 0): 0.5}).incoming == (10, 0, 5, 0)
