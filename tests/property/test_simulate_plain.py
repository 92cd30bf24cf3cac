"""The simulator against a plain one, over random programs: the same columns, workers and sums, to the last bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from arlo import _core
from tests.property.plain_simulation import OUTCOMES, PlainSimulation
from tests.property.simulations import POLICIES, Program, act, add_all, engine, feed, programs, rows


@pytest.mark.parametrize("policy", POLICIES)
def test_same_as_the_plain_one(policy: str) -> None:
    @given(program=programs(policy))
    @settings(max_examples=120, deadline=None)
    def check(program: Program) -> None:
        run_both(program)

    check()


def run_both(program: Program) -> None:
    """A third run is fed in pieces, keeps no columns and is never inspected; it must end the same."""
    fast, bare = engine(program.settings), engine(program.settings, record=False)
    plain, recent, fed = PlainSimulation(program.settings), Recent(), 0
    add_all(fast, program)
    add_all(bare, program)
    for runtime in program.runtimes:
        plain.add_runtime(runtime)
    for members, limit in program.bundles:
        plain.add_bundle(members, limit)
    for first, at in program.first:
        plain.add_worker(first, at)
    feed(fast, program.arrivals)
    plain.feed(program.arrivals)
    for what in program.acts:
        upto = next((i for i, (at, _) in enumerate(program.arrivals) if at >= what[0]), len(program.arrivals))
        feed(bare, program.arrivals[fed:upto])
        fed = upto
        for each in (fast, bare, plain):
            each.advance(what[0])
        same_state(fast, plain)
        recent.take(fast)
        states = [w.state for w in plain.workers]
        for each in (fast, bare, plain):
            act(each, what, states)
        same_state(fast, plain)
    feed(bare, program.arrivals[fed:])
    for each in (fast, bare, plain):
        each.finish()
    same_state(fast, plain)
    recent.take(fast)
    assert rows(fast.columns()) == plain.columns()
    same_sums(fast, plain)
    recent.check(plain)
    assert not any(len(column) for column in bare.columns().values())
    assert bare.totals() == fast.totals()
    assert rows(bare.workers()) == rows(fast.workers())
    assert rows(bare.runtimes()) == rows(fast.runtimes())
    assert [each.tolist() for each in bare.histogram()] == [each.tolist() for each in fast.histogram()]


class Recent:
    """The sums of all that take_recent() returned."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.histogram = np.zeros(4000, np.uint64)

    def take(self, fast: _core.Simulation) -> None:
        counts, histogram = fast.take_recent()
        self.counts.update(counts)
        self.histogram[: len(histogram)] += histogram

    def check(self, plain: PlainSimulation) -> None:
        everyone = [r for r in plain.requests if not r.bulk]
        latency = [r.latency for r in everyone if r.latency is not None]
        assert self.counts["arrived"] == len(everyone)
        assert self.counts["answered"] == len(latency)
        assert self.counts["unanswered"] == len(everyone) - len(latency)
        assert self.counts["on_time"] == sum(r.outcome == "on_time" for r in everyone)
        assert self.counts["latency_sum_ns"] == sum(latency)
        edges = _core.Simulation.recent_bucket_ns(len(self.histogram) + 1)
        assert (np.diff(edges) > 0).all()
        assert self.histogram.tolist() == np.histogram(latency, edges)[0].tolist()


def same_state(fast: _core.Simulation, plain: PlainSimulation) -> None:
    assert rows(fast.workers()) == plain.states()
    assert fast.queued == plain.scheduler.queued()
    assert fast.in_flight == plain.scheduler.in_flight()
    assert fast.now == plain.now


def same_sums(fast: _core.Simulation, plain: PlainSimulation) -> None:
    """Totals and runtimes, from the plain one's list of requests."""
    everyone = [r for r in plain.requests if r.arrived >= plain.settings.warmup]
    bulk, counted = [r for r in everyone if r.bulk], [r for r in everyone if not r.bulk]
    answers = [r for r in counted if r.latency is not None]
    executed = [r for r in everyone if r.latency is not None]
    computed = [plain.runtimes[r.runtime] for r in executed]
    totals = fast.totals()
    padded = totals.pop("padded_tokens")
    assert totals == {
        "arrived": len(counted),
        **{outcome: sum(r.outcome == outcome for r in counted) for outcome in OUTCOMES},
        "demoted": sum(r.demoted for r in answers),
        "retried": plain.retried,
        "tokens": sum(r.length for r in executed),
        "bulk_arrived": len(bulk),
        "bulk_answered": sum(r.latency is not None for r in bulk),
        "bulk_latency_sum_ns": sum(r.latency or 0 for r in bulk),
        "latency_sum_ns": sum(r.latency or 0 for r in answers),
        "wait_sum_ns": sum((r.begun or 0) - r.arrived for r in answers),
        "execute_sum_ns": sum(r.executed for r in answers),
        "batches": plain.counted_batches,
        "rows": plain.counted_rows,
        "latency_max_ns": max((r.latency or 0 for r in answers), default=0),
    }
    if not any(runtime.dynamic for runtime in computed):
        assert padded == sum(runtime.max_length for runtime in computed)
    assert padded >= totals["tokens"]
    lower, counts = fast.histogram()
    latency = [r.latency or 0 for r in answers]
    assert counts.tolist() == np.histogram(latency, np.append(lower, max(latency, default=0) + 1))[0].tolist()
    by_length = fast.arrivals_by_length()
    lengths = [r.length for r in plain.requests]
    assert by_length.tolist() == np.bincount(lengths, minlength=len(by_length)).tolist()
    runtimes = fast.runtimes()
    for id_, runtime in enumerate(plain.runtimes):
        here = [r for r in executed if r.runtime == id_]
        expected = (len(here), sum(r.demoted for r in here), plain.batches[id_], plain.runtime_busy[id_])
        assert tuple(column[id_] for column in runtimes.values()) == expected, runtime


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
