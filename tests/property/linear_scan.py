"""The early-binding policies that count requests, written as plainly as they can be: lists and linear scans.

The rules stand in src/dispatch/scheduler.h. This is what the heaps, the slab and the lazy deadlines are checked
against. Decisions are tuples: ("start", tag, instance, level, demoted), ("lost", ...) alike, ("expired", tag).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

Decision = tuple[object, ...]


@dataclass
class Request:
    tag: int
    length: int
    deadline: int | None
    seq: int
    retried: bool = False
    avoid: int | None = None

    @property
    def rank(self) -> tuple[int, int]:
        return (0 if self.retried else 1, self.seq)

    def dead(self, now: int) -> bool:
        return self.deadline is not None and self.deadline <= now


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

    @property
    def outstanding(self) -> int:
        return len(self.started) + len(self.waiting)

    @property
    def congestion(self) -> Fraction:
        return Fraction(self.outstanding, self.capacity)


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
    lost: list[Request] = field(default_factory=list)
    arrivals: int = 0

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
            below = [i for i in candidates if i.congestion < 1]
            if below:
                return min(below, key=lambda i: (-i.congestion, i.max_length, i.id))
            return min(candidates, key=lambda i: (i.congestion, i.max_length, i.id))
        levels = sorted({i.max_length for i in candidates})
        heads = [
            min((i for i in candidates if i.max_length == level), key=lambda i: (i.congestion, i.id))
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
        instance = self.pick(request, now)
        if instance is None:
            self.parked.append(request)
            return "PARKED", []
        self.charge(instance, request, now)
        if len(instance.started) < instance.limit:
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
        return self.tell("start", instance, request)

    def tell(self, verb: str, instance: Instance, request: Request) -> Decision:
        lengths = sorted({length for length, _ in self.runtimes})
        level = lengths.index(instance.max_length)
        return (verb, request.tag, instance.id, level, any(request.length <= length for length in lengths[:level]))

    def serve(self, instance: Instance, now: int) -> list[Decision]:
        decisions: list[Decision] = []
        while instance.waiting and len(instance.started) < instance.limit:
            request = min(instance.waiting, key=lambda r: r.rank)
            instance.waiting.remove(request)
            if request.dead(now):
                self.withdraw(instance, request)
            decisions.append(("expired", request.tag) if request.dead(now) else self.start(instance, request))
        if instance.draining and instance.outstanding == 0:
            del self.instances[instance.id]
        return decisions

    # -- what policies that weigh times keep books of (linear_timed.py) --------------------------------------------

    def charge(self, instance: Instance, request: Request, now: int) -> None:
        """The request is bound to the instance, or started on it; before it is counted."""

    def withdraw(self, instance: Instance, request: Request) -> None:
        """A request that waits for the instance is taken away."""

    def executed(self, instance: Instance, request: Request, now: int, *, well: bool) -> None:
        """A started request has left its instance; not `well`: it is tried again."""

    # -- events: what they answer, and the decisions ---------------------------------------------------------------

    def do(self, call: tuple[object, ...], now: int) -> tuple[object, list[Decision]]:
        """Makes a call of programs.Driver."""
        kind, *arguments = call
        answer: tuple[object, list[Decision]] = getattr(self, f"do_{kind}")(now, *arguments)
        return answer

    def do_runtime(self, _: int, max_length: int, capacity: int, __: int) -> tuple[None, list[Decision]]:
        self.runtimes.append((max_length, capacity))
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
                    self.withdraw(instance, request)
        for queue in queues:
            queue[:] = [r for r in queue if r.length > max_length]
        return new, self.place_again(fitting, now)

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
        for request in moving:
            self.withdraw(instance, request)
        instance.waiting = [r for r in instance.waiting if r not in moving]
        decisions = self.place_again(moving, now) + self.serve(instance, now)
        return instance_id not in self.instances, decisions

    def do_leave(self, now: int, instance_id: int) -> tuple[None, list[Decision]]:
        instance = self.instances.pop(instance_id)
        self.lost += instance.started
        lost = [self.tell("lost", instance, r) for r in instance.started]
        return None, lost + self.place_again(sorted(instance.waiting, key=lambda r: r.rank), now)

    def do_arrive(self, now: int, tag: int, length: int, deadline: int | None) -> tuple[str, list[Decision]]:
        if not 1 <= length <= max((length for length, _ in self.runtimes), default=0):
            return "TOO_LONG", []
        request = Request(tag, length, deadline, self.arrivals)
        instance = self.pick(request, now)
        waits = instance is None or len(instance.started) >= instance.limit
        if waits and self.queued() >= self.max_queued:
            return "FULL", []
        self.arrivals += 1
        return self.place(request, now)

    def do_finish(self, now: int, tag: int) -> tuple[None, list[Decision]]:
        if any(r.tag == tag for r in self.lost):
            return self.do_abandon(now, tag)
        instance, request = self.running(tag)
        instance.started.remove(request)
        self.executed(instance, request, now, well=True)
        return None, self.serve(instance, now)

    def do_cancel(self, _: int, tag: int) -> tuple[bool, list[Decision]]:
        for instance in [None, *self.instances.values()]:
            waiting = self.parked if instance is None else instance.waiting
            for request in waiting:
                if request.tag == tag:
                    waiting.remove(request)
                    if instance is not None:
                        self.withdraw(instance, request)
                    return True, []
        return False, []

    def do_retry(self, now: int, tag: int, avoid: int | None) -> tuple[str, list[Decision]]:
        instance: Instance | None = None
        request = next((r for r in self.lost if r.tag == tag), None)
        if request is None:
            instance, request = self.running(tag)
            instance.started.remove(request)
            self.executed(instance, request, now, well=False)
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
        dead = sorted((r for r in self.all_waiting() if r.dead(now)), key=lambda r: (r.deadline, r.seq))
        for request in dead:
            self.do_cancel(now, request.tag)
        return None, [("expired", r.tag) for r in dead]

    # -- observers -----------------------------------------------------------------------------------------------

    def running(self, tag: int) -> tuple[Instance, Request]:
        return next((i, r) for i in self.instances.values() for r in i.started if r.tag == tag)

    def all_waiting(self) -> list[Request]:
        return self.parked + [r for i in self.instances.values() for r in i.waiting]

    def queued(self) -> int:
        return len(self.all_waiting())
