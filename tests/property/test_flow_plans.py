"""Plans of random small flows: the exact solver against HiGHS; what always holds."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arlo.catalog.flow import Flow
from arlo.planning.flows.build import problem
from arlo.planning.flows.exact import ExactFlowSolver
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import Answer, FlowPlan, FlowProblem
from arlo.planning.flows.window import HIGHEST, LOWEST, ON_TIME, Second, on_time
from tests.fakes.flow_evaluate import evaluate
from tests.fakes.flows import metered, random_flow

SEEDS = st.integers(0, 10**9)
EXACT = ExactFlowSolver(gap=0)


def value(asked: FlowProblem, answer: Answer | None) -> float:
    """Served share first, then accuracy less what the energy is worth."""
    assert answer is not None
    return math.fsum(share * worth(asked, policy) for policy, share in answer.mixes) - asked.unserved * (
        1 - answer.served
    )


def worth(asked: FlowProblem, policy: tuple[int, ...]) -> float:
    """Of a root that takes these options: accuracy less its energy, added up here row by row."""
    rows = [1.0] * len(asked.stages)
    joules = 0.0
    for at, stage in enumerate(asked.stages):
        if stage.parent >= 0:
            above = asked.stages[stage.parent].options[policy[stage.parent]]
            rows[at] = rows[stage.parent] * stage.factor[above.variant]
        option = stage.options[policy[at]]
        joules += rows[at] * option.work_s * option.watts
    return asked.accuracy(policy) - asked.joule * joules


def random_watts(flow: Flow, rng: random.Random) -> Flow:
    """Every other flow as it is; the others with energy that matters, somewhat or above all."""
    if rng.random() < 0.5:
        return flow
    names = {variant.name for stage in flow.stages for variant in stage.variants}
    watts = {name: rng.uniform(5, 300) for name in sorted(names)}
    return metered(flow, rng.choice([0.0, 0.003, 0.02, 0.1, 1.0]), watts)


def random_problem(seed: int, most_workers: int = 12, most_stages: int = 3) -> FlowProblem:
    rng = random.Random(seed + 1)
    flow = random_watts(random_flow(seed, most_stages=most_stages), random.Random(seed + 2))
    return problem(
        flow,
        joule=flow.joule,
        demand=rng.choice([5, 20, 50, 100, 200]),
        workers=rng.randint(2, most_workers),
        utilisation=rng.choice([1, 0.8]),
        single_batch=rng.random() < 0.4,
    )


@settings(max_examples=1000 if settings.get_current_profile_name() == "new" else 200, deadline=None)
@given(SEEDS)
def test_exact_is_highs(seed: int) -> None:
    pytest.importorskip("highspy")
    from tests.fakes.flow_programs.highs import HighsFlowSolver

    asked = random_problem(seed)
    found, checked = EXACT.solve(asked), HighsFlowSolver().solve(asked)
    assert found is not None
    assert found.optimal
    assert value(asked, found) == pytest.approx(value(asked, checked), abs=2e-5)
    assert found.relaxed >= value(asked, found) - 1e-7, "fractions of instances bound whole ones"
    assert sum(share for _, share in found.mixes) == pytest.approx(found.served)


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_with_workers_enough_all_take_the_best_of_all_policies(seed: int) -> None:
    asked = dataclasses.replace(random_problem(seed), workers=10_000)
    policies = asked.policies()
    assume(policies)
    assert value(asked, EXACT.solve(asked)) == pytest.approx(max(worth(asked, each) for each in policies), abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_the_dearer_a_joule_the_fewer_are_drawn(seed: int) -> None:
    """And the less accurate: of plans that serve the same. Where a joule is worth nothing, watts change nothing."""
    rng = random.Random(seed)
    flow = random_flow(seed)
    watts = {name: rng.uniform(5, 300) for name in ("v0", "v1", "v2")}
    plans = [
        make_plan(metered(flow, joule, watts), demand=40, workers=12, solver=EXACT)
        for joule in (0.0, 0.005, 0.03, 0.2, 10)
    ]
    plain = make_plan(flow, demand=40, workers=12, solver=EXACT)
    assert plain.joules is None
    first = plans[0]
    assert dataclasses.replace(plain, flow=first.flow, joules=first.joules, solve_s=0) == dataclasses.replace(
        first, solve_s=0
    )
    for plan in plans:
        assert plan.served == pytest.approx(first.served, abs=1e-6)
        assert plan.accuracy <= plan.bound + 1e-6
        assert evaluate(plan).problems == ()
        drawn = math.fsum(
            pool.load * pool.instances / pool.capacity * flow_watts(plan, pool.stage, pool.variant)
            for pool in plan.pools
        )
        if plan.served > 0:
            assert plan.joules == pytest.approx(drawn / plan.demand / plan.served, rel=1e-6)
    for cheap, dear in itertools.pairwise(plans):
        if dear.served > 0:
            assert cheap.joules is not None
            assert dear.joules is not None
            assert dear.joules <= cheap.joules * (1 + 1e-6)
            assert dear.accuracy <= cheap.accuracy + 1e-6


def flow_watts(plan: FlowPlan, stage: int, variant: int) -> float:
    return plan.flow.stages[stage].variants[variant].watts


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_plans_keep_what_they_promise(seed: int) -> None:
    rng = random.Random(seed)
    flow, demand, workers = random_watts(random_flow(seed), rng), rng.uniform(1, 200), rng.randint(3, 20)
    plan = make_plan(flow, demand=demand, workers=workers)
    again = make_plan(flow, demand=demand, workers=workers)
    assert plan == dataclasses.replace(again, solve_s=plan.solve_s), "the same question has the same answer"
    verdict = evaluate(plan)
    assert verdict.problems == ()
    assert verdict.accuracy == pytest.approx(plan.accuracy, abs=1e-6)
    assert (plan.step == "overload") == (plan.served < 1 - 1e-6) == bool(plan.reason)
    assert plan.accuracy <= plan.bound + 1e-6
    assert plan.workers <= workers


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_more_demand_costs_more(seed: int) -> None:
    flow = random_flow(seed)
    before = None
    for demand in (5, 20, 60, 150):
        plan = make_plan(flow, demand=demand, workers=10, solver=EXACT)
        if before is not None:
            assert plan.served <= before.served + 1e-6
            if plan.served >= 1 - 1e-6:
                assert plan.accuracy <= before.accuracy + 1e-6
            if plan.step == before.step == "hardware":
                assert plan.workers >= before.workers
        before = plan


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_the_window_leaves_no_more_late_than_a_number(seed: int) -> None:
    """By its own replay, but for what is asked of it; and its plans keep what all plans promise."""
    rng = random.Random(seed)
    flow, demand, workers = random_flow(seed), rng.uniform(1, 200), rng.randint(3, 20)
    swing = rng.choice([0.0, 0.2, 1.0])
    seconds = [
        Second(demand, tuple(rng.lognormvariate(0, swing) for _ in flow.stages)) for _ in range(rng.choice([30, 120]))
    ]
    fixed = make_plan(flow, demand=demand, workers=workers, solver=EXACT)
    found = make_plan(
        dataclasses.replace(flow, utilisation="window"), demand=demand, workers=workers, solver=EXACT, window=seconds
    )
    assert on_time(found, seconds) >= min(ON_TIME, on_time(fixed, seconds)) - 1e-3
    assert evaluate(found).problems == ()
    assert LOWEST <= found.utilisation <= HIGHEST
    if on_time(fixed, seconds) >= ON_TIME:
        assert found.utilisation >= fixed.utilisation
        assert found.served >= fixed.served - 1e-6
