"""The runtime scheduler's decisions: fed with statistics by hand, over a reconciler that only notes what is wanted."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from arlo import proto
from arlo.catalog.manifest import LatencyPoint, Manifest, Runtime
from arlo.config import Config
from arlo.control.mode import mode_of
from arlo.control.reconcile import state
from arlo.control.watch import scheduler as module
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.errors import ConfigError
from arlo.planning.allocation.problem import Allocation, AllocationProblem, SolverError
from tests.fakes.noted_wishes import Notes, configured
from tests.fakes.placements import MANIFEST


class Clock:
    """Both clocks of the scheduler, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "monotonic_s", made)
    return made


class Traffic:
    """The gateway's counters, every 100 ms."""

    def __init__(self, scheduler: RuntimeScheduler, clock: Clock, *, seed: int = 1) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.counts = np.zeros(513, dtype=np.int64)
        self.rng = np.random.default_rng(seed)
        self.wall_ms = 0  # by which the wall clock differs from the other one

    async def come(self, seconds: float, **rates: float) -> None:
        """Requests of each length (`n64=100`) per second."""
        for _ in range(round(seconds * 10)):
            self.clock.now_s += 0.1
            for name, rate in rates.items():
                self.counts[int(name[1:])] += self.rng.poisson(rate / 10)
            stats = proto.message("Stats")(started_at_ms=1, uptime_ns=round(self.clock.now_s * 1e9))
            stats.at_ms = 10_000_000 + round(self.clock.now_s * 1000) + self.wall_ms
            stats.arrivals_by_length.extend(self.counts.tolist())
            await self.scheduler.see(stats)


def started(config: Config, clock: Clock, manifest: Manifest = MANIFEST) -> tuple[RuntimeScheduler, Notes, Traffic]:
    notes = Notes(config.worker_count)
    scheduler = RuntimeScheduler(mode_of(config, manifest), notes, None, Counter())  # type: ignore[arg-type]
    notes.want(scheduler.first_placement())
    return scheduler, notes, Traffic(scheduler, clock)


def test_first_placement_is_that_of_the_configuration(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, deployment="allocation = {64 = 2, 512 = 2}")
    scheduler, notes, _ = started(config, clock)
    assert notes.desired == {"w0": "m_64", "w1": "m_64", "w2": "m_512", "w3": "m_512"}
    assert [plan.reason for plan in scheduler.plans] == ["start"]


def test_workers_that_are_only_counted_start_with_a_plan_for_any_length(tmp_path: Path, clock: Clock) -> None:
    _, notes, _ = started(configured(tmp_path, workers=8), clock)
    assert len(notes.desired) == 8
    assert notes.counts["m_512"] >= 2


def test_a_length_that_is_not_there_is_said_before_anything_starts(tmp_path: Path) -> None:
    config = configured(tmp_path, deployment="allocation = {96 = 1}")
    with pytest.raises(ConfigError, match="max_length 96"):
        mode_of(config, MANIFEST)  # type: ignore[arg-type]


def test_the_saved_placement_comes_back_unless_it_was_for_something_else(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, deployment="allocation = {64 = 2, 512 = 2}")
    scheduler, notes, _ = started(config, clock)
    saved = json.loads((tmp_path / "run" / state.FILE_NAME).read_text())
    saved["placement"] = {"w0": "m_512", "w1": "m_64", "w2": "m_512", "w3": "m_512"}
    (tmp_path / "run" / state.FILE_NAME).write_text(json.dumps(saved))
    scheduler, notes, _ = started(config, clock)
    assert notes.counts == {"m_64": 1, "m_512": 3}
    assert scheduler.plans[-1].reason == "restored"
    other = configured(tmp_path, deployment="allocation = {64 = 3, 512 = 1}")
    assert started(other, clock)[1].counts == {"m_64": 3, "m_512": 1}
    (tmp_path / "run" / state.FILE_NAME).write_text("{")
    assert started(config, clock)[1].counts == {"m_64": 2, "m_512": 2}


async def test_the_period_plan_follows_the_lengths(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, deployment="allocation = {512 = 4}", control="early = false")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(20, n40=1500, n500=20)
    assert notes.counts == {"m_512": 4}, "nothing before the period is over"
    await scheduler.plan("period")
    assert notes.counts["m_64"] == 3
    assert notes.counts["m_512"] == 1
    record = scheduler.plans[-1]
    assert (record.reason, record.moved, record.changed, record.solver) == ("period", True, 3, "exact")
    assert record.demand == pytest.approx([225, 0, 3], rel=0.1)
    assert record.gain is not None
    assert record.gain > 0.3
    assert state.load(mode_of(config, MANIFEST)) == notes.desired


async def test_loads_that_cost_more_than_they_gain_move_nothing_and_the_log_says_why(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nearly all requests are short, on the four workers of the longest; each load would take a day, or is unknown."""
    caplog.set_level(logging.INFO, "arlo.control")
    config = configured(tmp_path, deployment="allocation = {512 = 4}", control="early = false")
    for load_ms, moved in ((None, True), (200, True), (86_400_000, False)):
        runtimes = tuple(dataclasses.replace(runtime, load_ms=load_ms) for runtime in MANIFEST.runtimes)
        scheduler, notes, traffic = started(config, clock, dataclasses.replace(MANIFEST, runtimes=runtimes))
        await traffic.come(20, n40=250, n500=20)
        caplog.clear()
        await scheduler.plan("period")
        assert scheduler.plans[-1].moved is moved
        (event,) = [record.fields for record in caplog.records if record.getMessage() == "plan"]  # type: ignore[attr-defined]
        assert ("load(s) of 8.64e+04 s cost more than" in event["note"]) is not moved
        assert (notes.counts == {"m_512": 4}) is not moved
        state_file = tmp_path / "run" / state.FILE_NAME
        state_file.unlink()


async def test_too_few_requests_move_nothing(tmp_path: Path, clock: Clock) -> None:
    scheduler, notes, traffic = started(configured(tmp_path, deployment="allocation = {512 = 4}"), clock)
    await traffic.come(2, n40=10)
    await scheduler.plan("period")
    assert notes.counts == {"m_512": 4}


async def test_a_small_gain_moves_nothing(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, deployment="allocation = {512 = 4}", control="early = false\nmin_gain = 1.0")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(20, n40=1000, n500=20)
    await scheduler.plan("period")
    assert notes.counts == {"m_512": 4}
    assert "below min_gain" in scheduler.plans[-1].note
    assert scheduler.plans[-1].moved is False


async def test_a_shift_is_answered_within_a_second_and_once(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, workers=8, deployment="allocation = {64 = 6, 512 = 2}")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(30, n40=2000, n500=50)
    before = notes.counts
    moves = len(notes.wanted)
    await traffic.come(1, n40=50, n500=900)
    assert notes.counts["m_512"] > before["m_512"]
    assert notes.urgent
    assert scheduler.plans[-1].reason == "shift"
    await traffic.come(30, n40=50, n500=900)
    assert notes.counts["m_512"] >= 7
    assert len(notes.wanted) - moves <= 3, "it settles"


async def test_steady_traffic_never_looks_like_a_shift(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, workers=8, deployment="allocation = {64 = 6, 512 = 2}")
    scheduler, _, traffic = started(config, clock)
    await traffic.come(10, n40=1000, n100=200, n500=150)
    await scheduler.plan("period")
    plans = len(scheduler.plans)
    await traffic.come(120, n40=1000, n100=200, n500=150)
    assert len(scheduler.plans) == plans


async def test_a_worker_that_went_or_came_makes_a_plan(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, deployment="allocation = {64 = 3, 512 = 1}", control="early = false")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(10, n40=1000, n500=20)
    await scheduler.plan("period")
    longest = next(worker for worker, name in notes.desired.items() if name == "m_512")
    notes.up.remove(longest)
    await scheduler.plan("worker_lost")
    assert longest not in notes.desired
    assert notes.counts["m_512"] == 1, "the longest runtime has a worker again"
    assert len(notes.desired) == 3
    notes.up.append(longest)
    await scheduler.plan("worker_back")
    assert len(notes.desired) == 4


async def test_a_worker_lost_before_any_request_came_is_planned_for_too(tmp_path: Path, clock: Clock) -> None:
    scheduler, notes, _ = started(configured(tmp_path, workers=6), clock)
    notes.up.pop()
    await scheduler.plan("worker_lost")
    assert len(notes.desired) == 5
    assert notes.counts["m_512"] >= 1


async def test_an_idle_cluster_keeps_what_its_last_requests_needed(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, workers=6, control="early = false")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(20, n40=2500, n500=20)
    await scheduler.plan("period")
    assert notes.counts["m_64"] == 5
    await traffic.come(80, n40=0)
    notes.up.pop()
    await scheduler.plan("scale_in")
    assert notes.counts["m_64"] == 4


async def test_without_reallocate_only_the_number_of_workers_matters(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, deployment="allocation = {64 = 3, 512 = 1}", control="reallocate = false")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(20, n500=300)
    await scheduler.plan("period")
    assert notes.counts == {"m_64": 3, "m_512": 1}
    notes.up.append("w4")
    await scheduler.plan("scale_out")
    assert notes.counts == {"m_64": 3, "m_512": 2}, "a worker more has the longest runtime"


async def test_a_wall_clock_that_is_set_back_is_no_matter(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, workers=8, deployment="allocation = {64 = 6, 512 = 2}")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(10, n40=1000, n500=50)
    traffic.wall_ms = -3_600_000
    await traffic.come(10, n40=1000, n500=50)
    assert scheduler.planner.demand().rows == pytest.approx(21_000, rel=0.03)
    assert scheduler.planner.recent().rows == pytest.approx(10_500, rel=0.03)
    before = notes.counts["m_512"]
    await traffic.come(1, n40=50, n500=900)
    assert notes.counts["m_512"] > before, "a shift is seen at once"


class Slow:
    """A solver that takes as long as the test wants, and answers for the workers that it was asked for."""

    name = "exact"

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.go = threading.Event()

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        self.asked.append(problem.workers)
        assert self.go.wait(10)
        instances = (problem.workers - 1, *[0] * (len(problem.curves) - 2), 1)
        return Allocation(instances, 0.0, self.name, 0.0, optimal=True)


async def test_an_older_plan_never_overwrites_a_newer_one(tmp_path: Path, clock: Clock) -> None:
    """Three tasks ask for plans. The only instance of the longest runtime must not go to a worker that is gone."""
    config = configured(tmp_path, workers=6, deployment="allocation = {512 = 6}", control="early = false")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(20, n40=1000, n500=20)
    slow = scheduler.planner.subject.solver = Slow()
    old = asyncio.create_task(scheduler.plan("period"))
    while not slow.asked:
        await asyncio.sleep(0.001)
    notes.up = notes.up[3:]
    new = asyncio.create_task(scheduler.plan("worker_lost"))
    await asyncio.sleep(0)
    slow.go.set()
    await asyncio.gather(old, new)
    assert slow.asked == [6, 3]
    assert set(notes.desired) == set(notes.up)
    assert notes.counts["m_512"] == 1


class Broken:
    """A solver that fails."""

    name = "exact"

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        raise SolverError("it did not find its licence")


async def test_a_solver_that_fails_leaves_the_last_plan_and_is_counted(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("arlo"), "propagate", True)
    config = configured(tmp_path, deployment="allocation = {64 = 3, 512 = 1}", control="early = false")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(20, n40=1000, n500=20)
    await scheduler.plan("period")
    before = dict(notes.desired)
    scheduler.planner.subject.solver = Broken()
    await traffic.come(20, n500=300)
    await scheduler.plan("period")
    assert notes.desired == before
    assert scheduler._counters["plan_fallbacks"] == 1
    assert "licence" in scheduler.plans[-1].note
    assert "plan_fallback" in caplog.text


async def test_more_demand_than_workers_can_carry_is_named_and_planned_for(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, deployment="allocation = {64 = 3, 512 = 1}", control="early = false")
    scheduler, notes, traffic = started(config, clock)
    await traffic.come(20, n40=3000, n500=3000)
    await scheduler.plan("period")
    assert "overload" in scheduler.plans[-1].note
    assert scheduler._counters["infeasible_plans"] == 1
    assert len(notes.desired) == 4


async def test_dynamic_runtimes_keep_their_workers(tmp_path: Path, clock: Clock) -> None:
    config = configured(tmp_path, deployment="allocation = {64 = 1, 512 = 2}\ndynamic = 1", control="early = false")
    scheduler, notes, traffic = started(config, clock)
    dynamic = next(runtime.name for runtime in MANIFEST.runtimes if runtime.dynamic)
    await traffic.come(20, n40=1000, n500=20)
    await scheduler.plan("period")
    assert notes.counts[dynamic] == 1
    assert notes.counts["m_64"] == 2


async def test_a_repository_of_dynamic_runtimes_only_has_nothing_to_plan(tmp_path: Path, clock: Clock) -> None:
    latency = (LatencyPoint(length=64, batch=1, latency_us=1000), LatencyPoint(length=512, batch=1, latency_us=5000))
    runtime = dataclasses.replace(MANIFEST.runtimes[0], name="dyn", max_length=512, dynamic=True, latency=latency)
    manifest = dataclasses.replace(MANIFEST, runtimes=(runtime,))
    config = configured(tmp_path, workers=2, deployment="dynamic = 2")
    scheduler, notes, traffic = started(config, clock, manifest)
    await traffic.come(10, n64=100, n512=50)
    await scheduler.plan("period")
    assert notes.counts == {"dyn": 2}
    assert sum(scheduler.planner.loads()) == pytest.approx(0.35, rel=0.2)
    assert scheduler.planner.recent().rows == pytest.approx(1500, rel=0.1)


def test_offered_load_is_work_per_second(tmp_path: Path, clock: Clock) -> None:
    static: list[Runtime] = [runtime for runtime in MANIFEST.runtimes if not runtime.dynamic]
    scheduler, _, _ = started(configured(tmp_path), clock)
    assert sum(scheduler.planner.loads()) == 0
    assert [runtime.name for runtime in scheduler.planner.planned] == [runtime.name for runtime in static]
