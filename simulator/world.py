"""The workers of a simulation, and their control plane: the serving planner (arlo.planning.planner) acts through the
engine.

Workers are numbered from 0: at the start those of the shortest runtime first, then in the order in which they were
requested.

At the start (`start` "first") the allocation fits the demand of the first period, which is read ahead. This acts as if
the period before had been alike, so that a run does not begin with a transient that a cluster in service never sees.
From then on a periodic plan knows only the arrivals of the last period. A plan takes no time, and is made as soon as
the period is over; a plan for a worker that is gone for good is made at once.

A replacement goes in steps (arlo.planning.placement.replacement), each of which gives a few workers another runtime.
The next step begins when all workers of the step serve, which is checked every 0.1 s during a replacement. A worker
drains, loads for `replacement_s`, or as long as in the profile, and serves again; with `make_before_break` it keeps
serving while it loads. A plan that is made meanwhile supersedes the older one as in the real control plane: moves under
way are completed, then the steps lead to the new placement. With `cover_after_s` another worker covers the longest
runtime while no instance of it is in service. It then gives up its present runtime: the engine has one runtime per
worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.planning.placement.assignment import assign
from arlo.planning.placement.replacement import at_a_time, next_step, stand_in
from arlo.planning.planner import Plan, Reason, Seen
from arlo.planning.traffic.demand import Demand
from arlo.planning.traffic.shift import SAMPLE_S
from arlo.planning.view import WorkerView
from arlo.simulator.foresight import SECOND_NS, Foresight
from arlo.simulator.ladder import Ladder
from arlo.simulator.report.timeline import DRAINING, GONE, SERVING, STARTING
from arlo.simulator.scenario.scenario import REPLACEMENT_S, Allocate, Fault, Rows, Scenario

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


class World:
    """Life: start(), then at each moment `next_ns` (and at any other) tick(), and what others ask for in between."""

    def __init__(self, scenario: Scenario, ladder: Ladder, engine: _core.Simulation, rows: Rows) -> None:
        self._scenario = scenario
        self._rows = rows
        self._allocate = scenario.allocate
        self._ladder = ladder
        self._planner = ladder.planner
        self._engine = engine
        self._period_ns = in_ns(self._allocate.period_s)
        # With one static runtime, or none, there is nothing to choose.
        self._plans = rows.plans or (self._allocate.kind in ("periodic", "oracle") and len(ladder.static) > 1)
        self._target: list[int] = []  # worker -> runtime wanted; -1: it is to go, or gone
        self._ids: list[str] = []  # worker -> its name
        self._moving: dict[int, int] = {}  # worker -> runtime that it is getting
        self._loading: dict[int, int] = {}  # of these, those that serve on while they load -> until when
        self._cover: int | None = None  # worker that covers the longest runtime
        self._missing_ns: int | None = None  # since when no instance of the longest runtime has been in service
        self._urgent = False
        self.asked_ns: list[int] = []  # worker -> when it was asked for
        self.replacements = 0
        self.solved = 0
        samples = (self._plans and self._allocate.kind == "periodic") or scenario.scale.kind != "none"
        self._next_sample_ns = in_ns(SAMPLE_S) if samples else NEVER_NS
        self._next_plan_ns = self._period_ns if self._plans else NEVER_NS
        self._next_look_ns = NEVER_NS
        self._foreseen: Seen | None = None  # by an oracle, for the present period
        self._foresight: Foresight | None = None
        if self._plans and self._allocate.kind == "oracle":
            self._foresight = self._ahead()
        rows.sample(self._planner, 0.0)

    # --- life ---

    def start(self) -> None:
        """The workers of the beginning, all in service at 0 s."""
        counts = self._first()
        for runtime in self._ladder.ascending:
            for _ in range(counts[runtime]):
                self.add(runtime, 0)
        self._planner.count_on(self._ids)
        self._next_look_ns = NEVER_NS

    def _first(self) -> tuple[int, ...]:
        workers, kind, start = self._scenario.workers, self._allocate.kind, self._allocate.start
        if self._rows.plans:
            plan = self._decide(
                "start", 0, [name_of(worker) for worker in range(workers)], [0] * len(self._ladder.static)
            )
            return self._ladder.with_beside(plan.best) if plan is not None else self._ladder.even(workers)
        if kind in ("even", "global"):
            start = kind
        if not isinstance(start, str):
            return self._ladder.given(start, workers)
        if start == "even" or len(self._ladder.static) < 2:
            return self._ladder.even(workers)
        if self._foresight is not None and start == "first":
            self._foreseen = seen = self._foresight.span(0, self._period_ns)
        else:
            span_s = self._scenario.workload.duration_s if start == "global" else self._allocate.period_s
            seen = self._ahead().span(0, in_ns(span_s))
        self.solved += 1
        return self._ladder.with_beside(self._planner.first(workers, seen))

    def _ahead(self) -> Foresight:
        planner = self._planner
        return Foresight(lambda window: planner.seen(window=window), self._scenario.workload, self._ladder.max_length)

    @property
    def next_ns(self) -> int:
        """The next moment at which there is something to decide."""
        loaded_ns = min(self._loading.values(), default=NEVER_NS)
        return min(self._next_sample_ns, self._next_plan_ns, self._next_look_ns, loaded_ns)

    def tick(self, now_ns: int) -> None:
        """Handle the events that are due."""
        for worker in [worker for worker, until_ns in self._loading.items() if until_ns <= now_ns]:
            del self._loading[worker]
            self._engine.replace(worker, self._moving[worker], 0)
        if now_ns >= self._next_sample_ns:
            self._sample(now_ns)
            self._next_sample_ns = now_ns + in_ns(SAMPLE_S)
            if self._shifted(now_ns / SECOND_NS):
                self._plan(now_ns, "shift")
        if now_ns >= self._next_plan_ns:
            self._plan(now_ns, "period")
        if now_ns >= self._next_look_ns:
            self._look(now_ns)

    # --- requests of others ---

    def add(self, runtime: int, at_ns: int) -> int:
        """Add a worker that serves `runtime` from `at_ns` on; returns its number."""
        worker = int(self._engine.add_worker(runtime, at_ns))
        self._target.append(runtime)
        self._ids.append(name_of(worker))
        self.asked_ns.append(self._engine.now)
        self._unsettle()
        return worker

    def remove(self, worker: int) -> None:
        """Drain a worker for good."""
        self._target[worker] = -1
        self._stop_moving(worker)
        self._engine.remove(worker)
        self._unsettle()

    def fault(self, fault: Fault, now_ns: int) -> None:
        """Apply a fault to a worker; ignored when the worker is not present (any more)."""
        state = self._engine.workers()["state"]
        if fault.worker >= len(state) or state[fault.worker] == GONE:
            return
        if fault.kind == "slow":
            self._engine.slow(fault.worker, fault.factor)
            return
        self._engine.fail(fault.worker, None if fault.restart_s is None else in_ns(fault.restart_s))
        self._stop_moving(fault.worker)
        if fault.restart_s is None:
            self._target[fault.worker] = -1
            self.replan(now_ns, "worker_lost")  # for the workers that are left, as the control plane does
        self._unsettle()

    def replan(self, now_ns: int, reason: Reason) -> None:
        """Plan for the present workers, if this simulation plans at all."""
        if self._plans:
            self._plan(now_ns, reason, again=True)

    # --- views ---

    def counts(self) -> tuple[int, ...]:
        """Instances wanted, by runtime."""
        wanted = np.array([runtime for runtime in self._target if runtime >= 0], np.int64)
        return tuple(np.bincount(wanted, minlength=len(self._ladder.names)).tolist())

    def views(self, busy: NDArray[np.float64] | None = None) -> list[WorkerView]:
        """The workers that are to stay, in the form that scaling takes. `busy`: share of the last window, by worker."""
        columns = self._engine.workers()
        state, runtime = columns["state"].tolist(), columns["runtime"].tolist()
        shares = busy.tolist() if busy is not None else [0.0] * len(state)
        names = self._ladder.names
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
        self._rows.sample(self._planner, now_ns / SECOND_NS)

    def _static(self) -> tuple[int, ...]:
        counts = self.counts()
        return tuple(counts[i] for i in self._ladder.static)

    def _there(self) -> list[str]:
        return [self._ids[worker] for worker, target in enumerate(self._target) if target >= 0]

    def _shifted(self, now_s: float) -> bool:
        candidate = self._planner.candidate(now_s)
        if candidate is None:
            return False
        question = self._planner.weigh(candidate, len(self._there()), self._static())
        return self._planner.settle(candidate, question, question.solve() if question is not None else None, now_s)

    def _plan(self, now_ns: int, reason: Reason, *, again: bool = False) -> None:
        """Plan for the present workers. `again`: an oracle repeats the plan of the period that it has planned already.

        Every plan restarts the period; only an oracle's periods, which are known in advance, stay where they are.
        """
        foreseen = None
        if self._foresight is None:
            self._sample(now_ns)
        elif again or now_ns >= in_ns(self._scenario.workload.duration_s):
            foreseen = self._foreseen if self._foreseen is not None else self._nothing()
        else:
            foreseen = self._foreseen = self._foresight.span(now_ns, now_ns + self._period_ns)
        if self._foresight is None or not again:
            self._next_plan_ns = now_ns + self._period_ns
        there = self._there()
        if not there:
            return
        plan = self._decide(reason, now_ns, there, self._static(), foreseen)
        if plan is not None and plan.moves:
            self._urgent = plan.urgent
            self._want(self._ladder.with_beside(plan.best))

    def _decide(
        self, reason: Reason, now_ns: int, there: list[str], wanted: Sequence[int], foreseen: Seen | None = None
    ) -> Plan | None:
        """The plan of changes; None if nothing changes, or all workers hold everything."""
        plan, planner = None, self._planner
        begun = planner.begin(reason, now_ns / SECOND_NS, there, wanted, foreseen=foreseen)
        if begun.question is not None:
            plan = planner.conclude(begun.question, begun.question.solve())
        elif (solve := planner.subject.routing(len(there))) is not None:
            planner.subject.follow(solve())
        else:
            return None
        self.solved += 1
        self._rows.tell(planner)
        return plan

    def _nothing(self) -> Seen:
        none = (0.0,) * len(self._ladder.static)
        return Seen(Demand(self._planner.lengths, none, none, 0, 0.0))

    def _want(self, counts: Sequence[int]) -> None:
        """Assign instances to the workers, with the fewest changes. A worker under way counts as arrived."""
        names = self._ladder.names
        runtimes = self._engine.workers()["runtime"].tolist()
        views = [
            WorkerView(id=self._ids[worker], serving=names[self._moving.get(worker, runtimes[worker])])
            for worker, target in enumerate(self._target)
            if target >= 0
        ]
        placement = assign({names[i]: counts[i] for i in self._ladder.ascending if counts[i]}, views)
        for name, runtime in placement.items():
            self._target[number_of(name)] = self._ladder.index[runtime]
        self._unsettle()

    # --- replacement ---

    def _unsettle(self) -> None:
        self._next_look_ns = min(self._next_look_ns, self._engine.now)

    def _stop_moving(self, worker: int) -> None:
        self._moving.pop(worker, None)
        self._loading.pop(worker, None)
        if self._cover == worker:
            self._cover = None

    def _look(self, now_ns: int) -> None:
        """Begin the moves that can begin now."""
        self._next_look_ns = now_ns + LOOK_NS
        columns = self._engine.workers()
        state, runtime = columns["state"], columns["runtime"]
        self._look_after_longest(now_ns, state, runtime)
        for worker, target in list(self._moving.items()):
            if state[worker] == GONE or (state[worker] == SERVING and runtime[worker] == target):
                del self._moving[worker]
        if self._moving:
            return
        wanted = np.array(self._target, np.int64)
        if not ((wanted >= 0) & ((state != SERVING) | (runtime != wanted))).any():
            self._next_look_ns = NEVER_NS
            return
        up = [w for w in np.flatnonzero((wanted >= 0) & (state == SERVING)).tolist() if w != self._cover]
        names = self._ladder.names
        demand = self._planner.last_demand
        step = next_step(
            {self._ids[worker]: names[runtime[worker]] for worker in up},
            {self._ids[worker]: names[wanted[worker]] for worker in up},
            # One that will serve the longest requests is on its way.
            heirs=bool(((wanted == self._ladder.longest) & ((state == STARTING) | (state == DRAINING))).any()),
            runtimes=self._ladder.views,
            demand=self._ladder.quantities(demand.mean if demand is not None else ()),
            max_parallel=_at_a_time(self._allocate, int((wanted >= 0).sum()), urgent=self._urgent),
            overlap=self._allocate.make_before_break,
        )
        for change in step.changes if step is not None else ():
            worker = number_of(change.worker)
            self._replace(worker, self._target[worker], now_ns)

    def _look_after_longest(self, now_ns: int, state: NDArray[np.int64], runtime: NDArray[np.int64]) -> None:
        """Begin or end the cover of the longest runtime."""
        longest, after_s = self._ladder.longest, self._allocate.cover_after_s
        if after_s is None:
            return
        serving = {w: int(runtime[w]) for w in np.flatnonzero(state == SERVING).tolist() if self._target[w] >= 0}
        if any(kind == longest for worker, kind in serving.items() if worker != self._cover):
            self._missing_ns = self._cover = None
            return
        if self._missing_ns is None:
            self._missing_ns = now_ns
        if self._cover is not None or now_ns < self._missing_ns + in_ns(after_s):
            return
        names = self._ladder.names
        free = {self._ids[w]: names[kind] for w, kind in serving.items() if w not in self._moving and kind != longest}
        chosen = stand_in(free, {view.name: view.max_length for view in self._ladder.views})
        if chosen is not None:
            self._cover = number_of(chosen)
            self._replace(self._cover, longest, now_ns)

    def _replace(self, worker: int, target: int, now_ns: int) -> None:
        self._moving[worker] = target
        self.replacements += 1
        load_ns = _load_ns(self._scenario, self._ladder.load_ms[target])
        if self._allocate.make_before_break and load_ns:
            self._loading[worker] = now_ns + load_ns
        else:
            self._engine.replace(worker, target, load_ns)


def _at_a_time(allocate: Allocate, workers: int, *, urgent: bool) -> int:
    if allocate.max_parallel is not None:
        return allocate.max_parallel
    return at_a_time(
        workers,
        overlap=allocate.make_before_break,
        urgent=urgent,
        max_moving=allocate.max_moving,
        max_unavailable=allocate.max_unavailable,
    )


def _load_ns(scenario: Scenario, load_ms: int | None) -> int:
    """Load time of a replacement in ns, from the scenario, else the profile, else REPLACEMENT_S."""
    told_s = scenario.allocate.replacement_s
    if told_s is None and load_ms is not None:
        return load_ms * (SECOND_NS // 1000)
    return in_ns(REPLACEMENT_S if told_s is None else told_s)
