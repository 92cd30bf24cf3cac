"""Batches from bundles, on one worker with the published latencies of an A100: what they bring, and what stays true."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from arlo import _core
from arlo.simulator.profiles import load_profile
from arlo.traces.lengths import parse_length_spec

MS, SECOND = 1_000_000, 1_000_000_000
SLO = 100 * MS
ROWS = 32
SECONDS = 4
WARMUP = 1
PROFILE = load_profile("bert-base-a100")
# On-time rows/s of one worker, about, with all lengths and batches of up to 32.
CAPACITY = {"tweets": 16_500, "rag": 3_000, "mix": 8_800}


@dataclass(frozen=True)
class Seen:
    sim: _core.Simulation
    length: np.ndarray
    on_time: np.ndarray  # by arrival

    @property
    def goodput(self) -> float:
        return float(self.on_time.sum()) / (SECONDS - WARMUP)

    @property
    def attainment(self) -> float:
        return float(self.on_time.mean())


def serve(kind: str, rate: float, batching: str, *, timeout_ms: int | None = None, workers: int = 1) -> Seen:
    """Poisson arrivals at `rate`, all lengths on each worker; what arrives in the first second does not count."""
    random = np.random.default_rng(7)
    count = round(rate * SECONDS)
    at = np.sort(random.integers(0, SECONDS * SECOND, count))
    length = np.minimum(parse_length_spec(kind).draw(count, random), 512).astype(np.int32)
    sim = _core.Simulation(
        "late",
        slo=SLO,
        batching=batching,
        max_queued=1_000_000,
        timeout=None if timeout_ms is None else timeout_ms * MS,
        record=True,
    )
    most = 1 if batching == "one" else ROWS
    bundle = []
    for runtime in PROFILE.static_runtimes(range(PROFILE.step, 513, PROFILE.step), max_batch=most):
        points = [(tokens, rows, round(ms * MS)) for tokens, rows, ms in runtime.points]
        bundle.append(sim.add_runtime(runtime.max_length, 100, points, max_batch=most))
    held = sim.add_bundle(bundle)
    for _ in range(workers):
        sim.add_worker(held, 0)
    sim.feed(at.astype(np.int64), length)
    sim.finish()
    columns = sim.columns()
    counted = columns["arrived_ns"] >= WARMUP * SECOND
    return Seen(sim, columns["length"][counted], columns["outcome"][counted] == 0)


@pytest.mark.parametrize("batching", ["fill", "deadline"])
@pytest.mark.parametrize(("kind", "times"), [("tweets", 10), ("mix", 6)])
def test_several_times_the_rows_of_one_at_a_time(kind: str, times: float, batching: str) -> None:
    alone = serve(kind, CAPACITY[kind] / times, "one")
    assert serve(kind, CAPACITY[kind], batching).attainment >= 0.99
    assert serve(kind, 1.06 * CAPACITY[kind] / times, "one").attainment < 0.99, "less than a tenth, or a sixth"
    assert alone.sim.totals()["rows"] == alone.sim.totals()["batches"]


@pytest.mark.parametrize("timeout_ms", [100, 250, 1000])
@pytest.mark.parametrize("kind", CAPACITY)
@pytest.mark.parametrize("batching", ["fill", "deadline"])
def test_goodput_stays_at_its_peak(batching: str, kind: str, timeout_ms: int) -> None:
    reached = {
        times: serve(kind, times * CAPACITY[kind], batching, timeout_ms=timeout_ms).goodput
        for times in (1.0, 1.2, 2.0, 5.0)
    }
    assert reached[1.0] >= 0.95 * CAPACITY[kind]
    assert min(reached.values()) >= 0.93 * reached[1.0], reached


@pytest.mark.parametrize("batching", ["fill", "deadline"])
def test_long_rows_get_their_share_in_an_overload(batching: str) -> None:
    seen = serve("mix", 2 * CAPACITY["mix"], batching, timeout_ms=250)
    long = seen.length > 150
    assert seen.on_time[long].mean() >= 0.5 * seen.on_time.mean()


def test_a_calm_worker_does_not_wait_for_a_batch() -> None:
    seen = serve("mix", 50, "deadline")
    wait = seen.sim.columns()["wait_ns"]
    assert np.median(wait) == 0
    assert seen.sim.totals()["rows"] <= 1.05 * seen.sim.totals()["batches"]
