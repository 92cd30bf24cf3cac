"""The recycler and the usage that it judges by, fed with statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arlo import proto
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch import recycler
from arlo.control.watch.feed import Snapshot
from arlo.control.watch.recycler import INTERVAL_S, Recycler
from arlo.control.watch.usage import UsageWindow
from tests.fakes.placements import MANIFEST, configured

ROW_US = 1150  # of m_64 by the latency profile


class Asked:
    """Of the reconciler, what the recycler needs."""

    def __init__(self) -> None:
        self.recycled: list[str] = []
        self.moving: set[str] = set()
        self.unfit: list[tuple[str, str]] = []
        self.infos: dict[str, Any] = {}

    def restart_unfit(self, worker: str, reason: str) -> None:
        self.unfit.append((worker, reason))

    def step(self, worker: str) -> tuple[str, int]:
        return ("draining" if worker in self.moving else "steady", 0)

    def recycle(self, worker: str) -> None:
        self.recycled.append(worker)


class Feed:
    """Statistics of workers with m_64, 100 rows a second each, `slow` times the expected time of a row."""

    def __init__(self, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
        config = configured("allocation = {64 = 3}", f"[control]\nrecycle_factor = {factor}")
        self.asked = Asked()
        self.one = Recycler(config, MANIFEST, cast(Reconciler, self.asked))
        self.at_s = 0.0
        self.rows = dict.fromkeys(("w0", "w1", "w2"), 0)
        self.busy_us = dict.fromkeys(self.rows, 0)
        monkeypatch.setattr(recycler, "monotonic_s", lambda: self.at_s)

    def run(self, seconds: float, slow: Mapping[str, float]) -> None:
        for _ in range(round(seconds)):
            self.at_s += 1
            for worker in self.rows:
                self.rows[worker] += 100
                self.busy_us[worker] += round(100 * ROW_US * slow.get(worker, 1.0))
            asyncio.run(self.one.on_stats(Snapshot((self.stats(),))))

    def stats(self) -> Any:
        stats = proto.message("Stats")(started_at_ms=1, uptime_ns=round(self.at_s * 1e9))
        for worker, rows in self.rows.items():
            busy = self.busy_us[worker]
            stats.instances.add(id=f"{worker}.m_64", worker=worker, runtime="m_64", started=rows, busy_us=busy)
        return stats


def test_a_slow_worker_is_recycled_and_its_peers_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(2.0, monkeypatch)
    feed.run(60, {})
    assert feed.asked.recycled == []
    feed.run(2 * INTERVAL_S, {"w1": 3.0})
    assert feed.asked.recycled == []
    feed.run(2 * INTERVAL_S, {"w1": 3.0})
    assert feed.asked.recycled == ["w1"]


def test_a_worker_that_is_being_moved_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(2.0, monkeypatch)
    feed.asked.moving = {"w1"}
    feed.run(120, {"w1": 9.0})
    assert feed.asked.recycled == []


def test_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(0, monkeypatch)
    feed.run(120, {"w1": 9.0})
    assert feed.asked.recycled == []


def sample(at_s: float, *instances: tuple[str, str, int, float], started_at_ms: int = 1) -> Any:
    stats = proto.message("Stats")(started_at_ms=started_at_ms, uptime_ns=round(at_s * 1e9))
    for worker, runtime, rows, busy_s in instances:
        identity = f"{worker}.{runtime}"
        stats.instances.add(id=identity, worker=worker, runtime=runtime, started=rows, busy_us=round(busy_s * 1e6))
    return stats


def test_usage_is_the_difference_over_the_window() -> None:
    usage = UsageWindow(window_s=10)
    assert usage.by_worker() == {}
    for at_s in range(0, 31, 5):
        usage.add(sample(at_s, ("w0", "m_64", 10 * at_s, 0.5 * at_s)))
    (found,) = usage.by_worker().values()
    assert (found.rows, found.busy_s, found.span_s, found.busy) == (100, 5.0, 10.0, 0.5)


def test_usage_of_instances_that_came_back_and_of_a_gateway_that_did() -> None:
    usage = UsageWindow(window_s=100)
    usage.add(sample(0, ("w0", "m_64", 1000, 9.0)))
    usage.add(sample(10, ("w0", "m_64", 20, 1.0), ("w0", "m_512", 5, 2.0)))
    found = usage.by_worker()["w0"]
    assert (found.rows, found.busy_s, found.runtime) == (25, 3.0, "m_512")
    usage.add(sample(20, ("w0", "m_64", 3, 0.1), started_at_ms=2))
    assert usage.by_worker() == {}
    assert usage.span_s == 0.0


def test_rows_without_an_answer_are_those_that_came_and_neither_ended_nor_wait() -> None:
    usage = UsageWindow(window_s=10)
    assert usage.unanswered == 0
    for at_s in range(3):
        stats = sample(at_s)
        stats.arrivals_by_length.extend([0, 100 * at_s])
        stats.outcomes.on_time, stats.outcomes.late, stats.outcomes.failed = 20 * at_s, 10 * at_s, 5 * at_s
        stats.outcomes.cancelled, stats.outcomes.expired, stats.outcomes.rejected = 5 * at_s, 30 * at_s, 1000 * at_s
        stats.queued, stats.in_flight = 15 * at_s, 5 * at_s
        usage.add(stats)
    assert usage.unanswered == 80, "refusals of bad requests never arrived"


def test_a_wall_clock_that_is_set_back_changes_nothing() -> None:
    usage = UsageWindow(window_s=10)
    for at_s in range(0, 31, 5):
        stats = sample(at_s, ("w0", "m_64", 10 * at_s, 0.5 * at_s))
        stats.at_ms = 1_000_000 + 1000 * at_s - (600_000 if at_s > 12 else 0)
        usage.add(stats)
    assert (usage.by_worker()["w0"].rows, usage.span_s) == (100, 10.0)


class Ejected:
    """Statistics in which the gateway takes workers out of service."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = Asked()
        self.one = Recycler(configured("allocation = {64 = 4}"), MANIFEST, cast(Reconciler, self.asked))
        self.at_s = 0.0
        self.counts = dict.fromkeys(("w0", "w1", "w2", "w3"), 0)
        self.restarts = dict.fromkeys(self.counts, 0)
        monkeypatch.setattr(recycler, "monotonic_s", lambda: self.at_s)

    def eject(self, *workers: str, after_s: float = 30.0) -> list[str]:
        """Returns the workers whose restart was asked for in all."""
        self.at_s += after_s
        for worker in workers:
            self.counts[worker] += 1
        self.asked.infos = {w: SimpleNamespace(restarts=count) for w, count in self.restarts.items()}
        stats = proto.message("Stats")(started_at_ms=1, uptime_ns=round(self.at_s * 1e9))
        for worker, count in self.counts.items():
            error = "INTERNAL: CUDA error" if worker in workers else ""
            stats.instances.add(id=f"{worker}.m_64", worker=worker, runtime="m_64", ejections=count, last_error=error)
        asyncio.run(self.one.on_stats(Snapshot((stats,))))
        return [worker for worker, _ in self.asked.unfit]


def test_a_worker_that_is_ejected_again_and_again_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Ejected(monkeypatch)
    assert [feed.eject("w1") for _ in range(3)] == [[], [], ["w1"]]
    assert "3 times: INTERNAL: CUDA error" in feed.asked.unfit[0][1]
    assert [feed.eject("w1") for _ in range(3)] == [["w1"], ["w1"], ["w1", "w1"]]


def test_ejections_long_apart_or_before_a_restart_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Ejected(monkeypatch)
    for _ in range(10):
        assert feed.eject("w1", after_s=301.0) == []
    feed = Ejected(monkeypatch)
    for _ in range(10):
        assert feed.eject("w1") == []
        feed.restarts["w1"] += 1  # its process ended, and the pool has started another one


def test_when_most_are_ejected_none_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Ejected(monkeypatch)
    for _ in range(10):
        assert feed.eject("w0", "w1", "w2") == []


def test_a_gateway_that_began_anew_counts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Ejected(monkeypatch)
    feed.eject("w1")
    feed.eject("w1")
    feed.counts = dict.fromkeys(feed.counts, 0)
    assert feed.eject() == []
    assert feed.eject("w1") == ["w1"]
