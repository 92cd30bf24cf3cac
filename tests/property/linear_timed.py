"""eft with lists and linear scans."""

from __future__ import annotations

import math

from tests.property.linear_books import Instance, Request
from tests.property.linear_scan import LinearScan


class LinearEft(LinearScan):
    def rank(self, instance: Instance) -> tuple[int, int, int]:
        """The order within a group: idle ones by the step of their pace, then by when they will be free."""
        if instance.outstanding == 0:
            step = 4 * math.log2(instance.pace)
            return (0, math.floor(abs(step) + 0.5) * (1 if step > 0 else -1), instance.id)
        return (1, instance.free, instance.id)

    def head(self, group: list[Instance], now: int) -> Instance:
        while True:
            best = min(group, key=self.rank)
            if best.outstanding == 0 or best.free > now:
                return best
            current = best.started[0].share if best.started else 0
            best.free = now + max(now - best.first, 1) + best.work - current

    def pick(self, request: Request, now: int) -> Instance | None:
        candidates = self.candidates(request)
        groups = sorted({(i.max_length, i.runtime) for i in candidates})
        best: tuple[int, int, int] | None = None  # finish, max_length, id
        for _, runtime in groups:
            head = self.head([i for i in candidates if i.runtime == runtime], now)
            start = now if head.outstanding == 0 else max(now, head.free)
            finish = (start + self.books.paced(head, request.length), head.max_length, head.id)
            best = finish if best is None else min(best, finish)
        return None if best is None else self.instances[best[2]]
