"""What holds for every replacement plan, at every moment of it, checked by counting what is in service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from arlo.planning.placement.assignment import changed
from arlo.planning.placement.replacement import Change, Step, carried, replacement_plan
from arlo.planning.view import RuntimeView

# Alike up to rounding; a plan treats less than 1e-6 of the requests as nothing.
LOSS = 1e-5


@dataclass(frozen=True)
class Case:
    """A cluster on its way."""

    runtimes: list[RuntimeView]
    current: dict[str, str | None]
    desired: dict[str, str]
    demand: list[float]
    max_parallel: int
    overlap: bool

    def plan(self) -> tuple[Step, ...]:
        return replacement_plan(
            self.current,
            self.desired,
            runtimes=self.runtimes,
            demand=self.demand,
            max_parallel=self.max_parallel,
            overlap=self.overlap,
        )

    @property
    def longest(self) -> str:
        return self.runtimes[-1].name

    def carries(self, serving: Iterable[str | None]) -> float:
        count = Counter(serving)
        instances = [count[runtime.name] for runtime in self.runtimes]
        return carried(instances, [runtime.capacity for runtime in self.runtimes], self.demand)

    def moments(self, state: Mapping[str, str | None], changes: Sequence[Change]) -> Iterator[list[str | None]]:
        """What may be in service while `changes` are made: each is yet to begin, away (without overlap), or done."""
        moving = {change.worker for change in changes}
        rest = [name for worker, name in state.items() if worker not in moving]
        phases = [(c.before, c.after) if self.overlap else (c.before, None, c.after) for c in changes]
        return ([*rest, *choice] for choice in product(*phases))

    def least(self, state: Mapping[str, str | None], changes: Sequence[Change]) -> float:
        return min(self.carries(moment) for moment in self.moments(state, changes))

    def keeps_longest(self, state: Mapping[str, str | None], changes: Sequence[Change]) -> bool:
        return all(self.longest in moment for moment in self.moments(state, changes))


@st.composite
def runtimes_and_demand(draw: st.DrawFn) -> tuple[list[RuntimeView], list[float]]:
    count = draw(st.integers(1, 5))
    capacities = [draw(st.integers(0, 30)) for _ in range(count)]
    if draw(st.booleans()):
        capacities.sort(reverse=True)  # as it is with real ones
    demand = draw(st.lists(st.one_of(st.just(0.0), st.floats(0, 60)), min_size=count, max_size=count))
    runtimes = [RuntimeView(name=f"s{i}", max_length=64 * (i + 1), capacity=m) for i, m in enumerate(capacities)]
    return runtimes, demand


@st.composite
def cases(draw: st.DrawFn) -> Case:
    runtimes, demand = draw(runtimes_and_demand())
    names = [runtime.name for runtime in runtimes]
    workers = [f"w{i}" for i in range(draw(st.integers(1, 9)))]
    current = {worker: draw(st.sampled_from([None, *names])) for worker in workers}
    desired = {worker: draw(st.sampled_from([None, *names])) for worker in workers}
    return Case(
        runtimes,
        current,
        {worker: name for worker, name in desired.items() if name},
        demand,
        draw(st.integers(1, 4)),
        draw(st.booleans()),
    )


@pytest.mark.long
@settings(max_examples=600, deadline=None)
@given(case=cases())
def test_every_moment_of_every_step(case: Case) -> None:
    state = dict(case.current)
    todo = set(changed(case.current, case.desired))
    assert case.plan() == case.plan()
    for number, step in enumerate(case.plan()):
        workers = [change.worker for change in step.changes]
        assert 1 <= len(workers) <= case.max_parallel
        assert len(set(workers)) == len(workers)
        assert todo.issuperset(workers)
        assert all((c.before, c.after) == (state[c.worker], case.desired.get(c.worker)) for c in step.changes)
        assert (step.changes[0].after is None) == all(case.desired.get(worker) is None for worker in todo)

        before, during = case.carries(state.values()), case.least(state, step.changes)
        assert step.carried == pytest.approx(during)
        if len(workers) > 1:
            assert during >= before - LOSS * (1 + before)
        elif during < before - LOSS * (1 + before):
            event("a step that loses")
            assert during >= max(least for _, least in others(case, state, todo)) - LOSS * (1 + before)

        had = case.longest in state.values()
        assert step.interrupts == (had and not case.keeps_longest(state, step.changes))
        if case.longest in case.desired.values():
            assert not step.interrupts
            assert had or number == 0
        state.update({change.worker: change.after for change in step.changes})
        todo.difference_update(workers)
        if case.longest in case.desired.values():
            assert case.longest in state.values()
    assert not todo
    assert {worker: name for worker, name in state.items() if name} == case.desired


def others(case: Case, state: Mapping[str, str | None], todo: set[str]) -> Iterator[tuple[Change, float]]:
    """The single changes that could be made now, and what each carries at its worst moment."""
    changes = [Change(worker, state[worker], case.desired.get(worker)) for worker in todo]
    changes = [change for change in changes if change.after] or changes
    if case.longest not in state.values():
        changes = [change for change in changes if change.after == case.longest] or changes
    else:
        changes = [change for change in changes if case.keeps_longest(state, [change])] or changes
    return ((change, case.least(state, [change])) for change in changes)


@settings(max_examples=200, deadline=None)
@given(given_=runtimes_and_demand(), data=st.data())
def test_carried_is_the_maximum_flow(given_: tuple[list[RuntimeView], list[float]], data: st.DataObject) -> None:
    """Against the linear program: x[i, j] requests of bin i on runtime j >= i."""
    runtimes, demand = given_
    size = len(runtimes)
    instances = data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    capacities = [runtime.capacity for runtime in runtimes]
    pairs = [(i, j) for i in range(size) for j in range(i, size)]
    rows = np.array([[pair[0] == i for pair in pairs] for i in range(size)], dtype=float)
    columns = np.array([[pair[1] == j for pair in pairs] for j in range(size)], dtype=float)
    room = [n * m for n, m in zip(instances, capacities, strict=True)]
    best = linprog(-np.ones(len(pairs)), A_ub=np.vstack([rows, columns]), b_ub=[*demand, *room], method="highs")
    assert carried(instances, capacities, demand) == pytest.approx(-best.fun, abs=1e-6)


@pytest.mark.timeout(30)
def test_a_large_cluster_is_planned() -> None:
    """1000 workers x 16 runtimes, nearly every worker moved (0.05 s here; the limit is for what grows too fast)."""
    runtimes = [RuntimeView(name=f"s{i}", max_length=32 * (i + 1), capacity=400 // (i + 1)) for i in range(16)]
    current: dict[str, str | None] = {f"w{i}": f"s{i % 16}" for i in range(1000)}
    desired = {f"w{i}": f"s{(7 * i + 3) % 16}" for i in range(1000)}
    case = Case(runtimes, current, desired, [1500.0] * 16, 20, overlap=False)
    steps = case.plan()
    assert sum(len(step.changes) for step in steps) == len(changed(current, desired))
    assert min(step.carried for step in steps) >= case.carries(current.values()) * 0.999
