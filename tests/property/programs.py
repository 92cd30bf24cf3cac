"""Random programs for the dispatch core: sequences of events, and a driver that runs them and keeps the books."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st

from arlo import _core
from tests.property.linear_scan import Decision

LENGTHS = [16, 32, 64, 128]  # max_length of runtimes; requests are up to a bit longer

Actions = list[_core.Action]
Event = tuple[str, int, int, int]  # kind, two numbers that the kind gives a meaning, ns since the event before


def events(kinds: list[str]) -> st.SearchStrategy[list[Event]]:
    """Programs of these kinds of events; repeat a kind to make it more frequent.

    Short ones that shrink well, and long ones drawn from a seed, which reach deeper states.
    """
    small = st.integers(min_value=0, max_value=140)
    short = st.lists(st.tuples(st.sampled_from(kinds), small, small, st.integers(0, 4)), max_size=60)

    def long(seed: int) -> list[Event]:
        draw = Random(seed)
        return [
            (draw.choice(kinds), draw.randint(0, 140), draw.randint(0, 140), draw.randint(0, 4)) for _ in range(300)
        ]

    return st.one_of(short, st.builds(long, st.integers(0, 2**32)))


def fleet() -> st.SearchStrategy[list[Event]]:
    """Programs that set up three runtimes and 1 to 40 instances of them."""
    runtimes: list[Event] = [("runtime", 0, 1, 0), ("runtime", 2, 3, 0), ("runtime", 2, 2, 0)]
    size = st.one_of(st.integers(1, 6), st.integers(7, 40))
    return size.map(lambda n: runtimes + [("join", i, i // 3, 0) for i in range(n)])


RARE = ["join", "join", "drain", "leave", "retry", "cancel", "abandon", "expire", "runtime"]
ALL_KINDS = [*["arrive"] * 6, *["finish"] * 4, *RARE]


Call = tuple[object, ...]  # a concrete event: its kind, then the arguments listed at resolve()
Answer = tuple[object, list[Decision]]


def told(actions: list[_core.Action]) -> list[Decision]:
    """Actions as the tuples of linear_scan."""
    return [
        ("expired", a.tag)
        if a.kind is _core.ActionKind.EXPIRED
        else (a.kind.name.lower(), a.tag, a.instance, a.level, a.demoted)
        for a in actions
    ]


@dataclass
class Driver:
    """Runs calls against a scheduler and keeps books: where each request is, by tag. Asserts what must always hold."""

    scheduler: _core.Scheduler
    one_length: bool = False  # runtimes of one max_length only
    fair: bool = True  # arrivals are of several clients, and some are due at a time
    now: int = 0
    runtimes: list[int] = field(default_factory=list)  # max_length by id
    limits: dict[int, int] = field(default_factory=dict)  # by instance
    handles: dict[int, int] = field(default_factory=dict)  # of live requests
    lengths: dict[int, int] = field(default_factory=dict)  # of all requests admitted
    waiting: set[int] = field(default_factory=set)
    started: dict[int, int] = field(default_factory=dict)  # instance by tag
    lost: set[int] = field(default_factory=set)
    ends: dict[int, str] = field(default_factory=dict)
    avoid: dict[int, int | None] = field(default_factory=dict)  # of retried requests
    limited: set[int] = field(default_factory=set)  # requests that are due at a time, or have a deadline
    tags: int = 0

    def resolve(self, event: Event) -> Call | None:
        """What an event means now; None when there is nothing that it could be about.

        runtime LENGTH CAPACITY KIND / join RUNTIME LIMIT / drain INSTANCE / leave INSTANCE / expire /
        arrive TAG LENGTH DEADLINE DUE CLIENT / finish TAG GOOD / retry TAG AVOID / cancel TAG / abandon TAG
        """
        kind, a, b, _ = event
        about: list[int] = [0]
        if kind == "join":
            about = list(range(len(self.runtimes)))
        elif kind in {"drain", "leave"}:
            about = sorted(self.present())
        elif kind in {"finish", "retry"}:
            about = sorted({*self.started, *self.lost})
        elif kind == "abandon":
            about = sorted(self.lost)
        elif kind == "cancel":
            about = sorted(self.handles)
        if not about:
            return None
        chosen = about[a % len(about)]
        match kind:
            case "runtime":
                return kind, LENGTHS[0 if self.one_length else a % len(LENGTHS)], 1 + b % 5, b
            case "join":
                return kind, chosen, 1 + b % 3
            case "arrive":
                self.tags += 1
                deadline = None if b % 3 else self.now + 1 + b % 48
                due = self.now + b % 32 if self.fair and b % 4 == 0 else None
                return kind, self.tags, a, deadline, due, b % 5 if self.fair else 0
            case "finish":
                return kind, chosen, b % 4 != 0
            case "retry":
                return kind, chosen, None if b % 2 else b % 4
            case "expire":
                return (kind,)
            case _:
                return kind, chosen

    def do(self, call: Call) -> Answer:
        """Makes the call; what it answered, and the decisions."""
        kind, *arguments = call
        answer, actions = getattr(self, f"do_{kind}")(*arguments)
        self.take(actions)
        self.check()
        return answer, told(actions)

    def do_runtime(self, length: int, capacity: int, kind: int) -> tuple[None, Actions]:
        points = [(1, 1, 2), (length, 1, 2 + length // (8 + kind % 8))]
        max_batch = 1 + 3 * (kind // 2 % 2)
        self.scheduler.add_runtime(length, capacity, points, max_batch=max_batch, dynamic=kind % 2 == 1)
        self.runtimes.append(length)
        return None, []

    def do_join(self, runtime: int, limit: int) -> tuple[int, Actions]:
        new, actions = self.scheduler.join(runtime, limit, self.now)
        self.limits[new] = limit
        return new, actions

    def do_drain(self, instance: int) -> tuple[bool, Actions]:
        return self.scheduler.drain(instance, self.now)

    def do_leave(self, instance: int) -> tuple[None, Actions]:
        return None, self.scheduler.leave(instance, self.now)

    def do_arrive(
        self, tag: int, length: int, deadline: int | None, due: int | None, client: int
    ) -> tuple[str, Actions]:
        admission, handle, actions = self.scheduler.arrive(tag, length, self.now, deadline, due=due, client=client)
        assert (handle is None) == (admission.name in {"TOO_LONG", "FULL", "TOO_LATE"})
        assert admission.name != "TOO_LATE" or deadline is not None
        if deadline is not None or due is not None:
            self.limited.add(tag)
        if handle is not None:
            self.handles[tag] = handle
            self.lengths[tag] = length
            self.waiting.add(tag)
        return admission.name, actions

    def do_finish(self, tag: int, good: bool = True) -> tuple[None, Actions]:
        verdict = _core.Verdict.ANSWERED if good else _core.Verdict.FAILED
        actions = self.scheduler.finish(self.handles[tag], self.now, verdict)
        self.started.pop(tag, None)
        self.lost.discard(tag)
        self.end(tag, "finished")
        return None, actions

    def do_retry(self, tag: int, avoid: int | None) -> tuple[str, Actions]:
        self.started.pop(tag, None)
        self.lost.discard(tag)
        self.waiting.add(tag)
        self.avoid[tag] = avoid
        admission, actions = self.scheduler.retry(self.handles[tag], avoid, self.now)
        return admission.name, actions

    def do_cancel(self, tag: int) -> tuple[bool, Actions]:
        removed, actions = self.scheduler.cancel(self.handles[tag], tag, self.now)
        assert removed == (tag in self.waiting)
        if removed:
            self.waiting.remove(tag)
            self.end(tag, "cancelled")
        return removed, actions

    def do_abandon(self, tag: int) -> tuple[None, Actions]:
        self.scheduler.abandon(self.handles[tag])
        self.lost.remove(tag)
        self.end(tag, "abandoned")
        return None, []

    def do_expire(self) -> tuple[None, Actions]:
        return None, self.scheduler.expire(self.now)

    def take(self, actions: Actions) -> None:
        """Enters actions into the books; asserts that each is possible."""
        for action in actions:
            tag = action.tag
            assert self.handles[tag] == action.handle
            if action.kind is _core.ActionKind.LOST:
                assert self.started.pop(tag) == action.instance
                self.lost.add(tag)
                continue
            self.waiting.remove(tag)
            if action.kind is _core.ActionKind.EXPIRED:
                self.end(tag, "expired")
                continue
            assert action.instance is not None
            self.started[tag] = action.instance
            assert self.scheduler.level_max_length(action.level) >= self.lengths[tag], "on a level that is too short"
            assert action.demoted == (action.level > self.scheduler.ideal_level(self.lengths[tag]))

    def end(self, tag: int, how: str) -> None:
        assert tag not in self.ends, "a request ends once"
        self.ends[tag] = how
        del self.handles[tag]

    def present(self) -> list[int]:
        return [i for i in self.limits if self.scheduler.present(i)]

    def active(self) -> list[tuple[int, int]]:
        """Active instances: (max_length, id)."""
        views = {i: self.scheduler.view(i) for i in self.present()}
        return sorted((self.runtimes[v.runtime], i) for i, v in views.items() if v.state.name == "ACTIVE")

    def check(self) -> None:
        """The observers say what the books say."""
        assert self.scheduler.queued() == len(self.waiting)
        assert self.scheduler.in_flight() == len(self.started)
        for instance in self.present():
            view = self.scheduler.view(instance)
            assert view.in_flight == sum(1 for i in self.started.values() if i == instance)
            assert view.in_flight <= self.limits[instance]
            assert view.queued == 0 or view.in_flight == self.limits[instance], "bound requests wait, and it has room"
            assert view.in_flight + view.queued > 0 or view.state.name == "ACTIVE", "drained, and still here"
        for state, tags in (("WAITING", self.waiting), ("STARTED", self.started), ("LOST", self.lost)):
            assert all(self.scheduler.state(self.handles[tag]).name == state for tag in tags)
        assert len(self.handles) == len(self.waiting) + len(self.started) + len(self.lost)
