"""What the control plane does in a simulation: the allocation, laid over the workers, and the way from one to the next.

The decisions are those of arlo.planning, as in arlo.control; this module has the time and the engine for them. Workers
are numbered from 0: at the start those of the shortest runtime first, then in the order in which they were asked for.

At the start (`start` "first") the allocation is the one for the demand of the first period, which is read ahead: as if
the period before had been like it, so that a run does not begin with a transient that a cluster in service never sees.
From then on a periodic plan knows only what has arrived in the last period. A plan takes no time, and is made as soon
as the period is over; one for a worker that is gone for good is made at once.

A replacement goes in steps (arlo.planning.placement.replacement), each of a few workers that drain, load the other
runtime for `replacement_s` and serve again; the next step begins when all of the step serve, which is looked at
every 0.1 s while a replacement is under way. A plan that is made meanwhile supersedes the older one as in the real
control plane: workers that are on their way get where they were going, then the steps are those to the new
placement. Unlike the real control plane (with make_before_break) a worker has one runtime in memory, and there is
no stand-in for a runtime that is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.planning.placement.assignment import assign
from arlo.planning.placement.replacement import Step, replacement_plan
from arlo.planning.traffic.demand import Demand
from arlo.planning.traffic.shift import MIN_ROWS, SAMPLE_S, SHIFT_ROWS
from arlo.planning.view import WorkerView
from arlo.simulator.allocation import SAMPLE_NS, SECOND_NS, Foresight, Planner, Seen
from arlo.simulator.report.timeline import DRAINING, GONE, SERVING, STARTING
from arlo.simulator.scenario.scenario import Fault, Scenario
from arlo.simulator.shift import EarlyPlans

LOOK_NS = SECOND_NS // 10  # between two looks at a replacement under way
NEVER_NS = 1 << 62


def name_of(worker: int) -> str:
    """A worker as planning knows it; in the order of the numbers."""
    return f"w{worker:07d}"


def number_of(name: str) -> int:
    """The inverse of name_of."""
    return int(name[1:])


def in_ns(seconds: float) -> int:
    """Nanoseconds, rounded."""
    return round(seconds * SECOND_NS)


class Controller:
    """Life: start(), then at each moment `next_ns` (and at any other) tick(), and what others ask for in between."""

    def __init__(self, scenario: Scenario, planner: Planner, engine: _core.Simulation) -> None:
        self._scenario = scenario
        self._allocate = scenario.allocate
        self._planner = planner
        self._engine = engine
        self._views = planner.views()
        self._period_ns = in_ns(self._allocate.period_s)
        # With one static runtime, or none, there is nothing to choose.
        self._plans = self._allocate.kind in ("periodic", "oracle") and len(planner.static) > 1
        self._seen: Seen | None = None  # that the last plan was for; its demand orders the steps
        self._target: list[int] = []  # worker -> runtime wanted; -1: it is to go, or gone
        self._ids: list[str] = []  # worker -> its name
        self._moving: dict[int, int] = {}  # worker -> runtime that it is getting
        self._steps: list[Step] = []  # still to begin; empty: to be planned, unless all is settled
        self._settled = True
        self._planned_workers = 0
        self.asked_ns: list[int] = []  # worker -> when it was asked for
        self.replacements = 0
        self._window = planner.window(self._allocate.period_s)
        self._samples = self._plans and self._allocate.kind == "periodic"
        self._shift = EarlyPlans(scenario, planner, self._window) if self._allocate.shift and self._samples else None
        self._sample_ns = in_ns(SAMPLE_S) if self._shift is not None else min(SAMPLE_NS, self._period_ns)
        self._next_sample_ns = self._sample_ns if self._samples else NEVER_NS
        self._next_plan_ns = self._period_ns if self._plans else NEVER_NS
        self._next_look_ns = NEVER_NS
        self._foresight: Foresight | None = None
        if self._plans and self._allocate.kind == "oracle":
            self._foresight = Foresight(planner, scenario.workload)

    # --- life ---

    def start(self) -> None:
        """The workers of the beginning, all in service at 0 s."""
        counts = self._first()
        for runtime in self._planner.ascending:
            for _ in range(counts[runtime]):
                self.add(runtime, 0)
        self._planned_workers = len(self._target)
        self._settled, self._next_look_ns = True, NEVER_NS

    def _first(self) -> tuple[int, ...]:
        workers, kind, start = self._scenario.workers, self._allocate.kind, self._allocate.start
        if kind in ("even", "global"):
            start = kind
        if not isinstance(start, str):
            return self._planner.given(start, workers)
        if start == "even" or len(self._planner.static) < 2:
            return self._planner.even(workers)
        if self._foresight is not None and start == "first":
            seen = self._foresight.span(0, self._period_ns)
        else:
            span_s = self._scenario.workload.duration_s if start == "global" else self._allocate.period_s
            seen = Foresight(self._planner, self._scenario.workload).span(0, in_ns(span_s))
        if self._shift is not None:
            self._shift.pause(0.0)
        self._note(seen)
        return self._planner.solve(workers, seen)

    @property
    def next_ns(self) -> int:
        """The next moment at which there is something to decide."""
        return min(self._next_sample_ns, self._next_plan_ns, self._next_look_ns)

    def tick(self, now_ns: int) -> None:
        """Look at what is due."""
        if now_ns >= self._next_sample_ns:
            self._sample(now_ns)
            self._next_sample_ns = now_ns + self._sample_ns
            if self._shift is not None and self._shift.due(now_ns / SECOND_NS, self.counts()):
                self._plan(now_ns, least_rows=SHIFT_ROWS)
        if now_ns >= self._next_plan_ns:
            self._plan(now_ns)
        if now_ns >= self._next_look_ns:
            self._look(now_ns)

    # --- what others ask for ---

    def add(self, runtime: int, at_ns: int) -> int:
        """A worker more, that serves `runtime` from then on; its number."""
        worker = int(self._engine.add_worker(runtime, at_ns))
        self._target.append(runtime)
        self._ids.append(name_of(worker))
        self.asked_ns.append(self._engine.now)
        self._unsettle()
        return worker

    def remove(self, worker: int) -> None:
        """Drains a worker for good."""
        self._target[worker] = -1
        self._moving.pop(worker, None)
        self._engine.remove(worker)
        self._unsettle()

    def fault(self, fault: Fault, now_ns: int) -> None:
        """Something happens to a worker; nothing when it is not there (any more)."""
        state = self._engine.workers()["state"]
        if fault.worker >= len(state) or state[fault.worker] == GONE:
            return
        if fault.kind == "slow":
            self._engine.slow(fault.worker, fault.factor)
            return
        self._engine.fail(fault.worker, None if fault.restart_s is None else in_ns(fault.restart_s))
        self._moving.pop(fault.worker, None)
        if fault.restart_s is None:
            self._target[fault.worker] = -1
            self.replan(now_ns)  # for the workers that are left, as the control plane does
        self._unsettle()

    def replan(self, now_ns: int) -> None:
        """A plan for the workers there are now, if there are plans at all."""
        if self._plans:
            self._plan(now_ns, again=True)

    # --- what others see ---

    def counts(self) -> tuple[int, ...]:
        """Instances wanted, by runtime."""
        wanted = np.array([runtime for runtime in self._target if runtime >= 0], np.int64)
        return tuple(np.bincount(wanted, minlength=len(self._planner.names)).tolist())

    def views(self, busy: NDArray[np.float64] | None = None) -> list[WorkerView]:
        """The workers that are to stay, as scaling sees them. `busy`: share of the last window, by worker."""
        columns = self._engine.workers()
        state, runtime = columns["state"].tolist(), columns["runtime"].tolist()
        shares = busy.tolist() if busy is not None else [0.0] * len(state)
        names = self._planner.names
        return [
            WorkerView(
                id=self._ids[worker],
                usable=state[worker] == SERVING or worker in self._moving,
                serving=names[runtime[worker]] if state[worker] == SERVING else None,
                busy=shares[worker],
            )
            for worker, target in enumerate(self._target)
            if target >= 0
        ]

    # --- plans ---

    def _sample(self, now_ns: int) -> None:
        counts = self._planner.clip(self._engine.arrivals_by_length())
        self._window.add(now_ns / SECOND_NS, 0, counts)  # type: ignore[arg-type]  # an array is a sequence of ints to it
        if self._shift is not None:
            self._shift.add(now_ns / SECOND_NS, counts)

    def _note(self, seen: Seen) -> None:
        """A plan was made for this demand."""
        self._seen = seen
        if self._shift is not None:
            self._shift.planned(seen.demand)

    def _plan(self, now_ns: int, *, again: bool = False, least_rows: int = MIN_ROWS) -> None:
        """A plan for the workers there are. `again`: an oracle's is for the period that it has planned already.

        The period begins anew with every plan; only an oracle's, which knows them in advance, stay where they are.
        """
        if self._shift is not None:
            self._shift.pause(now_ns / SECOND_NS)
        if self._foresight is None:
            self._sample(now_ns)
            seen = self._planner.seen(self._window)
        else:
            duration_ns = in_ns(self._scenario.workload.duration_s)
            if again or now_ns >= duration_ns:
                seen = self._seen if self._seen is not None else Seen(self._empty(), None)
            else:
                seen = self._foresight.span(now_ns, now_ns + self._period_ns)
        if self._foresight is None or not again:
            self._next_plan_ns = now_ns + self._period_ns
        workers = sum(target >= 0 for target in self._target)
        forced = workers != self._planned_workers
        enough = seen.demand.rows >= least_rows
        if not enough:
            if not forced or self._seen is None:
                return
            seen = self._seen
        if not workers:
            return
        if enough:
            self._note(seen)
        now, best = self.counts(), self._planner.solve(workers, seen)
        self._planned_workers = workers
        least = self._allocate.min_gain
        if best == now or (not forced and least > 0 and self._planner.gain(now, best, seen) < least):
            return
        self._want(best)

    def _empty(self) -> Demand:
        lengths = self._planner.lengths
        return Demand(lengths, (0.0,) * len(lengths), (0.0,) * len(lengths), 0, 0.0)

    def _want(self, counts: Sequence[int]) -> None:
        """Lays instances over the workers, with the fewest changes. A worker on its way counts as arrived."""
        names = self._planner.names
        views = [
            WorkerView(id=self._ids[worker], serving=names[self._moving.get(worker, runtime)])
            for worker, (runtime, target) in enumerate(
                zip(self._engine.workers()["runtime"].tolist(), self._target, strict=True)
            )
            if target >= 0
        ]
        placement = assign({names[i]: counts[i] for i in self._planner.ascending if counts[i]}, views)
        for name, runtime in placement.items():
            self._target[number_of(name)] = self._planner.index[runtime]
        self._unsettle()

    # --- replacement ---

    def _unsettle(self) -> None:
        self._settled = False
        self._steps = []
        self._next_look_ns = min(self._next_look_ns, self._engine.now)

    def _look(self, now_ns: int) -> None:
        """Begin what can begin now."""
        self._next_look_ns = now_ns + LOOK_NS
        columns = self._engine.workers()
        state, runtime = columns["state"], columns["runtime"]
        for worker, target in list(self._moving.items()):
            if state[worker] == GONE or (state[worker] == SERVING and runtime[worker] == target):
                del self._moving[worker]
        if self._moving:
            return
        wanted = np.array(self._target, np.int64)
        if not ((wanted >= 0) & ((state != SERVING) | (runtime != wanted))).any():
            self._settled, self._steps, self._next_look_ns = True, [], NEVER_NS
            return
        if not self._steps:
            self._steps = self._ordered(state, runtime, wanted)
        if self._steps:
            step = self._steps[0]
            heirs = (wanted == self._planner.longest) & ((state == STARTING) | (state == DRAINING))
            if step.interrupts and heirs.any():  # one that will serve the longest requests is on its way: wait for it
                self._steps = []
                return
            for change in self._steps.pop(0).changes:
                self._replace(number_of(change.worker))

    def _ordered(self, state: NDArray[np.int64], runtime: NDArray[np.int64], wanted: NDArray[np.int64]) -> list[Step]:
        """Steps for the workers in service; one that is not carries nothing, and is looked at when it is."""
        up = np.flatnonzero((wanted >= 0) & (state == SERVING)).tolist()
        names, limit = self._planner.names, self._allocate.max_parallel
        current: dict[str, str | None] = {self._ids[worker]: names[runtime[worker]] for worker in up}
        return list(
            replacement_plan(
                current,
                {self._ids[worker]: names[wanted[worker]] for worker in up},
                runtimes=self._views,
                demand=self._planner.quantities(self._seen.demand if self._seen is not None else None),
                max_parallel=limit if limit is not None else max(1, int((wanted >= 0).sum()) // 10),
                overlap=False,
            )
        )

    def _replace(self, worker: int) -> None:
        target = self._target[worker]
        self._engine.replace(worker, target, in_ns(self._allocate.replacement_s))
        self._moving[worker] = target
        self.replacements += 1
