"""Arrival processes at any rate: order, bounds, and what is promised about beginnings."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arlo.traces.lengths import parse_length_spec
from arlo.traces.measure import dispersion
from arlo.traces.processes import BLOCK_NS, Arrivals, MarkovModulated, Poisson, Renewal
from arlo.traces.rates import SECOND_NS, Ramp, Rate, Series, Sine, Steps, cut

RATE = st.floats(0.01, 3000.0)
TIME = st.floats(0.05, 40.0)


@st.composite
def steps(draw: st.DrawFn) -> Steps:
    at = sorted({0.0, *draw(st.lists(TIME, max_size=5))})
    rates = draw(st.lists(st.one_of(st.just(0.0), RATE), min_size=len(at) - 1, max_size=len(at) - 1))
    return Steps(tuple(at), (*rates, draw(RATE)))


rates = st.one_of(
    steps(),
    st.builds(Ramp, RATE, RATE, TIME),
    st.builds(Sine, RATE, st.floats(0, 1), TIME),
    st.builds(lambda v, s: Series(np.array(v), s, "test"), st.lists(RATE, min_size=1, max_size=9), TIME),
)
processes: st.SearchStrategy[Arrivals] = st.one_of(
    st.just(Poisson()),
    st.builds(
        MarkovModulated,
        burst=st.floats(1, 50),
        busy_ms=st.floats(1, 20_000),
        quiet_ms=st.floats(1, 20_000),
        per_second=st.booleans(),
    ),
    st.builds(Renewal, st.one_of(st.just(0.0), st.floats(0.001, 5))),
)


@given(processes, rates, st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_blocks_are_in_order_and_inside_their_time(process: Arrivals, rate: Rate, seed: int) -> None:
    blocks = list(itertools.islice(process.blocks(rate, seed), 3))
    for number, at in enumerate(blocks):
        assert at.dtype == np.int64
        assert (np.diff(at) >= 0).all()
        assert ((at >= number * BLOCK_NS) & (at < (number + 1) * BLOCK_NS)).all()
    again = list(itertools.islice(process.blocks(rate, seed), 2))
    assert all(np.array_equal(a, b) for a, b in zip(again, blocks, strict=False))


@given(rates, st.integers(0, 60), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_nothing_arrives_while_the_rate_is_zero(rate: Rate, block: int, seed: int) -> None:
    at = Poisson().block(rate, seed, block)
    edges, value = rate.pieces(block * BLOCK_NS, (block + 1) * BLOCK_NS)
    assert (np.diff(edges) > 0).all()
    assert (edges[0], edges[-1]) == (block * BLOCK_NS, (block + 1) * BLOCK_NS)
    here = value[np.searchsorted(edges, at, side="right") - 1]
    assert (here > 0).all()


@given(rates, st.floats(1, 20), st.integers(0, 2**32))
@example(Sine(2.0, 0.0, 1.0), 2.0, 3)  # 10 requests a block: NumPy changes its method at a mean of 10
@example(Sine(2.0, 0.0, 1.0), 2.0, 33)
@settings(max_examples=40, deadline=None)
def test_modulation_inside_seconds_keeps_every_second(rate: Rate, burst: float, seed: int) -> None:
    process = MarkovModulated(burst=burst, busy_ms=80, quiet_ms=120, per_second=True)
    for plain, bent in itertools.islice(zip(Poisson().blocks(rate, seed), process.blocks(rate, seed), strict=False), 2):
        assert len(plain) == len(bent)
        # A rounding at the edge of a second may move one request over it.
        counts = [np.bincount(at // SECOND_NS, minlength=10) for at in (plain, bent)]
        assert np.abs(counts[0] - counts[1]).max() <= 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20, unique=True), st.integers(0, 900), st.integers(1, 900))
def test_cutting_pieces(at: list[int], start: int, width: int) -> None:
    edges = np.array(sorted({0, *at}), np.int64)
    value = np.arange(len(edges), dtype=np.float64)
    found, rate = cut(edges, value, start, start + width)
    for moment in range(start, start + width, 7):
        plain = max(i for i, edge in enumerate(edges) if edge <= moment)
        assert rate[np.searchsorted(found, moment, side="right") - 1] == plain


@given(st.integers(1, 600), st.integers(0, 600), st.integers(1, 512), st.integers(0, 2**32))
def test_drawn_lengths_stay_in_range(low: int, more: int, rescale: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = parse_length_spec(f"uniform:{low}:{low + more}")
    plain = lengths.draw(200, random)
    assert ((plain >= low) & (plain <= low + more)).all()
    stretched = lengths.rescaled(rescale).draw(200, random)
    assert ((stretched >= 1) & (stretched <= rescale)).all()
    wide = np.full(200, 30.0, np.float32)
    drifted = lengths.draw_drifted(200, random, wide, np.zeros(200, np.float32))
    assert ((drifted >= 1) & (drifted <= low + more)).all()


@given(st.lists(st.integers(0, 100), min_size=2))
def test_dispersion_is_variance_over_mean(count: list[int]) -> None:
    found = dispersion(np.array(count))
    if not any(count):
        assert found is None
    else:
        mean = sum(count) / len(count)
        plain = sum((c - mean) ** 2 for c in count) / (len(count) - 1) / mean
        assert found is not None
        assert abs(found - plain) < 1e-9 * max(1.0, plain)
