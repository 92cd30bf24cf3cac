"""How many rows a batch should hold: what pays for a row, and what fits into the memory of a worker."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arlo.errors import ConfigError
from arlo.planning.lengths.batches import (
    LEAST_SAVING,
    MOST_ROWS,
    Memory,
    choose_batches,
    measure_on,
    worthwhile_rows,
)
from arlo.simulator.profiles import load_profile


def of_shares(*shares: float) -> dict[int, float]:
    """A row's time in batches of 1, 2, 4, ..."""
    return {1 << power: share * (1 << power) for power, share in enumerate(shares)}


@pytest.mark.parametrize(
    ("shares", "rows"),
    [
        ((100,), 1),
        ((100, 100, 100), 1),  # one row keeps the device busy
        ((100, 104, 110), 1),
        ((100, 60, 40, 39.5, 39.4), 4),
        ((100, 60, 60, 50, 50, 50), 8),  # a disturbed point does not hide what is behind it
        ((100, 60, 60, 59, 58), 2),  # 3.3 % in three doublings are not 3 % each
        ((100, 50, 25, 12), 8),  # as far as was measured
    ],
)
def test_a_batch_is_as_large_as_pays_for_each_row(shares: tuple[float, ...], rows: int) -> None:
    assert worthwhile_rows(of_shares(*shares)) == rows


def test_a_gpu_fills_up_with_tokens() -> None:
    """The published table: short rows go together in large batches, long ones in small ones."""
    runtimes = load_profile("bert-base-a100").static_runtimes([32, 128, 512], max_batch=MOST_ROWS)
    measured = {r.max_length: {rows: 1000 * ms for _, rows, ms in r.points} for r in runtimes}
    assert [(c.length, c.rows) for c in choose_batches(measured)] == [(32, 64), (128, 32), (512, 16)]


def test_the_reason_is_said() -> None:
    measured = {16: of_shares(100, 60, 59), 64: of_shares(100, 101), 256: of_shares(100, 50)}
    assert [choice.why for choice in choose_batches(measured)] == [
        "a row takes 40% less than alone; 4 would save 1.7%, and 3% is the least that pays",
        "with 2 it takes 1.0% longer, and 3% is the least that pays",
        "a row takes 50% less than alone; more were not tried",
    ]


def test_where_memory_is_short_the_batch_that_gains_least_for_it_is_halved() -> None:
    measured = {16: of_shares(100, 50, 25), 64: of_shares(100, 50, 45)}
    memory = Memory(weights_mb=50, token_mb=0.1)
    assert [c.rows for c in choose_batches(measured, memory=memory, limit_mb=132)] == [4, 4]
    fitting = choose_batches(measured, memory=memory, limit_mb=131)
    assert [c.rows for c in fitting] == [4, 2]
    assert fitting[1].why == "4 would save more, and do not fit into 131 MB with the other lengths"
    with pytest.raises(ConfigError, match=r"2 lengths of one row take about 108 MB, more than the 107 of --memory-mb"):
        choose_batches(measured, memory=memory, limit_mb=107)
    with pytest.raises(ConfigError, match="leave --memory-mb out"):
        choose_batches(measured, limit_mb=1000)


@given(
    st.dictionaries(st.integers(1, 512), st.lists(st.floats(1, 1000), min_size=1, max_size=7), min_size=1, max_size=6),
    st.floats(0, 100),
    st.floats(0.001, 1),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_it_fits_and_more_memory_never_makes_a_batch_smaller(
    shares: dict[int, list[float]], weights_mb: float, token_mb: float, low: float, high: float
) -> None:
    measured = {length: of_shares(*each) for length, each in shares.items()}
    memory = Memory(weights_mb=weights_mb, token_mb=token_mb)
    free = {c.length: c.rows for c in choose_batches(measured)}
    least = math.fsum(memory.of(length, 1) for length in measured) * (1 + 1e-9)
    most = math.fsum(memory.of(length, rows) for length, rows in free.items())
    limits = sorted(least + share * (max(most, least) - least) for share in (low, high))
    chosen = [{c.length: c.rows for c in choose_batches(measured, memory=memory, limit_mb=at)} for at in limits]
    for limit, rows in zip(limits, chosen, strict=True):
        assert math.fsum(memory.of(length, count) for length, count in rows.items()) <= limit * (1 + 1e-9)
    assert all(1 <= chosen[0][length] <= chosen[1][length] <= free[length] for length in measured)


def test_measuring_ends_after_two_doublings_that_do_not_pay() -> None:
    def measured(*shares: float) -> bool:
        return measure_on(list(of_shares(*shares).items()))

    assert measured(100)
    assert measured(100, 100)  # once may be noise
    assert not measured(100, 100, 100)
    assert measured(100, 100, 100 * (1 - LEAST_SAVING) - 1)
    assert measured(100, 60, 60)
    assert not measured(100, 60, 60, 60)
    assert not measured(*(100 / 2**power for power in range(MOST_ROWS.bit_length())))
