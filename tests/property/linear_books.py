"""When an instance will be free, kept anew for every look: the books of src/dispatch/policies/timed.h."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Request:
    tag: int
    length: int
    deadline: int | None
    aim: int | None
    seq: int
    start: int  # virtual, by client
    client: int = 0
    retried: bool = False
    avoid: int | None = None
    overdue: bool = False
    share: int = 0

    @property
    def rank(self) -> tuple[int, int, int]:
        return (0 if self.retried else 1, self.start, self.seq)

    @property
    def limit(self) -> int | None:
        limits = [t for t in (self.aim, self.deadline) if t is not None]
        return min(limits) if limits else None

    def dead(self, now: int) -> bool:
        return self.deadline is not None and self.deadline <= now


@dataclass
class FairOrder:
    """Start-time fair queueing: the ranks of src/dispatch/lines/fair_ranks.h."""

    TURN = 16  # of the virtual clock
    ties: int  # even or odd
    clock: int = 1
    finishes: dict[int, int] = field(default_factory=dict)  # virtual, by client

    def next(self, client: int) -> tuple[int, int]:
        return self.ties, max(self.clock, self.finishes.get(client, 0))

    def admitted(self, client: int, start: int) -> None:
        self.finishes[client] = start + self.TURN
        self.ties += 2
        self.clock += 1

    def started(self, start: int) -> None:
        self.clock = max(self.clock, start)


@dataclass
class Instance:
    id: int
    max_length: int
    capacity: int
    limit: int
    runtime: int = 0
    draining: bool = False
    started: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    owed: int = 0
    work: int = 0
    free: int = 0
    first: int = 0
    since: int = 0
    took: float = 0.0
    expected: float = 0.0
    pace: float = 1.0
    batch: tuple[int, int, int, int] | None = None  # rows, longest, took, ended

    @property
    def outstanding(self) -> int:
        return len(self.started) + len(self.waiting)

    @property
    def room(self) -> bool:
        return len(self.started) < self.limit

    @property
    def idles(self) -> bool:
        return not self.waiting and len(self.started) < (self.limit + 1) // 2


@dataclass
class Books:
    """Runtimes as programs.Driver makes them: points at 1 token and at max_length, a batch in turns."""

    kept: bool
    kinds: list[int] = field(default_factory=list)  # by runtime

    def nominal(self, x: Instance, length: int) -> int:
        kind, longest = self.kinds[x.runtime], x.max_length
        tokens = length if kind % 2 == 1 else longest
        return 2 + (longest // (8 + kind % 8)) * (tokens - 1) // (longest - 1)

    def max_batch(self, x: Instance) -> int:
        return 1 + 3 * (self.kinds[x.runtime] // 2 % 2)

    def paced(self, x: Instance, length: int) -> int:
        return int(x.pace * self.nominal(x, length) + 0.5)

    def begin(self, instances: list[Instance], now: int) -> None:
        """From now on they are kept."""
        if self.kept:
            return
        self.kept = True
        for x in instances:
            for request in x.started + x.waiting:
                request.share = self.paced(x, request.length)
            x.work = sum(r.share for r in x.started + x.waiting)
            x.since = now
            x.free = x.first = now + x.work

    def charge(self, x: Instance, request: Request, now: int) -> None:
        """Before it is counted in x."""
        if not self.kept:
            return
        request.share = self.paced(x, request.length)
        if x.outstanding == 0:
            x.free = x.first = x.since = now
            x.work = 0
        x.work += request.share
        x.free += request.share
        x.first += request.share

    def withdraw(self, x: Instance, request: Request) -> None:
        if self.kept:
            x.work -= request.share
            x.free -= request.share
            x.first -= request.share

    def learn(self, x: Instance, nominal: int, took: int) -> None:
        if x.expected == 0:
            x.took = x.expected = 4.0 * nominal
        x.took = 15 / 16 * x.took + min(max(float(took), nominal / 4), nominal * 4.0)
        x.expected = 15 / 16 * x.expected + float(nominal)
        x.pace = x.took / x.expected

    def answered(self, x: Instance, request: Request, now: int) -> None:
        if not self.kept:
            return
        if self.max_batch(x) == 1:
            self.learn(x, self.nominal(x, request.length), now - x.since)
            return
        if x.batch is not None:
            rows, longest, took, ended = x.batch
            if rows < self.max_batch(x) and (now - ended) * 8 <= took:
                x.batch = (rows + 1, max(longest, request.length), took, ended)
                return
            self.learn(x, rows * self.nominal(x, longest), took)
        x.batch = (1, request.length, now - x.since, now)

    def progress(self, x: Instance, request: Request, now: int) -> None:
        if self.kept:
            x.since = now
            x.work -= request.share
            x.free = x.first = now + x.work

    def next_on(self, x: Instance, length: int, now: int) -> int:
        return max(x.since + sum(r.share for r in x.started), now) + self.paced(x, length)

    def bound_to(self, x: Instance, length: int, rank: tuple[int, int, int], now: int) -> int:
        if x.room:
            return self.next_on(x, length, now)
        free = x.free
        if free <= now:
            current = x.started[0].share if x.started else 0
            free = now + max(now - x.first, 1) + x.work - current
        free -= sum(r.share for r in x.waiting if r.rank > rank)
        return max(free, now) + self.paced(x, length)
