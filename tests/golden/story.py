"""Scenarios of the dispatch core as readable text.

A story is a text file of blocks. A block is commands, a line `----`, and the decisions they lead to, up to an empty
line. Lines that start with `#` are comments. Requests are called r1, r2, ... in order of arrival, instances i0, i1, ...
by id. Commands:

    policy NAME [lambda=0.85] [alpha=0.9] [peek=6] [max_queued=4096]
    level LENGTH [instances=1] [capacity=100] [latency_ms=1] [inflight=1] [max_batch=1] [dynamic=64:1,512:4]
    at 10ms                           the time from here on
    arrive len=90 [due=10ms] [deadline=20ms] [client=0] [times=1]     instants, not durations
    finish r1 [r2 ...]                in this order
    cancel r1    abandon r1    retry r1 [avoid=i0]
    join LENGTH [inflight=1]    drain i0    leave i0    expire
    show                              instances, and what waits

`dynamic=LENGTH:MS,...` gives a dynamic-shape runtime. Times are kept in ns; text is in ms.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from arlo import _core

MS = 1_000_000
OUTCOMES = ("on time", "late", "rejected", "expired", "failed")


def ns(text: str) -> int:
    """Of `5ms`."""
    return round(float(text.removesuffix("ms")) * 1_000_000)


def ms(value: int) -> str:
    """As `5ms`."""
    return f"{value / 1_000_000:g}ms"


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def _number(name: str) -> int:
    return int(name[1:])


@dataclass
class Story:
    """Runs commands against a scheduler and tells in words what it decides."""

    now: int = 0
    scheduler: _core.Scheduler = field(default_factory=_core.Scheduler)
    runtimes: dict[int, int] = field(default_factory=dict)  # runtime id by max_length
    handles: dict[int, int] = field(default_factory=dict)  # handle by request number
    arrivals: int = 0
    draining: set[int] = field(default_factory=set)

    def run(self, line: str) -> list[str]:
        """Decisions that one command leads to."""
        command, *words = line.split()
        lines: list[str] = getattr(self, f"do_{command}")(words)
        gone = sorted(i for i in self.draining if not self.scheduler.present(i))
        self.draining.difference_update(gone)
        return lines + [f"i{i} is gone" for i in gone]

    def do_policy(self, words: list[str]) -> list[str]:
        options = _options(words[1:])
        self.scheduler = _core.Scheduler(
            words[0],
            lambda_=float(options.get("lambda", 0.85)),
            alpha=float(options.get("alpha", 0.9)),
            max_peek=int(options.get("peek", 6)),
            max_queued=int(options.get("max_queued", 4096)),
        )
        return []

    def do_level(self, words: list[str]) -> list[str]:
        length = int(words[0])
        options = _options(words[1:])
        points = [(length, 1, ns(options.get("latency_ms", "1")))]
        if "dynamic" in options:
            pairs = [point.split(":") for point in options["dynamic"].split(",")]
            points = [(int(tokens), 1, ns(ms)) for tokens, ms in pairs]
        runtime = self.scheduler.add_runtime(
            length,
            int(options.get("capacity", 100)),
            points,
            max_batch=int(options.get("max_batch", 1)),
            dynamic="dynamic" in options,
        )
        self.runtimes[length] = runtime
        lines = []
        for _ in range(int(options.get("instances", 1))):
            _, actions = self.scheduler.join(runtime, int(options.get("inflight", 1)), self.now)
            lines += self.tell(actions)
        return lines

    def do_at(self, words: list[str]) -> list[str]:
        self.now = ns(words[0])
        return []

    def do_arrive(self, words: list[str]) -> list[str]:
        options = _options(words)
        limits = {name: ns(options[name]) if name in options else None for name in ("due", "deadline")}
        client = int(options.get("client", 0))
        times = int(options.get("times", 1))
        lines = [self.arrive(int(options["len"]), **limits, client=client) for _ in range(times)]
        if times == 1:
            return lines[0]
        # Without the names: "start r7 on i0 ..." and "r8 waits for i0" count as "on i0 ..." and "waits for i0".
        tally = Counter(line.split(" ", 2 if line.startswith("start") else 1)[-1] for told in lines for line in told)
        return [f"{count} of them: {what}" for what, count in tally.items()]

    def arrive(self, length: int, *, due: int | None, deadline: int | None, client: int) -> list[str]:
        self.arrivals += 1
        before = self.bound()
        overdue = self.scheduler.overdue()
        admission, handle, actions = self.scheduler.arrive(
            self.arrivals, length, self.now, deadline, due=due, client=client
        )
        if handle is None:
            reasons = {_core.Admission.TOO_LONG: "too long", _core.Admission.TOO_LATE: "too late"}
            reason = reasons.get(admission, "queue full")
            return [f"r{self.arrivals} is refused: {reason}"]
        self.handles[self.arrivals] = handle
        if self.scheduler.overdue() > overdue:
            return [*self.tell(actions), f"r{self.arrivals} is overdue"]
        return self.tell(actions) + self.tell_wait(self.arrivals, admission, before, length)

    def do_finish(self, words: list[str]) -> list[str]:
        return [line for name in words for line in self.tell(self.scheduler.finish(self.handle(name), self.now))]

    def do_cancel(self, words: list[str]) -> list[str]:
        removed, actions = self.scheduler.cancel(self.handle(words[0]), _number(words[0]), self.now)
        return [*self.tell(actions), f"{words[0]} is cancelled" if removed else f"{words[0]} is not waiting"]

    def do_abandon(self, words: list[str]) -> list[str]:
        self.scheduler.abandon(self.handle(words[0]))
        return []

    def do_retry(self, words: list[str]) -> list[str]:
        avoid = _options(words[1:]).get("avoid")
        before = self.bound()
        admission, actions = self.scheduler.retry(
            self.handle(words[0]), None if avoid is None else _number(avoid), self.now
        )
        lines = self.tell(actions)
        if any(f"expired {words[0]}" == line for line in lines):
            return lines
        return lines + self.tell_wait(_number(words[0]), admission, before, None)

    def do_join(self, words: list[str]) -> list[str]:
        limit = int(_options(words[1:]).get("inflight", 1))
        instance, actions = self.scheduler.join(self.runtimes[int(words[0])], limit, self.now)
        return [f"i{instance} joins", *self.tell(actions)]

    def do_drain(self, words: list[str]) -> list[str]:
        instance = _number(words[0])
        self.draining.add(instance)
        _, actions = self.scheduler.drain(instance, self.now)
        return self.tell(actions)

    def do_leave(self, words: list[str]) -> list[str]:
        return self.tell(self.scheduler.leave(_number(words[0]), self.now))

    def do_expire(self, _: list[str]) -> list[str]:
        return self.tell(self.scheduler.expire(self.now))

    def do_show(self, _: list[str]) -> list[str]:
        lines = []
        for instance in range(self.scheduler.instances() + len(self.handles) + 1):
            if self.scheduler.present(instance):
                view = self.scheduler.view(instance)
                draining = ", draining" if view.state is _core.InstanceState.DRAINING else ""
                level = self.scheduler.level_max_length(view.level)
                lines.append(f"i{instance} (level {level}): {view.in_flight} in flight, {view.queued} bound{draining}")
        at = self.scheduler.next_deadline()
        deadline = "" if at is None else f", next deadline {at / MS:g}ms"
        overdue = f", {self.scheduler.overdue()} overdue" if self.scheduler.overdue() else ""
        return [*lines, f"{self.scheduler.queued()} wait, {self.scheduler.parked()} of them parked{overdue}{deadline}"]

    def handle(self, name: str) -> int:
        return self.handles[_number(name)]

    def bound(self) -> dict[int, int]:
        ids = range(self.scheduler.instances() + len(self.draining) + 64)
        return {i: self.scheduler.view(i).queued for i in ids if self.scheduler.present(i)}

    def tell(self, actions: list[_core.Action]) -> list[str]:
        lines = []
        for action in actions:
            if action.kind is _core.ActionKind.EXPIRED:
                lines.append(f"expired r{action.tag}")
                continue
            verb = "start" if action.kind is _core.ActionKind.START else "lost"
            where = f"level {self.scheduler.level_max_length(action.level)}{', demoted' if action.demoted else ''}"
            lines.append(f"{verb} r{action.tag} on i{action.instance} ({where})")
        return lines

    def tell_wait(
        self, request: int, admission: _core.Admission, before: dict[int, int], length: int | None
    ) -> list[str]:
        if admission is _core.Admission.PARKED:
            return [f"r{request} is parked"]
        if admission is not _core.Admission.QUEUED:
            return []
        bound = [i for i, queued in self.bound().items() if queued > before.get(i, 0)]
        if bound:
            return [f"r{request} waits for i{bound[0]}"]
        if length is None:
            return [f"r{request} waits"]
        return [f"r{request} waits at level {self.scheduler.level_max_length(self.scheduler.ideal_level(length))}"]


class Teller(Protocol):
    """Has a method do_COMMAND for each command."""

    def run(self, line: str) -> list[str]:
        """What comes of a line."""


def retell(text: str, story: Teller) -> str:
    """The story with what comes of it now. ValueError for a line that is no command of `story`."""
    out: list[str] = []
    told: list[str] = []
    expected = False
    for number, line in enumerate(text.splitlines(), 1):
        if line == "----":
            out += [line, *told]
            told, expected = [], True
        elif not line.strip():
            out.append("")
            expected = False
        elif not expected:
            out.append(line)
            if not line.startswith("#"):
                if not hasattr(story, f"do_{line.split()[0]}"):
                    raise ValueError(f"line {number}: unknown command {line!r}")
                told += story.run(line)
    if told:
        raise ValueError(f"the last commands lead to {told}, and no ---- follows them")
    return "\n".join(out) + "\n"
