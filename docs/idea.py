"""Arlo's idea in plain Python: how a row of text finds its line, its worker, its batch, and keeps its time.

An encoder pads every row of a batch to one length: where that is 512, a row of 20 tokens costs what one of 500 does. So
the model is compiled for several lengths, and each worker has one of them. A row waits in the line of its *home*, the
shortest length that takes it, and starts as soon as a worker is idle there; or on an idle longer one, if it is done
there no later than the line at home would be. A worker that gets free takes its own line, unless its help in a shorter
one saves clearly more than its own loses. Along go the rows that came first, as far as all of them stay on time.

tests/property/test_idea.py holds each decision equal to the scheduler's. Left out: rows that cannot be on time any more
(they yield to those that can), several models or lengths on one worker, priorities, retries. src/dispatch has them."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Runtime:
    length: int  # tokens of its rows, at most
    batch_ns: tuple[int, ...]  # what 1, 2, ... rows take together
    capacity: int  # rows that a worker does one after the other in the time that clients give

    def share(self) -> int:  # what a row takes of a worker whose batches are full
        return self.batch_ns[-1] // len(self.batch_ns)

    def rows_within(self, part: int) -> int:
        """The smallest batch whose rows cost at most 1/part more than those of the best one."""
        each = [time // rows for rows, time in enumerate(self.batch_ns, 1)]
        return next(rows for rows, one in enumerate(each, 1) if one <= min(each) + min(each) // part)


@dataclass(eq=False)
class Row:
    number: int  # in the order of arrival
    length: int
    due: int  # when its batch should have ended


@dataclass(eq=False)
class Worker:
    home: int  # place of its length among all
    runtime: Runtime
    free: int = 0  # when its batch ends
    rows: list[Row] = field(default_factory=list)  # of that batch; empty: it is idle
    passed: int = 0  # turns in a row in which its own line waited


class Scheduler:
    """`homes`: which of the runtimes, shortest first, each worker has. An event returns the batches that start."""

    def __init__(self, runtimes: list[Runtime], homes: list[int]) -> None:
        self.runtimes, self.workers = runtimes, [Worker(home, runtimes[home]) for home in homes]
        self.lines: list[list[Row]] = [[] for _ in runtimes]
        self.arrived = 0

    def arrive(self, length: int, due: int, now: int) -> list[tuple[Worker, list[Row]]]:
        row = Row(self.arrived, length, due - (due - now) // 16)  # aim early: half of all forecasts are too low
        home, self.arrived, started = self.home(length), self.arrived + 1, []
        line = self.lines[home]
        if not line and (worker := self.idle_for(home, now)):
            return [self.begin(worker, [row], now)]
        line.append(row)
        while line[:-1] and (worker := self.idle_for(home, now)) and self.on_time(worker, line[0], now):
            started.append(self.begin(worker, self.batch(worker, line[0], now), now))
        return started

    def end(self, worker: Worker, now: int) -> list[tuple[Worker, list[Row]]]:
        worker.rows = []
        if not any(self.lines) or not (first := self.next_for(worker, now)) or not self.on_time(worker, first, now):
            return []
        return [self.begin(worker, self.batch(worker, first, now), now)]

    def home(self, length: int) -> int:
        return next(i for i, runtime in enumerate(self.runtimes) if length <= runtime.length)

    def idle_for(self, home: int, now: int) -> Worker | None:
        """Who should start the first row of this line; None: it had better wait."""
        idle = [worker for worker in self.workers if worker.home >= home and not worker.rows]
        best = min(idle, key=lambda worker: (worker.runtime.batch_ns[0], worker.home), default=None)
        if best is None or any(worker.home == home for worker in idle):
            return best
        return best if now + best.runtime.batch_ns[0] <= self.line_done(home, now) else None

    def line_done(self, home: int, now: int) -> int:
        """When the last row of this line would be done by the workers of its home alone."""
        runtime, waiting = self.runtimes[home], len(self.lines[home])
        free = [worker.free if worker.rows else now for worker in self.workers if worker.home == home]
        first = self.turn(runtime, waiting, waiting)
        return min(free) + runtime.batch_ns[first - 1] + max(waiting - first, 0) * runtime.share() // len(free)

    def turn(self, runtime: Runtime, in_line: int, in_all: int) -> int:
        """Rows that a turn must have time for: one; more where lines are long, for small batches would not pay then."""
        return 1 if in_all <= 4 * runtime.rows_within(50) else max(min(in_line, runtime.rows_within(4)), 1)

    def next_for(self, worker: Worker, now: int) -> Row | None:
        """The row that a free worker takes next."""
        own, runtime, done = self.lines[worker.home], worker.runtime, now + worker.runtime.batch_ns[0]
        best, gain, passed, worker.passed = (own[0] if own else None), -1, worker.passed, 0
        if own:
            workers = sum(other.home == worker.home for other in self.workers)
            gain = 3 * (len(own) * runtime.share() // workers) // 2 + 3 * (done - now) - 1
            if passed >= 3 or done + (done - now) > own[0].due:
                return best
        for home, line in enumerate(self.lines[: worker.home]):
            if line and done <= line[0].due:
                there, late = self.line_done(home, now), now + runtime.capacity * runtime.share()
                if own and there > late:  # too late in any case, which the own line need not be
                    there = late + (there - late) // 8
                if there - done > gain:
                    best, gain, worker.passed = line[0], there - done, passed + 1 if own else 0
        return best

    def on_time(self, worker: Worker, first: Row, now: int) -> bool:
        rows = self.turn(worker.runtime, len(self.lines[self.home(first.length)]), sum(map(len, self.lines)))
        return now + worker.runtime.batch_ns[rows - 1] <= first.due

    def batch(self, worker: Worker, first: Row, now: int) -> list[Row]:
        rows = [first]
        fitting = [row for line in self.lines[: worker.home + 1] for row in line if row is not first]
        for row in sorted(fitting, key=lambda row: row.number):
            ends = now + worker.runtime.batch_ns[min(len(rows), len(worker.runtime.batch_ns) - 1)]
            if len(rows) == worker.runtime.rows_within(50) or ends > min(each.due for each in rows):
                break
            if ends <= row.due:
                rows.append(row)
        return rows

    def begin(self, worker: Worker, rows: list[Row], now: int) -> tuple[Worker, list[Row]]:
        for line in self.lines:
            line[:] = [row for row in line if row not in rows]
        worker.rows, worker.free = rows, now + worker.runtime.batch_ns[len(rows) - 1]
        return worker, rows


if __name__ == "__main__":
    runtimes = [Runtime(n, tuple(10**6 + 20_000 * n * rows for rows in range(1, 17)), 20) for n in (64, 128, 512)]
    scheduler, chance = Scheduler(runtimes, [0, 0, 1, 1, 2, 2]), random.Random(1)
    events = sorted((round(chance.uniform(0, 1e10)), i, -1) for i in range(10_000))  # when, tie, worker that is free
    batches = padded = tokens = 0
    while events:
        now, _, free = heapq.heappop(events)
        length = min(512, 1 + round(chance.lognormvariate(3.5, 1)))
        event = scheduler.end(scheduler.workers[free], now) if free >= 0 else scheduler.arrive(length, now + 10**8, now)
        for worker, rows in event:
            batches, tokens = batches + 1, tokens + sum(row.length for row in rows)
            padded += worker.runtime.length * len(rows)
            heapq.heappush(events, (worker.free, 10_000 + batches, scheduler.workers.index(worker)))
    print(f"10000 rows in {batches} batches: {tokens} tokens, {padded} with padding; one length: {512 * 10_000}")
