"""The simulator's event loop written as plainly as it can be: lists, linear scans, one scheduler.

The rules stand in src/simulate/engine.h. It answers as arlo._core.Simulation does, so that both run the same program
and must give the same columns. Decisions come from the very same scheduler; what is compared is everything around it:
the order of events, batches, workers that come and go, the books.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import takewhile

from arlo import _core

STARTING, SERVING, DRAINING, GONE = range(4)
OUTCOMES = ("on_time", "late", "rejected", "expired", "failed")
MASK = 2**64 - 1
Points = list[tuple[int, int, int]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of arlo._core.Simulation."""

    policy: str
    slo: int
    max_peek: int = 6
    max_queued: int = 4096
    timeout: int | None = None
    overhead: int = 0
    hop_out: int = 0
    hop_back: int = 0
    retries: int = 2
    seed: int = 0
    warmup: int = 0
    noise: tuple[float, ...] = ()
    batching: str = "one"
    bulk_share: float = 0.0

    def patience(self, bulk: bool) -> int | None:
        """How long a client waits."""
        return self.timeout if self.timeout is None or not bulk else 60 * self.timeout


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The arguments of Simulation.add_runtime."""

    max_length: int
    capacity: int
    latency: Points
    max_batch: int = 1
    dynamic: bool = False
    inflight_limit: int = 1
    truth: Points | None = None


@dataclass
class Request:
    number: int
    arrived: int
    length: int
    bulk: bool = False
    handle: int | None = None
    lost: int = 0
    begun: int | None = None
    executed: int = 0
    worker: int = -1
    runtime: int = -1
    demoted: bool = False
    at_worker: int | None = None  # when it is there
    on: int = -1  # the runtime that it was started for
    batch: int | None = None  # that it was started in
    returning: bool = False
    latency: int | None = None
    outcome: str | None = None


@dataclass
class Worker:
    id: int
    runtime: int
    since: int
    state: int = STARTING
    instance: int | None = None
    join: tuple[int, int] | None = None  # when, and which in order
    after_drain: tuple[int, int] | None = None  # runtime, delay
    slow: float = 1.0
    inbox: list[Request] = field(default_factory=list)
    batch: list[Request] = field(default_factory=list)
    begun: int = 0
    ends: int = 0
    busy: int = 0
    served: int = 0


class PlainSimulation:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scheduler = _core.Scheduler(
            settings.policy, max_peek=settings.max_peek, max_queued=settings.max_queued, batching=settings.batching
        )
        self.truth = _core.Scheduler("rs")  # only asked for what an execution really takes
        self.runtimes: list[Runtime] = []
        self.batches: list[int] = []
        self.counted_batches, self.counted_rows = 0, 0
        self.runtime_busy: list[int] = []
        self.workers: list[Worker] = []
        self.requests: list[Request] = []
        self.fed: list[tuple[int, int]] = []
        self.learning: list[tuple[int, Request]] = []
        self.now = 0
        self.joins = 0
        self.retried = 0

    # -- what the caller does --------------------------------------------------------------------------------------

    def add_runtime(self, runtime: Runtime) -> None:
        shape = {"max_batch": runtime.max_batch, "dynamic": runtime.dynamic}
        self.scheduler.add_runtime(runtime.max_length, runtime.capacity, runtime.latency, **shape)  # type: ignore[arg-type]
        self.truth.add_runtime(runtime.max_length, 1, runtime.truth or runtime.latency, **shape)  # type: ignore[arg-type]
        self.runtimes.append(runtime)
        self.batches.append(0)
        self.runtime_busy.append(0)

    def add_bundle(self, runtimes: list[int], inflight_limit: int) -> None:
        self.scheduler.add_bundle(runtimes)
        self.truth.add_bundle(runtimes)
        longest = max((self.runtimes[i] for i in runtimes), key=lambda runtime: runtime.max_length)
        self.runtimes.append(replace(longest, inflight_limit=inflight_limit))
        self.batches.append(0)
        self.runtime_busy.append(0)

    def add_worker(self, runtime: int, at: int) -> None:
        self.workers.append(Worker(len(self.workers), runtime, self.now))
        self.set_join(self.workers[-1], at)

    def replace(self, worker: int, runtime: int, delay: int) -> None:
        w = self.workers[worker]
        if w.state == STARTING:
            w.runtime = runtime
            self.set_join(w, self.now + delay)
        else:
            w.after_drain = (runtime, delay)
            self.drain(w)

    def remove(self, worker: int) -> None:
        w = self.workers[worker]
        if w.state == STARTING:
            self.become(w, GONE)
            w.join = None
        else:
            w.after_drain = None
            self.drain(w)

    def fail(self, worker: int, restart: int | None) -> None:
        w = self.workers[worker]
        returns = restart is not None
        actions: list[_core.Action] = []
        if w.state in (SERVING, DRAINING):
            if w.batch:
                self.count_busy(w, self.now - w.begun)
            w.batch, w.inbox = [], []
            assert w.instance is not None
            actions = self.scheduler.leave(w.instance, self.now)
            w.instance = None
        if w.state == DRAINING:
            if w.after_drain is None:
                returns = False
            else:
                w.runtime = w.after_drain[0]
        if returns:
            assert restart is not None
            self.become(w, STARTING)
            self.set_join(w, self.now + restart)
        else:
            self.become(w, GONE)
            w.join = None
        self.settle(actions)

    def slow(self, worker: int, factor: float) -> None:
        self.workers[worker].slow = factor

    def feed(self, arrivals: list[tuple[int, int]]) -> None:
        self.fed += arrivals

    # -- time ------------------------------------------------------------------------------------------------------

    def advance(self, until: int) -> None:
        self.run(until)
        self.now = until

    def finish(self) -> None:
        self.run(None)
        for request in self.requests:
            if request.outcome is None:
                assert request.handle is not None
                assert self.scheduler.cancel(request.handle, request.number, self.now)[0], "only what waits is left"
                request.outcome = "failed"

    def run(self, until: int | None) -> None:
        while True:
            due = self.due()
            if not due:
                return
            at, kind, _ = min(due)
            if until is not None and at >= until:
                return
            self.now = at
            self.handle(kind, min(due)[2])

    def due(self) -> list[tuple[int, int, int]]:
        """What comes: when, which kind (in the order of equal times), and of these which one."""
        events = []
        for w in self.workers:
            if w.batch:
                events.append((w.ends, 0, w.id))
            elif w.inbox:
                assert w.inbox[0].at_worker is not None
                events.append((w.inbox[0].at_worker, 0, w.id))
            if w.join is not None:
                events.append((w.join[0], 2, w.join[1]))
        if self.learning:
            events.append((self.learning[0][0], 1, 0))
        deadline = self.scheduler.next_deadline()
        if self.settings.timeout is not None and deadline is not None:
            events.append((max(deadline, self.now), 3, 0))
        if len(self.requests) < len(self.fed):
            events.append((self.fed[len(self.requests)][0], 4, 0))
        return events

    def handle(self, kind: int, which: int) -> None:
        actions: list[_core.Action] = []
        if kind == 0:
            w = self.workers[which]
            if w.batch:
                actions = self.execution_ends(w)
            self.settle(actions)
            self.begin(w)
        elif kind == 1:
            self.settle(self.answer(self.learning.pop(0)[1]))
        elif kind == 2:
            w = next(w for w in self.workers if w.join is not None and w.join[1] == which)
            w.join = None
            self.become(w, SERVING)
            w.instance, actions = self.scheduler.join(w.runtime, self.runtimes[w.runtime].inflight_limit, self.now)
            self.settle(actions)
        elif kind == 3:
            self.settle(self.scheduler.expire(self.now))
        else:
            self.arrive()

    def arrive(self) -> None:
        at, length = self.fed[len(self.requests)]
        drawn = mixed(~mixed(self.settings.seed) & MASK ^ len(self.requests)) >> 11
        bulk = drawn / 2**53 < self.settings.bulk_share
        request = Request(len(self.requests), at, length, bulk=bulk)
        self.requests.append(request)
        due = deadline = None
        patience = self.settings.patience(bulk)
        if patience is not None:
            due = None if bulk else at + max(self.settings.slo - self.settings.overhead, 0)
            deadline = at + max(patience - self.settings.overhead, 0)
        _, request.handle, actions = self.scheduler.arrive(
            request.number, length, self.now, deadline, due=due, bulk=bulk
        )
        if request.handle is None:
            request.outcome = "rejected"
        self.settle(actions)

    def execution_ends(self, w: Worker) -> list[_core.Action]:
        self.count_busy(w, w.ends - w.begun)
        rows, w.batch = w.batch, []
        self.batches[rows[0].on] += 1
        if w.begun >= self.settings.warmup:
            self.counted_batches += 1
            self.counted_rows += len(rows)
        w.served += len(rows)
        actions: list[_core.Action] = []
        for request in rows:
            if self.settings.hop_back == 0:
                actions += self.answer(request)
            else:
                request.returning = True
                self.learning.append((self.now + self.settings.hop_back, request))
        return actions

    def answer(self, request: Request) -> list[_core.Action]:
        assert request.handle is not None
        actions = self.scheduler.finish(request.handle, self.now)
        latency = self.now - request.arrived + self.settings.overhead
        patience = self.settings.patience(request.bulk)
        if patience is not None and latency > patience:
            request.outcome = "expired"
        else:
            request.outcome = "on_time" if request.bulk or latency <= self.settings.slo else "late"
            request.latency = latency
        w = self.workers[request.worker]
        if w.state == DRAINING and w.instance is not None and not self.scheduler.present(w.instance):
            self.emptied(w)
        return actions

    def settle(self, actions: list[_core.Action]) -> None:
        got: list[Worker] = []
        actions = list(actions)
        while actions:
            action = actions.pop(0)
            request = self.requests[action.tag]
            if action.kind is _core.ActionKind.EXPIRED:
                request.outcome = "expired"
            elif action.kind is _core.ActionKind.START:
                w = next(w for w in self.workers if w.instance == action.instance)
                request.worker, request.demoted, request.handle = w.id, action.demoted, action.handle
                request.at_worker = self.now + self.settings.hop_out
                assert action.runtime is not None
                request.on, request.batch = action.runtime, action.batch
                w.inbox.append(request)
                got.append(w)
            elif not request.returning:
                actions += self.lost(request)
        for w in got:
            self.begin(w)

    def lost(self, request: Request) -> list[_core.Action]:
        assert request.handle is not None
        request.lost += 1
        if request.lost > self.settings.retries:
            self.scheduler.abandon(request.handle)
            request.outcome = "failed"
            return []
        request.begun = None
        _, actions = self.scheduler.retry(request.handle, None, self.now)
        if not any(a.kind is _core.ActionKind.EXPIRED and a.tag == request.number for a in actions):
            self.retried += request.arrived >= self.settings.warmup
        return actions

    def begin(self, w: Worker) -> None:
        """An idle worker takes the batch that is there, or rows for the runtime of the first, up to its max_batch."""
        if w.batch:
            return
        here = [r for r in w.inbox if r.at_worker is not None and r.at_worker <= self.now]
        if not here:
            return
        first = here[0]
        if self.settings.batching == "one":
            rows = list(takewhile(lambda r: r.on == first.on, here))[: self.runtimes[first.on].max_batch]
        else:
            rows = [r for r in here if r is first or (first.batch is not None and r.batch == first.batch)]
        w.inbox = w.inbox[len(rows) :]
        w.batch = rows
        w.begun = self.now
        w.ends = self.now + self.execution_ns(w, rows)
        for request in rows:
            request.begun, request.executed, request.runtime = self.now, w.ends - w.begun, first.on

    def execution_ns(self, w: Worker, rows: list[Request]) -> int:
        took = self.truth.cost(rows[0].on, max(r.length for r in rows), len(rows))
        factor = self.noise(rows[0]) * w.slow
        exact = took * factor
        whole = math.floor(exact)
        return took if factor == 1 else whole + (1 if exact - whole >= 0.5 else 0)

    def noise(self, request: Request) -> float:
        if not self.settings.noise:
            return 1.0
        drawn = mixed(mixed(self.settings.seed) ^ (request.number * 256 | request.lost))
        return self.settings.noise[(drawn >> 32) * len(self.settings.noise) >> 32]

    # -- workers ---------------------------------------------------------------------------------------------------

    def drain(self, w: Worker) -> None:
        if w.state == DRAINING:
            return
        self.become(w, DRAINING)
        assert w.instance is not None
        gone, actions = self.scheduler.drain(w.instance, self.now)
        if gone:
            self.emptied(w)
        self.settle(actions)

    def emptied(self, w: Worker) -> None:
        w.instance = None
        if w.after_drain is None:
            self.become(w, GONE)
            return
        w.runtime, delay = w.after_drain
        self.become(w, STARTING)
        self.set_join(w, self.now + delay)

    def set_join(self, w: Worker, at: int) -> None:
        self.joins += 1
        w.join = (at, self.joins)

    def become(self, w: Worker, state: int) -> None:
        w.state, w.since = state, self.now

    def count_busy(self, w: Worker, took: int) -> None:
        w.busy += took
        self.runtime_busy[w.batch[0].on] += took

    # -- what is seen ----------------------------------------------------------------------------------------------

    def columns(self) -> list[tuple[int, ...]]:
        """Rows of arrived, length, variant, latency, wait, worker, runtime, outcome; -1 for none."""
        rows: list[tuple[int, ...]] = []
        for r in self.requests:
            assert r.outcome is not None
            latency = -1 if r.latency is None else r.latency
            where = (-1, -1, -1) if r.begun is None else (r.begun - r.arrived, r.worker, r.runtime)
            rows.append((r.arrived, r.length, 0, latency, *where, OUTCOMES.index(r.outcome)))
        return rows

    def states(self) -> list[tuple[int, ...]]:
        """Of each worker: runtime, state, waiting, executing, since, busy, served."""
        rows: list[tuple[int, ...]] = []
        for w in self.workers:
            waiting = len(w.inbox) + (0 if w.instance is None else self.scheduler.view(w.instance).queued)
            running = self.now - w.begun if w.batch else 0
            rows.append((w.runtime, w.state, waiting, len(w.batch), w.since, w.busy + running, w.served))
        return rows


def mixed(x: int) -> int:
    """splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31
