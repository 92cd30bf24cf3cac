"""The scaler carries out what its policy decides, and goes on where that fails."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from arlo import proto
from arlo.config import parse
from arlo.control.mode import mode_of
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.serve import load_manifest
from arlo.control.watch import scaler
from arlo.control.watch.feed import Snapshot
from arlo.control.watch.scaler import Scaler
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.errors import WorkerError
from arlo.planning.scaling.policies import Decision
from arlo.planning.traffic.demand import Demand
from arlo.planning.view import WorkerView
from arlo.workers.pool import WorkerInfo, WorkerPool
from tests.fakes.placements import MANIFEST, configured
from tests.integration.gateway.replayed import write_cascade

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
        self.size = None

    def _note(self, what: str) -> None:
        self.did.append(what)

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

    @property
    def subject(self) -> Parts:
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
SEEN = Snapshot((proto.message("Stats")(started_at_ms=1, at_ms=1000),))


def made(parts: Parts, policy: Script, monkeypatch: pytest.MonkeyPatch) -> tuple[Scaler, Counter[str]]:
    monkeypatch.setattr(scaler, "make_policy", lambda *_, **__: policy)
    counters: Counter[str] = Counter()
    config = configured("allocation = {512 = 1}", '[scaling]\npolicy = "target"\nmax_workers = 3')
    return (
        Scaler(
            mode_of(config, MANIFEST),
            cast(WorkerPool, parts),
            cast(Reconciler, parts),
            cast(RuntimeScheduler, parts),
            counters=counters,
        ),
        counters,
    )


async def test_adds_and_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    one, counters = made(parts, Script(ADD, REMOVE), monkeypatch)
    await one.on_stats(SEEN)
    assert parts.did == ["add", "observe", "plan scale_out"]
    assert (one.status().last_action, one.status().last_reason) == ("add w1", "too slow")
    await one.on_stats(SEEN)
    assert parts.did[3:] == ["let go w0", "plan scale_in"]
    assert counters["workers_added"] == 1


async def test_workers_that_an_earlier_configuration_had_more_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaling is off, and the configuration says one: the least busy goes, then the next, and the last one stays."""
    parts = Parts()
    left = [WorkerView(id=f"w{n}", serving="m_512", busy=busy) for n, busy in enumerate((0.2, 0.1, 0.5))]
    monkeypatch.setattr(parts, "views", lambda **_: list(left))
    mode = mode_of(configured("allocation = {512 = 1}", "[scaling]\nmax_workers = 9"), MANIFEST)
    pieces = cast(WorkerPool, parts), cast(Reconciler, parts), cast(RuntimeScheduler, parts)
    one = Scaler(mode, *pieces, counters=Counter())
    for worker in ("w1", "w0"):
        await one.on_stats(SEEN)
        assert parts.did[-2:] == [f"let go {worker}", "plan scale_in"]
        left = [view for view in left if view.id != worker]
    assert "more than the 1 of the configuration" in one.status().last_reason
    await one.on_stats(SEEN)
    parts.resizable, left = False, [*left, *left]
    await one.on_stats(SEEN)
    assert len(parts.did) == 4


async def test_nothing_is_decided_while_a_worker_is_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, policy = Parts(), Script(ADD)
    one, _ = made(parts, policy, monkeypatch)
    parts.leaving = frozenset({"w0"})
    await one.on_stats(SEEN)
    assert policy.asked == 0


async def test_a_worker_that_cannot_be_added_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts()
    parts.fails = 1
    one, counters = made(parts, Script(ADD, ADD), monkeypatch)
    await one.on_stats(SEEN)
    assert counters["scaling_failures"] == 1
    assert "scaling_failed" in caplog.text
    await one.on_stats(SEEN)
    assert parts.did[1:] == ["add", "observe", "plan scale_out"]


def test_a_pool_of_fixed_size_is_not_scaled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    parts = cast(Any, dataclasses.make_dataclass("Fixed", []))()
    parts.resizable = False
    one, _ = made(parts, Script(ADD), monkeypatch)
    assert one.policy == "none"
    assert "scaling_off" in caplog.text


async def test_a_cascade_is_as_slow_as_its_whole_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rows end at the cascade: its stages tell of no answer."""
    script, parts = Script(ADD), Parts()
    monkeypatch.setattr(scaler, "make_policy", lambda *_, **__: script)
    write_cascade(tmp_path)
    scaling = '[workers]\ncount = 1\n[scaling]\npolicy = "target"\nmax_workers = 3'
    config = parse(f'[cascade]\nmanifest = "."\nslo_ms = 70\n{scaling}', base=tmp_path)
    pieces = cast(WorkerPool, parts), cast(Reconciler, parts), cast(RuntimeScheduler, parts)
    one = Scaler(mode_of(config, load_manifest(config)), *pieces, counters=Counter())
    stage = proto.message("Stats")(started_at_ms=1, at_ms=1000, arrivals_by_length=[0, 500])
    await one.on_stats(Snapshot((stage, stage)))
    assert script.asked == 0, "the cascade has not told yet"
    whole = proto.message("Stats")(started_at_ms=1, at_ms=1000, arrivals_by_length=[0, 500])
    whole.total.count, whole.total.p98_us = 480, 65_000
    await one.on_stats(Snapshot((stage, stage), whole))
    assert (script.signals.rows, script.signals.p98_ms, script.signals.slo_ms) == (480, 65, 70)
    assert script.signals.unanswered == 0
    whole = proto.message("Stats")(started_at_ms=1, at_ms=2000, uptime_ns=10**9, arrivals_by_length=[0, 600])
    whole.outcomes.expired = 90
    await one.on_stats(Snapshot((stage, stage), whole))
    assert script.signals.unanswered == 90
