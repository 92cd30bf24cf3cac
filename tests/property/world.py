"""Workers in virtual time around the scheduler: what a gateway does, without a gateway.

A worker executes what has been started on it one after another, each for the time of its level (times noise), whether
or not its client has gone. The scheduler learns of an end at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

from arlo import _core

MS = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Level:
    max_length: int
    workers: int
    took: int  # ns, an execution


@dataclass
class Row:
    at: int
    length: int
    client: int = 0
    outcome: str = "open"
    started: int | None = None
    ended: int | None = None

    @property
    def waited(self) -> int:
        assert self.started is not None
        return self.started - self.at


@dataclass
class World:
    levels: list[Level]
    policy: str
    slo: int | None = None
    timeout: int | None = None
    limit: int = 2
    noise: float = 0.0  # executions take 1 +- noise times as long
    seed: int = 1
    max_queued: int = 4096
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.scheduler = _core.Scheduler(self.policy, max_queued=self.max_queued)
        self.took: dict[int, int] = {}  # by instance
        self.inbox: dict[int, list[int]] = {}  # tags started there, the first one executes
        self.handles: dict[int, int] = {}
        self.ends: list[tuple[int, int, int]] = []
        self.order = count()
        for level in self.levels:
            capacity = max(1, (self.slo or 150 * MS) // level.took)
            runtime = self.scheduler.add_runtime(level.max_length, capacity, [(level.max_length, 1, level.took)])
            for _ in range(level.workers):
                instance, _ = self.scheduler.join(runtime, self.limit, 0)
                self.took[instance] = level.took
                self.inbox[instance] = []

    def run(self, arrivals: Iterable[Row]) -> list[Row]:
        """All arrivals, in order, and then until nothing runs; the rows with what became of them."""
        tick = 10 * MS  # the gateway looks at what waits every 10 ms
        looked = 0
        for row in arrivals:
            while self.ends and self.ends[0][0] <= row.at:
                self.finish()
            if row.at - looked >= tick:
                looked = row.at
                self.take(self.scheduler.expire(row.at), row.at)
            tag = len(self.rows)
            self.rows.append(row)
            admission, handle, actions = self.scheduler.arrive(
                tag,
                row.length,
                row.at,
                None if self.timeout is None else row.at + self.timeout,
                due=None if self.slo is None else row.at + self.slo,
                client=row.client,
            )
            if handle is None:
                row.outcome = admission.name.lower()
            else:
                self.handles[tag] = handle
            self.take(actions, row.at)
        while self.ends:
            self.finish()
        return self.rows

    def finish(self) -> None:
        now, _, instance = heapq.heappop(self.ends)
        tag = self.inbox[instance].pop(0)
        row = self.rows[tag]
        row.ended = now
        row.outcome = "late"
        if self.slo is None or now <= row.at + self.slo:
            row.outcome = "on_time"
        elif self.timeout is not None and now > row.at + self.timeout:
            row.outcome = "gone"
        if self.inbox[instance]:
            self.execute(instance, now)
        self.take(self.scheduler.finish(self.handles.pop(tag), now), now)

    def take(self, actions: list[_core.Action], now: int) -> None:
        for action in actions:
            row = self.rows[action.tag]
            if action.kind is _core.ActionKind.EXPIRED:
                row.outcome, row.ended = "expired", now
                continue
            assert action.kind is _core.ActionKind.START
            assert action.instance is not None
            row.started = now
            self.inbox[action.instance].append(action.tag)
            assert len(self.inbox[action.instance]) <= self.limit
            if len(self.inbox[action.instance]) == 1:
                self.execute(action.instance, now)

    def execute(self, instance: int, now: int) -> None:
        took = round(self.took[instance] * (1 + self.noise * (2 * self.random.random() - 1)))
        heapq.heappush(self.ends, (now + took, next(self.order), instance))


def poisson(rate: float, seconds: float, length: int, *, seed: int, start_s: float = 0.0, client: int = 0) -> list[Row]:
    """Arrivals at `rate` a second."""
    random = Random(seed)
    rows: list[Row] = []
    at = start_s
    while True:
        at += random.expovariate(rate)
        if at >= start_s + seconds:
            return rows
        rows.append(Row(round(at * SECOND), length, client))


def merged(*streams: list[Row]) -> Iterator[Row]:
    """All of them in order of arrival."""
    return heapq.merge(*streams, key=lambda row: row.at)


def share(rows: Iterable[Row], outcome: str = "on_time") -> float:
    """Of the rows, those with this outcome; 1 of none."""
    rows = list(rows)
    return sum(row.outcome == outcome for row in rows) / len(rows) if rows else 1.0
