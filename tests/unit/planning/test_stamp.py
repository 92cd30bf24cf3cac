"""Statistics on the reader's clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arlo.planning.traffic.stamp import Stamp, StampClock


def test_the_distance_of_two_statistics_is_the_gateways() -> None:
    clock = StampClock()
    assert clock.stamp(7, 5_000_000_000, 100.0) == Stamp(100.0, 95.0)
    assert clock.stamp(7, 5_100_000_000, 100.4) == Stamp(100.1, 95.0), "the second one was on its way for longer"


def test_a_restarted_gateway_goes_on_after_the_one_before() -> None:
    clock = StampClock()
    clock.stamp(7, 5_000_000_000, 100.0)
    assert clock.stamp(8, 1_000_000_000, 104.0) == Stamp(104.0, 103.0)
    assert clock.stamp(8, 500_000_000, 110.0) == Stamp(110.0, 109.5), "younger than before: restarted, whatever it says"


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e4), st.floats(0, 60)), max_size=30))
def test_stamps_never_go_back(readings: list[tuple[int, float, float]]) -> None:
    clock, now_s, last_s = StampClock(), 50.0, float("-inf")
    for life, uptime_s, pause_s in readings:
        now_s += pause_s
        stamp = clock.stamp(life, round(uptime_s * 1e9), now_s)
        assert stamp.at_s >= last_s
        assert stamp.started_s <= stamp.at_s
        last_s = stamp.at_s
