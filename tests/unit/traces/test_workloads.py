"""Workloads: the statistics of every generator, determinism, independence of arrivals and lengths, settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.traces import Trace, Workload, make_workload, materialise, shipped_loads
from arlo.traces.processes import BLOCK_NS, MarkovModulated, Poisson
from arlo.traces.rates import SECOND_NS, Ramp, Series, Sine, Steps, constant, expected_requests, parse_rate

PROCESSES = ("poisson", "mmpp", "gamma", "constant", "twitter-stable", "twitter-bursty")


def arrived(workload: Workload) -> NDArray[np.int64]:
    return np.concatenate([at for at, _ in workload.chunks()])


def per_second(workload: Workload) -> NDArray[np.int64]:
    return np.bincount(arrived(workload) // SECOND_NS, minlength=int(workload.duration_s))


def dispersion(workload: Workload, window_ns: int) -> float:
    count = np.bincount(arrived(workload) // window_ns, minlength=round(workload.duration_s * SECOND_NS / window_ns))
    return float(count.var() / count.mean())


# What all of them promise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrivals", PROCESSES)
@pytest.mark.parametrize("rate", [0.3, 700.0, "sine:300:1:7", "steps:0=0,3=500,8=0,11=100"])
def test_arrivals_are_in_order_within_the_duration_and_again_the_same(arrivals: str, rate: float | str) -> None:
    workload = make_workload(arrivals=arrivals, rate=rate, duration_s=17.3, seed=5)
    parts = list(workload.chunks())
    at, length = arrived(workload), np.concatenate([tokens for _, tokens in parts])
    assert (at.dtype, length.dtype, len(at)) == (np.int64, np.int32, len(length))
    assert (np.diff(at) >= 0).all()
    assert len(at) == 0 or (at[0] >= 0 and at[-1] < 17.3 * SECOND_NS)
    assert len(length) == 0 or (length.min() >= 1 and length.max() <= 512)
    for (first_at, first_length), (again_at, again_length) in zip(parts, workload.chunks(), strict=True):
        assert np.array_equal(first_at, again_at)
        assert np.array_equal(first_length, again_length)
    other = make_workload(arrivals=arrivals, rate=rate, duration_s=17.3, seed=6)
    assert arrivals == "constant" or not np.array_equal(at, arrived(other)) or len(at) == 0


@pytest.mark.parametrize(("arrivals", "drift"), [*((name, "paper") for name in PROCESSES), ("poisson", "sample:9")])
def test_a_longer_workload_begins_as_a_shorter_one(arrivals: str, drift: str) -> None:
    short, long = (
        materialise(make_workload(arrivals=arrivals, rate=300, duration_s=seconds, seed=2, drift=drift))
        for seconds in (7.5, 23.0)
    )
    assert np.array_equal(long.arrived_at_s[: len(short)], short.arrived_at_s)
    assert np.array_equal(long.length[: len(short)], short.length)
    assert long.arrived_at_s[len(short)] >= 7.5


@pytest.mark.parametrize("arrivals", PROCESSES)
def test_arrivals_do_not_change_when_only_lengths_do(arrivals: str) -> None:
    settings: dict[str, Any] = {"arrivals": arrivals, "rate": 200, "duration_s": 12}
    one = arrived(make_workload(**settings))
    for other in (
        {"length": "fixed:7"},
        {"drift": "0.3:5:0.1"},
        {"drift": "sample:50"},
        {"length": "tweets", "rescale": 512},
    ):
        assert np.array_equal(one, arrived(make_workload(**settings, **other)))


def test_a_block_of_poisson_arrivals_can_be_made_without_those_before() -> None:
    rate = Sine(400.0, 0.5, 9.0)
    blocks = list(itertools.islice(Poisson().blocks(rate, 3), 5))
    assert np.array_equal(Poisson().block(rate, 3, 4), blocks[4])
    assert all((number * BLOCK_NS <= at).all() for number, at in enumerate(blocks))
    assert all((at < (number + 1) * BLOCK_NS).all() for number, at in enumerate(blocks))


def test_no_block_is_larger_than_its_seconds() -> None:
    workload = make_workload(rate=20_000, duration_s=12)
    assert [len(at) for at, _ in workload.chunks()] == pytest.approx([100_000, 100_000, 40_000], rel=0.02)


# Statistics: the bounds are four standard errors, from the formula in each comment ------------------------------------


def test_poisson() -> None:
    workload = make_workload(rate=500, duration_s=400, seed=1)
    at, count = arrived(workload) / SECOND_NS, per_second(workload)
    assert len(at) == pytest.approx(200_000, abs=4 * 200_000**0.5)
    gaps = np.diff(at)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=4 / 200_000**0.5)  # the error of an exponential's CV
    assert count.var() / count.mean() == pytest.approx(1.0, abs=4 * (2 / 400) ** 0.5)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4 / 200_000**0.5


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_their_coefficient_of_variation(cv: float) -> None:
    gaps = np.diff(arrived(make_workload(arrivals="gamma", cv=cv, rate=1000, duration_s=200, seed=4))) / SECOND_NS
    assert gaps.mean() == pytest.approx(1e-3, rel=4 * cv / len(gaps) ** 0.5)
    # Kurtosis of a gamma is 3 + 6 cv^2: the error of a standard deviation is sqrt((kurtosis - 1) / 4n).
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=4 * ((2 + 6 * cv**2) / 4 / len(gaps)) ** 0.5 + cv * 0.005)


def test_constant_gaps() -> None:
    at = arrived(make_workload(arrivals="constant", rate=8, duration_s=11))
    assert at[:3].tolist() == [62_500_000, 187_500_000, 312_500_000]
    assert set(np.diff(at).tolist()) == {125_000_000}
    assert len(at) == 88


def test_mmpp_has_the_dispersion_of_its_formula() -> None:
    # Index of dispersion of a window t of a two-state MMPP with rates r1, r2 and equal mean sojourns s:
    # 1 + (r1 - r2)^2 s / (4 * mean) * (1 - (s / 2t) * (1 - e^(-2t/s)))
    rate, burst, sojourn, window = 400.0, 5.0, 0.05, 1.0
    low = 2 * rate / (1 + burst)
    settled = 1 - sojourn / (2 * window) * (1 - np.exp(-2 * window / sojourn))
    wanted = 1 + (low * (burst - 1)) ** 2 * sojourn / (4 * rate) * settled
    workload = make_workload(
        arrivals="mmpp", rate=rate, burst=burst, sojourn_ms=sojourn * 1000, duration_s=1500, seed=9
    )
    assert dispersion(workload, SECOND_NS) == pytest.approx(wanted, rel=4 * (2 / 1500) ** 0.5)
    assert len(arrived(workload)) == pytest.approx(600_000, abs=4 * (wanted * 600_000) ** 0.5)


def test_mmpp_sojourns_and_shares() -> None:
    process = MarkovModulated(burst=10.0, busy_ms=20.0, quiet_ms=180.0)
    at = np.concatenate(list(itertools.islice(process.blocks(constant(1000.0), 1), 60)))
    # Busy a tenth of the time, at 10 / 1.9 times the mean rate: 52.6 % of all arrivals come while busy.
    count = np.bincount(at // 5_000_000, minlength=60_000)
    busy = count > 14  # quiet: mean 2.6 in 5 ms, busy: 26.3
    assert busy.mean() == pytest.approx(0.1, abs=0.015)
    assert count[busy].sum() / count.sum() == pytest.approx(10 / 19, abs=0.04)


def test_bursty_seconds_hold_what_stable_seconds_hold() -> None:
    settings: dict[str, Any] = {"rate": 2000, "segment": "bursty", "duration_s": 60, "seed": 3}
    stable, bursty = (make_workload(arrivals=f"twitter-{kind}", **settings) for kind in ("stable", "bursty"))
    assert np.array_equal(per_second(stable), per_second(bursty))
    assert dispersion(stable, SECOND_NS // 100) < 1.5
    assert dispersion(bursty, SECOND_NS // 100) > 2.5


def test_stable_seconds_are_as_the_measured_ones() -> None:
    # 600 seconds of the real stream have a variance over mean of 0.99; so have these, within the error of 600 seconds.
    count = per_second(make_workload(arrivals="twitter-stable", rate=234.2, duration_s=600, seed=11))
    assert count.var() / count.mean() == pytest.approx(0.99, abs=4 * (2 / 600) ** 0.5)


@pytest.mark.parametrize(
    ("rate", "wanted"),
    [
        (Steps((0.0, 3.0), (100.0, 50.0)), lambda t: np.where(t < 3, 100.0, 50.0)),
        (Ramp(100.0, 400.0, 6.0), lambda t: 100 + 50 * np.minimum(t, 6)),
        (Sine(200.0, 0.8, 8.0), lambda t: 200 * (1 + 0.8 * np.sin(2 * np.pi * t / 8))),
        (Series(np.array([10.0, 30.0]), 2.0, "test"), lambda t: np.where(t % 4 < 2, 10.0, 30.0)),
    ],
)
def test_rates_over_time(rate: Any, wanted: Any) -> None:
    edges, value = rate.pieces(500_000_000, 10 * SECOND_NS)
    assert (edges[0], edges[-1], len(value)) == (500_000_000, 10 * SECOND_NS, len(edges) - 1)
    fine = np.linspace(0.5, 10, 95_001)[:-1] + 5e-5
    exact = wanted(fine)
    index = np.searchsorted(edges, fine * SECOND_NS, side="right") - 1
    assert value[index].mean() == pytest.approx(exact.mean(), rel=1e-4)
    assert np.abs(value[index] - exact).max() <= 0.06 * exact.max()
    assert expected_requests(rate, 10.0) == pytest.approx(
        wanted(np.linspace(0, 10, 200_001)[:-1]).mean() * 10, rel=1e-4
    )


def test_arrivals_follow_the_rate() -> None:
    count = per_second(make_workload(rate="steps:0=100,20=1000", duration_s=40, seed=8))
    assert count[:20].mean() == pytest.approx(100, abs=4 * (100 / 20) ** 0.5)
    assert count[20:].mean() == pytest.approx(1000, abs=4 * (1000 / 20) ** 0.5)


def test_shipped_loads_have_mean_one_and_their_shape() -> None:
    loads = shipped_loads()
    assert sorted(loads) == ["bursty", "fluctuating_a", "steady_high", "steady_low"]
    for load in loads.values():
        assert load.rate.mean() == pytest.approx(1.0)
    assert loads["bursty"].rate.max() / loads["bursty"].rate.min() > 5
    assert loads["steady_high"].rate.std() < 0.03
    assert make_workload(segment="bursty", rate=10).duration_s == 1200


def test_materialise_guards_memory() -> None:
    with pytest.raises(ConfigError, match="shorter duration"):
        materialise(make_workload(rate=1e6, duration_s=1e5))
    trace = materialise(make_workload(rate=50, duration_s=4))
    assert isinstance(trace, Trace)
    assert len(trace) == pytest.approx(200, abs=60)


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arrivals": "poison"}, "did you mean 'poisson'"),
        ({"rate": "ramp:1"}, "ramp:FROM:TO"),
        ({"rate": 0}, "above 0"),
        ({"rate": float("nan")}, "finite"),
        ({"rate": "steps:1=5"}, "begin at 0"),
        ({"rate": "sine:10:2:5"}, "depth"),
        ({"rate": "sine:10:1:0"}, "period"),
        ({"rate": "ramp:1:2:0"}, "more than 0"),
        ({"duration_s": 0}, "duration_s"),
        ({"duration_s": float("inf")}, "duration_s"),
        ({"seed": -1}, "seed"),
        ({"arrivals": "mmpp", "burst": 0.5}, "burst"),
        ({"arrivals": "mmpp", "sojourn_ms": 0}, "sojourn"),
        ({"arrivals": "mmpp", "sojourn_ms": "1:2:3"}, "BUSY:QUIET"),
        ({"burst": 2}, "cannot be set here"),
        ({"cv": 2}, "gamma"),
        ({"arrivals": "gamma", "cv": -1}, "cv"),
        ({"arrivals": "gamma", "cv": 1e-200}, "cv"),
        ({"drift": "strong"}, "drift"),
        ({"drift": "0.1:0"}, "time constant"),
        ({"drift": "2"}, "from 0 to 1"),
        ({"drift": "sample:0"}, "drawn from 1"),
        ({"drift": "sample:few"}, "a drift of lengths is"),
        ({"segment": "bursts"}, "did you mean 'bursty'"),
        ({"segment": "bursty", "rate": "ramp:1:2"}, "one number"),
        ({"smooth_s": 5}, "file of counts"),
        ({"tokens": "context"}, "trace of a file"),
        ({"trace": "t.csv", "arrivals": "poisson", "cv": 1.0}, "arrivals and cv"),
    ],
)
def test_wrong_settings_are_refused_with_the_reason(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_workload(**settings)


def test_descriptions_name_the_parameters() -> None:
    text = make_workload(arrivals="twitter-bursty", rate=10, burst=4, sojourn_ms="50:150", seed=7).describe()
    for part in ("4 times", "50 and 150 ms", "10/s", "median 21", "0.21", "seed 7"):
        assert part in text
    assert parse_rate("sine:10:0.5:60", 1).describe() == "10/s +- 50 % over 60 s"


class Plain:
    """A workload that is none of ours: only the protocol counts."""

    name, duration_s = "plain", 1.0

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        yield np.array([0, 5]), np.array([3, 4], np.int32)

    def expected(self) -> float:
        return 2.0

    def describe(self) -> str:
        return "two requests"


def test_any_workload_can_be_materialised() -> None:
    trace = materialise(Plain())
    assert (trace.arrived_at_s.tolist(), trace.length.tolist()) == ([0.0, 5e-9], [3, 4])
