"""The rule of early plans: when it asks, what for, and what it forgets; and that both of its users follow it alike."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo import proto
from arlo.config import Config
from arlo.control.mode import mode_of
from arlo.control.watch import scheduler as control_plane
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.planning.planner import Planner
from arlo.planning.traffic.demand import Demand, DemandWindow
from arlo.planning.traffic.shift import SAMPLE_S, SHIFT_ROWS, SHIFT_SPAN_S, Candidate, ShiftWatch, least_gain
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Allocate, Dispatch, RuntimeModel
from arlo.simulator.world import World
from tests.fakes.noted_wishes import Notes, configured
from tests.fakes.placements import MANIFEST
from tests.fakes.simulated import SECOND, Phases, scenario

LENGTHS = (64, 512)
SLO_MS = 150.0
OLD = (200.0, 50.0)  # short and long requests per second
OTHER = (50.0, 200.0)
AGAIN_S = (0.8, 2.0, 5.0, 15.0)  # docs/control.md


class Case:
    """A watch, the window beside it, and Poisson arrivals of two lengths. Its caller has a clock of its own."""

    def __init__(self, *, seed: int = 1, step_s: float = SAMPLE_S, ahead_s: float = 5_000.0) -> None:
        self.window = DemandWindow(window_s=60)
        self.watch = ShiftWatch(self.window, LENGTHS, SLO_MS)
        self.rng = np.random.default_rng(seed)
        self.counts = np.zeros(513, np.int64)
        self.step_s, self.ahead_s = step_s, ahead_s
        self.begin_s = 100.0
        self.steps = 0
        self._sample()

    @property
    def at_s(self) -> float:
        """The samples' clock."""
        return self.begin_s + self.steps * self.step_s

    @property
    def now_s(self) -> float:
        """The caller's clock."""
        return self.at_s + self.ahead_s

    def _sample(self) -> None:
        self.window.add(self.at_s, 1, self.counts.tolist())
        self.watch.add(self.at_s, 1, self.counts.tolist())

    def come(
        self, seconds: float, rates: tuple[float, float], *, pays: bool = False, plans: bool = True
    ) -> list[tuple[float, Candidate]]:
        """What was asked about, and when (the samples' clock). Every question has the same answer."""
        asked = []
        for _ in range(round(seconds / self.step_s)):
            self.steps += 1
            self.counts[[40, 500]] += self.rng.poisson(np.array(rates) * self.step_s)
            self._sample()
            candidate = self.watch.candidate(self.now_s)
            if candidate is None:
                continue
            asked.append((self.at_s, candidate))
            self.watch.settle(candidate, pays, self.now_s)
            if pays and plans:
                self.plan()
        return asked

    def plan(self) -> Demand:
        """For the window, as the callers do."""
        demand = self.window.estimate(LENGTHS, SLO_MS)
        self.watch.pause(self.now_s)
        self.watch.planned(demand)
        return demand

    def settled(self, seconds: float = 30.0) -> Case:
        """The old traffic, planned for."""
        self.come(seconds, OLD)
        self.plan()
        return self


def whys(asked: list[tuple[float, Candidate]]) -> list[str]:
    return [candidate.why for _, candidate in asked]


def per_second(demand: Demand) -> tuple[float, ...]:
    return tuple(requests * 1000 / SLO_MS for requests in demand.mean)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_an_hour_of_the_same_mix_is_never_taken_for_another(seed: int) -> None:
    """Two samples a second only, to save time."""
    case = Case(seed=seed, step_s=0.5)
    case.come(60, (6, 2))
    case.plan()
    assert case.come(3600, (6, 2)) == []
    assert whys(case.come(10, (2, 6))) != [], "the same watch sees another one"


@pytest.mark.parametrize("seed", range(10))
def test_a_plain_shift_is_asked_about_within_a_second(seed: int) -> None:
    case = Case(seed=seed).settled()
    since_s = case.at_s
    asked = case.come(1, OTHER, pays=True)
    at_s, candidate = asked[0]
    assert candidate.why == "shift"
    assert at_s - since_s >= SHIFT_SPAN_S
    assert candidate.since_s == pytest.approx(since_s, abs=2 * SAMPLE_S)
    assert candidate.demand.rows >= SHIFT_ROWS
    assert per_second(candidate.demand) == pytest.approx(OTHER, rel=0.6)


def test_a_slight_shift_takes_longer_and_is_seen() -> None:
    case = Case().settled()
    since_s = case.at_s
    asked = case.come(10, (140, 60))
    assert asked[0][0] - since_s > 1


def test_bursts_need_more_proof() -> None:
    def seen_after_s(busy: float) -> float:
        case = Case()
        for _ in range(20):  # every other second is busier by that factor
            case.come(1, (OLD[0] * busy, OLD[1] * busy))
            case.come(1, (OLD[0] / busy, OLD[1] / busy))
        case.plan()
        case.come(1, OLD)
        since_s = case.at_s
        return case.come(10, OTHER)[0][0] - since_s

    assert seen_after_s(1.0) < 1 < seen_after_s(1.5)


def test_the_plan_is_looked_at_again_when_more_is_known() -> None:
    case = Case().settled()
    asked = case.come(30, OTHER, pays=True)
    since_s = asked[0][1].since_s
    assert whys(asked) == ["shift"] + ["refined"] * len(AGAIN_S)
    late = [at_s - since_s - refine_s for (at_s, _), refine_s in zip(asked[1:], AGAIN_S, strict=True)]
    assert min(late) >= -1e-6
    assert late[0] <= 0.3, "the pause after the plan may last beyond it"
    assert max(late[1:]) <= SAMPLE_S + 1e-6
    assert {candidate.since_s for _, candidate in asked} == {since_s}
    rows = [candidate.demand.rows for _, candidate in asked]
    assert rows == sorted(rows)
    assert per_second(asked[-1][1].demand) == pytest.approx(OTHER, rel=0.1)
    assert case.window.estimate(LENGTHS, SLO_MS).span_s == pytest.approx(case.at_s - since_s), "all since the shift"


def test_a_refinement_that_does_not_pay_changes_nothing() -> None:
    case = Case().settled()
    first = case.come(0.7, OTHER, pays=True)
    assert whys(first) == ["shift"]
    asked = case.come(4.7, OTHER, pays=False)
    assert whys(asked) == ["refined"] * 3
    assert case.at_s - asked[-1][0] < 0.5
    assert whys(case.come(0.7, OLD, pays=True)) == ["shift"], "nor does it make the watch wait"


@pytest.mark.parametrize("seed", range(4))
def test_bursts_after_a_quick_plan_do_not_hide_the_next_shift(seed: int) -> None:
    """What that plan was for rests on half a second: against it alone no later traffic is ever surely another one."""
    case = Case(seed=seed).settled()
    assert whys(case.come(1.5, OTHER, pays=True))[0] == "shift"
    case.come(6.5, OTHER)
    case.come(1.5, (0.0, 0.0))  # a client stalls, and sends what it owes
    case.come(0.1, (750.0, 3000.0))
    case.come(6.0, OTHER)
    asked = case.come(6.0, OLD, pays=True)
    assert "shift" in whys(asked), "within six seconds"


def test_what_came_before_the_shift_is_forgotten() -> None:
    case = Case().settled()
    since_s = case.at_s
    assert case.window.estimate(LENGTHS, SLO_MS).span_s == pytest.approx(30)
    (at_s, candidate), *_ = case.come(1, OTHER, pays=True)
    for window in (case.window, case.watch.recent):
        demand = window.estimate(LENGTHS, SLO_MS)
        assert demand.span_s == pytest.approx(case.at_s - candidate.since_s)
        assert demand.span_s < case.at_s - since_s + 3 * SAMPLE_S
        assert per_second(demand) == pytest.approx(OTHER, rel=0.4)
    assert at_s <= case.at_s


def test_a_shift_that_does_not_pay_is_not_asked_about_again_at_once() -> None:
    case = Case().settled()
    asked = case.come(20, OTHER, pays=False)
    assert set(whys(asked)) == {"shift"}
    moments = [at_s for at_s, _ in asked]
    assert len(moments) <= 6
    waits = np.diff(moments)
    spans = [candidate.demand.span_s for _, candidate in asked[:-1]]
    assert all(wait >= max(0.5, span / 2) - 1e-6 for wait, span in zip(waits, spans, strict=True))
    assert case.window.estimate(LENGTHS, SLO_MS).span_s == pytest.approx(50), "nothing is forgotten"
    assert case.come(60, OTHER, pays=False) == [], "it is what further shifts are looked for against"
    assert whys(case.come(1, OLD, pays=True))[:1] == ["shift"]


def test_the_first_requests_count_as_a_shift() -> None:
    case = Case()
    assert case.come(0.1, OLD) == [], "too few"
    asked = case.come(1, OLD, pays=True)
    assert asked[0][1].why == "first"
    assert asked[0][1].demand.rows >= 50
    assert asked[0][1].since_s == pytest.approx(case.begin_s)
    assert whys(asked[1:]) == ["refined"]


def test_traffic_that_stops_is_not_planned_for() -> None:
    case = Case().settled()
    assert case.come(80, (0, 0), pays=True) == []
    since_s = case.at_s
    candidate = case.come(1, OLD, pays=True)[0][1]
    assert candidate.why == "shift"
    assert candidate.since_s == pytest.approx(since_s, abs=2 * SAMPLE_S), "it is other traffic than none"
    assert per_second(candidate.demand) == pytest.approx(OLD, rel=0.6)


def test_a_plan_is_left_a_moment_on_the_callers_clock() -> None:
    case = Case().settled()
    case.come(0.1, OTHER)
    case.watch.pause(case.now_s)
    paused_s = case.at_s
    asked = case.come(2, OTHER)
    assert paused_s + 0.5 - 1e-6 <= asked[0][0] <= paused_s + 0.7
    stopped = case.now_s - 100
    assert case.watch.candidate(stopped) is None


def test_counters_that_begin_anew_are_no_shift() -> None:
    case = Case().settled()
    case.counts[:] = 0
    case.steps += 1
    for window in (case.window, case.watch):
        window.add(case.at_s, round(case.at_s * 1000), case.counts.tolist())
    assert case.watch.candidate(case.now_s) is None


def test_without_lengths_or_samples_there_is_nothing_to_say() -> None:
    window = DemandWindow(window_s=60)
    assert ShiftWatch(window, LENGTHS, SLO_MS).candidate(0.0) is None
    watch = ShiftWatch(window, (), SLO_MS)
    for second in range(30):
        watch.add(float(second), 1, [0, 1000 * second])
    assert watch.candidate(1e6) is None


def test_an_early_plan_has_to_gain_a_tenth_or_more() -> None:
    assert least_gain(0.0) == 0.1
    assert least_gain(0.3) == 0.3


# --- both users ---

WORKERS, START = 8, (6, 0, 2)
PERIOD_S = 15.0
PHASES = (
    (12.0, 2_000.0, (40,) * 30 + (500,)),
    (9.0, 800.0, (40, 500, 500, 500)),
    (0.6, 1_500.0, (40,)),
    (8.0, 1_200.0, (40, 100, 500)),
    (7.0, 0.0, (40,)),
    (12.0, 1_500.0, (40, 40, 40, 40, 40, 500)),
)


def simulated(policy: str) -> tuple[list[tuple[float, NDArray[np.int64]]], list[tuple[float, tuple[int, ...]]]]:
    """The samples that the simulated control plane saw, and its plans: when, and instances wanted then."""
    samples: list[tuple[float, NDArray[np.int64]]] = []
    plans: list[tuple[float, tuple[int, ...]]] = []
    add, plan = Planner.add, World._plan

    def noted_add(self: Planner, now_s: float, started_s: float, counts: Any) -> None:
        samples.append((now_s, np.array(counts, np.int64)))
        add(self, now_s, started_s, counts)

    def noted_plan(self: World, now_ns: int, *args: Any, **named: Any) -> None:
        plan(self, now_ns, *args, **named)
        plans.append((now_ns / SECOND, self.counts()))

    runtimes = tuple(
        RuntimeModel(
            name=runtime.name,
            max_length=runtime.max_length,
            points=tuple((point.length, point.batch, point.latency_us / 1000) for point in runtime.latency),
        )
        for runtime in MANIFEST.runtimes
        if not runtime.dynamic
    )
    allocate = Allocate(period_s=PERIOD_S, start=START, shift=True, min_gain=0.02)
    work = Phases(PHASES, seed=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planner, "add", noted_add)
        patch.setattr(World, "_plan", noted_plan)
        run(scenario(work, runtimes=runtimes, workers=WORKERS, allocate=allocate, dispatch=Dispatch(policy=policy)))  # type: ignore[arg-type]
    return samples, plans


async def controlled(
    config: Config, samples: list[tuple[float, NDArray[np.int64]]], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[float, tuple[int, ...]]]:
    """The plans of the real control plane for the same samples."""
    now_s = 0.0
    monkeypatch.setattr(control_plane, "monotonic_s", lambda: now_s)
    notes = Notes(WORKERS)
    scheduler = RuntimeScheduler(mode_of(config, MANIFEST), notes, None, Counter())  # type: ignore[arg-type]
    notes.want(scheduler.first_placement())
    plans: list[tuple[float, tuple[int, ...]]] = []
    names = [runtime.name for runtime in scheduler.planner.planned]
    for now_s, counts in samples:
        stats = proto.message("Stats")(started_at_ms=0, uptime_ns=round(now_s * 1e9))
        stats.arrivals_by_length.extend(counts.tolist())
        before = len(scheduler.plans)
        await scheduler.see(stats)
        if scheduler.next_plan_in_s < 1e-6:
            await scheduler.plan("period")
        if len(scheduler.plans) > before:
            plans.append((now_s, tuple(notes.counts.get(name, 0) for name in names)))
    return plans


@pytest.mark.parametrize("policy", ["rs", "eft"])
async def test_the_simulator_plans_early_when_the_control_plane_does(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, expected = simulated(policy)
    control = f'min_gain = 0.02\n[dispatch]\npolicy = "{policy}"'
    config = configured(tmp_path, workers=WORKERS, deployment="allocation = {64 = 6, 512 = 2}", control=control)
    config = dataclasses.replace(config, control=dataclasses.replace(config.control, period_s=PERIOD_S))
    found = await controlled(config, samples, monkeypatch)
    assert found == expected
    assert len(found) >= 4
    assert len({counts for _, counts in found}) >= 3
