"""eft with lists and linear scans: the books of src/dispatch/policies/timed.h, kept anew for every look."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tests.property.linear_scan import Decision, Instance, LinearScan, Request


@dataclass
class Books:
    """Of an instance: when it is expected to be free, and how quick it is."""

    work: int = 0
    free: int = 0
    first: int = 0
    since: int = 0
    took: float = 0.0
    expected: float = 0.0
    pace: float = 1.0
    shares: dict[int, int] = field(default_factory=dict)  # by tag


@dataclass
class LinearEft(LinearScan):
    """Runtimes as programs.Driver makes them with `timed`: points at 1 and at max_length, a batch in turns."""

    kinds: list[int] = field(default_factory=list)  # by runtime
    books: dict[int, Books] = field(default_factory=dict)  # by instance

    def do_runtime(self, now: int, max_length: int, capacity: int, kind: int) -> tuple[None, list[Decision]]:
        self.kinds.append(kind)
        return super().do_runtime(now, max_length, capacity, kind)

    def do_join(self, now: int, runtime: int, limit: int) -> tuple[int, list[Decision]]:
        new = min(set(range(len(self.instances) + 1)) - set(self.instances))
        self.books[new] = Books()
        return super().do_join(now, runtime, limit)

    def nominal(self, instance: Instance, length: int) -> int:
        kind, longest = self.kinds[instance.runtime], instance.max_length
        tokens = length if kind % 2 == 1 else longest
        return 2 + (longest // (8 + kind % 8)) * (tokens - 1) // (longest - 1)

    def paced(self, instance: Instance, length: int) -> int:
        return int(self.books[instance.id].pace * self.nominal(instance, length) + 0.5)

    def rank(self, instance: Instance) -> tuple[int, int, int]:
        """The order within a group: idle ones by the step of their pace, then by when they will be free."""
        books = self.books[instance.id]
        if instance.outstanding == 0:
            step = 4 * math.log2(books.pace)
            return (0, math.floor(abs(step) + 0.5) * (1 if step > 0 else -1), instance.id)
        return (1, books.free, instance.id)

    def head(self, group: list[Instance], now: int) -> Instance:
        while True:
            best = min(group, key=self.rank)
            books = self.books[best.id]
            if best.outstanding == 0 or books.free > now:
                return best
            current = books.shares[best.started[0].tag] if best.started else 0
            books.free = now + max(now - books.first, 1) + books.work - current

    def pick(self, request: Request, now: int) -> Instance | None:
        candidates = self.candidates(request)
        groups = sorted({(i.max_length, i.runtime) for i in candidates})
        best: tuple[int, int, int] | None = None  # finish, max_length, id
        for _, runtime in groups:
            head = self.head([i for i in candidates if i.runtime == runtime], now)
            start = now if head.outstanding == 0 else max(now, self.books[head.id].free)
            finish = (start + self.paced(head, request.length), head.max_length, head.id)
            best = finish if best is None else min(best, finish)
        return None if best is None else self.instances[best[2]]

    def charge(self, instance: Instance, request: Request, now: int) -> None:
        books, share = self.books[instance.id], self.paced(instance, request.length)
        if instance.outstanding == 0:
            books.free = books.first = books.since = now
            books.work = 0
        books.shares[request.tag] = share
        books.work += share
        books.free += share
        books.first += share

    def withdraw(self, instance: Instance, request: Request) -> None:
        books = self.books[instance.id]
        share = books.shares.pop(request.tag)
        books.work -= share
        books.free -= share
        books.first -= share

    def executed(self, instance: Instance, request: Request, now: int, *, well: bool) -> None:
        books = self.books[instance.id]
        if well and self.kinds[instance.runtime] // 2 % 2 == 0:  # not one with batches
            nominal = float(self.nominal(instance, request.length))
            if books.expected == 0:
                books.took = books.expected = 4 * nominal
            books.took = 15 / 16 * books.took + min(max(float(now - books.since), nominal / 4), nominal * 4)
            books.expected = 15 / 16 * books.expected + nominal
            books.pace = books.took / books.expected
        books.since = now
        books.work -= books.shares.pop(request.tag)
        books.free = books.first = now + books.work
