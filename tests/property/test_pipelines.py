"""Pipelines in the simulator: against the plain simulator, queueing theory, and what must hold on any tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from arlo import _core

MS = 1_000_000
S = 1_000_000_000


def poisson(rate: float, count: int, seed: int = 1) -> NDArray[np.int64]:
    """Arrivals in ns of a Poisson process per second."""
    return np.cumsum(np.random.default_rng(seed).exponential(S / rate, count)).astype(np.int64)


def engine(slo_ms: float, noise: NDArray[np.float64] | None = None, batching: str = "one") -> _core.Simulation:
    return _core.Simulation(
        "late", slo=round(slo_ms * MS), max_queued=1 << 30, batching=batching, record=True, noise=noise
    )


def pool(sim: _core.Simulation, variant: int, ms: float, workers: int, batch: int = 1) -> None:
    points = [(1, 1, round(ms * MS))] + ([(1, batch, round(ms * MS * (1 + batch) / 2))] if batch > 1 else [])
    runtime = sim.add_runtime(1, 1000, points, max_batch=batch, variant=variant)
    for _ in range(workers):
        sim.add_worker(runtime, 0)


def feed(sim: _core.Simulation, arrived: NDArray[np.int64]) -> None:
    sim.feed(arrived, np.ones(len(arrived), np.int32))
    sim.finish()


@pytest.mark.parametrize("batching", ["one", "fill"])
def test_a_flow_of_one_stage_is_the_plain_simulation(batching: str) -> None:
    arrived = poisson(1700, 20_000)
    columns = []
    for flow in (False, True):
        sim = engine(20, batching=batching)
        if flow:
            sim.set_pipeline(_core.Pipeline([[(0, 0.9, 2 * MS, 0.002)]], [], drop="none"), [])
        pool(sim, 0, 2, 4, batch=1 if batching == "one" else 4)
        feed(sim, arrived)
        columns.append(sim.columns())
    for name in ("latency_ns", "outcome"):
        np.testing.assert_array_equal(columns[0][name], columns[1][name])


def test_one_stage_is_an_mdc_queue() -> None:
    # M/D/1 by Pollaczek and Khinchine; M/D/3 by Cosmetatos' approximation, good to 1 %.
    for workers, load in ((1, 0.7), (3, 0.8)):
        rate = load * workers / 0.002
        sim = engine(1000)
        sim.set_pipeline(_core.Pipeline([[(0, 1.0, 2 * MS, 0.002)]], [], drop="none"), [])
        pool(sim, 0, 2, workers)
        feed(sim, poisson(rate, 200_000))
        a = load * workers
        erlang = a**workers / math.factorial(workers) / (1 - load)
        erlang /= sum(a**k / math.factorial(k) for k in range(workers)) + erlang
        mmc_s = erlang * 0.002 / (workers * (1 - load))
        cosmetatos = 0.5 * (1 + (1 - load) * (workers - 1) * (math.sqrt(4 + 5 * workers) - 2) / (16 * load * workers))
        wait_s = sim.columns()["latency_ns"].mean() / S - 0.002
        assert wait_s == pytest.approx(mmc_s * cosmetatos, rel=0.04)


def test_a_cascade_is_an_mg1_queue_for_the_rows_that_go_on() -> None:
    # The first stage has a worker for every row, so that rows leave it as a Poisson process, and so do three tenths of
    # them. What they wait at the second stage is then that of M/G/1, by Pollaczek and Khinchine.
    service = np.array([0.3] * 5 + [4.5])  # of its mean, 1
    rate, share, times = 300.0, 0.3, (0.004, 0.006)
    sim = engine(10_000, service)
    stages = [[(i, 1.0, round(s * S), s)] for i, s in enumerate(times)]
    sim.set_pipeline(
        _core.Pipeline(stages, [(0, 1, [share], 0)], drop="none"), [("constant", [share], [1.0], [], 1, [])]
    )
    pool(sim, 0, times[0] * 1e3, 40)
    pool(sim, 1, times[1] * 1e3, 1)
    feed(sim, poisson(rate, 600_000))
    busy = rate * share * times[1]
    wait = busy * times[1] * float((service**2).mean()) / (2 * (1 - busy))
    assert sim.columns()["latency_ns"].mean() / S == pytest.approx(times[0] + share * (wait + times[1]), rel=0.04)
    assert sim.pipeline_totals()["visits"][1] == pytest.approx(share * 600_000, rel=0.01)


@given(rate=st.sampled_from([50.0, 200.0]), seed=st.integers(0, 20))
@settings(max_examples=20, deadline=None)
def test_children_do_not_depend_on_variants_but_for_their_number(rate: float, seed: int) -> None:
    # Common random numbers: with one mean for both variants, either makes as many children of every root.
    made = []
    for variant in range(2):
        sim = _core.Simulation("late", slo=S, record=True, seed=seed, max_queued=1 << 20)
        stages = [[(0, 0.9, MS, 0.001), (1, 1.0, 2 * MS, 0.002)], [(2, 1.0, MS, 0.001)]]
        sim.set_pipeline(
            _core.Pipeline(stages, [(0, 1, [3.0, 3.0], 0)], router="plan", drop="none"),
            [("poisson", [1.0, 1.0], [3.0, 3.0], [], 100, [])],
        )
        pool(sim, variant, variant + 1, 2)
        pool(sim, 2, 0.1, 4)
        feed(sim, poisson(rate, 200, seed))
        made.append(sim.pipeline_totals()["visits"])
    assert made[0][variant - 1] == made[1][variant] == 200
    assert made[0][2] == made[1][2]
