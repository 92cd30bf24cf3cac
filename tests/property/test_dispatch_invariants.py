"""What holds for eft and late, whatever happens: both weigh predicted times, and the predictions here are often wrong.

That a request ends once, runs on a level that fits it and within the limit of its instance is asserted by the driver,
at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo import _core
from tests.property.programs import ALL_KINDS, Call, Driver, Event, events, fleet


@dataclass
class LateDriver(Driver):
    """Also knows the requests that a draining instance has kept for itself."""

    stranded: dict[int, set[int]] = field(default_factory=dict)  # tags by instance

    def resolve(self, event: Event) -> Call | None:
        call = super().resolve(event)
        if call is not None and call[0] in {"drain", "leave"}:
            self.stranded.setdefault(int(str(call[1])), set())
        return call

    def do_drain(self, instance: int) -> tuple[bool, list[_core.Action]]:
        view = self.scheduler.view(instance)
        length = self.runtimes[view.runtime]
        if view.state is _core.InstanceState.ACTIVE:
            others = max((fits for fits, i in self.active() if i != instance), default=0)
            self.stranded[instance] = {t for t in self.waiting if others < self.lengths[t] <= length}
        return super().do_drain(instance)

    def do_leave(self, instance: int) -> tuple[None, list[_core.Action]]:
        self.stranded[instance].clear()
        return super().do_leave(instance)

    def in_line(self) -> list[int]:
        """Waiting requests that are bound to no instance, by admission."""
        return sorted(self.waiting.difference(*self.stranded.values()))

    def take(self, actions: list[_core.Action]) -> None:
        for action in actions:
            if action.kind is _core.ActionKind.START and action.tag in self.in_line():
                self.first_in_line(action)
            super().take([action])

    def first_in_line(self, action: _core.Action) -> None:
        """Nobody with the same ideal level who was never retried has waited longer."""
        level = self.scheduler.ideal_level(self.lengths[action.tag])
        ahead = [
            tag
            for tag in self.in_line()
            if tag < action.tag and tag not in self.avoid and self.scheduler.ideal_level(self.lengths[tag]) == level
        ]
        assert action.tag in self.avoid or action.tag in self.limited or not ahead, "first come, first served"


def run(driver: Driver, start: list[Event], program: list[Event], max_queued: int) -> None:
    for event in start + program:
        driver.now += event[3]
        call = driver.resolve(event)
        if call is None:
            continue
        answer, _ = driver.do(call)
        if answer in {"QUEUED", "PARKED"} and call[0] == "arrive":
            assert driver.scheduler.queued() <= max_queued
        if isinstance(driver, LateDriver):
            no_room_at_home(driver)


def no_room_at_home(driver: LateDriver) -> None:
    active = driver.active()
    if driver.limited.intersection(driver.in_line()):
        return  # one that this instance could not serve in time, and another can, keeps its place
    for tag in driver.in_line():
        fitting = [(length, i) for length, i in active if length >= driver.lengths[tag]]
        for length, instance in fitting:
            kept_off = driver.avoid.get(tag) == instance and len(fitting) > 1
            if length == fitting[0][0] and not kept_off:
                room = driver.limits[instance] - driver.scheduler.view(instance).in_flight
                assert room == 0, "a request waits, and its home has room"


def wind_down(driver: Driver) -> None:
    """All that has started finishes, all that is lost is given up; only what no instance fits is left."""
    driver.now += 1000
    driver.do(("expire",))
    while driver.started or driver.lost:
        for tag in sorted(driver.lost):
            driver.do(("abandon", tag))
        for tag in sorted(driver.started):
            driver.do(("finish", tag))
    longest = max((length for length, _ in driver.active()), default=0)
    assert all(driver.lengths[tag] > longest for tag in driver.waiting)
    assert driver.scheduler.parked() == len(driver.waiting)
    assert set(driver.ends) | driver.waiting == set(driver.lengths), "every request that was admitted has one end"


@pytest.mark.parametrize("policy", ["eft", "late"])
@given(start=fleet(), program=events(ALL_KINDS), max_queued=st.one_of(st.integers(0, 12), st.just(100)))
@settings(max_examples=150, deadline=None)
def test_invariants(policy: str, start: list[Event], program: list[Event], max_queued: int) -> None:
    scheduler = _core.Scheduler(policy, max_queued=max_queued)
    driver = LateDriver(scheduler, fair=False) if policy == "late" else Driver(scheduler)
    run(driver, start, program, max_queued)
    wind_down(driver)
