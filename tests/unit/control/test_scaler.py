"""The scaler carries out what its policy decides, and goes on where that fails."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from arlo import proto
from arlo.config.cascade import CascadeConfig
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch import scaler
from arlo.control.watch.scaler import Scaler
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.errors import WorkerError
from arlo.planning.scaling.policies import Decision
from arlo.planning.traffic.demand import Demand
from arlo.planning.view import WorkerView
from arlo.workers.pool import WorkerInfo, WorkerPool
from tests.fakes.placements import configured

INFO = WorkerInfo(id="w1", endpoint="h:2", metrics_url=None, state="ready", pid=None, restarts=0, runtimes=(), log=None)


class Parts:
    """Pool, reconciler and scheduler, of which the scaler sees this much."""

    def __init__(self) -> None:
        self.resizable = True
        self.restartable = True
        self.fails = 0
        self.did: list[str] = []
        self.leaving: frozenset[str] = frozenset()
        self.longest = "m_512"
        self.kept: frozenset[str] = frozenset()
        self.by_model: list[Any] = []
        self.whole: Any = None
        self.changed = asyncio.Event()

    def _note(self, what: str) -> None:
        self.did.append(what)
        self.changed.set()

    async def add(self) -> WorkerInfo:
        if self.fails:
            self.fails -= 1
            self._note("add failed")
            raise WorkerError("no free GPU")
        self._note("add")
        return INFO

    async def observe(self) -> None:
        self._note("observe")

    async def plan(self, reason: str) -> None:
        self._note(f"plan {reason}")

    def let_go(self, worker: str) -> None:
        self._note(f"let go {worker}")

    def views(self, **_: Any) -> list[WorkerView]:
        return [WorkerView(id="w0", serving="m_512")]

    @property
    def planner(self) -> Parts:
        return self

    def recent(self) -> Demand:
        return Demand((512,), (0.0,), (0.0,), 0, 0.0)

    def loads(self) -> list[float]:
        return [0.0]


class Script:
    """A policy that decides as it is told."""

    name = "script"

    def __init__(self, *decisions: Decision) -> None:
        self.decisions = list(decisions)
        self.asked = 0

    def decide(self, signals: Any) -> Decision:
        self.asked += 1
        self.signals = signals
        return self.decisions.pop(0) if self.decisions else Decision("none", None, None, "")


ADD = Decision("add", None, "m_512", "too slow")
REMOVE = Decision("remove", "w0", None, "too calm")
STATS = proto.message("Stats")(started_at_ms=1, at_ms=1000)


def made(parts: Parts, policy: Script, monkeypatch: pytest.MonkeyPatch) -> tuple[Scaler, Counter[str]]:
    monkeypatch.setattr(scaler, "make_policy", lambda *_, **__: policy)
    counters: Counter[str] = Counter()
    config = configured("allocation = {512 = 1}", '[scaling]\npolicy = "target"\nmax_workers = 3')
    return (
        Scaler(
            config,
            cast(WorkerPool, parts),
            cast(Reconciler, parts),
            cast(RuntimeScheduler, parts),
            counters=counters,
        ),
        counters,
    )


async def did(parts: Parts, count: int) -> list[str]:
    async with asyncio.timeout(10):
        while len(parts.did) < count:
            parts.changed.clear()
            await parts.changed.wait()
    await asyncio.sleep(0)
    return parts.did


async def test_adds_and_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    one, counters = made(parts, Script(ADD, REMOVE), monkeypatch)
    task = asyncio.create_task(one.run())
    one.see(STATS)
    assert await did(parts, 3) == ["add", "observe", "plan scale_out"]
    assert (one.status().last_action, one.status().last_reason) == ("add w1", "too slow")
    one.see(STATS)
    assert (await did(parts, 5))[3:] == ["let go w0", "plan scale_in"]
    assert counters["workers_added"] == 1
    task.cancel()


async def test_workers_that_an_earlier_configuration_had_more_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaling is off, and the configuration says one: the least busy goes, then the next, and the last one stays."""
    parts = Parts()
    left = [WorkerView(id=f"w{n}", serving="m_512", busy=busy) for n, busy in enumerate((0.2, 0.1, 0.5))]
    monkeypatch.setattr(parts, "views", lambda **_: list(left))
    config, counters = configured("allocation = {512 = 1}", "[scaling]\nmax_workers = 9"), Counter[str]()
    pieces = cast(WorkerPool, parts), cast(Reconciler, parts), cast(RuntimeScheduler, parts)
    one = Scaler(config, *pieces, counters=counters)
    task = asyncio.create_task(one.run())
    for turn, worker in enumerate(("w1", "w0"), start=1):
        one.see(STATS)
        assert (await did(parts, 2 * turn))[-2:] == [f"let go {worker}", "plan scale_in"]
        left = [view for view in left if view.id != worker]
    assert "more than the 1 of the configuration" in one.status().last_reason
    one.see(STATS)
    await asyncio.sleep(0)
    parts.resizable, left = False, [*left, *left]
    one.see(STATS)
    await asyncio.sleep(0)
    assert len(parts.did) == 4
    task.cancel()


async def test_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    policy = Script(ADD, ADD)
    one, _ = made(parts, policy, monkeypatch)
    one.see(STATS)
    one.see(STATS)
    assert policy.asked == 1
    parts.leaving = frozenset({"w0"})
    other, _ = made(parts, policy, monkeypatch)
    other.see(STATS)
    assert policy.asked == 1, "a worker is still leaving"


async def test_a_worker_that_cannot_be_added_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts()
    parts.fails = 1
    one, counters = made(parts, Script(ADD, ADD), monkeypatch)
    task = asyncio.create_task(one.run())
    one.see(STATS)
    await did(parts, 1)
    assert counters["scaling_failures"] == 1
    assert "scaling_failed" in caplog.text
    one.see(STATS)
    assert (await did(parts, 4))[1:] == ["add", "observe", "plan scale_out"]
    task.cancel()


def test_a_pool_of_fixed_size_is_not_scaled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    parts = cast(Any, dataclasses.make_dataclass("Fixed", []))()
    parts.resizable = False
    policy = Script(ADD)
    one, _ = made(parts, policy, monkeypatch)
    assert one.policy == "none"
    assert "scaling_off" in caplog.text


async def test_a_cascade_is_as_slow_as_its_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows end at the cascade: its stages tell of no answer."""
    script, parts = Script(ADD), Parts()
    monkeypatch.setattr(scaler, "make_policy", lambda *_, **__: script)
    config = configured("allocation = {512 = 1}", '[scaling]\npolicy = "target"\nmax_workers = 3')
    config = dataclasses.replace(config, cascade=CascadeConfig(manifest=tmp_path, slo_ms=70))
    pieces = cast(WorkerPool, parts), cast(Reconciler, parts), cast(RuntimeScheduler, parts)
    one = Scaler(config, *pieces, counters=Counter())
    stage = proto.message("Stats")(started_at_ms=1, at_ms=1000, arrivals_by_length=[0, 500])
    one.see(stage)
    assert script.asked == 0, "the cascade has not told yet"
    parts.whole = proto.message("Stats")(started_at_ms=1, at_ms=1000, arrivals_by_length=[0, 500])
    parts.whole.total.count, parts.whole.total.p98_us = 480, 65_000
    one.see(stage)
    assert (script.signals.rows, script.signals.p98_ms, script.signals.slo_ms) == (480, 65, 70)
    assert script.signals.unanswered == 0
    parts.whole = proto.message("Stats")(started_at_ms=1, at_ms=2000, uptime_ns=10**9, arrivals_by_length=[0, 600])
    parts.whole.outcomes.expired = 90
    one._acting = False
    one.see(stage)
    assert script.signals.unanswered == 90
