"""Steps from one placement to the next: small and ordered, so that as many requests as possible stay served. Pure.

Section 4 of the paper: "replaces the minimum number of current runtime instances", "in small batches to prevent
excessive traffic pressure on uninvolved instances".

The demand that a set of instances carries is a flow: a request runs on the runtime of its length bin or is demoted to
a longer one. The options of a longer request are a part of those of a shorter one, so by max-flow = min-cut

    carried = min over k = 0..I of  sum_{i < k} Q_i + sum_{i >= k} N_i * M_i

Each change moves that line of I + 1 numbers by a fixed amount, so a step is evaluated in O(I), and all kinds of changes
(from one runtime to another) at once.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from arlo.planning.placement.assignment import changed
from arlo.planning.view import RuntimeView

Line: TypeAlias = npt.NDArray[np.float64]  # a number for each cut k = 0..I
Counts: TypeAlias = npt.NDArray[np.int64]  # by kind of change
Mask: TypeAlias = npt.NDArray[np.bool_]  # by kind of change
Kind: TypeAlias = tuple[str | None, str | None]  # runtime before, runtime after

# Share of the time that a request waits for a fitting instance: after so long without the longest runtime, another
# worker covers for it.
COVER_AFTER = 0.25
_TOLERANCE = 1e-6  # of requests, relative; the sums of demands are not exact


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One worker's move from a runtime to another; None is idle."""

    worker: str
    before: str | None
    after: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Changes made at the same time. All of them are done before the next step begins."""

    changes: tuple[Change, ...]
    carried: float  # requests per SLO period carried at any moment of the step, in any order of its changes
    interrupts: bool = False  # the last instance of the longest runtime goes: no order of the changes avoids it


def carried(instances: Sequence[int], capacities: Sequence[int], demand: Sequence[float]) -> float:
    """The most demand (requests per SLO period) that instances carry when requests may be demoted.

    All three by ascending max_length; `capacities` is M. Going greedily from the longest bin to the shortest is
    optimal: room left over there can serve any shorter request, and no shorter runtime can help a longer request.
    """
    room = total = 0.0
    for n, m, q in zip(reversed(instances), reversed(capacities), reversed(demand), strict=True):
        room += n * m
        served = min(room, q)
        total += served
        room -= served
    return total


def replacement_plan(
    current: Mapping[str, str | None],
    desired: Mapping[str, str],
    *,
    runtimes: Sequence[RuntimeView],
    demand: Sequence[float],
    max_parallel: int,
    overlap: bool,
) -> tuple[Step, ...]:
    """Steps from `current` to `desired` (worker id -> runtime in service), one change for each worker that differs.

    `current` has the workers that answer; leave out lost ones, or their capacity is counted. A runtime in it
    that `runtimes` lacks counts as carrying nothing. `demand[i]` is in requests per SLO period and belongs to the i-th
    of `runtimes` by ascending max_length. At most `max_parallel` workers change in a step. During a step they are out
    of service, or with `overlap` (make before break) each serves its old runtime until it serves the new one.

    These rules hold at every moment, in whichever order the changes of a step end:

    - Once the longest runtime (of all in `runtimes`) has an instance in service, it keeps one. If it has none now, the
      first step makes one. If no order keeps this (`desired` has none at all), a step has `interrupts` set.
    - A step of several workers keeps in service enough to carry as much of the demand as before it.
    - So does a step of one worker, unless no change does; then it is the change that loses least during it and gains
      most after it, alone.

    Among equals, changes that take nothing out of service come first, and then those that leave the largest multiple of
    the demand bearable. Workers that become idle come last.
    """
    levels = _Levels(runtimes, demand)
    moves: defaultdict[Kind, list[str]] = defaultdict(list)
    for worker in sorted(changed(current, desired), reverse=True):
        moves[current.get(worker), desired.get(worker)].append(worker)
    planner = _Planner(levels, current, overlap)
    gaining = {kind: workers for kind, workers in moves.items() if kind[1] is not None}
    ending = {kind: workers for kind, workers in moves.items() if kind[1] is None}
    return tuple(step for part in (gaining, ending) if part for step in planner.steps(part, max_parallel))


def next_step(
    current: Mapping[str, str | None],
    desired: Mapping[str, str],
    *,
    heirs: bool,
    runtimes: Sequence[RuntimeView],
    demand: Sequence[float],
    max_parallel: int,
    overlap: bool,
) -> Step | None:
    """The first step of replacement_plan(); None if there is none, or if it is better to wait.

    `heirs`: a worker that cannot be moved now, or is away, is to serve the longest runtime, whose last instance is
    kept until it does.
    """
    steps = replacement_plan(
        current, desired, runtimes=runtimes, demand=demand, max_parallel=max_parallel, overlap=overlap
    )
    return None if not steps or (steps[0].interrupts and heirs) else steps[0]


def at_a_time(workers: int, *, overlap: bool, urgent: bool, max_moving: float, max_unavailable: float) -> int:
    """The number of `workers` that may move at a time, at least one.

    With `overlap` (make before break) a larger share than without; all of them if the present placement is so unfit
    that the move is `urgent`, as each of them keeps serving.
    """
    share = (1.0 if urgent else max_moving) if overlap else max_unavailable
    return max(1, int(workers * share))


def stand_in(serving: Mapping[str, str], lengths: Mapping[str, int]) -> str | None:
    """The worker that should cover for a runtime without an instance, given id -> runtime; None if there is no worker.

    `lengths`: max_length by runtime. The worker has a runtime with many instances, the longer one if there are
    equally many.
    """
    if not serving:
        return None
    count = Counter(serving.values())
    chosen = max(count, key=lambda name: (count[name], lengths[name]))
    return min(worker for worker, name in serving.items() if name == chosen)


class _Levels:
    """Runtimes by level (one max_length each, 0 the shortest), and the demand for each."""

    def __init__(self, runtimes: Sequence[RuntimeView], demand: Sequence[float]) -> None:
        lengths = sorted({runtime.max_length for runtime in runtimes})
        self.level = {runtime.name: lengths.index(runtime.max_length) for runtime in runtimes}
        self.capacity = {runtime.name: runtime.capacity for runtime in runtimes}
        self.longest = {name for name, level in self.level.items() if level == len(lengths) - 1}
        wanted = np.zeros(len(lengths))
        for runtime, requests in zip(sorted(runtimes, key=lambda r: r.max_length), demand, strict=True):
            wanted[self.level[runtime.name]] += requests
        self.shorter = np.concatenate(([0.0], np.cumsum(wanted)))  # Q of the levels below k, k = 0..I
        # Headroom is judged where there is demand from level k on, and everywhere if there is no demand at all.
        from_here = (self.shorter[-1] - self.shorter)[:-1]
        judged = np.flatnonzero(from_here > _TOLERANCE)
        self.judged = judged if len(judged) else np.arange(len(lengths))
        self.weights = from_here[judged] if len(judged) else np.ones(len(lengths))

    def line(self, runtime: str | None) -> Line:
        """Capacity that one instance adds for the requests from level k on, k = 0..I."""
        line = np.zeros(len(self.shorter))
        if runtime in self.level:
            line[: self.level[runtime] + 1] = self.capacity[runtime]
        return line

    def carried(self, room: Line) -> Line:
        """Requests carried with `room`: lines on the last axis."""
        carried: Line = (self.shorter + room).min(axis=-1)
        return carried

    def headroom(self, room: Line) -> Line:
        """The largest multiple of the demand that `room` carries."""
        headroom: Line = (room[..., self.judged] / self.weights).min(axis=-1)
        return headroom


class _Kinds:
    """The possible kinds of changes, and the effect of one of each."""

    def __init__(self, levels: _Levels, kinds: Collection[Kind], overlap: bool) -> None:
        self.names = sorted(kinds, key=lambda kind: (kind[0] or "", kind[1] or ""))
        self._levels = levels
        before = np.array([levels.line(name) for name, _ in self.names])
        self.after = np.array([levels.line(name) for _, name in self.names]) - before
        # Of several overlapping changes, any subset may have ended first: each counts where it takes capacity away.
        self.during = np.minimum(self.after, 0.0) if overlap else -before
        self.free = ~self.during.any(axis=1)
        had = np.array([name in levels.longest for name, _ in self.names])
        has = np.array([name in levels.longest for _, name in self.names])
        self.gained = has.astype(np.int64) - had.astype(np.int64)  # instances of the longest runtime
        self.takes = had & ~has if overlap else had  # it takes an instance out of service for a time, or for good
        self.swaps = self.takes & has  # for a time; only where several runtimes have the longest max_length

    def best(self, allowed: Mask, during: Line, after: Line) -> tuple[int, float]:
        """The best kind to do next, and the demand carried during it. `during`, `after`: the lines without it."""
        chosen = np.flatnonzero(allowed)
        low, high = during + self.during[chosen], after + self.after[chosen]
        carried = self._levels.carried(low)
        keys = (-self._levels.carried(high), -self.free[chosen].astype(np.float64), -carried)
        ties = (-self._levels.headroom(high), -self._levels.headroom(low))
        first = np.lexsort(tuple(np.round(key, 6) for key in (*ties, *keys)))[0]
        return int(chosen[first]), float(carried[first])


class _Planner:
    """Tracks the instances in service while steps are chosen greedily."""

    def __init__(self, levels: _Levels, current: Mapping[str, str | None], overlap: bool) -> None:
        self._levels = levels
        self._overlap = overlap
        self._room = sum((levels.line(name) for name in current.values()), np.zeros(len(levels.shorter)))
        self._longest = sum(name in levels.longest for name in current.values())

    def steps(self, moves: Mapping[Kind, list[str]], max_parallel: int) -> list[Step]:
        """Steps that do all of `moves`; its lists are consumed from their ends."""
        kinds = _Kinds(self._levels, moves, self._overlap)
        left = np.array([len(moves[kind]) for kind in kinds.names], dtype=np.int64)
        steps = []
        while left.any():
            picked, during, interrupts = self._step(kinds, left, max_parallel)
            changes = tuple(Change(moves[kinds.names[i]].pop(), *kinds.names[i]) for i in picked)
            steps.append(Step(changes, float(self._levels.carried(during)), interrupts))
            for i in picked:
                self._room = self._room + kinds.after[i]
                self._longest += int(kinds.gained[i])
        return steps

    def _step(self, kinds: _Kinds, left: Counts, max_parallel: int) -> tuple[list[int], Line, bool]:
        """Kinds of the next step (taken off `left`), the least room at any moment of it, and whether it interrupts."""
        before = float(self._levels.carried(self._room))
        enough = before - _TOLERANCE * (1 + before)
        during = after = self._room
        picked: list[int] = []
        spare = self._longest - 1
        allowed = self._allowed(kinds, left, spare)
        interrupts = not allowed.any()
        if interrupts:
            allowed = left > 0
        elif not self._longest and (allowed & (kinds.gained > 0)).any():
            allowed &= kinds.gained > 0
        while allowed.any():
            index, bears = kinds.best(allowed, during, after)
            if picked and bears < enough:
                break
            picked.append(index)
            left[index] -= 1
            during, after = during + kinds.during[index], after + kinds.after[index]
            spare -= int(kinds.takes[index])
            if interrupts or bears < enough or len(picked) == max_parallel:
                break
            allowed = self._allowed(kinds, left, spare)
        return picked, during, interrupts

    @staticmethod
    def _allowed(kinds: _Kinds, left: Counts, spare: int) -> Mask:
        """Kinds that keep an instance of the longest runtime if `spare` may go, and one for each swap to come."""
        open_: Mask = left > 0
        if spare < 1:
            open_ &= ~kinds.takes
        elif spare < 2 and (open_ & kinds.swaps).any():
            open_ &= kinds.swaps | ~kinds.takes
        return open_
