"""The planner: statistics in, decisions out. Pure; the time is an argument. The control plane and the simulator use it.

    planner = planner_for(settings, runtimes)             # arlo/planning/serving.py
    planner.add(at_s, started_s, counts)                  # every sample of the arrival counters, ten a second
    candidate = planner.candidate(now_s)                  # what is surely other traffic than planned for, if anything
    begun = planner.begin("period", now_s, workers, wanted)
    plan = planner.conclude(begun.question, begun.question.solve())

`Question.solve` takes a while and touches nothing of the planner, so that the control plane runs it in a thread, and
the simulator in no simulated time. Questions are asked one after the other: each is concluded, or dropped, before the
next is begun. Times are of one monotonic clock (traffic/stamp.py).

What workers are divided among is the planner's Subject: the lengths of one model (by_length.py), several models
(models.py), the stages of a cascade (cascade.py) or the variants of a flow (flows/serving.py).

A change is made when it saves at least `min_gain` of what is minimised, and, where the profile knows how long runtimes
take to load, when it saves more until the next plan than loading costs meanwhile.
"""

from __future__ import annotations

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

BURST_S = 1.0  # over which requests are counted to say how bursty they are
URGENT_GAIN = 0.5  # of a plan for which all workers may move at a time, as long as each serves on


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """What a planner is told once; names as in [control] and [dispatch] of the serving configuration."""

    slo_ms: float
    policy: str  # of the request scheduler
    objective: str
    solver: str
    window_s: float  # of the demand that plans are for
    min_gain: float
    early: bool  # plan before the period is over when the traffic has clearly shifted
    reallocate: bool = True
    dynamic: int = 0  # workers that keep a dynamic runtime beside the static ones
    solver_time_limit_s: float = 5.0  # after this the last plan is kept
    load_window_s: float = 10.0  # of the load that scaling goes by
    period_s: float = math.inf  # until the next plan: what a change has to pay for its loads in


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """The demand of a span of time, and how its arrivals varied in it."""

    demand: Demand
    dispersion: float | None = None  # of all requests, see DemandWindow.dispersion
    variation: Variation | None = None  # see DemandWindow.variation


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An allocation in any case, and why it is not the solver's (empty where it is)."""

    allocation: Allocation
    fell_back: str


class Problem:
    """How workers are to be divided, and what a division is worth. Pure. Instances are by Subject.planned."""

    minimises_ms = True  # what is minimised is the predicted mean latency

    def solve(self, last: Allocation | None, *, time_limit_s: float) -> Answer:
        """An allocation; `last`: an earlier one, to keep where none is found."""
        raise NotImplementedError

    def loss(self, instances: Sequence[int]) -> float:
        """What is minimised, at least 0; infinity where some requests are not served at all."""
        raise NotImplementedError

    def compared(self, answer: Answer) -> Problem:
        """The problem in whose terms the answer is compared with what is wanted now."""
        del answer
        return self

    def gain(self, wanted: Sequence[int], best: Sequence[int]) -> float:
        """Share of what is minimised that `best` saves over `wanted`."""
        before, after = self.loss(wanted), self.loss(best)
        if math.isinf(before):
            return 1.0
        return 1 - after / before if before > 0 else 0.0

    def outweighed(
        self, wanted: Sequence[int], best: Sequence[int], load_ms: Sequence[float | None], period_s: float
    ) -> str:
        """Why loading costs more than the change gains in `period_s`; empty: it does not, or is not known.

        A worker counts as away for as long as its load takes: drained first it serves nothing, and in the other order
        the device loads instead. What one of a runtime less costs is predicted; workers are counted one by one, though
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


class Subject:
    """What workers are divided among. Its bins of demand may be of several models, one model's behind another's."""

    models: Sequence[Served] = ()  # of several, each
    planned: Sequence[Runtime]  # whose instances are decided; empty: nothing is to be decided
    lengths: tuple[int, ...]  # where the bins of the demand end
    load_lengths: tuple[int, ...]  # where those of the load end
    load_curves: Sequence[LatencyCurve]  # what rows of each of these cost on the runtime that suits them best
    in_force: FlowPlan | None = None  # of a flow: what the gateway is to go by
    size: int | None = None  # workers that the last plan wanted, where it wants a number
    turned = False  # what was counted until now is of another operating point

    def problem(self, workers: int, seen: Seen | None, wanted: Sequence[int]) -> Problem:
        """Of so many workers, for these requests; None: too little was seen, and a stand-in is made up."""
        raise NotImplementedError

    def joined(self, counts: Sequence[Sequence[int]]) -> Sequence[int]:
        """Counters by length of each model, as Planner.add takes them."""
        return counts[0]

    def by_runtime(self, quantities: Sequence[float]) -> dict[str, float]:
        """What a Demand says by bin, by the name of the runtime that is planned for it."""
        return {runtime.name: q for runtime, q in zip(self.planned, quantities, strict=True)}

    def by_model(self, demand: Demand) -> list[Demand]:
        """The demand of each of `models`, in its own SLO periods and by its own lengths."""
        del demand
        return []

    def left_ms(self, demand: Demand) -> list[float]:
        """The time that a row of each of `models` has there, at this demand."""
        del demand
        return [served.slo_ms for served in self.models]

    def count(self, at_s: float, started_s: float, stages: Sequence[StageCounts]) -> None:
        """Counters of a flow, as FlowTraffic.add takes them."""

    def turn(self, reach: Sequence[float]) -> bool:
        """An operating point of this reach is in force. Whether it is another one, for which a plan is to be begun."""
        del reach
        return False

    def renewed(self, seen: Seen) -> Seen | None:
        """What was seen under the operating point before, as it will be; None: too little was seen."""
        return seen

    def routing(self, workers: int) -> Callable[[], FlowPlan] | None:
        """What to solve, in any thread, where workers hold everything and rows alone are divided; None: nothing."""
        del workers
        return None

    def follow(self, plan: FlowPlan) -> None:
        """A plan of routing() is in force."""

    def adopt(self, answer: Answer, *, moves: bool) -> None:
        """An answer is in force: its plan, or where nothing moves the best for what is held."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be solved for a plan. Numbers of instances are those of Subject.planned."""

    reason: Reason
    problem: Problem
    seen: Seen | None  # None: a stand-in, as too little was seen
    wanted: tuple[int, ...]  # instances, as they are wanted now
    forced: bool  # workers came or went: the placement has to change, whatever is gained
    last: Allocation | None
    time_limit_s: float

    def solve(self) -> Answer:
        """Pure but for the time it takes; in any thread."""
        return self.problem.solve(self.last, time_limit_s=self.time_limit_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """What a plan began with."""

    forced: bool
    question: Question | None  # None: nothing to solve


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision: `best` is to be carried out if `moves`."""

    reason: Reason
    wanted: tuple[int, ...]  # before, by static runtime
    best: tuple[int, ...]
    moves: bool
    gain: float | None  # share of what is minimised that it saves; None: for another number of workers
    allocation: Allocation
    fell_back: str
    note: str

    @property
    def urgent(self) -> bool:
        """Whether what serves now is so unfit that all workers may be moved at a time."""
        return (self.gain or 0.0) >= URGENT_GAIN


class Planner:
    """See the module. Its state: what was seen, the last allocation, and what the last plan was for."""

    def __init__(self, settings: PlannerSettings, subject: Subject) -> None:
        self._settings = settings
        self.subject = subject
        self._window = DemandWindow(window_s=settings.window_s)
        self._load = DemandWindow(window_s=settings.load_window_s, resolution_s=SAMPLE_S)
        self._shift = ShiftWatch(self._window, subject.lengths, settings.slo_ms)
        self._last: Allocation | None = None
        self._known: Seen | None = None  # that the last plan for requests that came was for
        self._workers: frozenset[str] = frozenset()  # that the last plan counted on

    @property
    def planned(self) -> Sequence[Runtime]:
        """Whose instances are decided."""
        return self.subject.planned

    @property
    def lengths(self) -> tuple[int, ...]:
        """Where the bins of the demand end."""
        return self.subject.lengths

    # --- statistics ---

    def add(self, at_s: float, started_s: float, counts: Sequence[int]) -> None:
        """A sample of the arrival counters, as DemandWindow.add takes it."""
        self._window.add(at_s, started_s, counts)
        self._load.add(at_s, started_s, counts)
        self._shift.add(at_s, started_s, counts)

    def demand(self) -> Demand:
        """Of the window until now."""
        return self._window.estimate(self.lengths, self._settings.slo_ms)

    def seen(self, demand: Demand | None = None, window: DemandWindow | None = None) -> Seen:
        """The demand of the window, or another one, with how the arrivals in the window vary."""
        window = window if window is not None else self._window
        if demand is None:
            demand = window.estimate(self.lengths, self._settings.slo_ms)
        return Seen(demand, window.dispersion(self.lengths[-1:], clip_s=BURST_S), window.variation(self.lengths))

    def recent(self) -> Demand:
        """Of the last `load_window_s`, per second, by the bins that the load is counted in."""
        return self._load.estimate(self.subject.load_lengths, 1000.0)

    def loads(self) -> list[float]:
        """Work that arrives, of the last `load_window_s`: instance-seconds per second, by the bins of the load."""
        pairs = zip(self.recent().mean, self.subject.load_curves, strict=True)
        return [rate * (line.batch_ms(1) / 1000) for rate, line in pairs]

    def predicted_mean_ms(self, demand: Demand, instances: Sequence[int]) -> float:
        """Mean latency of these requests on these instances; 0 where it is not what is minimised."""
        problem = self.subject.problem(sum(instances), Seen(demand), instances)
        return problem.loss(instances) if problem.minimises_ms else 0.0

    # --- when to plan ---

    @property
    def plans(self) -> bool:
        """Whether there is anything to decide."""
        return self._settings.reallocate and bool(self.subject.planned)

    @property
    def last_demand(self) -> Demand | None:
        """What the last plan for requests that came was for."""
        return self._known.demand if self._known is not None else None

    def count_on(self, workers: Collection[str]) -> None:
        """These workers have their runtimes, by whatever decision."""
        self._workers = frozenset(workers)

    def changed(self, workers: Collection[str]) -> Reason | None:
        """Why to plan anew for other workers than the last plan counted on; None for the same ones, or none at all."""
        now = frozenset(workers)
        if not now or now == self._workers:
            return None
        return "worker_lost" if self._workers - now else "worker_back"

    def candidate(self, now_s: float) -> Candidate | None:
        """What is surely other traffic than the last plan was for, if it is known well enough to plan for it."""
        return self._shift.candidate(now_s) if self._settings.early and self.plans else None

    def weigh(self, candidate: Candidate, workers: int, wanted: Sequence[int]) -> Question | None:
        """What to solve to find whether a plan for the candidate would pay; None: it would not."""
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

        `foreseen`: of a simulation that knows what comes, to plan for instead of what was seen.
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
        """What to do about the answer."""
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
        """Instances of each static runtime for the start; without anything foreseen for lengths not known yet."""
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
