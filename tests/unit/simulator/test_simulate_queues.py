"""The simulator against the formulas of queueing theory.

Each case runs R independent replications (own seeds for arrivals and noise, start-up left out by `warmup`). The
statistic's standard error is that of R independent values, s / sqrt(R), and the case passes when

    |mean - formula| <= t * s / sqrt(R),   t = 0.9995 quantile of Student's distribution with R - 1 degrees of freedom,

so that a right simulator fails one comparison in 1000 (the seeds are fixed: it does so always or never), and when the
error allowed is at most 3 % of the formula: a simulator that is wrong by 6 % fails nearly always.
test_the_method_rejects_a_wrong_formula shows that the method does reject a formula that is 6 % off.

Service times of a table: the simulator draws a factor from evenly spaced quantiles. Where a formula takes moments, they
are those of the table itself; for the exponential distribution with 2^16 quantiles they differ from the true ones by
less than 0.1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo import _core

MS = 1_000_000
R = 24
STUDENT_23 = 3.768  # 0.9995 quantile, 23 degrees of freedom
QUANTILES = (np.arange(2**16) + 0.5) / 2**16
EXPONENTIAL = -np.log1p(-QUANTILES)  # mean 1
ONE_LENGTH = 64


def poisson(rate_per_ms: float, count: int, seed: int) -> NDArray[np.int64]:
    gaps = np.random.default_rng(seed).exponential(MS / rate_per_ms, count)
    times: NDArray[np.int64] = np.cumsum(gaps).astype(np.int64)
    return times


def simulate(
    seed: int,
    rate: float,
    count: int,
    *,
    servers: int = 1,
    policy: str = "late",
    noise: NDArray[np.float64] | None = None,
    max_queued: int = 2**31 - 1,
    record: bool = False,
) -> _core.Simulation:
    """One queue of `servers` workers that take 1 ms times `noise`; `rate` requests per ms."""
    arrived = poisson(rate, count, seed)
    sim = _core.Simulation(
        policy,
        slo=1000 * MS,
        max_queued=max_queued,
        seed=seed,
        noise=noise,
        warmup=int(arrived[count // 10]),
        record=record,
    )
    sim.add_runtime(ONE_LENGTH, 100, [(ONE_LENGTH, 1, MS)])
    for _ in range(servers):
        sim.add_worker(0, 0)
    sim.feed(arrived, np.full(count, ONE_LENGTH, np.int32))
    sim.finish()
    return sim


def mean_wait_ms(sim: _core.Simulation) -> float:
    totals = sim.totals()
    return totals["wait_sum_ns"] / (totals["on_time"] + totals["late"]) / MS


def agree(run: Callable[[int], list[float]], formulas: list[float], *, seed: int = 0) -> None:
    """Each statistic that `run(seed)` gives agrees with its formula, as the text above says."""
    values = np.array([run(1000 * seed + i) for i in range(R)])
    error = STUDENT_23 * values.std(axis=0, ddof=1) / math.sqrt(R)
    for found, allowed, formula in zip(values.mean(axis=0), error, formulas, strict=True):
        assert allowed <= 0.03 * formula, f"too noisy: {formula:.4f} +- {allowed:.4f}"
        assert abs(found - formula) <= allowed, f"{found:.4f}, and by the formula {formula:.4f} +- {allowed:.4f}"


# -- formulas ----------------------------------------------------------------------------------------------------------


def pollaczek_khinchine(rate: float, service: NDArray[np.float64]) -> float:
    """Mean wait in M/G/1, of the table `service` (ms)."""
    return float(rate * (service**2).mean() / 2 / (1 - rate * service.mean()))


def erlang_c(servers: int, offered: float) -> float:
    """P(wait) in M/M/c with `offered` Erlang."""
    blocked = 1.0
    for c in range(1, servers + 1):
        blocked = offered * blocked / (c + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def md1_wait_at_most(x: float, rate: float) -> float:
    """P(wait <= x) in M/D/1 with service 1 (Erlang 1909)."""
    terms = ((rate * (k - x)) ** k / math.factorial(k) * math.exp(-rate * (k - x)) for k in range(int(x) + 1))
    return (1 - rate) * sum(terms)


def bisect(f: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < target else (low, middle)
    return low


def mdc_mean_wait(servers: int, offered: float, states: int = 400) -> float:
    """Mean wait in M/D/c with service 1: the number present after one service time is what queued plus what came."""
    came = np.exp(
        np.arange(states) * math.log(offered) - offered - np.array([math.lgamma(k + 1) for k in range(states)])
    )
    step = np.zeros((states, states))
    for present in range(states):
        left = max(present - servers, 0)
        step[present, left:] = came[: states - left]
        step[present, -1] += 1 - step[present].sum()
    equations = np.vstack([step.T - np.eye(states), np.ones(states)])
    share = np.linalg.lstsq(equations, np.append(np.zeros(states), 1.0), rcond=None)[0]
    queued = (np.maximum(np.arange(states) - servers, 0) * share).sum()
    return float(queued / offered)


# -- one server --------------------------------------------------------------------------------------------------------


def test_the_table_is_exponential_enough() -> None:
    assert EXPONENTIAL.mean() == pytest.approx(1, rel=1e-4)
    assert (EXPONENTIAL**2).mean() == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("policy", ["rs", "late"])
def test_mm1(policy: str) -> None:
    """Mean wait rho / (1 - rho), and 98 % of the latencies within ln 50 / (1 - rho)."""
    rho = 0.7

    def run(seed: int) -> list[float]:
        sim = simulate(seed, rho, 100_000, policy=policy, noise=EXPONENTIAL)
        return [mean_wait_ms(sim), sim.quantiles_ns(np.array([0.98]))[0] / MS]

    agree(run, [pollaczek_khinchine(rho, EXPONENTIAL), math.log(50) / (1 - rho)], seed=1)
    assert pollaczek_khinchine(rho, EXPONENTIAL) == pytest.approx(rho / (1 - rho), rel=2e-3)


@pytest.mark.parametrize("policy", ["rs", "eft"])
def test_md1(policy: str) -> None:
    """Mean wait rho / 2 (1 - rho), quantiles by Erlang; a request in rho finds the server busy (PASTA)."""
    rho = 0.7

    def run(seed: int) -> list[float]:
        sim = simulate(seed, rho, 60_000, policy=policy, record=True)
        latency = sim.quantiles_ns(np.array([0.5, 0.9, 0.98])) / MS
        counted = sim.columns()["wait_ns"][6000:]
        return [mean_wait_ms(sim), *latency, (counted > 0).mean()]

    quantiles = [1 + bisect(lambda x: md1_wait_at_most(x, rho), q, 0, 20) for q in (0.5, 0.9, 0.98)]
    agree(run, [rho / 2 / (1 - rho), *quantiles, rho], seed=2)


@pytest.mark.parametrize("policy", ["rs", "late"])
def test_mm1_with_room_for_few(policy: str) -> None:
    """M/M/1/K: what arrives when K are present is refused, with probability (1 - rho) rho^K / (1 - rho^(K + 1))."""
    rho, room = 0.9, 5

    def run(seed: int) -> list[float]:
        totals = simulate(seed, rho, 60_000, policy=policy, noise=EXPONENTIAL, max_queued=room - 1).totals()
        return [totals["rejected"] / totals["arrived"]]

    agree(run, [(1 - rho) * rho**room / (1 - rho ** (room + 1))], seed=4)


# -- several servers, one queue: `late` with one request in flight per worker ------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("servers", "rho"), [(2, 0.7), (5, 0.7)])
def test_mmc(servers: int, rho: float) -> None:
    """Erlang C: P(wait) and the mean wait C / (c - a)."""

    def run(seed: int) -> list[float]:
        sim = simulate(seed, servers * rho, 200_000, servers=servers, noise=EXPONENTIAL, record=True)
        return [(sim.columns()["wait_ns"][20_000:] > 0).mean(), mean_wait_ms(sim)]

    waits = erlang_c(servers, servers * rho)
    agree(run, [waits, waits / (servers * (1 - rho))], seed=5 + servers)


def test_mdc() -> None:
    servers, rho = 4, 0.85
    agree(
        lambda seed: [mean_wait_ms(simulate(seed, servers * rho, 150_000, servers=servers))],
        [mdc_mean_wait(servers, servers * rho)],
        seed=12,
    )


def test_bound_on_arrival_is_worse_than_one_queue() -> None:
    """Join the shortest queue lies between one queue (Erlang C) and a queue for each server (M/M/1)."""
    servers, rho = 4, 0.8
    sim = simulate(77, servers * rho, 300_000, servers=servers, policy="ilb", noise=EXPONENTIAL)
    one_queue = erlang_c(servers, servers * rho) / (servers * (1 - rho))
    assert 1.05 * one_queue < mean_wait_ms(sim) < 0.5 * rho / (1 - rho)


# -- two classes -------------------------------------------------------------------------------------------------------


def priority(seed: int, rates: tuple[float, float], times: tuple[int, int], servers: int) -> list[float]:
    """Mean waits of the first and the second class of a non-preemptive priority queue.

    Under `late` an instance that gets room takes the first request of a lower level before its own line when that
    gains enough, and otherwise its own line, in order of admission. Here the lower level's only worker is busy for an
    hour from the start: a short request always gains by the move, more than what any line of long ones is worth. So the
    workers of the long level are a queue in which short requests go first, and each class is in order of arrival.
    What waits there is passed over three times in a row at most (late.cc): the formulas hold where four short requests
    in a row are rare.
    """
    end = 100_000 * MS
    streams = [poisson(rate, int(1.1 * rate * end / MS), 2 * seed + i) for i, rate in enumerate(rates)]
    first, second = (stream[stream < end] + 1 for stream in streams)
    arrived = np.concatenate([first, second])
    length = np.concatenate([np.full(len(first), 100, np.int32), np.full(len(second), 512, np.int32)])
    order = np.argsort(arrived, kind="stable")

    sim = _core.Simulation("late", slo=1000 * MS, max_queued=2**31 - 1, record=True)
    hour = 3_600_000 * MS
    sim.add_runtime(128, 1, [(128, 1, hour)])
    sim.add_runtime(512, 100, [(100, 1, times[0]), (512, 1, times[1])], dynamic=True)
    for _ in range(servers):
        sim.add_worker(1, 0)
    sim.add_worker(0, 0)
    # Long requests that fill the long level, then a short one: it goes to its own level, for an hour.
    sim.feed(np.zeros(servers + 1, np.int64), np.array([512] * servers + [100], np.int32))
    sim.feed(arrived[order], length[order])
    sim.finish()
    columns = sim.columns()
    assert (columns["outcome"][servers + 1 :] == 0).all()
    assert columns["worker"][: servers + 1].tolist() == list(range(servers + 1))
    assert (columns["worker"][servers + 1 :] < servers).all(), "all of the two classes on the long level"
    counted = columns["arrived_ns"] > end // 10
    waits = columns["wait_ns"] / MS
    return [float(waits[counted & (columns["length"] == of)].mean()) for of in (100, 512)]


def test_two_classes_on_one_server() -> None:
    """Cobham: W1 = R / (1 - rho1), W2 = R / (1 - rho1) (1 - rho), R = (sum of rate * time^2) / 2."""
    rates, times = (0.1, 0.3), (MS // 2, 2 * MS)
    own, both = rates[0] * 0.5, rates[0] * 0.5 + rates[1] * 2.0
    left = (rates[0] * 0.5**2 + rates[1] * 2.0**2) / 2
    agree(lambda seed: priority(seed, rates, times, 1), [left / (1 - own), left / (1 - own) / (1 - both)], seed=20)


# -- laws --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_method_rejects_a_wrong_formula() -> None:
    """Waits that are 6 % off do not pass, in any of the cases tried."""
    rho = 0.7
    for wrong in (0.94, 1.06):
        with pytest.raises(AssertionError, match="by the formula"):
            agree(
                lambda seed: [mean_wait_ms(simulate(seed, rho, 60_000, noise=EXPONENTIAL))],
                [wrong * pollaczek_khinchine(rho, EXPONENTIAL)],
                seed=1,
            )


# -- the histogram -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e2, 1e6, 1e9])
def test_quantiles_against_numpy(scale: float) -> None:
    """Within 1 part in 1024 (or 1 ns) of the order statistic, and between the least and the largest."""
    draws = np.random.default_rng(7)
    # A worker for each request: latency is what it takes, times its factor.
    factors = np.sort(draws.lognormal(0, 1.5, 4096))
    sim = _core.Simulation("uniform", slo=10**15, noise=factors, seed=9, record=True)
    sim.add_runtime(ONE_LENGTH, 1, [(ONE_LENGTH, 1, int(scale))])
    for _ in range(500):
        sim.add_worker(0, 0)
    for wave in range(20):
        sim.feed(np.full(500, wave * 10**12), np.full(500, 3, np.int32))
    sim.finish()
    latency = sim.columns()["latency_ns"]
    assert (sim.columns()["wait_ns"] == 0).all()
    q = np.concatenate([np.linspace(0, 1, 203), draws.random(300)])
    found = sim.quantiles_ns(q)
    lower = np.quantile(latency, q, method="lower")
    assert (np.abs(found - lower) <= lower / 1024 + 1).all()
    assert (np.diff(sim.quantiles_ns(np.sort(q))) >= 0).all()
    assert found.min() == latency.min()
    assert found.max() == latency.max()


def test_buckets_are_side_by_side() -> None:
    """Each bucket begins where the one before it ends, is at most 1/1024 wide, and holds what lies in it."""
    sim = _core.Simulation("rs", slo=10**15)
    sim.add_runtime(ONE_LENGTH, 1, [(ONE_LENGTH, 1, 3 * 10**12)])
    sim.add_worker(0, 0)
    sim.feed(np.zeros(1, np.int64), np.ones(1, np.int32))
    sim.finish()
    lower, counts = sim.histogram()
    widths = np.diff(lower)
    assert lower[0] == 0
    assert (widths >= 1).all()
    assert (widths <= np.maximum(lower[:-1] / 1024, 1)).all()
    assert counts.sum() == counts[-1] == 1
    recent, per_recent = sim.take_recent()
    edges = _core.Simulation.recent_bucket_ns(len(per_recent) + 1)
    assert (np.diff(edges) <= np.maximum(edges[:-1] / 128, 1)).all()
    assert edges[-2] <= 3 * 10**12 < edges[-1]
    assert recent["answered"] == per_recent[-1] == 1
    again, none = sim.take_recent()
    assert (again["answered"], len(none)) == (0, 0)
    assert _core.Simulation.recent_bucket_ns(20_000)[-1] == 2**63 - 1


def test_empty_histogram() -> None:
    sim = _core.Simulation("rs", slo=1)
    assert sim.quantiles_ns(np.array([0.0, 0.5, 1.0])).tolist() == [0, 0, 0]
    assert len(sim.histogram()[0]) == 0


# -- noise -------------------------------------------------------------------------------------------------------------


def test_noise_belongs_to_the_request() -> None:
    """The same factor for a request under every policy; another seed draws others; each quantile is drawn as often."""
    factors = np.linspace(0.5, 1.5, 64)

    def drawn(policy: str, seed: int) -> NDArray[np.int64]:
        sim = _core.Simulation(policy, slo=10**12, seed=seed, noise=factors, record=True, max_queued=10**6)
        sim.add_runtime(ONE_LENGTH, 10, [(ONE_LENGTH, 1, MS)])
        for _ in range(3):
            sim.add_worker(0, 0)
        sim.feed(poisson(2.0, 20_000, 5), np.full(20_000, 9, np.int32))
        sim.finish()
        columns = sim.columns()
        executed: NDArray[np.int64] = columns["latency_ns"] - columns["wait_ns"]
        return executed

    base = drawn("rs", 3)
    for policy in ("ilb", "ig", "infaas", "uniform", "eft", "late"):
        assert (drawn(policy, 3) == base).all()
    other = drawn("rs", 4)
    assert 0.01 < (other == base).mean() < 0.022  # 1 / 64 by chance: 0.0156 +- 0.0009
    counts = np.unique(base, return_counts=True)[1]
    assert len(counts) == 64
    # Chi-squared with 63 degrees of freedom: 0.9995 quantile 106.
    assert ((counts - 20_000 / 64) ** 2 / (20_000 / 64)).sum() < 106
    assert abs(np.corrcoef(base[1:], base[:-1])[0, 1]) < 0.025  # 3.5 standard errors
