"""The heaps decide exactly as a linear scan does, over random programs of all events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo import _core
from tests.property.linear_scan import LinearEft, LinearScan
from tests.property.programs import ALL_KINDS, Driver, Event, events, fleet


@pytest.mark.parametrize("policy", ["rs", "ilb", "ig", "uniform", "infaas", "eft"])
@given(
    start=fleet(),
    program=events(ALL_KINDS),
    max_queued=st.one_of(st.integers(0, 12), st.just(100)),
    max_peek=st.integers(1, 4),
    lambda_=st.sampled_from([0.5, 0.85, 1.0]),
    alpha=st.sampled_from([0.5, 0.9, 1.0]),
)
@settings(max_examples=150, deadline=None)
def test_same_decisions_as_a_linear_scan(
    *,
    policy: str,
    start: list[Event],
    program: list[Event],
    max_queued: int,
    max_peek: int,
    lambda_: float,
    alpha: float,
) -> None:
    scheduler = _core.Scheduler(policy, lambda_=lambda_, alpha=alpha, max_peek=max_peek, max_queued=max_queued)
    driver = Driver(scheduler, one_length=policy == "uniform")
    plain = LinearEft if policy == "eft" else LinearScan
    dumb = plain(policy, lambda_, alpha, max_peek, max_queued)
    for event in start + program:
        driver.now += event[3]
        call = driver.resolve(event)
        if call is None:
            continue
        assert driver.do(call) == dumb.do(call, driver.now)
        same_state(driver, dumb)


def same_state(driver: Driver, dumb: LinearScan) -> None:
    scheduler = driver.scheduler
    assert scheduler.parked() == dumb.unserved()
    assert scheduler.overdue() == len(dumb.overdue)
    assert set(driver.present()) == set(dumb.instances)
    for instance in dumb.instances.values():
        view = scheduler.view(instance.id)
        assert (view.in_flight, view.queued) == (len(instance.started), len(instance.waiting))
    deadlines = [r.deadline for r in dumb.all_waiting() if r.deadline is not None]
    at = scheduler.next_deadline()
    assert not deadlines or (at is not None and at <= min(deadlines)), "never late"
