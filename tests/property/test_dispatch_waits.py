"""The bounds on waiting that scheduler.h names, under a backlog elsewhere that never ends; and what one client does."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo import _core
from tests.property.world import MS, SECOND, Level, Row, World, merged, poisson, share

ALL = ["rs", "ilb", "ig", "infaas", "uniform", "eft", "late"]
SHORT, LONG = 2 * MS, 5 * MS


@dataclass
class Backlog:
    """Short requests without end, and a few long ones: how many executions end before each long one starts."""

    policy: str
    limited: bool  # requests are due 10 ms after they come
    limit: int

    def __post_init__(self) -> None:
        self.scheduler = _core.Scheduler(self.policy, max_queued=100_000)
        lengths = [(512, LONG)] if self.policy == "uniform" else [(128, SHORT), (512, LONG)]
        self.longest = 0
        for length, took in lengths:
            runtime = self.scheduler.add_runtime(length, 1000, [(length, 1, took)])
            self.longest, _ = self.scheduler.join(runtime, self.limit, 0)
        self.now = 0
        self.tag = 0
        self.handles: dict[int, int] = {}
        self.running: dict[int, list[int]] = {0: [], 1: []}  # tags by instance
        self.ahead: dict[int, int] = {}  # of long ones that wait: those of the same line before it, running ones too
        self.turns: dict[int, int] = {}  # starts on the longest instance since it came
        self.worst: list[tuple[int, int]] = []  # turns, ahead

    def arrive(self, length: int) -> None:
        due = self.now + 10 * MS if self.limited else None
        self.tag += 1
        ahead = len(self.ahead) + self.scheduler.view(self.longest).in_flight
        ahead += self.scheduler.view(self.longest).queued
        _, handle, actions = self.scheduler.arrive(self.tag, length, self.now, due=due)
        assert handle is not None, "nothing has a deadline"
        self.handles[self.tag] = handle
        if length > 128:
            self.ahead[self.tag] = ahead
            self.turns[self.tag] = 0
        self.take(actions)

    def take(self, actions: list[_core.Action]) -> None:
        for action in actions:
            assert action.kind is _core.ActionKind.START
            assert action.instance is not None
            self.running[action.instance].append(action.tag)
            if action.tag in self.ahead:
                self.worst.append((self.turns.pop(action.tag), self.ahead.pop(action.tag)))
            if action.instance == self.longest:
                for tag in self.turns:
                    self.turns[tag] += 1

    def finish(self, instance: int) -> None:
        self.now += SHORT if instance != self.longest else LONG
        tag = self.running[instance].pop(0)
        self.take(self.scheduler.finish(self.handles.pop(tag), self.now))


@pytest.mark.parametrize("policy", ALL)
@given(
    program=st.lists(st.sampled_from(["short", "short", "short", "long", "low ends", "high ends"]), max_size=150),
    limited=st.booleans(),
    limit=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_the_longest_wait_is_bounded(policy: str, program: list[str], *, limited: bool, limit: int) -> None:
    backlog = Backlog(policy, limited, limit)
    for _ in range(30):
        backlog.arrive(100)
    for step in [*program, *["short", "high ends"] * 400]:
        if step in {"short", "long"}:
            backlog.arrive(100 if step == "short" else 400)
        else:
            instance = backlog.longest if step == "high ends" or backlog.longest == 0 else 0
            if backlog.running[instance]:
                backlog.finish(instance)
    most = 32 if limited else 4 if policy == "late" else 1
    still = [(turns, backlog.ahead[tag]) for tag, turns in backlog.turns.items()]
    for turns, ahead in backlog.worst + still:
        # All that is overdue shares one line's turns, short ones that came before among them.
        before = ahead + (30 + len(program) + 400 if limited else 0)
        assert turns <= most * (before + 1)
    if not limited:
        assert not still, "all have started"


@pytest.mark.parametrize("policy", ["rs", "ilb", "ig", "infaas", "eft", "late"])
@pytest.mark.parametrize("open_requests", [1, 4])
def test_one_client_with_many_rows_does_not_make_others_late(policy: str, open_requests: int) -> None:
    """256 rows of 300 tokens at a time, the next 256 when they would be done; others send single rows of any length."""
    levels = [Level(128, 2, 1_600_000), Level(512, 2, 4_900_000)]
    round_s = 0.65 * open_requests
    heavy = [
        Row(round(k * round_s * SECOND), 300, 1) for k in range(int(6 / round_s)) for _ in range(256 * open_requests)
    ]
    light = [*poisson(40, 6, 300, seed=4, client=2), *poisson(40, 6, 60, seed=5, client=3)]
    world = World(levels, policy, slo=150 * MS, timeout=10 * SECOND)
    rows = world.run(merged(sorted(light, key=lambda r: r.at), heavy))
    # infaas fills a worker up to its SLO before it looks at the next.
    assert share(r for r in rows if r.client != 1) >= (0.95 if policy == "infaas" else 0.99)
    assert share((r for r in rows if r.client == 1), "full") == 0


def test_a_greedy_client_gets_no_more_than_the_others() -> None:
    """Three clients offer 900, 300 and 300 rows/s to workers that do 400."""
    world = World([Level(512, 2, 5 * MS)], "late", slo=150 * MS, timeout=1500 * MS)
    streams = [poisson(300 * (1 + 2 * (client == 1)), 5, 300, seed=client, client=client) for client in (1, 2, 3)]
    rows = world.run(merged(*streams))
    served = [sum(r.outcome == "on_time" for r in rows if r.client == client) for client in (1, 2, 3)]
    assert min(served[1:]) >= 0.95 * max(served), served
    assert served[0] >= 0.5 * max(served), served
