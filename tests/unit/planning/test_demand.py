"""Demand from counters: windows, bins, gaps, restarts, peaks, shifts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arlo.planning.traffic.demand import Demand, DemandWindow, bins, latest_shift

LENGTHS = (2, 4)
SLO_MS = 100.0


def counts(*by_length: int) -> list[int]:
    """Counters: index = tokens, 0 unused."""
    return [0, *by_length]


def test_bins_end_at_the_maximum_lengths_and_longer_requests_are_in_the_last() -> None:
    assert bins(counts(1, 2, 4, 8, 16, 32), LENGTHS).tolist() == [3, 60]
    assert bins(counts(1), LENGTHS).tolist() == [1, 0]
    assert bins([], LENGTHS).tolist() == [0, 0]


def test_requests_per_slo_period_over_the_window() -> None:
    window = DemandWindow(window_s=10)
    for second in range(21):
        window.add(100.0 + second, 1, counts(0, 20 * second, 0, 10 * second))
    demand = window.estimate(LENGTHS, SLO_MS)
    assert demand.mean == pytest.approx((2.0, 1.0))
    assert (demand.rows, demand.span_s) == (300, pytest.approx(10.0))
    assert demand.total == pytest.approx(3.0)


def test_only_what_came_after_the_first_sample_counts() -> None:
    window = DemandWindow(window_s=10)
    window.add(5.0, 1, counts(1000))
    assert window.estimate(LENGTHS, SLO_MS) == Demand(LENGTHS, (0.0, 0.0), (0.0, 0.0), 0, 0.0)
    window.add(6.0, 1, counts(1005))
    assert window.estimate(LENGTHS, SLO_MS).rows == 5


def test_the_peak_is_that_of_the_busiest_second() -> None:
    window = DemandWindow(window_s=60)
    total = 0
    window.add(0.0, 1, counts(0))
    for second in range(1, 31):
        total += 50 if second == 17 else 10
        window.add(float(second), 1, counts(total))
    demand = window.estimate(LENGTHS, 1000.0)
    assert demand.peak[0] == pytest.approx(50.0)
    assert demand.mean[0] == pytest.approx(340 / 30)


def test_a_gap_spreads_what_came_in_it() -> None:
    window = DemandWindow(window_s=20)
    window.add(0.0, 1, counts(0))
    window.add(15.0, 1, counts(150))
    window.add(25.0, 1, counts(150))
    # 10 s of the gap are still in the window: 100 of the 150, over 20 s.
    demand = window.estimate(LENGTHS, 1000.0)
    assert (demand.rows, demand.span_s) == (100, pytest.approx(20.0))


def test_a_restarted_gateway_counts_from_zero_and_its_absence_is_left_out() -> None:
    window = DemandWindow(window_s=60)
    window.add(100.0, 7, counts(500))
    window.add(110.0, 7, counts(600))
    window.add(130.0, 125.0, counts(50))  # it started at 125 s
    demand = window.estimate(LENGTHS, 1000.0)
    assert demand.rows == 150
    assert demand.span_s == pytest.approx(15.0)
    assert demand.mean[0] == pytest.approx(10.0)


def test_longer_runtimes_lengthen_the_counters() -> None:
    window = DemandWindow(window_s=60)
    window.add(0.0, 1, counts(1))
    window.add(1.0, 1, counts(1, 0, 0, 5))
    window.add(2.0, 1, counts(2, 0, 0, 5))
    assert window.estimate(LENGTHS, 1000.0).mean == pytest.approx((0.5, 2.5))


def test_counters_or_clocks_that_run_backwards_are_started_over_from() -> None:
    window = DemandWindow(window_s=60)
    for at_s, count in ((0.0, 10), (1.0, 5), (2.0, 7), (1.5, 9), (2.5, 10)):
        window.add(at_s, 1, counts(count))
    assert window.estimate(LENGTHS, 1000.0).rows == 3


def test_since_forgets_what_came_before() -> None:
    window = DemandWindow(window_s=60)
    window.add(0.0, 1, counts(0, 0))
    for second in range(1, 21):
        window.add(float(second), 1, counts(min(second, 10) * 10, 0, 0, max(0, second - 10) * 10))
    assert window.estimate(LENGTHS, 1000.0, since_s=10.0).mean == pytest.approx((0.0, 10.0))


@given(st.lists(st.integers(0, 50), min_size=2, max_size=80), st.floats(1, 30))
def test_nothing_is_lost_or_counted_twice(arrivals: list[int], window_s: float) -> None:
    window = DemandWindow(window_s=window_s)
    total = 0
    for second, count in enumerate(arrivals):
        total += count
        window.add(float(second), 1, counts(total))
    demand = window.estimate(LENGTHS, 1000.0)
    inside = [max(0.0, min(1.0, second - (len(arrivals) - 1 - window_s))) for second in range(1, len(arrivals))]
    expected = sum(share * count for share, count in zip(inside, arrivals[1:], strict=True))
    assert demand.mean[0] * demand.span_s == pytest.approx(expected, abs=1e-6)
    assert demand.span_s == pytest.approx(min(window_s, len(arrivals) - 1))
    assert all(peak >= mean for peak, mean in zip(demand.peak, demand.mean, strict=True))


def traffic(*phases: tuple[tuple[float, float], float], seed: int = 1, burst: float = 1.0) -> DemandWindow:
    """Samples every 0.25 s of Poisson arrivals, (rates of lengths 1 and 3 per second, seconds) each.

    With `burst` above 1 every second is by turns that much busier and calmer.
    """
    rng = np.random.default_rng(seed)
    window = DemandWindow(window_s=60, resolution_s=0.25)
    at_s, total = 0.0, np.zeros(4, dtype=np.int64)
    window.add(at_s, 1, total.tolist())
    for (short, long), seconds in phases:
        for step in range(round(seconds * 4)):
            factor = burst if (step // 4) % 2 else 1 / burst
            total[1] += rng.poisson(short * factor / 4)
            total[3] += rng.poisson(long * factor / 4)
            at_s += 0.25
            window.add(at_s, 1, total.tolist())
    return window


def known(rate: tuple[float, float], span_s: float) -> Demand:
    mean = tuple(r * SLO_MS / 1000 for r in rate)
    return Demand(LENGTHS, mean, mean, round(sum(rate) * span_s), span_s)


@pytest.mark.parametrize("seed", range(20))
def test_a_shift_is_found_where_it_was_and_steady_traffic_has_none(seed: int) -> None:
    old = known((200, 50), 120)
    steady = latest_shift(traffic(((200, 50), 10), seed=seed), old, SLO_MS, min_rows=30)
    assert steady is not None
    assert steady.score < 12
    shifted = latest_shift(traffic(((200, 50), 8), ((100, 150), 1), seed=seed), old, SLO_MS, min_rows=30)
    assert shifted is not None
    assert shifted.score > 20
    assert shifted.since_s == pytest.approx(8.0, abs=0.26)
    assert shifted.demand.mean == pytest.approx((10, 15), rel=0.4)
    more = latest_shift(traffic(((200, 50), 8), ((400, 100), 1), seed=seed), old, SLO_MS, min_rows=30)
    assert more is not None
    assert more.score > 20


def test_traffic_that_stops_is_a_shift_and_too_little_says_nothing() -> None:
    stopped = latest_shift(traffic(((200, 50), 5), ((0, 0), 2)), known((200, 50), 120), SLO_MS, min_rows=30)
    assert stopped is not None
    assert stopped.demand.rows == 0
    assert stopped.score > 20
    assert latest_shift(traffic(((1, 1), 2)), known((1, 1), 60), SLO_MS, min_rows=30) is None


def test_an_old_demand_that_rests_on_little_is_no_proof() -> None:
    window = traffic(((200, 50), 5), seed=3)
    sure = latest_shift(window, known((150, 50), 120), SLO_MS, min_rows=30)
    unsure = latest_shift(window, known((150, 50), 0.25), SLO_MS, min_rows=30)
    assert sure is not None
    assert unsure is not None
    assert sure.score > 20 > unsure.score


def test_dispersion_is_one_for_poisson_arrivals_and_more_for_bursts() -> None:
    assert traffic(((200, 50), 4)).dispersion(LENGTHS) is None
    plain = traffic(((200, 50), 60)).dispersion(LENGTHS)
    bursts = traffic(((200, 50), 60), burst=2.0).dispersion(LENGTHS)
    assert plain == pytest.approx(1.0, abs=0.25)
    assert bursts is not None
    assert bursts > 5
    assert traffic(((0, 0), 10)).dispersion(LENGTHS) == 1.0


@pytest.mark.parametrize("seed", range(10))
def test_a_rate_that_varies_is_told_from_chance(seed: int) -> None:
    assert traffic(((200, 50), 60), seed=seed).variation(LENGTHS) is None
    assert traffic(((200, 5), 60), seed=seed).variation(LENGTHS) is None
    assert traffic(((200, 50), 4), seed=seed).variation(LENGTHS) is None  # too short to say
    # 20 s in which the long ones are three times as many, as many fewer short ones
    found = traffic(((200, 50), 20), ((100, 150), 20), ((200, 50), 20), seed=seed).variation(LENGTHS)
    assert found is not None
    seconds, factors = np.array(found.spans_s), np.array(found.factors)
    assert seconds.sum() == pytest.approx(60)
    assert np.average(factors, axis=0, weights=seconds) == pytest.approx([1, 1])
    middle = factors[len(factors) // 3 : 2 * len(factors) // 3].mean(axis=0)
    assert middle == pytest.approx([1, 1.8], rel=0.1)  # 150 over the mean of 83
    # What is left of chance is less than what was seen.
    assert factors[:, 0].std() < 0.06


def test_bins_as_one() -> None:
    assert Demand(LENGTHS, (2.0, 1.0), (3.0, 4.0), 30, 1.0).pooled() == Demand((4,), (3.0,), (7.0,), 30, 1.0)
