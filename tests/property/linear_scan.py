"""The early-binding policies that count requests, written as plainly as they can be: lists and linear scans.

The rules stand in src/dispatch/scheduler.h, turns.h and fair_ranks.h. This is what the heaps, the slab, the lines and
the lazy deadlines are checked against. Decisions are tuples: ("start", tag, instance, level, demoted), ("lost", ...)
alike, ("expired", tag).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from tests.property.linear_books import Books, FairOrder, Instance, Request

Decision = tuple[object, ...]
PAUSE = 1_000_000_000  # ns; a line that is empty for less is the same line
SHARE = 32  # of the starts of an instance, one is overdue


def congestion(x: Instance) -> Fraction:
    return Fraction(x.outstanding, x.capacity)


@dataclass
class LinearScan:
    policy: str
    lambda_: float = 0.85
    alpha: float = 0.9
    max_peek: int = 6
    max_queued: int = 4096
    runtimes: list[tuple[int, int]] = field(default_factory=list)  # max_length, capacity
    instances: dict[int, Instance] = field(default_factory=dict)
    parked: list[Request] = field(default_factory=list)
    overdue: list[Request] = field(default_factory=list)
    lost: list[Request] = field(default_factory=list)
    fair: FairOrder = field(default_factory=lambda: FairOrder(0))
    fair_overdue: FairOrder = field(default_factory=lambda: FairOrder(1))
    # of overdue lines by level length: since, newest, last, each
    moves: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.books = Books(kept=self.policy == "eft")

    # -- choosing ------------------------------------------------------------------------------------------------

    def candidates(self, request: Request) -> list[Instance]:
        fitting = [i for i in self.instances.values() if not i.draining and i.max_length >= request.length]
        others = [i for i in fitting if i.id != request.avoid]
        return others or fitting

    def pick(self, request: Request, now: int) -> Instance | None:
        candidates = self.candidates(request)
        if not candidates:
            return None
        if self.policy in {"ig", "uniform"}:
            return min(candidates, key=lambda i: (i.outstanding, i.max_length, i.id))
        if self.policy == "infaas":
            below = [i for i in candidates if congestion(i) < 1]
            if below:
                return min(below, key=lambda i: (-congestion(i), i.max_length, i.id))
            return min(candidates, key=lambda i: (congestion(i), i.max_length, i.id))
        levels = sorted({i.max_length for i in candidates})
        heads = [
            min((i for i in candidates if i.max_length == level), key=lambda i: (congestion(i), i.id))
            for level in levels
        ]
        if self.policy == "rs":  # Algorithm 1
            threshold = self.lambda_
            for head in heads[: self.max_peek]:
                if head.outstanding / head.capacity < threshold:
                    return head
                threshold *= self.alpha
        return heads[0]

    def place(self, request: Request, now: int) -> tuple[str, list[Decision]]:
        """A request of any history."""
        if request.overdue:
            return self.place_overdue(request, now)
        instance = self.pick(request, now)
        if instance is None:
            self.parked.append(request)
            return "PARKED", []
        if request.limit is not None:
            instance, finish = self.in_time(instance, request, request.limit, now)
            if finish > request.limit:
                return self.place_overdue(request, now)
        return self.bind(instance, request, now)

    def in_time(self, chosen: Instance, request: Request, limit: int, now: int) -> tuple[Instance, int]:
        finish = self.books.bound_to(chosen, request.length, request.rank, now)
        if finish <= limit or self.policy == "eft":
            return chosen, finish
        for x in sorted(self.instances.values(), key=lambda i: i.id):
            if not x.draining and x.max_length >= request.length and x.id != request.avoid:
                there = self.books.bound_to(x, request.length, request.rank, now)
                if there < finish:
                    chosen, finish = x, there
        return chosen, finish

    def bind(self, instance: Instance, request: Request, now: int) -> tuple[str, list[Decision]]:
        room = instance.room
        self.books.charge(instance, request, now)
        if room:
            return "STARTED", [self.start(instance, request)]
        instance.waiting.append(request)
        return "QUEUED", []

    def place_again(self, requests: list[Request], now: int) -> list[Decision]:
        decisions: list[Decision] = []
        for request in requests:
            decisions += [("expired", request.tag)] if request.dead(now) else self.place(request, now)[1]
        return decisions

    def start(self, instance: Instance, request: Request) -> Decision:
        instance.started.append(request)
        instance.owed += 1 if self.overdue else 0
        (self.fair_overdue if request.overdue else self.fair).started(request.start)
        return self.tell("start", instance, request)

    def tell(self, verb: str, instance: Instance, request: Request) -> Decision:
        lengths = self.lengths()
        level = lengths.index(instance.max_length)
        return (verb, request.tag, instance.id, level, any(request.length <= length for length in lengths[:level]))

    def lengths(self) -> list[int]:
        return sorted({length for length, _ in self.runtimes})

    def ideal(self, length: int) -> int:
        return min(level for level in self.lengths() if level >= length)

    # -- turns -----------------------------------------------------------------------------------------------------

    def serve(self, instance: Instance, now: int) -> list[Decision]:
        decisions: list[Decision] = []
        while instance.room:
            if self.overdue and instance.owed >= SHARE - 1 and not instance.draining:
                started = self.start_overdue(instance, now, decisions)
                if started:
                    continue
            request = self.next(instance, now, decisions)
            if request is not None:
                instance.waiting.remove(request)
                decisions.append(self.start(instance, request))
            else:
                idles = bool(self.overdue) and instance.idles and not instance.draining
                if not idles or not self.start_overdue(instance, now, decisions):
                    break
        if instance.draining and instance.outstanding == 0:
            del self.instances[instance.id]
        return decisions

    def next(self, instance: Instance, now: int, decisions: list[Decision]) -> Request | None:
        while instance.waiting:
            request = min(instance.waiting, key=lambda r: r.rank)
            finish = self.books.next_on(instance, request.length, now)
            if not request.dead(now) and (request.limit is None or instance.draining or finish <= request.limit):
                return request
            instance.waiting.remove(request)
            self.books.withdraw(instance, request)
            if request.dead(now) or (request.deadline is not None and finish > request.deadline):
                decisions.append(("expired", request.tag))
            else:
                self.wait_overdue(request, now)
        return None

    # -- overdue ---------------------------------------------------------------------------------------------------

    def wait_overdue(self, request: Request, now: int) -> None:
        level = self.ideal(request.length)
        since, newest, last, each = self.moves.get(level, (0, 0, 0, 0))
        if not self.line(level):
            last = now
            since = now if now - newest > PAUSE else since
        self.moves[level] = (since, now, last, each)
        self.make_overdue(request)
        self.overdue.append(request)

    def make_overdue(self, request: Request) -> None:
        if not request.overdue:
            request.overdue = True
            request.seq, request.start = self.fair_overdue.next(request.client)
            self.fair_overdue.admitted(request.client, request.start)

    def line(self, level: int) -> list[Request]:
        return sorted((r for r in self.overdue if self.ideal(r.length) == level), key=lambda r: r.rank)

    def another_fits(self, level: int, instance_id: int) -> bool:
        return any(not i.draining and i.max_length >= level and i.id != instance_id for i in self.instances.values())

    def start_overdue(self, instance: Instance, now: int, decisions: list[Decision]) -> bool:
        found: list[Request] = []
        for level in [length for length in self.lengths() if length <= instance.max_length]:
            home = min(i.max_length for i in self.instances.values() if not i.draining and i.max_length >= level)
            for request in self.line(level):
                finish = self.books.next_on(instance, request.length, now)
                out_of_reach = request.deadline is not None and finish > request.deadline
                if request.dead(now) or (out_of_reach and home == instance.max_length):
                    self.overdue.remove(request)
                    decisions.append(("expired", request.tag))
                elif out_of_reach:
                    break
                elif request.avoid != instance.id or not self.another_fits(level, instance.id):
                    found.append(request)
                    break
        if not found:
            return False
        request = min(found, key=lambda r: r.rank)
        since, newest, last, each = self.moves[self.ideal(request.length)]
        took = min(now - last, SHARE * self.books.paced(instance, request.length))
        self.moves[self.ideal(request.length)] = (since, newest, now, took if each == 0 else (7 * each + took) // 8)
        self.overdue.remove(request)
        self.books.charge(instance, request, now)
        decisions.append(self.start(instance, request))
        instance.owed = 0
        return True

    def idle_for(self, length: int, avoid: int | None, now: int) -> Instance | None:
        level = self.ideal(length)
        if any(self.ideal(r.length) <= level for r in self.overdue):
            return None
        idle = [i for i in self.instances.values() if not i.draining and i.max_length >= level and i.idles]
        idle = [i for i in idle if i.id != avoid or not self.another_fits(level, i.id)]
        return min(idle, key=lambda i: (self.books.next_on(i, length, now), i.id), default=None)

    def arrive_overdue(self, request: Request, finish: int, now: int) -> tuple[str, list[Decision]]:
        idle = self.idle_for(request.length, None, now)
        if idle is not None:
            at = self.books.next_on(idle, request.length, now)
        else:
            level = self.ideal(request.length)
            since, _, last, each = self.moves.get(level, (0, 0, 0, 0))
            ahead = len(self.line(level))
            spare = 10_000_000_000 if request.deadline is None else min(10_000_000_000, request.deadline - finish)
            young = ahead == 0 or now - since < spare
            each = each or now - last
            at = max(finish, now + (0 if young else ahead * each + max(now - last - each, 0)))
        if request.deadline is not None and at > request.deadline:
            return "TOO_LATE", []
        if idle is None and self.queued() >= self.max_queued:
            return "FULL", []
        return self.place_overdue(request, now)

    def place_overdue(self, request: Request, now: int) -> tuple[str, list[Decision]]:
        self.make_overdue(request)
        idle = self.idle_for(request.length, request.avoid, now)
        if idle is None:
            self.wait_overdue(request, now)
            return "QUEUED", []
        self.books.charge(idle, request, now)
        return "STARTED", [self.start(idle, request)]

    def may_wait(self, decisions: list[Decision]) -> bool:
        if self.queued() < self.max_queued:
            return True
        if self.queued() - len(self.overdue) >= self.max_queued:
            return False
        while self.queued() >= self.max_queued:
            last = max(self.overdue, key=lambda r: r.rank)
            self.overdue.remove(last)
            decisions.append(("expired", last.tag))
        return True

    # -- events: what they answer, and the decisions ---------------------------------------------------------------

    def do(self, call: tuple[object, ...], now: int) -> tuple[object, list[Decision]]:
        """Makes a call of programs.Driver."""
        kind, *arguments = call
        answer: tuple[object, list[Decision]] = getattr(self, f"do_{kind}")(now, *arguments)
        return answer

    def do_runtime(self, _: int, max_length: int, capacity: int, kind: int) -> tuple[None, list[Decision]]:
        longer = min((length for length in self.lengths() if length > max_length), default=0)
        if max_length not in self.lengths() and longer in self.moves:
            self.moves[max_length] = self.moves[longer]
        self.runtimes.append((max_length, capacity))
        self.books.kinds.append(kind)
        return None, []

    def do_join(self, now: int, runtime: int, limit: int) -> tuple[int, list[Decision]]:
        new = min(set(range(len(self.instances) + 1)) - set(self.instances))
        max_length, capacity = self.runtimes[runtime]
        self.instances[new] = Instance(new, max_length, capacity, limit, runtime)
        queues = [self.parked, *(instance.waiting for instance in self.instances.values())]
        fitting = sorted((r for queue in queues for r in queue if r.length <= max_length), key=lambda r: r.rank)
        for instance in self.instances.values():
            for request in instance.waiting:
                if request.length <= max_length:
                    self.books.withdraw(instance, request)
        for queue in queues:
            queue[:] = [r for r in queue if r.length > max_length]
        decisions = self.place_again(fitting, now)
        return new, decisions + self.serve(self.instances[new], now)

    def do_drain(self, now: int, instance_id: int) -> tuple[bool, list[Decision]]:
        instance = self.instances[instance_id]
        if instance.draining:
            return False, []
        instance.draining = True
        moving = [
            r
            for r in sorted(instance.waiting, key=lambda r: r.rank)
            if any(not i.draining and i.max_length >= r.length for i in self.instances.values())
        ]
        decisions: list[Decision] = []
        for request in moving:
            instance.waiting.remove(request)
            self.books.withdraw(instance, request)
            decisions += self.place_again([request], now)
        decisions += self.serve(instance, now)
        return instance_id not in self.instances, decisions

    def do_leave(self, now: int, instance_id: int) -> tuple[None, list[Decision]]:
        instance = self.instances.pop(instance_id)
        self.lost += instance.started
        lost = [self.tell("lost", instance, r) for r in instance.started]
        return None, lost + self.place_again(sorted(instance.waiting, key=lambda r: r.rank), now)

    def do_arrive(  # noqa: PLR0917
        self, now: int, tag: int, length: int, deadline: int | None, due: int | None, client: int
    ) -> tuple[str, list[Decision]]:
        if not 1 <= length <= max((length for length, _ in self.runtimes), default=0):
            return "TOO_LONG", []
        aim = None if due is None else due - (due - now) // 16
        request = Request(tag, length, deadline, aim, *self.fair.next(client), client)
        if request.limit is not None:
            self.books.begin(list(self.instances.values()), now)
        instance = self.pick(request, now)
        if instance is not None and request.limit is not None:
            instance, finish = self.in_time(instance, request, request.limit, now)
            if finish > request.limit:
                return self.arrive_overdue(request, finish, now)
        decisions: list[Decision] = []
        if (instance is None or not instance.room) and not self.may_wait(decisions):
            return "FULL", []
        self.fair.admitted(client, request.start)
        if instance is None:
            self.parked.append(request)
            return "PARKED", decisions
        admission, told = self.bind(instance, request, now)
        return admission, decisions + told

    def do_finish(self, now: int, tag: int, good: bool) -> tuple[None, list[Decision]]:
        if any(r.tag == tag for r in self.lost):
            return self.do_abandon(now, tag)
        instance, request = self.running(tag)
        if good:
            self.books.answered(instance, request, now)
        instance.started.remove(request)
        self.books.progress(instance, request, now)
        return None, self.serve(instance, now)

    def do_cancel(self, _: int, tag: int) -> tuple[bool, list[Decision]]:
        for instance in [None, *self.instances.values()]:
            waitings = [self.parked, self.overdue] if instance is None else [instance.waiting]
            for waiting in waitings:
                for request in waiting:
                    if request.tag == tag:
                        waiting.remove(request)
                        if instance is not None:
                            self.books.withdraw(instance, request)
                        return True, []
        return False, []

    def do_retry(self, now: int, tag: int, avoid: int | None) -> tuple[str, list[Decision]]:
        instance: Instance | None = None
        request = next((r for r in self.lost if r.tag == tag), None)
        if request is None:
            instance, request = self.running(tag)
            instance.started.remove(request)
            self.books.progress(instance, request, now)
        else:
            self.lost.remove(request)
        request.retried = True
        request.avoid = avoid
        decisions: list[Decision] = [("expired", tag)]
        admission = "QUEUED"
        if not request.dead(now):
            admission, decisions = self.place(request, now)
        if instance is not None:
            decisions = decisions + self.serve(instance, now)
        started = any(d[:2] == ("start", tag) for d in decisions)
        return "STARTED" if started else admission, decisions

    def do_abandon(self, _: int, tag: int) -> tuple[None, list[Decision]]:
        self.lost = [r for r in self.lost if r.tag != tag]
        return None, []

    def do_expire(self, now: int) -> tuple[None, list[Decision]]:
        dead = sorted((r for r in self.all_waiting() if r.dead(now)), key=lambda r: (r.deadline, r.rank[1:]))
        for request in dead:
            self.do_cancel(now, request.tag)
        return None, [("expired", r.tag) for r in dead]

    # -- observers -----------------------------------------------------------------------------------------------

    def running(self, tag: int) -> tuple[Instance, Request]:
        return next((i, r) for i in self.instances.values() for r in i.started if r.tag == tag)

    def all_waiting(self) -> list[Request]:
        return self.parked + self.overdue + [r for i in self.instances.values() for r in i.waiting]

    def queued(self) -> int:
        return len(self.all_waiting())

    def unserved(self) -> int:
        """Requests that wait and that no active instance fits, and are bound to none."""
        longest = max((i.max_length for i in self.instances.values() if not i.draining), default=0)
        return sum(r.length > longest for r in self.parked + self.overdue)


class LinearEft(LinearScan):
    """eft likewise."""

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
