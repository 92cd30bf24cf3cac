"""The planner: statistics in, decisions out. Pure; the time is an argument. The control plane and the simulator use it.

    planner = planner_for(settings, runtimes)             # arlo/planning/serving.py
    planner.add(at_s, started_s, counts)                  # every sample of the arrival counters, ten a second
        candidate = planner.candidate(now_s)                  # traffic that surely differs from the planned one, if any
    begun = planner.begin("period", now_s, workers, wanted)
    plan = planner.conclude(begun.question, begun.question.solve())

`Question.solve` takes a while and touches no planner state, so the control plane runs it in a thread, and
the simulator in no simulated time. Questions are asked one after the other: each is concluded, or dropped, before the
next is begun. Times are of one monotonic clock (traffic/stamp.py).

The planner's Subject receives the workers: the lengths of one model (by_length.py), several models
(models.py), the stages of a cascade (cascade.py) or the variants of a flow (flows/serving.py).

A change is made when it lowers the loss by at least `min_gain` and, where the profile has the runtimes' load times,
when it saves more until the next plan than loading costs meanwhile.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Literal

from arlo.catalog.manifest import Runtime
from arlo.planning.allocation.problem import Allocation, LatencyCurve, Variation
from arlo.planning.traffic.demand import Demand, DemandWindow
from arlo.planning.traffic.shift import MIN_ROWS, SAMPLE_S, SHIFT_ROWS, Candidate, ShiftWatch, least_gain

if TYPE_CHECKING:
    from arlo.planning.flows.live import StageCounts
    from arlo.planning.flows.problem import FlowPlan
    from arlo.planning.models import Served

Reason = Literal["start", "period", "shift", "point", "scale_out", "scale_in", "worker_lost", "worker_back", "restored"]

BURST_S = 1.0  # span over which requests are counted to measure burstiness
URGENT_GAIN = 0.5  # gain of a plan for which all workers may move at a time, as long as each keeps serving


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """The planner's fixed settings; names as in [control] and [dispatch] of the serving configuration."""

    slo_ms: float
    policy: str  # of the request scheduler
    objective: str
    solver: str
    window_s: float  # of the demand that plans are for
    min_gain: float
    early: bool  # plan before the period is over when the traffic has clearly shifted
    reallocate: bool = True
    dynamic: int = 0  # workers that keep a dynamic runtime, in addition to the static ones
    solver_time_limit_s: float = 5.0  # after this the last plan is kept
    load_window_s: float = 10.0  # of the load that scaling goes by
    period_s: float = math.inf  # until the next plan: the time in which a change must pay for its loads


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """The demand of a span of time, and how its arrivals varied in it."""

    demand: Demand
    dispersion: float | None = None  # of all requests, see DemandWindow.dispersion
    variation: Variation | None = None  # see DemandWindow.variation


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An allocation in any case, with the reason why it is not the solver's (empty if it is)."""

    allocation: Allocation
    fell_back: str


class Problem(abc.ABC):
    """A division of workers and its loss. Pure. Instances are by Subject.planned."""

    minimises_ms = True  # the loss is the predicted mean latency

    @abc.abstractmethod
    def solve(self, last: Allocation | None, *, time_limit_s: float) -> Answer:
        """An allocation; `last`: an earlier one, to keep if none is found."""

    @abc.abstractmethod
    def loss(self, instances: Sequence[int]) -> float:
        """The loss to minimise, at least 0; infinity if some requests are not served at all."""

    def compared(self, answer: Answer) -> Problem:
        """The problem in whose terms the answer is compared with the wanted instances."""
        del answer
        return self

    def gain(self, wanted: Sequence[int], best: Sequence[int]) -> float:
        """Share of the loss that `best` saves over `wanted`."""
        before, after = self.loss(wanted), self.loss(best)
        if math.isinf(before):
            return 1.0
        return 1 - after / before if before > 0 else 0.0

    def outweighed(
        self, wanted: Sequence[int], best: Sequence[int], load_ms: Sequence[float | None], period_s: float
    ) -> str:
        """The reason why loading costs more than the change gains in `period_s`; empty if it does not, or is not known.

        A worker counts as away for as long as its load takes: drained first it serves nothing, and in the other order
        the device loads instead. The cost of one instance less is predicted; workers are counted one by one, although
        some move at a time, as a step is small.
        """
        more = [max(0, b - a) for a, b in zip(wanted, best, strict=True)]
        loads = [(count, each) for count, each in zip(more, load_ms, strict=True) if count]
        known = [count * each for count, each in loads if each is not None]
        before = self.loss(wanted)
        if not loads or len(known) < len(loads) or math.isinf(before):
            return ""
        mean_ms, cost = sum(known) / sum(more), 0.0
        for index, (a, b) in enumerate(zip(wanted, best, strict=True)):
            if a > b:
                away = [*wanted[:index], a - 1, *wanted[index + 1 :]]
                cost += (a - b) * mean_ms * max(0.0, self.loss(away) - before)
        saved_ms = before - self.loss(best)
        if cost <= saved_ms * period_s * 1000:
            return ""
        return (
            f"{sum(more)} load(s) of {mean_ms / 1000:.3g} s cost more than the {saved_ms:.3g} ms less of each request "
            f"gain in {period_s:g} s"
        )


class Subject(abc.ABC):
    """The receivers of workers. Its bins of demand may cover several models, one model's after another's."""

    models: Sequence[Served] = ()  # each of several models
    planned: Sequence[Runtime]  # runtimes whose instances are decided; empty: nothing to decide
    lengths: tuple[int, ...]  # upper ends of the demand's bins
    load_lengths: tuple[int, ...]  # upper ends of the load's bins
    load_curves: Sequence[LatencyCurve]  # cost of rows of each of these on the runtime that suits them best
    in_force: FlowPlan | None = None  # for a flow: the plan for the gateway
    size: int | None = None  # workers that the last plan wanted, if it wants a number
    turned = False  # True: the counts so far are of another operating point

    @abc.abstractmethod
    def problem(self, workers: int, seen: Seen | None, wanted: Sequence[int]) -> Problem:
        """The problem of these workers and requests; None: too little was seen, and a guess is made."""

    def joined(self, counts: Sequence[Sequence[int]]) -> Sequence[int]:
        """Counters by length of each model, in the form for Planner.add."""
        return counts[0]

    def by_runtime(self, quantities: Sequence[float]) -> dict[str, float]:
        """A Demand's values by bin, keyed by the name of the runtime planned for it."""
        return {runtime.name: q for runtime, q in zip(self.planned, quantities, strict=True)}

    def by_model(self, demand: Demand) -> list[Demand]:
        """The demand of each of `models`, in its SLO periods and by its lengths."""
        del demand
        return []

    def left_ms(self, demand: Demand) -> list[float]:
        """The time within which each of `models` must answer a row, at this demand."""
        del demand
        return [served.slo_ms for served in self.models]

    def count(self, at_s: float, started_s: float, stages: Sequence[StageCounts]) -> None:
        """Add counters of a flow, see FlowTraffic.add."""
        del at_s, started_s, stages

    def turn(self, reach: Sequence[float]) -> bool:
        """Note the reach of the operating point in force. Returns whether it changed, so that a new plan is due."""
        del reach
        return False

    def renewed(self, seen: Seen) -> Seen | None:
        """Demand recorded under the earlier operating point, converted to the new one; None: too little was seen."""
        return seen

    def routing(self, workers: int) -> Callable[[], FlowPlan] | None:
        """The routing to solve, in any thread, if workers hold everything and only rows are divided; None: nothing."""
        del workers
        return None

    def follow(self, plan: FlowPlan) -> None:
        """Put a plan of routing() in force."""
        del plan

    def adopt(self, answer: Answer, *, moves: bool) -> None:
        """Put an answer in force: its plan or, if nothing moves, the best one for the present instances."""
        del answer, moves


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A problem to be solved for a plan. Numbers of instances are those of Subject.planned."""

    reason: Reason
    problem: Problem
    seen: Seen | None  # None: a guess, as too little was seen
    wanted: tuple[int, ...]  # instances wanted now
    forced: bool  # workers came or went: the placement has to change, at any gain
    last: Allocation | None
    time_limit_s: float

    def solve(self) -> Answer:
        """Solve the problem. Pure but for the time it takes; in any thread."""
        return self.problem.solve(self.last, time_limit_s=self.time_limit_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """The start of a plan."""

    forced: bool
    question: Question | None  # None: nothing to solve


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision: carry out `best` if `moves`."""

    reason: Reason
    wanted: tuple[int, ...]  # before the plan, by static runtime
    best: tuple[int, ...]
    moves: bool
    gain: float | None  # share of the loss that it saves; None: for another number of workers
    allocation: Allocation
    fell_back: str
    note: str

    @property
    def urgent(self) -> bool:
        """Whether the present placement is so unfit that all workers may be moved at a time."""
        return (self.gain or 0.0) >= URGENT_GAIN


class Planner:
    """See the module. Its state: the statistics, the last allocation, and the demand of the last plan."""

    def __init__(self, settings: PlannerSettings, subject: Subject) -> None:
        self._settings = settings
        self.subject = subject
        self._window = DemandWindow(window_s=settings.window_s)
        self._load = DemandWindow(window_s=settings.load_window_s, resolution_s=SAMPLE_S)
        self._shift = ShiftWatch(self._window, subject.lengths, settings.slo_ms)
        self._last: Allocation | None = None
        self._known: Seen | None = None  # the input of the last plan for real requests
        self._workers: frozenset[str] = frozenset()  # workers that the last plan counted on

    @property
    def planned(self) -> Sequence[Runtime]:
        """The runtimes whose instances are decided."""
        return self.subject.planned

    @property
    def lengths(self) -> tuple[int, ...]:
        """The upper ends of the demand's bins."""
        return self.subject.lengths

    # --- statistics ---

    def add(self, at_s: float, started_s: float, counts: Sequence[int]) -> None:
        """Add a sample of the arrival counters, see DemandWindow.add."""
        self._window.add(at_s, started_s, counts)
        self._load.add(at_s, started_s, counts)
        self._shift.add(at_s, started_s, counts)

    def demand(self) -> Demand:
        """The demand of the window until now."""
        return self._window.estimate(self.lengths, self._settings.slo_ms)

    def seen(self, demand: Demand | None = None, window: DemandWindow | None = None) -> Seen:
        """The demand of the window, or another one, with the variation of the window's arrivals."""
        window = window if window is not None else self._window
        if demand is None:
            demand = window.estimate(self.lengths, self._settings.slo_ms)
        return Seen(demand, window.dispersion(self.lengths[-1:], clip_s=BURST_S), window.variation(self.lengths))

    def recent(self) -> Demand:
        """The demand of the last `load_window_s`, per second, by the load's bins."""
        return self._load.estimate(self.subject.load_lengths, 1000.0)

    def loads(self) -> list[float]:
        """Work that arrives, over the last `load_window_s`: instance-seconds per second, by the load's bins."""
        pairs = zip(self.recent().mean, self.subject.load_curves, strict=True)
        return [rate * (line.batch_ms(1) / 1000) for rate, line in pairs]

    def predicted_mean_ms(self, demand: Demand, instances: Sequence[int]) -> float:
        """Mean latency of these requests on these instances; 0 if the loss is not a latency."""
        problem = self.subject.problem(sum(instances), Seen(demand), instances)
        return problem.loss(instances) if problem.minimises_ms else 0.0

    # --- when to plan ---

    @property
    def plans(self) -> bool:
        """Whether there is anything to decide."""
        return self._settings.reallocate and bool(self.subject.planned)

    @property
    def last_demand(self) -> Demand | None:
        """The demand of the last plan for real requests."""
        return self._known.demand if self._known is not None else None

    def count_on(self, workers: Collection[str]) -> None:
        """Record that these workers have their runtimes, by any decision."""
        self._workers = frozenset(workers)

    def changed(self, workers: Collection[str]) -> Reason | None:
        """The reason to plan again if the last plan counted on other workers; None for the same ones, or for none."""
        now = frozenset(workers)
        if not now or now == self._workers:
            return None
        return "worker_lost" if self._workers - now else "worker_back"

    def candidate(self, now_s: float) -> Candidate | None:
        """Traffic that surely differs from the last plan's, if it is known well enough to plan for it."""
        return self._shift.candidate(now_s) if self._settings.early and self.plans else None

    def weigh(self, candidate: Candidate, workers: int, wanted: Sequence[int]) -> Question | None:
        """The question whether a plan for the candidate would pay; None: it would not."""
        static = workers - self._settings.dynamic
        if static < 1 or sum(wanted) != static:
            return None
        return self._question("shift", static, self.seen(candidate.demand), wanted, forced=False)

    def settle(self, candidate: Candidate, question: Question | None, answer: Answer | None, now_s: float) -> bool:
        """Whether a plan for the candidate pays. The caller makes one if it does."""
        pays = False
        if question is not None and answer is not None and not answer.fell_back:
            best = answer.allocation.instances
            gain = question.problem.gain(question.wanted, best)
            pays = gain >= least_gain(self._settings.min_gain) and not self._outweighed(question, best)
        self._shift.settle(candidate, pays, now_s)
        return pays

    # --- a plan ---

    def begin(
        self,
        reason: Reason,
        now_s: float,
        workers: Collection[str],
        wanted: Sequence[int],
        *,
        foreseen: Seen | None = None,
    ) -> Begun:
        """Begin a plan for these workers, at least one. `wanted`: instances of each static runtime wanted now.

        `foreseen`: demand to plan for instead of the recorded one, for a simulation that knows the future.
        """
        if self.subject.turned and foreseen is None:
            foreseen = self.subject.renewed(self.seen())
            self._shift.turned()
        self._shift.pause(now_s)
        forced = frozenset(workers) != self._workers
        self._workers = frozenset(workers)
        static = len(workers) - self._settings.dynamic
        if not self.plans or static < 1:
            return Begun(forced, None)
        seen: Seen | None = foreseen if foreseen is not None else self.seen()
        assert seen is not None
        if seen.demand.rows < (SHIFT_ROWS if reason == "shift" else MIN_ROWS):
            if not forced:
                return Begun(forced, None)  # too few to plan for
            seen = self._known
        else:
            self._known = seen
            self._shift.planned(seen.demand)
        return Begun(forced, self._question(reason, static, seen, wanted, forced=forced))

    def conclude(self, question: Question, answer: Answer) -> Plan:
        """Decide on the answer."""
        question = dataclasses.replace(question, problem=question.problem.compared(answer))
        allocation = self._last = answer.allocation
        best = tuple(allocation.instances)
        notes = [allocation.reason or "", answer.fell_back]
        gain = None
        if sum(question.wanted) == sum(best):
            gain = question.problem.gain(question.wanted, best)
        moves = question.forced or best != question.wanted
        if moves and not question.forced and gain is not None:
            small = gain < self._settings.min_gain
            why = f"gain {gain:.1%} is below min_gain" if small else self._outweighed(question, best)
            moves = not why
            notes.append(why)
        self.subject.adopt(answer, moves=moves or best == question.wanted)
        return Plan(
            reason=question.reason,
            wanted=question.wanted,
            best=best,
            moves=moves,
            gain=gain,
            allocation=allocation,
            fell_back=answer.fell_back,
            note="; ".join(filter(None, notes)),
        )

    def _outweighed(self, question: Question, best: Sequence[int]) -> str:
        load_ms = [runtime.load_ms for runtime in self.subject.planned]
        return question.problem.outweighed(question.wanted, best, load_ms, self._settings.period_s)

    def first(self, workers: int, foreseen: Seen | None = None) -> tuple[int, ...]:
        """Instances of each static runtime for the start; without `foreseen`, for unknown lengths."""
        question = self._question("start", workers, foreseen, (0,) * len(self.subject.planned), forced=True)
        if foreseen is not None:
            self._known = foreseen
            self._shift.planned(foreseen.demand)
        self._last = question.solve().allocation
        return tuple(self._last.instances)

    def _question(
        self, reason: Reason, workers: int, seen: Seen | None, wanted: Sequence[int], *, forced: bool
    ) -> Question:
        return Question(
            reason=reason,
            problem=self.subject.problem(workers, seen, wanted),
            seen=seen,
            wanted=tuple(wanted),
            forced=forced,
            last=self._last,
            time_limit_s=self._settings.solver_time_limit_s,
        )
