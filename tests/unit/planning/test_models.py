"""Workers divided among models: exact, monotonous, and by what each asks for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arlo.planning.models import ByModel, Load
from arlo.planning.planner import Planner
from arlo.planning.serving import planner_for
from tests.fakes.planned_models import SETTINGS, served


def planner() -> Planner:
    models = [served("one", (16, 64), workers=2), served("two", (32, 512), slo_ms=400.0)]
    return planner_for(SETTINGS, models=models)


loads = st.builds(
    Load,
    weight=st.floats(0.1, 10),
    rate=st.floats(0, 5),
    alone_ms=st.floats(0.5, 20),
    share_ms=st.floats(0.1, 0.5),
    full_ms=st.floats(20, 40),
)


@given(st.lists(loads, min_size=1, max_size=3), st.integers(1, 7))
def test_the_division_is_the_best_of_all(models: list[Load], workers: int) -> None:
    workers = max(workers, len(models))
    problem = ByModel(workers, tuple(models))
    found = problem.solve(None, time_limit_s=1.0).allocation
    assert sum(found.instances) == workers
    assert min(found.instances) >= 1
    splits = [s for s in itertools.product(range(1, workers + 1), repeat=len(models)) if sum(s) == workers]
    assert problem.loss(found.instances) <= min(map(problem.loss, splits)) * (1 + 1e-9)


@given(loads)
def test_more_workers_never_make_it_slower(load: Load) -> None:
    means = load.mean_ms(range(1, 12))
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(means))
    assert load.mean_ms([0])[0] == 0 or load.mean_ms([0])[0] > means[0]


def test_fewer_workers_than_models_serve_those_that_ask_for_most() -> None:
    little, much = (Load(weight=1.0, rate=rate, alone_ms=5, share_ms=1, full_ms=8) for rate in (0.1, 0.9))
    answer = ByModel(1, (little, much)).solve(None, time_limit_s=1.0)
    assert answer.allocation.instances == (0, 1)
    assert (answer.allocation.reason or "").startswith("too_few_workers")


def test_workers_follow_the_requests() -> None:
    plans = planner()
    assert plans.lengths == (16, 64, 65 + 32, 65 + 512)
    counts = [[0] * 65, [0] * 513]
    plans.add(0.0, 0.0, plans.subject.joined(counts))
    for second in range(1, 60):  # one: 100/s of 10 tokens; two: 400/s of 500 tokens, 0.5 x 5 ms each
        counts[0][10] += 100
        counts[1][500] += 400
        plans.add(float(second), 0.0, plans.subject.joined(counts))
    demand = plans.demand()
    asked = plans.subject.by_runtime(demand.mean)
    assert asked == pytest.approx({"one_bundle": 10.0, "two_bundle": 40.0})  # per 100 ms
    one, two = plans.subject.by_model(demand)  # each by its own SLO, of 100 and 400 ms, and its own lengths
    assert (one.max_lengths, two.max_lengths) == ((16, 64), (32, 512))
    assert one.mean == pytest.approx((10.0, 0.0))
    assert two.mean == pytest.approx((0.0, 160.0))
    assert two.peak == pytest.approx((0.0, 160.0), rel=0.1)
    assert one.rows + two.rows == demand.rows
    begun = plans.begin("period", 60.0, [f"w{n}" for n in range(6)], (4, 2))
    assert begun.question is not None
    plan = plans.conclude(begun.question, begun.question.solve())
    assert plan.moves
    assert plan.best == (1, 5)
    again = plans.begin("period", 120.0, [f"w{n}" for n in range(6)], plan.best)
    assert again.question is not None
    assert not plans.conclude(again.question, again.question.solve()).moves


def test_before_anything_came_each_keeps_what_it_was_given() -> None:
    plans = planner()
    begun = plans.begin("worker_lost", 1.0, ["a", "b", "c"], (2, 1))
    assert begun.question is not None
    assert begun.question.solve().allocation.instances == (2, 1)


def test_a_longer_row_than_the_counters_hold_is_counted_with_the_longest() -> None:
    plans = planner()
    whole = plans.subject.joined([[0, 1], [0] * 600])
    assert len(whole) == 65 + 513
    assert whole[1] == 1
