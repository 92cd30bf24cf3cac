"""What the simulated control plane does and when: allocations, replacement with its cost, scaling, faults."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from arlo import _core
from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve
from arlo.planning.allocation.solve import allocate, make_solver
from arlo.planning.placement import replacement
from arlo.planning.placement.replacement import Step, carried
from arlo.planning.planner import Seen
from arlo.planning.traffic.demand import DemandWindow
from arlo.simulator.foresight import Foresight
from arlo.simulator.ladder import Ladder
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Allocate, Dispatch, Fault, RuntimeModel, Scale, Scenario
from tests.fakes.simulated import LONG, MS, SECOND, SHORT, Listed, Phases, evenly, listed, scenario

PAPER = Allocate(objective="paper", period_s=10.0)
MIDDLE = RuntimeModel(name="middle", max_length=256, points=((256, 1, 2.5),))
THREE = (SHORT, MIDDLE, LONG)


class Watched:
    """The engine, with a diary: (now in ns, what was asked, arguments)."""

    def __init__(self, engine: _core.Simulation) -> None:
        self.engine = engine
        self.diary: list[tuple[int, str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.engine, name)
        if name not in ("add_worker", "replace", "remove", "fail", "slow"):
            return attribute

        def noted(*args: Any) -> Any:
            self.diary.append((self.engine.now, name, args))
            return attribute(*args)

        return noted

    def did(self, what: str) -> list[tuple[int, tuple[Any, ...]]]:
        return [(now, args) for now, name, args in self.diary if name == what]

    def serving_since(self) -> list[int]:
        columns = self.engine.workers()
        assert (columns["state"] == 1).all()
        return list(columns["since_ns"].tolist())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """The engines of the runs that follow."""
    engines: list[Watched] = []
    module = importlib.import_module("arlo.simulator.run")
    make = module._engine

    def make_watched(*args: Any) -> Watched:
        engines.append(Watched(make(*args)))
        return engines[-1]

    monkeypatch.setattr(module, "_engine", make_watched)
    return engines


def instances(result: Result, at_s: float) -> tuple[int, ...]:
    """Instances in service at the end of the interval that ends then."""
    row = int(np.flatnonzero(result.timeline["time_s"] == at_s)[0])
    return tuple(int(result.timeline[f"instances.{item['name']}"][row]) for item in result.runtimes)


def solved(runtimes: Sequence[RuntimeModel], workers: int, counts: Sequence[int], span_s: float) -> tuple[int, ...]:
    """The planner's own answer to so many requests of each runtime's bin in span_s, with an SLO of 150 ms."""
    curves = tuple(LatencyCurve.single(runtime.points[0][2]) for runtime in runtimes)
    demand = tuple(count / span_s * 0.15 for count in counts)
    lengths = tuple(runtime.max_length for runtime in runtimes)
    problem = AllocationProblem(workers, 150.0, lengths, curves, demand)
    return allocate(problem, make_solver("exact", "paper"), time_limit_s=10.0).instances


# --- allocations ---


@pytest.mark.parametrize(("workers", "counts"), [(2, (0, 1, 1)), (3, (1, 1, 1)), (7, (2, 2, 3)), (8, (2, 3, 3))])
def test_even_gives_the_longest_first(workers: int, counts: tuple[int, ...]) -> None:
    work = Phases(((30, 100.0, (30,)),))
    result = run(scenario(work, runtimes=THREE, workers=workers, allocate=Allocate(kind="even", period_s=10.0)))
    assert instances(result, 1.0) == instances(result, 30.0) == counts
    assert result.allocations == result.replacements == 0


def changing() -> Listed:
    """1000 requests per second: 10 s short ones, 10 s middle ones, 10 s half of them long."""
    return listed(
        evenly(1000, 0, 10, 30), evenly(1000, 10, 20, 200), evenly(500, 20, 30, 30), evenly(500, 20, 30, 500),
        duration_s=30.0,
    )  # fmt: skip


FIRST, SECOND_PERIOD, THIRD, WHOLE = (10_000, 0, 0), (0, 10_000, 0), (5_000, 0, 5_000), (15_000, 10_000, 5_000)


def test_periodic_is_solved_for_the_period_before() -> None:
    result = run(scenario(changing(), runtimes=THREE, workers=8, allocate=PAPER))
    for_first, for_second = solved(THREE, 8, FIRST, 10), solved(THREE, 8, SECOND_PERIOD, 10)
    assert for_first != for_second
    assert instances(result, 1.0) == instances(result, 10.0) == for_first  # read ahead for the start
    assert instances(result, 20.0) == for_first  # planned at 10 s, for what came until then
    assert instances(result, 30.0) == for_second
    assert result.allocations == 3


def test_oracle_is_solved_for_the_period_that_begins() -> None:
    allocate_ = dataclasses.replace(PAPER, kind="oracle")
    result = run(scenario(changing(), runtimes=THREE, workers=8, allocate=allocate_))
    assert instances(result, 10.0) == solved(THREE, 8, FIRST, 10)
    assert instances(result, 20.0) == solved(THREE, 8, SECOND_PERIOD, 10)
    assert instances(result, 30.0) == solved(THREE, 8, THIRD, 10)


@pytest.mark.parametrize("start", ["even", "global", "first", (3, 2, 3)])
def test_fixed_stays_as_it_starts(start: Any) -> None:
    allocate_ = Allocate(kind="fixed", start=start, objective="paper", period_s=10.0)
    result = run(scenario(changing(), runtimes=THREE, workers=8, allocate=allocate_))
    expected = {
        "even": (2, 3, 3),
        "global": solved(THREE, 8, WHOLE, 30),
        "first": solved(THREE, 8, FIRST, 10),
        (3, 2, 3): (3, 2, 3),
    }[start]
    assert instances(result, 1.0) == instances(result, 30.0) == expected
    assert result.replacements == 0


def test_foresight_counts_what_comes() -> None:
    """Bins over whole seconds, spans one after the other, the last one cut at the workload's end."""
    work = changing()
    ladder = Ladder(scenario(work, runtimes=THREE, workers=8))

    def of_window(window: DemandWindow) -> Seen:
        return ladder.planner.seen(window=window)

    ahead = Foresight(of_window, work, ladder.max_length)
    for begin, counts in ((0, FIRST), (10, SECOND_PERIOD), (20, THIRD)):
        seen = ahead.span(begin * SECOND, (begin + 10) * SECOND)
        assert seen.demand.mean == pytest.approx([count / 10 * 0.15 for count in counts])
        assert seen.demand.span_s == pytest.approx(10.0)
    half = Foresight(of_window, work, ladder.max_length).span(25 * SECOND, 45 * SECOND)
    assert half.demand.mean == pytest.approx([500 * 0.15, 0, 500 * 0.15])


def test_too_few_requests_are_no_reason_to_plan() -> None:
    work = listed(evenly(100, 0, 10, 30), evenly(4, 10, 40, 500), duration_s=40.0)
    result = run(scenario(work, workers=4, allocate=PAPER))
    assert instances(result, 40.0) == instances(result, 1.0)


def test_a_gain_below_the_least_moves_nobody() -> None:
    work = changing()
    moved = run(scenario(work, runtimes=THREE, workers=8, allocate=PAPER))
    kept = run(scenario(work, runtimes=THREE, workers=8, allocate=dataclasses.replace(PAPER, min_gain=0.999)))
    assert moved.replacements > 0
    assert kept.replacements == 0


@pytest.mark.parametrize("kind", ["periodic", "oracle", "even", "global"])
def test_dynamic_runtimes_alone_need_no_plan(kind: Any) -> None:
    dynamic = RuntimeModel(name="d", max_length=512, points=((1, 1, 1.0), (512, 1, 6.0)), dynamic=True)
    result = run(scenario(changing(), runtimes=(dynamic,), workers=8, allocate=dataclasses.replace(PAPER, kind=kind)))
    assert instances(result, 30.0) == (8,)
    assert result.allocations == 0


def test_a_dynamic_runtime_beside_static_ones_keeps_its_instances() -> None:
    dynamic = RuntimeModel(name="d", max_length=512, points=((1, 1, 1.0), (512, 1, 6.0)), dynamic=True)
    allocate_ = dataclasses.replace(PAPER, start=(3, 2, 3))
    result = run(scenario(changing(), runtimes=(SHORT, LONG, dynamic), workers=8, allocate=allocate_))
    assert instances(result, 30.0)[2] == 3
    assert sum(instances(result, 30.0)) == 8


def test_a_shift_is_planned_for_before_the_period_is_over() -> None:
    work = Phases(((20, 1500.0, (30,)), (20, 600.0, (30, 500))))
    with_, without = (
        run(scenario(work, workers=8, allocate=Allocate(period_s=120.0, start=(7, 1), shift=shift), interval_s=0.5))
        for shift in (True, False)
    )
    assert without.replacements == 0
    assert with_.replacements > 0
    assert instances(with_, 20.0) == instances(without, 20.0)
    assert instances(with_, 25.0) != instances(with_, 20.0)
    assert with_.mean_ms < without.mean_ms


# --- replacement ---

ONE_BY_ONE = Allocate(objective="paper", period_s=10.0, start=(1, 1))


def test_a_replacement_takes_drain_and_load_to_the_instant(watched: list[Watched]) -> None:
    """Planned at 10 s; the worker is executing until 10.0009 s, and serves the other runtime a second later."""
    last = round(9.9999 * SECOND)
    work = listed(evenly(10, 0, 10, 500), [(last, 30)], evenly(10, 10.05, 13, 500), duration_s=13.0)
    result = run(scenario(work, allocate=ONE_BY_ONE))
    assert watched[0].did("replace") == [(10 * SECOND, (0, 1, SECOND))]
    assert watched[0].serving_since() == [last + MS + SECOND, 0]
    assert instances(result, 11.0) == (0, 1)
    assert instances(result, 12.0) == (0, 2)
    assert result.replacements == 1
    assert result.outcomes["on_time"] == result.requests


@pytest.mark.parametrize("make_before_break", [False, True])
def test_loading_takes_what_the_profile_says_of_each_runtime(watched: list[Watched], make_before_break: bool) -> None:
    """Both workers change their runtime once; a scenario that says how long it takes is right."""
    work = listed(evenly(10, 0, 15, 500), duration_s=15.0)
    known = scenario(work, allocate=dataclasses.replace(ONE_BY_ONE, make_before_break=make_before_break))
    loads = (700, 2300)
    runtimes = tuple(dataclasses.replace(r, load_ms=ms) for r, ms in zip(known.runtimes, loads, strict=True))
    known = dataclasses.replace(known, runtimes=runtimes)
    told = dataclasses.replace(known, allocate=dataclasses.replace(known.allocate, replacement_s=1.25))
    run(known)
    run(told)
    assert [one.serving_since()[0] for one in watched] == [round(12.3 * SECOND), round(11.25 * SECOND)]


def test_a_load_that_costs_more_than_it_gains_is_not_begun() -> None:
    """The planner of a simulation knows the profile too. Unknown or quick, one of two long ones becomes a short one."""
    work = Phases(((25, 930.0, (30,) * 90 + (500,) * 3),))
    allocate_ = Allocate(objective="queueing", period_s=10.0, start=(2, 2))
    base = scenario(work, workers=4, allocate=allocate_)

    def moved(load_ms: int | None) -> int:
        runtimes = tuple(dataclasses.replace(runtime, load_ms=load_ms) for runtime in base.runtimes)
        return run(dataclasses.replace(base, runtimes=runtimes)).replacements

    assert [moved(load_ms) for load_ms in (None, 100, 3_600_000)] == [1, 1, 0]


def test_the_next_step_waits_for_the_last_and_capacity_holds(
    watched: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From nearly all short to nearly all long: in steps of 4, each begun when the one before serves."""
    steps: list[Step] = []
    plan = replacement.replacement_plan

    def noted(*args: Any, **named: Any) -> tuple[Step, ...]:
        found = plan(*args, **named)
        steps.extend(found)
        return found

    monkeypatch.setattr(replacement, "replacement_plan", noted)
    work = Phases(((10, 9_000.0, (30, 30, 30, 500)), (20, 3_000.0, (30, 500, 500))), seed=5)
    allocate_ = dataclasses.replace(PAPER, max_parallel=4, start=(16, 24))
    result = run(scenario(work, workers=40, allocate=allocate_, interval_s=0.05))
    moves = watched[0].did("replace")
    assert result.replacements == len(moves) > 4
    begun = sorted({now for now, _ in moves})
    assert all(sum(now == begin for now, _ in moves) <= 4 for begin in begun)
    # Loading takes 1 s, and the end is seen within 0.1 s, a few ms of draining included.
    first = [begin for begin in begun if begin < 19 * SECOND]
    assert len(first) > 1
    assert all(SECOND < two - one <= 1.2 * SECOND for one, two in pairwise(first))
    capacities, demand = (150, 30), (9_000 * 0.75 * 0.15, 9_000 * 0.25 * 0.15)
    in_service = np.stack([result.timeline["instances.short"], result.timeline["instances.long"]], axis=1)
    moving = (result.timeline["serving"] < 40) & (result.timeline["time_s"] < 20)
    assert moving.sum() > 10
    assert result.timeline["serving"].min() >= 36
    assert result.timeline["instances.long"].min() >= 1
    least = min(step.carried for step in steps)
    assert all(
        carried(counts, capacities, demand) >= least * 0.98 for counts in in_service[moving].astype(int).tolist()
    )


def test_a_new_plan_supersedes_the_one_under_way(watched: list[Watched]) -> None:
    """Planned at 2 s for short requests, at 4 s for long ones: the move under way ends, then all go the other way."""
    work = listed(evenly(100, 0, 2, 30), evenly(100, 2, 40, 500), duration_s=40.0)
    allocate_ = Allocate(objective="paper", period_s=2.0, replacement_s=5.0, max_parallel=1, start=(3, 3))
    result = run(scenario(work, workers=6, allocate=allocate_))
    moves = watched[0].did("replace")
    assert moves[0] == (2 * SECOND, (3, 0, 5 * SECOND))
    assert [runtime for _, (_, runtime, _) in moves[1:]] == [1] * 4
    assert moves[1][0] >= 7 * SECOND
    assert all(two - one >= 5 * SECOND for (one, _), (two, _) in pairwise(moves))
    assert instances(result, 40.0) == (0, 6)


def test_make_before_break_takes_no_worker_away(watched: list[Watched]) -> None:
    """Planned at 10 s for long requests: the worker serves on while it loads, and switches when it has."""
    work = listed(evenly(10, 0, 15, 500), duration_s=15.0)
    allocate_ = dataclasses.replace(ONE_BY_ONE, make_before_break=True, replacement_s=2.5)
    result = run(scenario(work, allocate=allocate_, interval_s=0.5))
    assert watched[0].did("replace") == [(round(12.5 * SECOND), (0, 1, 0))]
    assert result.timeline["serving"].min() == 2
    assert instances(result, 12.0) == (1, 1)
    assert instances(result, 13.0) == (0, 2)
    assert result.replacements == 1


def test_another_worker_stands_in_for_the_longest_runtime_and_goes_back() -> None:
    work = listed(evenly(100, 0, 30, 30), evenly(10, 0, 30, 500), duration_s=30.0)
    fields: dict[str, Any] = {"workers": 3, "faults": (Fault(at_s=5.0, worker=2, kind="fail", restart_s=10.0),)}
    fixed = Allocate(kind="fixed", start=(2, 1), period_s=10.0, make_before_break=True)
    alone = run(scenario(work, allocate=fixed, **fields))
    covered = run(scenario(work, allocate=dataclasses.replace(fixed, cover_after_s=1.0), **fields))
    assert instances(alone, 10.0) == (2, 0)
    assert instances(covered, 6.0) == (2, 0)
    assert instances(covered, 8.0) == (1, 1)
    assert instances(covered, 30.0) == instances(alone, 30.0) == (2, 1)
    assert covered.outcomes["late"] < alone.outcomes["late"] / 2


# --- scaling ---


def step_load(low: float, high: float) -> Phases:
    return Phases(((40, low, (500,)), (60, high, (500,)), (100, low, (500,))), seed=1)


def test_headroom_follows_a_step(watched: list[Watched]) -> None:
    """5 ms each: 300 per second are 1.5 instances, 900 are 4.5; with 5 % headroom that is 2 and 5 workers."""
    scale = Scale(kind="headroom", scale_in_period_s=10.0)
    result = run(scenario(step_load(300, 900), runtimes=(LONG,), workers=2, scale=scale))
    present = result.timeline["present"]
    assert present[39] == 2
    assert present[90] == 5
    assert present[-1] == 2
    assert result.workers_max == 5
    added, removed = watched[0].did("add_worker")[2:], watched[0].did("remove")
    assert len(added) == len(removed) == 3
    assert all(at - now == SECOND for now, (_, at) in added)  # start_s
    assert added[0][0] > 40 * SECOND
    assert removed[0][0] >= 110 * SECOND
    assert 2 < result.workers_mean < 5
    # Each worker from when it was asked for until it is gone, which is when it is drained.
    columns = watched[0].engine.workers()
    ends = np.where(columns["state"] == 3, columns["since_ns"], 200 * SECOND)
    begins = np.array([0, 0, *(now for now, _ in added)])
    assert result.gpu_hours == pytest.approx((ends - begins).sum() / SECOND / 3600)
    assert result.outcomes["failed"] == 0


def test_a_dynamic_runtime_is_scaled_by_the_latency_of_its_lengths() -> None:
    """900 requests per second of 1.5 ms each are 1.35 instances, though the longest would take 6 ms."""
    dynamic = RuntimeModel(name="d", max_length=512, points=((50, 1, 1.5), (512, 1, 6.0)), dynamic=True)
    work = Phases(((60, 900.0, (20, 50)),))
    result = run(scenario(work, runtimes=(dynamic,), workers=1, scale=Scale(kind="headroom")))
    assert result.timeline["present"][-1] == 2


def test_target_adds_the_longest_and_the_next_plan_gives_it_its_place(watched: list[Watched]) -> None:
    """Overload by short requests: each new worker serves the longest runtime, until the period is over."""
    work = Phases(((100, 3_500.0, (30,)),), seed=2)
    scale = Scale(kind="target", cooldown_s=2.0, max_workers=6)
    allocate_ = Allocate(objective="queueing", period_s=40.0, start=(2, 1))
    result = run(scenario(work, workers=3, allocate=allocate_, scale=scale, dispatch=Dispatch(policy="rs")))
    added = watched[0].did("add_worker")[3:]
    assert len(added) > 0
    assert all(runtime == 1 for _, (runtime, _) in added)
    assert instances(result, 40.0)[1] > 1
    assert instances(result, 50.0)[1] < instances(result, 40.0)[1]
    assert result.workers_max <= 6


def test_an_overload_that_answers_nothing_adds_workers_too() -> None:
    """Ten times what one worker can do, and clients that give up sooner than any row's turn comes."""
    work = Phases(((60, 2_000.0, (500,)),), seed=2)
    scale = Scale(kind="target", cooldown_s=2.0, max_workers=12)
    result = run(scenario(work, runtimes=(LONG,), workers=1, timeout_ms=6.0, slo_ms=100.0, scale=scale))
    assert result.workers_max >= 5, "one after each window of the cluster with the last one"


def test_requests_that_no_runtime_takes_ask_for_no_worker() -> None:
    work = Phases(((60, 200.0, (500, 700)),), seed=2)
    result = run(scenario(work, runtimes=(LONG,), workers=2, scale=Scale(kind="target", cooldown_s=2.0)))
    assert result.workers_max == 2


def test_with_replan_a_new_worker_has_its_place_at_once(watched: list[Watched]) -> None:
    work = Phases(((39, 3_500.0, (30,)),), seed=2)
    scale = Scale(kind="target", cooldown_s=2.0, max_workers=6, replan=True)
    allocate_ = Allocate(objective="queueing", period_s=40.0, start=(2, 1))
    fields: dict[str, Any] = {"workers": 3, "allocate": allocate_, "dispatch": Dispatch(policy="rs")}
    result = run(scenario(work, scale=scale, **fields))
    added = watched[0].did("add_worker")[3:]
    assert len(added) > 0
    assert result.allocations >= len(added)
    assert instances(result, 39.0)[1] == 1
    late = run(scenario(work, scale=dataclasses.replace(scale, replan=False), **fields))
    assert instances(late, 39.0)[1] > 1
    assert result.mean_ms < late.mean_ms


def test_infaas_grows_by_what_requests_take_where_they_run(watched: list[Watched]) -> None:
    """1,800 short requests per second are 1.8 instances of their own runtime; one of each runtime carries 1,600."""
    work = Phases(((60, 1_800.0, (30,)),), seed=2)
    scale = Scale(kind="headroom", new_runtime="least_headroom")
    fields: dict[str, Any] = {"workers": 3, "runtimes": THREE, "allocate": Allocate(kind="even")}
    result = run(scenario(work, scale=scale, dispatch=Dispatch(policy="infaas"), **fields))
    added = watched[0].did("add_worker")[3:]
    assert {runtime for _, (runtime, _) in added} == {0}
    assert 4 <= result.timeline["present"][-1] <= 5
    by_ideal = dataclasses.replace(scale, new_runtime="longest")
    other = run(scenario(work, scale=by_ideal, dispatch=Dispatch(policy="infaas"), **fields))
    assert other.workers_max == 3
    assert result.timeline["queued"][59] < 1_000
    assert other.timeline["queued"][59] > 5_000


def test_the_longest_runtime_is_never_let_go(watched: list[Watched]) -> None:
    work = Phases(((60, 5.0, (30, 500)),))
    scale = Scale(kind="target", scale_in_period_s=5.0)
    result = run(scenario(work, workers=3, allocate=Allocate(kind="fixed", start=(2, 1)), scale=scale))
    assert result.timeline["present"][-1] == 1
    assert instances(result, 60.0) == (0, 1)
    assert [args for _, args in watched[0].did("remove")] == [(1,), (0,)]


# --- faults ---


def test_a_failure_and_its_end_come_at_their_instants(watched: list[Watched]) -> None:
    work = listed(evenly(100, 0, 5, 500), duration_s=5.0)
    faults = (Fault(at_s=1.234567891, worker=1, kind="fail", restart_s=0.5),)
    result = run(scenario(work, runtimes=(LONG,), faults=faults, interval_s=0.5))
    assert watched[0].did("fail") == [(1_234_567_891, (1, SECOND // 2))]
    assert watched[0].serving_since() == [0, 1_734_567_891]
    assert result.timeline["serving"].tolist()[:5] == [2, 2, 1, 2, 2]
    assert result.outcomes["on_time"] == result.requests
    assert result.gpu_hours == pytest.approx(10 / 3600)  # it is paid for while it restarts


def test_a_worker_lost_for_good_is_planned_without_at_once(watched: list[Watched]) -> None:
    """The only long one goes: the plan made at once gives its runtime to another worker."""
    work = listed(evenly(200, 0, 20, 30), evenly(20, 0, 20, 500), duration_s=20.0)
    faults = (Fault(at_s=7.5, worker=3, kind="fail", restart_s=None),)
    allocate_ = dataclasses.replace(PAPER, period_s=100.0, start=(3, 1))
    result = run(scenario(work, workers=4, allocate=allocate_, faults=faults))
    assert watched[0].did("replace")[0][0] == round(7.5 * SECOND)
    assert instances(result, 8.0)[1] == 0
    assert instances(result, 9.0)[1] >= 1
    assert result.outcomes["failed"] == 0
    assert result.gpu_hours == pytest.approx((3 * 20 + 7.5) / 3600)


def test_a_fault_of_a_worker_that_is_not_there_does_nothing(watched: list[Watched]) -> None:
    work = listed(evenly(10, 0, 4, 500), duration_s=4.0)
    faults = tuple(Fault(at_s=1.0 + i, worker=1, kind="fail", restart_s=None) for i in range(2))
    scale = Scale(kind="headroom")
    later = (Fault(at_s=3.5, worker=7, kind="slow", factor=2.0),)
    plain: Scenario = scenario(work, runtimes=(LONG,), faults=faults + later, scale=scale)
    result = run(plain)
    assert len(watched[0].did("fail")) == 1
    assert watched[0].did("slow") == []
    assert result.outcomes["on_time"] == 40
