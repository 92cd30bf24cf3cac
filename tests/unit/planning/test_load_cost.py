"""Whether a change pays for its loads: planned with runtimes whose load is known, or not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arlo.catalog.bundle import bundle_of
from arlo.catalog.manifest import LatencyPoint, Runtime
from arlo.planning.allocation.problem import Allocation
from arlo.planning.planner import Answer, Plan, Planner, PlannerSettings, Problem, Question
from arlo.planning.serving import planner_for
from arlo.planning.traffic.demand import Demand
from arlo.planning.traffic.shift import Candidate

SETTINGS = PlannerSettings(
    slo_ms=150.0,
    policy="late",
    objective="queueing",
    solver="exact",
    solver_time_limit_s=5.0,
    window_s=120.0,
    min_gain=0.03,
    early=True,
    period_s=120.0,
)
LENGTHS = (64, 256, 512)


def runtime(length: int, load_ms: int | None) -> Runtime:
    return Runtime(
        name=f"m_{length}",
        max_length=length,
        max_batch=1,
        dynamic=False,
        engine="emulated",
        precision="fp32",
        device="none",
        latency=(LatencyPoint(length=length, batch=1, latency_us=length * 10),),
        load_ms=load_ms,
    )


def planner(*load_ms: int | None, settings: PlannerSettings = SETTINGS) -> Planner:
    return planner_for(settings, [runtime(length, load) for length, load in zip(LENGTHS, load_ms, strict=True)])


@dataclasses.dataclass(frozen=True)
class Shared(Problem):
    """Mean latency falls with the instances of each runtime, by `work`; without the longest nothing is served."""

    work: tuple[float, ...]

    def solve(self, last: Allocation | None, *, time_limit_s: float) -> Answer:
        raise AssertionError("the tests give the answer")

    def loss(self, instances: Sequence[int]) -> float:
        if not instances[-1]:
            return math.inf
        return sum(work / max(0.1, count) for work, count in zip(self.work, instances, strict=True))


def decided(
    by: Planner,
    wanted: tuple[int, ...],
    best: tuple[int, ...],
    *,
    work: tuple[float, ...] = (8.0, 2.0, 2.0),
    forced: bool = False,
) -> Plan:
    question = Question(
        reason="period", problem=Shared(work), seen=None, wanted=wanted, forced=forced, last=None, time_limit_s=1.0
    )
    return by.conclude(question, answer(best))


def answer(best: tuple[int, ...]) -> Answer:
    allocation = Allocation(instances=best, objective=0.0, solver="exact", solve_s=0.0, optimal=True, reason=None)
    return Answer(allocation, "")


def test_a_change_that_costs_more_than_it_gains_is_not_made_and_says_so() -> None:
    """3 of 11 ms are saved, for 120 s; a worker of 256 less costs 1 ms, for as long as one loads the runtime of 64."""
    change = (1, 2, 1), (2, 1, 1)
    made, kept = decided(planner(359_000, 1, 1), *change), decided(planner(361_000, 1, 1), *change)
    assert (made.moves, made.note) == (True, "")
    assert made.gain == kept.gain == pytest.approx(3 / 11)
    assert not kept.moves
    assert kept.note == "1 load(s) of 361 s cost more than the 3 ms less of each request gain in 120 s"


def test_what_is_not_known_is_not_weighed() -> None:
    """As it was before loads were known; also where only a runtime that nothing loads is known."""
    for loads in ((None, None, None), (None, 10**6, 10**6)):
        assert decided(planner(*loads), (1, 2, 1), (2, 1, 1)).moves
    forever = dataclasses.replace(SETTINGS, period_s=math.inf)
    assert decided(planner(10**6, 1, 1, settings=forever), (1, 2, 1), (2, 1, 1)).moves


def test_what_has_to_move_moves_whatever_it_costs() -> None:
    by = planner(10**9, 10**9, 10**9)
    assert decided(by, (1, 2, 1), (2, 1, 1), forced=True).moves  # workers came or went
    assert decided(by, (2, 2, 0), (2, 1, 1)).moves  # the longest requests are not served at all


def test_an_early_plan_is_weighed_too() -> None:
    demand = Demand(LENGTHS, (30.0, 1.0, 1.0), (30.0, 1.0, 1.0), 400, 1.0)
    for load_ms, pays in ((100, True), (10**6, False)):
        by = planner(load_ms, load_ms, load_ms)
        question = Question(
            reason="shift",
            problem=Shared((8.0, 2.0, 2.0)),
            seen=None,
            wanted=(1, 2, 1),
            forced=False,
            last=None,
            time_limit_s=1.0,
        )
        assert by.settle(Candidate("first", demand, 0.0), question, answer((2, 1, 1)), 1.0) is pays


counts = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 5))


@given(counts, counts, st.lists(st.floats(0, 20), min_size=3, max_size=3), st.integers(0, 600_000))
def test_a_slower_load_never_makes_a_change_pay(
    wanted: tuple[int, ...], best: tuple[int, ...], work: list[float], load_ms: int
) -> None:
    def moves(load: int | None) -> bool:
        return decided(planner(load, load, load), wanted, best, work=tuple(work)).moves

    unknown, at_once, slow, slower = moves(None), moves(0), moves(load_ms), moves(2 * load_ms + 1)
    assert at_once == unknown  # what takes no time costs nothing
    assert slower <= slow <= at_once


def test_a_bundle_loads_its_runtimes_one_after_the_other() -> None:
    assert bundle_of("all", [runtime(64, 200), runtime(512, 300)]).load_ms == 500
    assert bundle_of("all", [runtime(64, 200), runtime(512, None)]).load_ms is None
