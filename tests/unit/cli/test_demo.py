"""The demo's own parts: its check and its configuration."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from arlo import config
from arlo.traces import parse_lengths, rescale
from benchmarks.demos.whole import emulated
from benchmarks.demos.whole.__main__ import EXAMPLE, for_demo, fresh
from benchmarks.demos.whole.check import LIMIT, Difference, compare
from benchmarks.demos.whole.measure import Capacity, capacity, disturbance, measure, plan, workers_for


class Constant:
    """Stands where DirectModel does: the embedding is the length of the row."""

    def embed(self, row: str) -> np.ndarray:
        return np.full(3, len(row), np.float32)


def found(*served: tuple[str, list[float]]) -> Difference:
    return compare([(row, np.array(values, np.float32)) for row, values in served], Constant())  # type: ignore[arg-type]


def test_the_largest_component_of_all_texts_counts() -> None:
    difference = found(("ab", [2, 2, 2]), ("abc", [3, 3, 2.5]), ("a", [1, 1.25, 1]))
    assert difference == Difference(texts=3, largest=0.5)
    assert not difference.ok


@pytest.mark.parametrize(("offset", "ok"), [(0.0, True), (0.5 * LIMIT, True), (2 * LIMIT, False), (np.nan, False)])
def test_the_limit(offset: float, ok: bool) -> None:
    assert found(("a", [1, 1, 1 + offset])).ok is ok


def test_nothing_compared_is_not_well() -> None:
    assert not found().ok


def test_demo_configuration_is_that_of_the_checkout_and_moves_to_free_ports(tmp_path: Path) -> None:
    loaded = config.load(EXAMPLE)
    assert loaded.gateway.grpc_address == "127.0.0.1:8001"
    assert loaded.gateway.http_address == "127.0.0.1:8002"
    assert loaded.model.name == "minilm"
    assert loaded.worker_count == 4
    assert loaded.deployment.instances == 0  # what was measured decides
    moved = for_demo(loaded, tmp_path)
    assert {moved.gateway.grpc_address, moved.gateway.http_address, moved.gateway.admin_address} == {"127.0.0.1:0"}
    assert moved.workers.run_dir == tmp_path / "run"
    assert 2 <= moved.worker_count <= 4


def busy(rps: float, p98_ms: float) -> Capacity:
    return Capacity(workers=4, answers=60, rps=rps, p50_ms=p98_ms / 3, p98_ms=p98_ms, others=0.1)


@pytest.mark.parametrize(
    ("rps", "p98_ms", "rate", "slo_ms"),
    [
        (2.3, 3210.0, 1.1, 6500),  # a slow laptop, or one core beside a busy loop
        (41.0, 265.4, 20.0, 540),
        (620.0, 48.0, 100.0, 96),  # 32 cores: the sender is the limit
        (90_000.0, 0.4, 100.0, 20),
    ],
)
def test_rate_and_slo_follow_from_what_was_measured(rps: float, p98_ms: float, rate: float, slo_ms: int) -> None:
    asked = plan(busy(rps, p98_ms), rate=None, slo_ms=None)
    assert (asked.rate, asked.slo_ms) == (rate, slo_ms)
    assert asked.rate <= rps / 2
    assert asked.slo_ms >= 2 * p98_ms * 0.999
    assert ("one sender" in asked.why_rate) is (rps > 200)


def test_what_the_user_says_needs_no_measurement() -> None:
    asked = plan(None, rate=7.0, slo_ms=300)
    assert (asked.rate, asked.slo_ms, asked.why_rate, asked.why_slo) == (7.0, 300, "as asked", "as asked")
    assert plan(busy(40, 100), rate=None, slo_ms=300).rate == 20


def test_no_more_workers_than_cores() -> None:
    assert [workers_for(4, cores) for cores in (1, 2, 3, 32)] == [2, 2, 3, 4]


def test_capacity_is_counted_after_the_warm_up() -> None:
    ended = [0.5, *(1.0 + 0.1 * i for i in range(40))]
    started = [end - 0.2 for end in ended]
    found = capacity(2, 8, started, ended, None)
    assert found.rps == pytest.approx(10)
    assert found.answers == 33
    assert (found.p50_ms, found.p98_ms) == pytest.approx((200, 200))
    slow = capacity(2, 8, [0.0, 0.0, 0.0], [10.0, 20.0, 30.0], None)  # fewer answers than the warm-up has
    assert slow.rps == pytest.approx(0.1)


async def test_measuring_keeps_every_worker_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most, sent = 0, 0, []

    class Client:
        async def infer(self, row: str, *, timeout_s: float) -> None:
            nonlocal under_way, most
            under_way, most = under_way + 1, max(most, under_way + 1)
            sent.append(row)
            await asyncio.sleep(0.01)
            under_way -= 1

    monkeypatch.setattr("benchmarks.demos.whole.measure.LEAST_S", 0.2)
    found = await measure(Client(), ["a", "b", "c"], 3, threading.Event())
    assert found is not None
    assert most == 6
    assert sent[:4] == ["a", "b", "c", "a"]
    assert 0 < found.rps <= 600
    stopped = threading.Event()
    stopped.set()
    assert await measure(Client(), ["a"], 3, stopped) is None


def test_a_machine_that_became_busy_is_said() -> None:
    assert "Other programs took 60%" in disturbance(0.1, 0.6)
    assert disturbance(0.5, 0.6) == disturbance(None, 0.9) == ""


def test_a_second_report_has_a_folder_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    assert fresh(out) == out
    for expected in ("demo-2", "demo-3"):
        folder = fresh(out)
        folder.mkdir()
        (folder / "result.json").write_text("{}")
        assert fresh(out) == tmp_path / expected


def test_emulated_engines_carry_the_rate_by_length_and_not_padded() -> None:
    """Workers' time that the second part's traffic takes each second, of WORKERS."""
    times = emulated.table()
    lengths = rescale(parse_lengths("tweets")(20_000, np.random.default_rng(1)), emulated.LENGTHS[-1])
    ideal = np.searchsorted(sorted(emulated.BY_LENGTH), lengths)
    by_length = np.array([times.latency_ms[emulated.LENGTHS.index(n)] for n in sorted(emulated.BY_LENGTH)])
    assert sum(emulated.BY_LENGTH.values()) == sum(emulated.PADDED.values()) == emulated.WORKERS
    assert times.rate * by_length[ideal].mean() / 1000 < 0.8 * emulated.WORKERS
    assert times.rate * times.latency_ms[-1] / 1000 > 1.3 * emulated.WORKERS


def test_what_the_ways_bring_is_drawn_and_said() -> None:
    shares = dict(zip(emulated.WAYS, (0.687, 0.996, 1.0), strict=True))
    results: Any = {
        name: SimpleNamespace(summary=SimpleNamespace(slo_attainment=share)) for name, share in shares.items()
    }
    (bars,) = emulated.picture(results, 330)["lines"]
    assert (bars["x"], bars["y"], bars["text"]) == (
        list(shares), [68.7, 99.6, 100.0], ["68.7 %", "99.6 %", "100.0 %"],
    )  # fmt: skip
    assert emulated.gain(results) == (
        "On time with the same arrivals on emulated engines: 68.7% padded to the longest, 99.6% by length, "
        "100.0% all lengths on each, in batches."
    )


def test_a_full_worker_is_not_taken_for_a_busy_machine() -> None:
    times = emulated.table()

    def said(took_ms: float | None) -> str:
        result: Any = SimpleNamespace(summary=SimpleNamespace(server=SimpleNamespace(execute_ms=took_ms)))
        return emulated.doubt(times, result, 2)

    assert said(None) == ""
    assert said(2.05 * times.latency_ms[-1]) == ""  # behind one other row
    assert "too busy" in said(3 * times.latency_ms[-1])
