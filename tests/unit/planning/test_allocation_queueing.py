"""The objective that counts waiting: its formulas where they are known, its search against all allocations of small
problems, and what it does at the edges."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve, Variation, flow
from arlo.planning.allocation.queueing import (
    QueueingObjective,
    QueueingSolver,
    burst_factor,
    largest_capacity,
    predicted_mean_ms,
    square_root,
)
from arlo.planning.allocation.queueing_model import MARGIN, SWING, Replay, WaitModel
from arlo.planning.traffic.demand import Demand, DemandWindow

SLO_MS = 150.0


def problem_of(workers: int, latency_ms: list[float], demand: list[float], **more: Any) -> AllocationProblem:
    lengths = tuple(64 * (i + 1) for i in range(len(demand)))
    return AllocationProblem(
        workers, SLO_MS, lengths, tuple(map(LatencyCurve.single, latency_ms)), tuple(demand), **more
    )


def random_problem(rng: np.random.Generator, *, load: tuple[float, float]) -> AllocationProblem:
    levels = int(rng.integers(2, 5))
    workers = int(rng.integers(levels, 10))
    latency = np.cumsum(rng.uniform(0.2, 2.0, levels))
    share = rng.dirichlet(np.ones(levels))
    rate = rng.uniform(*load) * workers / (share @ latency)
    return problem_of(workers, latency.tolist(), (share * rate * SLO_MS).tolist(), burst=float(rng.choice([1.0, 1.4])))


def every_allocation(problem: AllocationProblem) -> Any:
    ranges = [range(problem.workers + 1)] * len(problem.demand)
    return np.array([n for n in itertools.product(*ranges) if sum(n) == problem.workers and n[-1] >= 1])


def model_of(problem: AllocationProblem, **more: Any) -> WaitModel:
    latency = np.array([curve.batch_ms(1) for curve in problem.curves])
    rate = np.array(problem.demand) / SLO_MS
    settings = {"slo_ms": SLO_MS, "horizon_ms": 60_000.0} | more
    return WaitModel(alone_ms=latency, share_ms=latency, full_ms=latency, rate=rate, **settings)


def own_ms(problem: AllocationProblem, instances: list[int]) -> float:
    """Part 1 of the model: the levels on their own, without the wait that they share."""
    model, counts = model_of(problem), np.array([instances])
    return float(model.mean_ms(counts)[0][0] - model.common_ms(counts.astype(float))[0])


def erlang_c(servers: int, offered: float) -> float:
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


@pytest.mark.parametrize("used", [0.2, 0.5, 0.7])
def test_one_instance_is_md1(used: float) -> None:
    wait_ms = own_ms(problem_of(1, [2.0], [used / 2.0 * SLO_MS]), [1]) - 2.0
    assert wait_ms == pytest.approx(used * 2.0 / (2 * (1 - used)), rel=0.05)  # Pollaczek-Khinchine, fixed service


@pytest.mark.parametrize(("servers", "used"), [(2, 0.5), (5, 0.8), (40, 0.9), (300, 0.95)])
def test_one_level_is_half_of_the_wait_of_erlang_c(servers: int, used: float) -> None:
    wait_ms = own_ms(problem_of(servers, [2.0], [servers * used / 2.0 * SLO_MS]), [servers]) - 2.0
    expected_ms = erlang_c(servers, servers * used) * 2.0 / (servers * (1 - used)) / 2
    assert wait_ms == pytest.approx(expected_ms, rel=0.03, abs=1e-9)


@pytest.mark.parametrize("servers", [1, 2, 5, 10, 20])
@pytest.mark.parametrize(("used", "most"), [(0.5, 1.03), (0.7, 1.12), (0.8, 1.22), (0.9, 1.38), (0.95, 1.52)])
def test_a_level_by_itself_is_predicted_too_slow_never_too_fast(servers: int, used: float, most: float) -> None:
    """Against a simulated M/D/c."""
    arrived = np.cumsum(np.random.default_rng(0).exponential(1 / (used * servers), 1_000_000))
    waits = []
    for first in range(servers):  # equal services: the n-th request follows the one `servers` before it
        own = arrived[first::servers]
        turn = np.arange(len(own))
        waits.append(np.maximum.accumulate(own - turn) + turn - own)
    exact_ms = 1 + float(np.concatenate(waits).mean())
    predicted = predicted_mean_ms(problem_of(servers, [1.0], [used * servers * SLO_MS]), [servers])
    assert 0.97 <= predicted / exact_ms <= most


def test_without_load_requests_take_their_own_time() -> None:
    problem = problem_of(6, [1.0, 2.0, 4.0], [1e-6, 2e-6, 1e-6])
    assert predicted_mean_ms(problem, [2, 2, 2]) == pytest.approx((1 + 2 * 2 + 4) / 4, rel=1e-6)
    assert predicted_mean_ms(problem, [0, 4, 2]) == pytest.approx((2 + 2 * 2 + 4) / 4, rel=1e-6)  # level 0 pads more


def test_the_shared_wait_is_that_of_one_fast_server_and_linear_in_overload() -> None:
    problem = problem_of(4, [2.0], [0.5 * 2 * SLO_MS])
    used = np.array([[4.0]])
    assert model_of(problem).common_ms(used)[0] == pytest.approx(0.5**5 / (2 * 2.0 * 0.5), rel=1e-3)
    twice = dataclasses.replace(problem, demand=(2 * 2 * SLO_MS,))
    assert model_of(twice).common_ms(used)[0] == pytest.approx(60_000 / 2, rel=1e-3)  # half of the final backlog


def test_longer_levels_relieve_a_full_one_under_eft_only() -> None:
    problem = problem_of(6, [1.0, 1.5], [1.9 * SLO_MS, 0.1 * SLO_MS])  # 95 % of two instances of level 0
    eft, rs = (predicted_mean_ms(problem, [2, 4], policy=policy) for policy in ("eft", "rs"))
    assert eft < 1.3
    assert rs > 2 * eft


@pytest.mark.parametrize("policy", ["eft", "rs"])
@pytest.mark.parametrize("load", [(0.1, 0.95), (0.9, 3.0)])
def test_the_search_finds_the_optimum_of_its_model(policy: str, load: tuple[float, float]) -> None:
    rng = np.random.default_rng(3)
    ratios = []
    for _ in range(25):
        problem = random_problem(rng, load=load)
        found = QueueingSolver(policy).solve(problem, time_limit_s=60)
        assert sum(found.instances) == problem.workers
        assert min(found.instances) >= 0
        assert found.instances[-1] >= 1
        assert found.objective == flow(problem, found.instances).objective
        objective = QueueingObjective(problem, policy)
        values, _ = objective.values(every_allocation(problem))
        assert np.isfinite(values).all()
        own, _ = objective.values(np.array([found.instances]))
        ratios.append(own[0] / values.min())
    assert np.mean(np.array(ratios) < 1 + 1e-6) >= 0.9
    assert max(ratios) < 1.1


def test_stable_whenever_that_is_possible() -> None:
    rng = np.random.default_rng(5)
    possible = 0
    for _ in range(60):
        problem = random_problem(rng, load=(0.7, 1.05))
        model = model_of(problem)
        stable = (model.utilisation(every_allocation(problem).astype(float))[0] < 1).all(1)
        if stable.any():
            possible += 1
            found = QueueingSolver().solve(problem, time_limit_s=60).instances
            assert (model.utilisation(np.array([found], float))[0] < 1).all(), (problem, found)
    assert possible >= 15


def test_largest_capacity_is_the_largest() -> None:
    rng = np.random.default_rng(6)
    for _ in range(60):
        problem = random_problem(rng, load=(0.5, 1.5))
        model = model_of(problem)
        found = largest_capacity(problem)
        assert sum(found) == problem.workers
        assert found[-1] >= 1
        best = model.utilisation(every_allocation(problem).astype(float))[0].max(1).min()
        assert model.utilisation(np.array([found], float))[0].max() == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("policy", ["eft", "late", "rs", "ilb"])
def test_more_demand_is_worse_and_never_infinite(policy: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(10):
        problem = random_problem(rng, load=(0.5, 0.5))
        instances = square_root(problem)[0]
        previous = 0.0
        for factor in (0.1, 0.5, 1.0, 1.5, 1.9, 2.2, 4, 40):
            more = dataclasses.replace(problem, demand=tuple(q * factor for q in problem.demand))
            value = predicted_mean_ms(more, instances, policy=policy)
            assert math.isfinite(value)
            assert value >= previous * (1 - 1e-3)
            previous = value


def test_one_more_instance_is_never_worse_than_noise() -> None:
    rng = np.random.default_rng(9)
    for _ in range(20):
        problem = random_problem(rng, load=(0.3, 1.2))
        instances = square_root(problem)[0]
        value = predicted_mean_ms(problem, instances)
        for level in range(len(instances)):
            more = list(instances)
            more[level] += 1
            assert predicted_mean_ms(problem, more) <= value * 1.001


def test_bursts_ask_for_more_capacity() -> None:
    problem = problem_of(10, [1.0, 2.0, 4.0], [250.0, 150.0, 80.0])
    model = model_of(problem)

    def used(burst: float) -> float:
        found = QueueingSolver().solve(dataclasses.replace(problem, burst=burst), time_limit_s=60).instances
        return float(model.utilisation(np.array([found], float))[0].max())

    assert used(1.5) <= used(1.0)
    bursty = dataclasses.replace(problem, burst=1.5)
    assert predicted_mean_ms(bursty, [3, 4, 3]) > predicted_mean_ms(problem, [3, 4, 3])


@pytest.mark.parametrize("swing", [0.0, 0.2, 0.5])
def test_burst_factor_is_the_swing_of_the_rate(swing: float) -> None:
    rng = np.random.default_rng(12)
    window = DemandWindow(window_s=600)
    counts = np.zeros(129, np.int64)
    window.add(0.0, 0, counts.tolist())
    for second in range(1, 401):
        rate = 1 + swing * (1 if second // 7 % 2 else -1)
        counts[[64, 128]] += rng.poisson([900 * rate, 300 * rate])
        window.add(float(second), 0, counts.tolist())
    demand = window.estimate([64, 128], SLO_MS)
    found = burst_factor(demand, window.dispersion([64, 128]), slo_ms=SLO_MS)
    assert found == pytest.approx(1 + swing, rel=0.03)
    assert burst_factor(demand, None, slo_ms=SLO_MS) == 1.0
    assert burst_factor(Demand((64,), (0.0,), (0.0,), 0, 0.0), 3.0, slo_ms=SLO_MS) == 1.0


def swinging(levels: int, *, times: float) -> Variation:
    """Ten calm spans of 3 s and two busy ones by turns; longer requests swing more, the sum of all does not."""
    busy = np.array([times ** (k / (levels - 1)) for k in range(levels)])
    calm = (12 - 2 * busy) / 10
    rows = [busy if span % 12 >= 10 else calm for span in range(36)]
    return Variation((3.0,) * len(rows), tuple(tuple(row.tolist()) for row in rows))


def test_a_replay_is_a_backlog_followed_span_by_span() -> None:
    rng = np.random.default_rng(3)
    share, rate = np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0, 0.5])
    spans_ms, factors = rng.uniform(500, 2000, 60), rng.uniform(0.3, 2.0, (60, 3))
    replay = Replay(rate=rate, share_ms=share, spans_ms=spans_ms, factors=factors)
    group = np.cumsum(rate[::-1])[::-1]
    raised = factors**SWING
    offered = raised / np.average(raised, axis=0, weights=spans_ms) * group * (1 + MARGIN)
    own = np.maximum(offered - np.column_stack([offered[:, 1:], np.zeros(60)]), 0) * spans_ms[:, None]
    for counts in ([4, 3, 3], [2, 4, 3], [3, 2, 4], [9, 9, 9]):
        capacity = np.cumsum((np.array(counts) / share)[::-1])[::-1]
        waits = np.zeros((3, 3))  # of a class, by a group
        for k in range(3):
            backlog = 0.0
            for span_ms, came, requests in zip(spans_ms, offered[:, k], own, strict=True):
                after = backlog + (came - capacity[k]) * span_ms
                waits[k:, k] += (backlog + max(after, 0.0)) / 2 / capacity[k] * requests[k:]
                backlog = max(after, 0.0)
        expected = waits.max(axis=1).sum() / own.sum()
        # Between two capacities of the table a convex function is taken for a line.
        assert replay.mean_ms(np.array([counts], float))[0] == pytest.approx(expected, rel=0.03, abs=1.0)


@pytest.mark.parametrize("policy", ["eft", "rs"])
def test_what_varies_gets_room_for_its_busy_moments(policy: str) -> None:
    steady = problem_of(20, [1.0, 2.0, 4.0], [1100.0, 230.0, 75.0])
    varied = dataclasses.replace(steady, variation=swinging(3, times=3.0))
    solver = QueueingSolver(policy)
    calm, busy = (solver.solve(problem, time_limit_s=60).instances for problem in (steady, varied))
    # Capacity for requests that only the longest runtime serves, over what comes in the mean.
    assert calm[-1] / 4.0 < 3 * 75.0 / SLO_MS <= busy[-1] / 4.0
    assert predicted_mean_ms(varied, busy, policy=policy) < predicted_mean_ms(varied, calm, policy=policy) / 3
    assert predicted_mean_ms(steady, busy, policy=policy) < predicted_mean_ms(steady, calm, policy=policy) * 2.5


def test_a_longer_swing_costs_more_and_is_finite_under_overload() -> None:
    problem = problem_of(12, [1.0, 2.0, 4.0], [400.0, 100.0, 40.0])
    values = [
        predicted_mean_ms(dataclasses.replace(problem, variation=swinging(3, times=times)), [4, 5, 3])
        for times in (1.5, 2.5, 4.0)
    ]
    assert values == sorted(values)
    assert math.isfinite(predicted_mean_ms(dataclasses.replace(problem, variation=swinging(3, times=5.0)), [0, 0, 1]))


def test_batches_carry_more_and_a_request_alone_takes_as_long() -> None:
    batched = LatencyCurve(((1, 2.0), (4, 4.0)))
    one = AllocationProblem(2, SLO_MS, (64,), (batched,), (0.001,))
    assert predicted_mean_ms(one, [2]) == pytest.approx(2.0, rel=1e-3)
    # 1.5 requests per ms: three instances' work one by one, three quarters of two instances' in full batches.
    busy = dataclasses.replace(one, demand=(1.5 * SLO_MS,))
    assert 2.0 < predicted_mean_ms(busy, [2]) < 20
    single = dataclasses.replace(busy, curves=(LatencyCurve.single(2.0),))
    assert predicted_mean_ms(single, [2]) > 1000


def test_no_demand_goes_to_the_longest() -> None:
    problem = problem_of(5, [1.0, 2.0], [0.0, 0.0])
    assert QueueingSolver().solve(problem, time_limit_s=1).instances == (0, 5)
    assert predicted_mean_ms(problem, [2, 3]) == 0.0


def test_infeasible_problems_get_an_allocation_with_its_reason() -> None:
    over = QueueingSolver().solve(problem_of(3, [1.0, 2.0], [900.0, 300.0]), time_limit_s=1)
    assert sum(over.instances) == 3
    assert over.reason is not None
    assert over.reason.startswith("overload")
    late = QueueingSolver().solve(problem_of(3, [1.0, 200.0], [10.0, 0.1]), time_limit_s=1)
    assert sum(late.instances) == 3
    assert late.reason is not None
    assert late.reason.startswith("slo_below_latency")


def test_out_of_time_is_still_an_allocation() -> None:
    problem = problem_of(50, [1.0, 2.0, 3.0], [1000.0, 1000.0, 300.0])
    found = QueueingSolver().solve(problem, time_limit_s=0.0).instances
    assert sum(found) == 50
    assert found[-1] >= 1


def test_the_same_problem_gets_the_same_answer() -> None:
    problem = random_problem(np.random.default_rng(11), load=(0.8, 0.8))
    answers = {QueueingSolver().solve(problem, time_limit_s=60).instances for _ in range(3)}
    assert len(answers) == 1
