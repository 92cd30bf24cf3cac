"""Token counts chosen when a batch begins: on the scheduler itself, by any events in any order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo import _core

MS = 1_000_000
TIMES_MS = (4, 8, 16)  # of eight rows, the fewest tokens first
ACCURACY = (0.8, 0.9, 0.95)
POLICIES = ("printed", "price", "fixed")
ROWS = 8


def rules_of(policy: str, energy: Sequence[float] = ()) -> _core.TokenCounts:
    """Of an SLO of 200 ms."""
    return _core.TokenCounts(
        [0, 1, 2],
        [list(ACCURACY)],
        policy=policy,
        fixed=1,
        most=ROWS,
        delta=100 * MS,
        eta=100 * MS,
        mu=0.8,
        initial=100 * MS,
        window=2000 * MS,
        horizon=50 * MS,
        energy=list(energy),
    )


def scheduler(policy: str, *, lacks: bool, energy: Sequence[float] = ()) -> tuple[_core.Scheduler, int]:
    """A body of three counts, each of two maximum lengths, and the bundle that workers hold. lacks: the count with the
    fewest tokens has the longer one only."""
    made = _core.Scheduler("late", batching="deadline", max_queued=64)
    runtimes = [
        made.add_runtime(
            length,
            100,
            [(length, rows, ms * MS * length * rows // (64 * ROWS) + MS) for rows in (1, ROWS)],
            max_batch=ROWS,
            variant=variant,
        )
        for variant, ms in enumerate(TIMES_MS)
        for length in ((64,) if lacks and variant == 0 else (32, 64))
    ]
    made.set_tokens(rules_of(policy, energy))
    return made, made.add_bundle(runtimes)


@dataclasses.dataclass
class Row:
    handle: int
    deadline: int
    due: int
    state: str = "waiting"  # started, lost, over
    starts: int = 0


class Watched:
    """A scheduler and what it has said of each row."""

    def __init__(self, policy: str, *, lacks: bool, energy: Sequence[float] = ()) -> None:
        self.core, self.bundle = scheduler(policy, lacks=lacks, energy=energy)
        self.rows: dict[int, Row] = {}
        self.now = 0
        self.instances: list[int] = []
        self.retried: set[int] = set()

    def take(self, actions: list[_core.Action]) -> None:
        """Every action is about a row in the state that it goes with, and a batch is of one count."""
        counts: dict[int, set[int | None]] = {}
        for action in actions:
            row = self.rows[action.tag]
            if action.kind == _core.ActionKind.START:
                assert row.state == "waiting"
                row.state, row.starts = "started", row.starts + 1
                assert self.now < row.deadline
                if action.batch is not None:
                    counts.setdefault(action.batch, set()).add(action.runtime)
            elif action.kind == _core.ActionKind.EXPIRED:
                assert row.state == "waiting"
                row.state = "over"
            else:
                assert row.state == "started"
                row.state = "lost"
        assert all(len(each) == 1 for each in counts.values())
        assert self.core.queued() == sum(row.state == "waiting" for row in self.rows.values())
        assert self.core.in_flight() == sum(row.state == "started" for row in self.rows.values())

    def arrive(self, slo_ms: int, patience: int, utility: float, *, bulk: bool) -> None:
        tag = len(self.rows)
        due = self.now + slo_ms * MS
        deadline = self.now + patience * slo_ms * MS
        self.rows[tag] = Row(-1, deadline, due)
        length = 40 if tag % 3 else 20
        _, handle, actions = self.core.arrive(tag, length, self.now, deadline, due=due, utility=utility, bulk=bulk)
        if handle is None:
            self.rows[tag].state = "over"
        else:
            self.rows[tag].handle = handle
        self.take(actions)

    def of(self, state: str) -> list[Row]:
        return [row for row in self.rows.values() if row.state == state]

    def finish(self, number: int) -> None:
        started = self.of("started")
        if started:
            row = started[number % len(started)]
            row.state = "over"
            self.take(self.core.finish(row.handle, self.now))

    def retry(self, number: int, *, lost: bool) -> None:
        rows = self.of("lost" if lost else "started")
        if rows:
            row = rows[number % len(rows)]
            row.state = "waiting"
            self.take(self.core.retry(row.handle, None, self.now)[1])

    def end(self) -> None:
        """Everything ends once the clock runs on and workers answer."""
        for row in self.of("lost"):
            row.state = "waiting"
            self.take(self.core.retry(row.handle, None, self.now)[1])
        while self.of("waiting") or self.of("started"):
            if self.of("started"):
                self.now += MS
                self.finish(0)
            else:
                self.now = max(self.now, self.core.next_deadline() or 0)
                self.take(self.core.expire(self.now))


KINDS = ("arrive", "arrive", "arrive", "bulk", "finish", "finish", "wait", "join", "leave")
RARE = ("drain", "cancel", "retry", "lost", "rules")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(KINDS + RARE),
        st.integers(0, 40),
        st.sampled_from((20, 60, 200)),
        st.sampled_from((1, 3)),
        st.sampled_from((0.0, 0.01, 0.3, 1.0, 50.0)),
    ),
    max_size=80,
)


@settings(max_examples=200)
@given(st.sampled_from(POLICIES), st.booleans(), st.sampled_from([(), (0.0, 5.0, 5.0), (1e9, 30.0, 0.0)]), EVENTS)
def test_every_row_ends_once(
    policy: str, lacks: bool, energy: tuple[float, ...], events: list[tuple[str, int, int, int, float]]
) -> None:
    """Whatever comes, and whatever is drawn: a row starts only while it waits, a batch has one count, and in the end
    nothing is left."""
    seen = Watched(policy, lacks=lacks, energy=energy)
    instance, actions = seen.core.join(seen.bundle, 2, 0)
    seen.instances.append(instance)
    seen.take(actions)
    for kind, number, slo_ms, patience, utility in events:
        seen.now += number * MS // 4
        if kind in ("arrive", "bulk"):
            seen.arrive(slo_ms, patience, utility, bulk=kind == "bulk")
        elif kind == "finish":
            seen.finish(number)
        elif kind == "wait":
            seen.take(seen.core.expire(seen.now))
        elif kind == "join" and len(seen.instances) < 3:
            instance, actions = seen.core.join(seen.bundle, 1 + number % 2, seen.now)
            seen.instances.append(instance)
            seen.take(actions)
        elif kind in ("leave", "drain") and len(seen.instances) > 1:
            instance = seen.instances.pop(number % len(seen.instances))
            if kind == "leave":
                seen.take(seen.core.leave(instance, seen.now))
            else:
                seen.take(seen.core.drain(instance, seen.now)[1])
        elif kind == "cancel" and seen.of("waiting"):
            row = seen.of("waiting")[number % len(seen.of("waiting"))]
            tag = next(tag for tag, each in seen.rows.items() if each is row)
            assert seen.core.cancel(row.handle, tag, seen.now)[0]
            row.state = "over"
        elif kind == "rules" and number % 3:
            seen.core.set_tokens(rules_of(POLICIES[number % len(POLICIES)]))
        elif kind == "rules":
            seen.core.clear_tokens(0)
        elif kind in ("retry", "lost"):
            seen.retry(number, lost=kind == "lost")
    seen.end()
    assert seen.core.queued() == seen.core.in_flight() == 0
    assert {row.state for row in seen.rows.values()} <= {"over"}


def count_of(policy: str, energy: Sequence[float], slo_ms: int = 200) -> int:
    """Which count (by number) eight rows of 64 tokens get on a worker that has nothing else to do: 5, 9 or 17 ms for
    6.4, 7.2 or 7.6 right answers."""
    core, bundle = scheduler(policy, lacks=False, energy=energy)
    for tag in range(ROWS):
        core.arrive(tag, 64, 0, slo_ms * MS, due=slo_ms * MS, utility=1.0)
    _, actions = core.join(bundle, 1, 0)
    started = [action for action in actions if action.kind == _core.ActionKind.START]
    assert len(started) == len(actions) == ROWS, "none is left out"
    (runtime,) = {action.runtime for action in started}
    return runtime // 2


@pytest.mark.parametrize(
    ("energy", "count"),
    [
        ((), 2),
        ((45.0,) * 3, 2),  # .4 more for 8 ms: worth it up to 50 a second
        ((55.0,) * 3, 1),
        ((195.0,) * 3, 1),  # .8 more for 4 ms: up to 200
        ((205.0,) * 3, 0),
        ((1e9,) * 3, 0),  # dear as it is, rows are answered
        ((205.0, 205.0, 5.0), 2),  # what draws least is not what takes least
        ((1e9, 0.0, 1e9), 1),
    ],
)
def test_a_count_is_worth_its_energy(energy: tuple[float, ...], count: int) -> None:
    """What it takes beyond the count that draws least, in time that nobody else wants."""
    assert count_of("price", energy) == count


def test_rows_that_cannot_have_what_draws_least_have_another() -> None:
    """Within 8 ms only the fewest tokens are in time, and draw more than all answers are worth."""
    assert count_of("price", (1e9, 0.0, 0.0), slo_ms=8) == 0


def test_rules_that_are_printed_know_of_no_energy() -> None:
    for policy in ("printed", "fixed"):
        assert count_of(policy, (1e9,) * 3) == count_of(policy, ())


@pytest.mark.parametrize("energy", [(1.0,), (-1.0, 0.0, 0.0), (float("nan"), 0.0, 0.0), (float("inf"), 0.0, 0.0)])
def test_energy_is_of_every_count(energy: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="energy"):
        scheduler("price", lacks=False, energy=energy)
