"""The simulator against a plain one, over random programs: the same columns, workers and sums, to the last bit."""

from __future__ import annotations

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
    fast, plain = engine(program.settings), PlainSimulation(program.settings)
    add_all(fast, program)
    for runtime in program.runtimes:
        plain.add_runtime(runtime)
    for members, limit in program.bundles:
        plain.add_bundle(members, limit)
    for first, at in program.first:
        plain.add_worker(first, at)
    feed(fast, program.arrivals)
    plain.feed(program.arrivals)
    for what in program.acts:
        fast.advance(what[0])
        plain.advance(what[0])
        same_state(fast, plain)
        states = [w.state for w in plain.workers]
        act(fast, what, states)
        act(plain, what, states)
        same_state(fast, plain)
    fast.finish()
    plain.finish()
    same_state(fast, plain)
    assert rows(fast.columns()) == plain.columns()
    same_sums(fast, plain)


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
    runtimes = fast.runtimes()
    for id_, runtime in enumerate(plain.runtimes):
        here = [r for r in executed if r.runtime == id_]
        expected = (len(here), sum(r.demoted for r in here), plain.batches[id_], plain.runtime_busy[id_])
        assert tuple(column[id_] for column in runtimes.values()) == expected, runtime
