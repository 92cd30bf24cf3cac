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


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[list[float]], list[tuple[int, int, float, str]]]:
    """Times in ms of each stage's variants, and edges (from, to, mean children, distribution)."""
    stages = draw(
        st.lists(st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=1, max_size=3), min_size=1, max_size=4)
    )
    edges = [
        (
            draw(st.integers(0, to - 1)),
            to,
            draw(st.sampled_from([0.3, 1.0, 2.5])),
            draw(st.sampled_from(["constant", "ceil", "poisson", "empirical", "trace"])),
        )
        for to in range(1, len(stages))
    ]
    return stages, edges


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[str, str, str, str, bool]:
    """Router, drop rule, what a drop does, batching, whether workers hold all variants."""
    return (
        draw(st.sampled_from(["price", "plan", "maf"])),
        draw(st.sampled_from(["slack", "reroute", "per_task", "last", "none"])),
        draw(st.sampled_from(["fail", "partial"])),
        draw(st.sampled_from(["one", "fill", "deadline"])),
        draw(st.booleans()),
    )


@given(
    tree=trees(),
    how=settings_of(),
    rate=st.sampled_from([50.0, 300.0, 1500.0]),
    faults=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20), st.booleans()), max_size=4),
    seed=st.integers(0, 5),
)
@settings(max_examples=150, deadline=None)
def test_every_root_ends_once_and_nothing_is_lost(
    tree: tuple[list[list[float]], list[tuple[int, int, float, str]]],
    how: tuple[str, str, str, str, bool],
    rate: float,
    faults: list[tuple[int, int, bool]],
    seed: int,
) -> None:
    router, drop, on_drop, batching, together = how
    times, edges = tree

    def simulate() -> _core.Simulation:
        sim = _core.Simulation(
            "late", slo=30 * MS, max_queued=1 << 20, batching=batching, record=True, seed=seed, retries=1
        )
        number = 0
        stages: list[list[tuple[int, float, int, float]]] = []
        runtimes: list[int] = []
        for variants in times:
            stages.append([])
            for ms in variants:
                stages[-1].append((number, 0.5 + ms / 10, round(ms * MS), ms / 1e3))
                runtimes.append(
                    sim.add_runtime(
                        1, 30, [(1, 1, round(ms * MS)), (1, 4, round(2 * ms * MS))], max_batch=4, variant=number
                    )
                )
                number += 1
        spec = _core.Pipeline(
            stages, [(a, b, [r] * len(times[a]), 0) for a, b, r, _ in edges], router=router, drop=drop, on_drop=on_drop
        )
        counts = {"empirical": [0, 1, 4], "trace": [2, 0, 1]}
        draws = [
            (kind, [1.0] * len(times[a]), [r] * len(times[a]), counts.get(kind, []), 50, []) for a, _, r, kind in edges
        ]
        sim.set_pipeline(spec, draws, deadline=30 * MS if drop == "slack" else None)
        if together:
            bundle = sim.add_bundle(runtimes)
            workers = [sim.add_worker(bundle, 0) for _ in range(3)]
        else:
            workers = [sim.add_worker(runtime, 0) for runtime in runtimes]
        sim.plan(_core.PipelinePlan(demand=rate, price=0.5, budget=[10 * MS] * number))
        arrived = poisson(rate, 150, seed)
        sim.feed(arrived, np.ones(len(arrived), np.int32))
        for at, worker, back in sorted(faults):
            sim.advance(max(at * MS, sim.now))
            if sim.workers()["state"][worker % len(workers)] != 3:
                sim.fail(workers[worker % len(workers)], 5 * MS if back else None)
        sim.finish()
        return sim

    sim = simulate()
    totals, outcomes = sim.pipeline_totals(), sim.columns()["outcome"]
    assert (outcomes < 5).all()
    assert totals["roots"] == len(outcomes) == totals["on_time"] + totals["late"] + totals["failed"]
    assert sim.queued == sim.in_flight == 0
    assert (outcomes == 0).sum() >= totals["on_time"]
    if drop == "slack" and batching == "one" and not faults:
        assert totals["late"] <= totals["roots"] // 5
    if drop == "none" and not faults:
        assert totals["failed"] == 0
        # Children conserve counts: what the edges made of answered rows is what entered behind them.
        entered = np.split(np.array(totals["visits"]), np.cumsum([len(each) for each in times])[:-1])
        assert entered[0].sum() == totals["roots"]
        for edge, (_, to, _, _) in enumerate(edges):
            assert sum(children[edge] for _, _, children in totals["made"]) == entered[to].sum()
    again = simulate()
    assert again.pipeline_totals() == totals
    np.testing.assert_array_equal(again.columns()["latency_ns"], sim.columns()["latency_ns"])


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
