"""What holds in every simulation, whatever happens: nothing is lost, invented or done twice.

Read from the columns alone, without knowing how the simulator works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from arlo import _core
from tests.property.plain_simulation import OUTCOMES, Runtime
from tests.property.simulations import (
    POLICIES,
    Program,
    act,
    add_all,
    add_runtime,
    engine,
    feed,
    inflight_limit,
    made,
    members,
    rows,
)

Columns = dict[str, NDArray[Any]]
ON_TIME, LATE, REJECTED, EXPIRED, FAILED = range(5)
STARTING, _, _, GONE = range(4)


class Watched:
    """A program that has run, with what was seen on the way."""

    def __init__(self, program: Program, *, record: bool = True, pieces: bool = True) -> None:
        self.program = program
        self.sim = engine(program.settings, record=record)
        self.recent: list[dict[str, float]] = []
        self.recent_counts = np.zeros(4000, np.uint64)
        self.no_begin: list[tuple[int, int]] = []  # worker, when it was found starting or gone
        add_all(self.sim, program)
        if not pieces:
            feed(self.sim, program.arrivals)
        fed = 0
        for what in program.acts:
            if pieces:  # arrivals come as time goes on
                upto = next((i for i, (at, _) in enumerate(program.arrivals) if at >= what[0]), len(program.arrivals))
                feed(self.sim, program.arrivals[fed:upto])
                fed = upto
            self.sim.advance(what[0])
            self.look()
            act(self.sim, what, self.sim.workers()["state"].tolist())
            self.look()
        if pieces:
            feed(self.sim, program.arrivals[fed:])
        self.sim.finish()
        self.look()
        self.columns: Columns = self.sim.columns()

    def look(self) -> None:
        counts, histogram = self.sim.take_recent()
        self.recent.append(counts)
        self.recent_counts[: len(histogram)] += histogram
        now, workers = self.sim.now, self.sim.workers()
        assert (workers["busy_ns"] <= now).all(), "busy for longer than there was time"
        for worker, state in enumerate(workers["state"].tolist()):
            executing, waiting = workers["executing"][worker], workers["waiting"][worker]
            holds = workers["runtime"][worker]
            assert executing <= max(runtime.max_batch for runtime in members(self.program, holds))
            if self.program.settings.batching == "one":
                assert executing <= inflight_limit(self.program, holds)
            if state in (STARTING, GONE):
                assert executing == 0
                assert waiting == 0
                self.no_begin.append((worker, now))


@pytest.mark.parametrize("policy", POLICIES)
def test_conservation(policy: str) -> None:
    @given(seed=st.integers(0, 2**32), size=st.sampled_from([30, 400]))
    @settings(max_examples=60, deadline=None)
    def check(seed: int, size: int) -> None:
        seen = Watched(made(policy, seed, size))
        one_outcome_each(seen)
        totals_are_those_of_the_columns(seen)
        recent_adds_up(seen)
        executions_are_possible(seen)
        workers_rest_when_they_must(seen)

    check()


def one_outcome_each(seen: Watched) -> None:
    columns, program = seen.columns, seen.program
    outcome, latency, wait = columns["outcome"], columns["latency_ns"], columns["wait_ns"]
    assert rows({"at": columns["arrived_ns"], "length": columns["length"]}) == program.arrivals
    assert (outcome < len(OUTCOMES)).all(), "every arrival has an outcome"
    assert seen.sim.queued == 0
    assert seen.sim.in_flight == 0
    answered = (outcome == ON_TIME) | (outcome == LATE)
    assert ((latency >= 0) == answered).all()
    assert (outcome[answered & (latency <= program.settings.slo)] == ON_TIME).all()
    assert (outcome[answered & (latency > program.settings.slo)] == LATE).all()
    assert (wait[answered] >= 0).all()
    assert (columns["worker"][answered] >= 0).all()
    assert (wait[outcome == REJECTED] == -1).all()
    if program.settings.timeout is None:
        assert not (outcome == EXPIRED).any()
    else:
        assert (latency <= program.settings.timeout).all()
    longest = max(r.max_length for r in program.runtimes)
    hopeless = (columns["length"] < 1) | (columns["length"] > longest)
    assert (outcome[hopeless] == REJECTED).all()
    began = wait >= 0
    lengths = np.array([r.max_length for r in program.runtimes])
    assert (lengths[columns["runtime"][began]] >= columns["length"][began]).all(), "on a runtime that is too short"


def totals_are_those_of_the_columns(seen: Watched) -> None:
    columns, totals = seen.columns, seen.sim.totals()
    counted = columns["arrived_ns"] >= seen.program.settings.warmup
    answered = counted & (columns["latency_ns"] >= 0)
    latency = columns["latency_ns"][answered]
    assert totals["arrived"] == counted.sum() == sum(totals[outcome] for outcome in OUTCOMES)
    for code, outcome in enumerate(OUTCOMES):
        assert totals[outcome] == (columns["outcome"][counted] == code).sum()
    assert totals["latency_sum_ns"] == latency.sum()
    assert totals["wait_sum_ns"] == columns["wait_ns"][answered].sum()
    assert totals["tokens"] == columns["length"][answered].sum()
    assert totals["latency_max_ns"] == latency.max(initial=0)
    # A latency is: wait, execution, the way back, overhead.
    added = seen.program.settings.hop_back + seen.program.settings.overhead
    parts = totals["wait_sum_ns"] + totals["execute_sum_ns"] + added * answered.sum()
    assert totals["latency_sum_ns"] == parts
    served = np.bincount(columns["runtime"][answered], minlength=len(seen.program.runtimes + seen.program.bundles))
    assert served.tolist() == seen.sim.runtimes()["served"].tolist()
    workers, runtimes = seen.sim.workers(), seen.sim.runtimes()
    assert workers["busy_ns"].sum() == runtimes["busy_ns"].sum(), "all time is some worker's and some runtime's"
    assert runtimes["batches"].sum() <= workers["served"].sum()
    by_length = seen.sim.arrivals_by_length()
    assert by_length.tolist() == np.bincount(columns["length"], minlength=len(by_length)).tolist()
    lower, counts = seen.sim.histogram()
    assert counts.sum() == answered.sum()
    edges = np.append(lower, latency.max(initial=0) + 1)
    assert counts.tolist() == np.histogram(latency, edges)[0].tolist()


def recent_adds_up(seen: Watched) -> None:
    columns = seen.columns
    answered = columns["latency_ns"] >= 0
    latency = columns["latency_ns"][answered]

    def total(name: str) -> float:
        return sum(recent[name] for recent in seen.recent)

    assert total("arrived") == len(answered)
    assert total("answered") == answered.sum()
    assert total("unanswered") == (~answered).sum()
    assert total("on_time") == (columns["outcome"] == ON_TIME).sum()
    assert total("latency_sum_ns") == latency.sum()
    edges = _core.Simulation.recent_bucket_ns(len(seen.recent_counts) + 1)
    assert (np.diff(edges) > 0).all()
    assert seen.recent_counts.tolist() == np.histogram(latency, edges)[0].tolist()


def executions_are_possible(seen: Watched) -> None:
    """On each worker one batch after the other, of rows for one runtime, none larger than it takes."""
    columns, program = seen.columns, seen.program
    begin = columns["arrived_ns"] + columns["wait_ns"]
    ends = columns["arrived_ns"] + columns["latency_ns"] - program.settings.hop_back - program.settings.overhead
    began = columns["wait_ns"] >= 0
    for worker in np.unique(columns["worker"][began]):
        here = began & (columns["worker"] == worker)
        starts, rows_of = np.unique(begin[here], return_counts=True)
        for at, rows_there in zip(starts, rows_of, strict=True):
            batch = here & (begin == at)
            assert len(np.unique(columns["runtime"][batch])) == 1 or zero_time(program)
            runtime = program.runtimes[columns["runtime"][batch][0]]
            assert rows_there <= runtime.max_batch or zero_time(program)
        answered = here & (columns["latency_ns"] >= 0)
        order = np.argsort(begin[answered], kind="stable")
        first, last = begin[answered][order], ends[answered][order]
        assert (last >= first).all()
        overlap = (first[1:] < last[:-1]) & (first[1:] != first[:-1])
        assert not overlap.any(), "a worker executes one batch at a time"


def zero_time(program: Program) -> bool:
    """Some execution takes no time: then one may begin at the instant at which another does."""
    return any(min(ns for _, _, ns in (r.truth or r.latency)) < 2 for r in program.runtimes)


def workers_rest_when_they_must(seen: Watched) -> None:
    """Nothing that is answered runs on a worker at an instant at which it loads or is gone, nor ever after."""
    columns, settings_ = seen.columns, seen.program.settings
    began = columns["wait_ns"] >= 0
    begin = columns["arrived_ns"] + columns["wait_ns"]
    answered = columns["latency_ns"] >= 0
    end = columns["arrived_ns"] + columns["latency_ns"] - settings_.hop_back - settings_.overhead
    for worker, at in seen.no_begin:
        there = answered & (columns["worker"] == worker)
        assert not ((begin[there] < at) & (end[there] > at)).any()
    workers = seen.sim.workers()
    for gone in np.flatnonzero(workers["state"] == GONE):
        assert (begin[began & (columns["worker"] == gone)] <= workers["since_ns"][gone]).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_same_program_same_result_and_columns_change_nothing(policy: str) -> None:
    """Fed at once or in pieces, with columns or without, looked at or not: the same, to the last bit."""

    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=15, deadline=None)
    def check(seed: int) -> None:
        program = made(policy, seed, 300)
        one, again = Watched(program), Watched(program, pieces=False)
        assert rows(one.columns) == rows(again.columns)
        without = Watched(program, record=False)
        assert not any(len(column) for column in without.columns.values())
        for other in (again, without):
            assert one.sim.totals() == other.sim.totals()
            assert rows(one.sim.workers()) == rows(other.sim.workers())
            assert rows(one.sim.runtimes()) == rows(other.sim.runtimes())
            assert [c.tolist() for c in one.sim.histogram()] == [c.tolist() for c in other.sim.histogram()]

    check()


@pytest.mark.parametrize("policy", ["ilb", "uniform", "late"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_first_come_first_served(policy: str, seed: int) -> None:
    """One level, workers alike, nothing fails: requests begin in the order of arrival, those of one worker at least."""
    runtime = Runtime(max_length=64, capacity=3, latency=[(64, 1, 4), (64, 3, 7)], max_batch=1 + seed % 3)
    program = made("uniform", seed, 200)
    sim = _core.Simulation(policy, slo=10, record=True, noise=np.array([0.5, 1.0, 2.0]), seed=seed)
    add_runtime(sim, runtime)
    for _ in range(1 + seed % 4):
        sim.add_worker(0, 0)
    feed(sim, [(at, 1 + length % 64) for at, length in program.arrivals])
    sim.finish()
    columns = sim.columns()
    begin = columns["arrived_ns"] + columns["wait_ns"]
    assert (columns["outcome"] <= LATE).all()
    for worker in range(1 + seed % 4):
        assert (np.diff(begin[columns["worker"] == worker]) >= 0).all()
    if policy == "late":
        assert (np.diff(begin) >= 0).all()


def test_memory_of_what_has_left_is_used_again() -> None:
    """A million requests in pieces: the process does not grow once it has seen some of them."""

    def resident_kb() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    sim = _core.Simulation("rs", slo=10**9, timeout=10**9)
    sim.add_runtime(64, 10, [(64, 1, 900)])
    for _ in range(4):
        sim.add_worker(0, 0)
    lengths = np.full(50_000, 30, np.int32)
    for piece in range(20):
        sim.feed(np.arange(50_000, dtype=np.int64) * 250 + piece * 12_500_000, lengths)
        sim.advance((piece + 1) * 12_500_000)
        if piece == 3:
            before = resident_kb()
    assert sim.totals()["on_time"] > 999_000
    assert resident_kb() - before < 3_000  # a request that stays takes 120 bytes and more: 96 MB in all
