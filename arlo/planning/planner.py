"""The planner: statistics in, decisions out. Pure; the time is an argument. The control plane and the simulator use it.

    planner = Planner(settings, runtimes)
    planner.add(at_s, started_s, counts)                  # every sample of the arrival counters, ten a second
    candidate = planner.candidate(now_s)                  # what is surely other traffic than planned for, if anything
    begun = planner.begin("period", now_s, workers, wanted)
    plan = planner.conclude(begun.question, begun.question.solve())

`Question.solve` takes a while and touches nothing of the planner, so that the control plane runs it in a thread, and
the simulator in no simulated time. Questions are asked one after the other: each is concluded, or dropped, before the
next is begun. Times are of one monotonic clock (traffic/stamp.py).

A change is made when it saves at least `min_gain` of the mean latency, and, where the profile knows how long runtimes
take to load, when it saves more until the next plan than loading costs meanwhile.

Demand is planned for the static runtimes; of several with one max_length, for the quickest. Dynamic runtimes beside
them keep the workers that they have. Without static runtimes there is nothing to plan.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from arlo.catalog.manifest import Runtime
from arlo.planning.allocation.curves import curve, curves, static_runtimes
from arlo.planning.allocation.problem import Allocation, AllocationProblem, LatencyCurve, Solver, Variation, flow
from arlo.planning.allocation.queueing import burst_factor, predicted_mean_ms
from arlo.planning.allocation.solve import allocate_or_keep, make_solver
from arlo.planning.traffic.demand import Demand, DemandWindow
from arlo.planning.traffic.shift import MIN_ROWS, SAMPLE_S, SHIFT_ROWS, Candidate, ShiftWatch, least_gain

Reason = Literal["start", "period", "shift", "point", "scale_out", "scale_in", "worker_lost", "worker_back", "restored"]

BURST_POLICIES = ("eft", "late")  # under which telling the solver of bursts paid in measurements
BURST_S = 1.0  # over which requests are counted to say how bursty they are
URGENT_GAIN = 0.5  # of a plan for which all workers may move at a time, as long as each serves on


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """What a planner is told once; names as in [control] and [dispatch] of the serving configuration."""

    slo_ms: float
    policy: str  # of the request scheduler
    objective: str
    solver: str
    solver_time_limit_s: float
    window_s: float  # of the demand that plans are for
    min_gain: float
    early: bool  # plan before the period is over when the traffic has clearly shifted
    reallocate: bool = True
    dynamic: int = 0  # workers that keep a dynamic runtime beside the static ones
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


class Problem(Protocol):
    """How workers are to be divided, and what a division is worth. Pure."""

    def solve(self, last: Allocation | None, *, time_limit_s: float) -> Answer:
        """An allocation; `last`: an earlier one, to keep where none is found."""
        ...

    def loss(self, instances: Sequence[int]) -> float:
        """What is minimised, at least 0; infinity where some requests are not served at all."""
        ...

    def predicted_mean_ms(self, instances: Sequence[int]) -> float:
        """Mean latency; infinity where some requests are not served at all."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class ByLength:
    """Workers divided among the static runtimes of one model, ascending."""

    problem: AllocationProblem
    solver: Solver
    objective: str
    policy: str

    def solve(self, last: Allocation | None, *, time_limit_s: float) -> Answer:
        return Answer(*allocate_or_keep(self.problem, self.solver, last, time_limit_s=time_limit_s))

    def loss(self, instances: Sequence[int]) -> float:
        return self.predicted_mean_ms(instances)

    def predicted_mean_ms(self, instances: Sequence[int]) -> float:
        if not instances[-1]:
            return float("inf")
        if self.objective == "queueing":
            return predicted_mean_ms(self.problem, instances, policy=self.policy)
        return flow(self.problem, instances).mean_ms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be solved for a plan. Numbers of instances are those of Planner.planned."""

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

    def __init__(self, settings: PlannerSettings, runtimes: Sequence[Runtime]) -> None:
        """`runtimes`: all that there are, in any order; at least one."""
        self._settings = settings
        # Whose numbers are decided; where the bins of the demand end, and what a row of each costs.
        self.planned, self.lengths, self._curves = self._plan_for(runtimes)
        self._load_lengths, self._load_s = self._loads(max(runtimes, key=lambda runtime: runtime.max_length))
        self._window = DemandWindow(window_s=settings.window_s)
        self._load = DemandWindow(window_s=settings.load_window_s, resolution_s=SAMPLE_S)
        self._shift = ShiftWatch(self._window, self.lengths, settings.slo_ms)
        self.solver = make_solver(settings.solver, objective=settings.objective, policy=settings.policy)
        self.size: int | None = None  # of a flow: workers that the last plan wanted; None: there is none yet
        self._last: Allocation | None = None
        self._known: Seen | None = None  # that the last plan for requests that came was for
        self._workers: frozenset[str] = frozenset()  # that the last plan counted on

    # --- statistics ---

    def add(self, at_s: float, started_s: float, counts: Sequence[int]) -> None:
        """A sample of the arrival counters, as DemandWindow.add takes it."""
        self._window.add(at_s, started_s, counts)
        self._load.add(at_s, started_s, counts)
        self._shift.add(at_s, started_s, counts)

    def by_runtime(self, quantities: Sequence[float]) -> dict[str, float]:
        """What a Demand says by bin, by the name of the runtime planned for it."""
        return {runtime.name: q for runtime, q in zip(self.planned, quantities, strict=True)}

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
        return self._load.estimate(self._load_lengths, 1000.0)

    def loads(self) -> list[float]:
        """Work that arrives, of the last `load_window_s`: instance-seconds per second, each row on its ideal runtime.

        By static runtime; without any by the lengths that the dynamic one was measured at.
        """
        return [rate * seconds for rate, seconds in zip(self.recent().mean, self._load_s, strict=True)]

    # --- when to plan ---

    @property
    def plans(self) -> bool:
        """Whether there is anything to decide."""
        return self._settings.reallocate and bool(self.planned)

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
            gain = _gain(question.problem, question.wanted, best)
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
        allocation = self._last = answer.allocation
        best = tuple(allocation.instances)
        note = "; ".join(text for text in (allocation.reason or "", answer.fell_back) if text)
        gain = None
        if sum(question.wanted) == sum(best):
            gain = _gain(question.problem, question.wanted, best)
        moves = question.forced or best != question.wanted
        if moves and not question.forced and gain is not None and gain < self._settings.min_gain:
            moves = False
            note = "; ".join([*filter(None, [note]), f"gain {gain:.1%} is below min_gain"])
        elif moves and not question.forced and gain is not None and (why := self._outweighed(question, best)):
            moves = False
            note = "; ".join([*filter(None, [note]), why])
        return Plan(
            reason=question.reason,
            wanted=question.wanted,
            best=best,
            moves=moves,
            gain=gain,
            allocation=allocation,
            fell_back=answer.fell_back,
            note=note,
        )

    def _outweighed(self, question: Question, best: Sequence[int]) -> str:
        """Why loading costs more than the change gains until the next plan; empty: it does not, or is not known.

        A worker counts as away for as long as its load takes: drained first it serves nothing, and in the other order
        the device loads instead. What one of a runtime less costs is predicted; workers are counted one by one, though
        some move at a time, as a step is small.
        """
        wanted, problem = question.wanted, question.problem
        more = [max(0, b - a) for a, b in zip(wanted, best, strict=True)]
        loads = [(count, runtime.load_ms) for count, runtime in zip(more, self.planned, strict=True) if count]
        known = [count * load_ms for count, load_ms in loads if load_ms is not None]
        before = problem.predicted_mean_ms(wanted)
        if not loads or len(known) < len(loads) or math.isinf(before):
            return ""
        load_ms, cost = sum(known) / sum(more), 0.0
        for index, (a, b) in enumerate(zip(wanted, best, strict=True)):
            if a > b:
                away = [*wanted[:index], a - 1, *wanted[index + 1 :]]
                cost += (a - b) * load_ms * max(0.0, problem.predicted_mean_ms(away) - before)
        saved_ms = before - problem.predicted_mean_ms(best)
        if cost <= saved_ms * self._settings.period_s * 1000:
            return ""
        return (
            f"{sum(more)} load(s) of {load_ms / 1000:.3g} s cost more than the {saved_ms:.3g} ms less of each request "
            f"gain in {self._settings.period_s:g} s"
        )

    def first(self, workers: int, foreseen: Seen | None = None) -> tuple[int, ...]:
        """Instances of each static runtime for the start; without anything foreseen for lengths not known yet."""
        question = self._question("start", workers, foreseen, (0,) * len(self.planned), forced=True)
        if foreseen is not None:
            self._known = foreseen
            self._shift.planned(foreseen.demand)
        self._last = question.solve().allocation
        return tuple(self._last.instances)

    def share(self, workers: int) -> None:
        """A new plan is in force of workers that all hold everything; of a flow alone."""

    # --- what is asked ---

    def problem(self, workers: int, seen: Seen) -> Problem:
        """Of so many workers with what is planned, for these requests."""
        burst = 1.0
        if self._settings.policy in BURST_POLICIES:
            # Of all requests: where only the lengths vary, that is the variation's.
            burst = burst_factor(seen.demand.pooled(), seen.dispersion, slo_ms=self._settings.slo_ms, span_s=BURST_S)
        problem = AllocationProblem(
            workers,
            float(self._settings.slo_ms),
            self.lengths,
            self._curves,
            seen.demand.mean,
            burst=burst,
            variation=seen.variation,
        )
        return ByLength(problem, self.solver, self._settings.objective, self._settings.policy)

    def _plan_for(self, runtimes: Sequence[Runtime]) -> tuple[list[Runtime], tuple[int, ...], tuple[LatencyCurve, ...]]:
        static = static_runtimes(runtimes)
        return static, tuple(runtime.max_length for runtime in static), tuple(curves(static))

    def _question(
        self, reason: Reason, workers: int, seen: Seen | None, wanted: Sequence[int], *, forced: bool
    ) -> Question:
        return Question(
            reason=reason,
            problem=self.problem(workers, seen if seen is not None else self._stand_in(workers)),
            seen=seen,
            wanted=tuple(wanted),
            forced=forced,
            last=self._last,
            time_limit_s=self._settings.solver_time_limit_s,
        )

    def _stand_in(self, workers: int) -> Seen:
        """For lengths not known yet: each up to the longest as likely as any other, half of what the workers carry."""
        scale = 0.5 * workers * self._settings.slo_ms
        widths = [b - a for a, b in zip((0, *self.lengths), self.lengths, strict=False)]
        work = sum(width * line.batch_ms(1) for width, line in zip(widths, self._curves, strict=True))
        mean = tuple(width * scale / work for width in widths)
        return Seen(Demand(self.lengths, mean, mean, 0, 0.0))

    def _loads(self, longest: Runtime) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Bins, and the seconds that a row of each takes on its ideal runtime."""
        if self.lengths:
            return self.lengths, tuple(line.batch_ms(1) / 1000 for line in self._curves)
        lengths = tuple(sorted({point.length for point in longest.latency}))
        return lengths, tuple(curve(longest, length).batch_ms(1) / 1000 for length in lengths)


def _gain(problem: Problem, wanted: Sequence[int], best: Sequence[int]) -> float:
    """Share of what is minimised that `best` saves over `wanted`."""
    before, after = problem.loss(wanted), problem.loss(best)
    if before == float("inf"):
        return 1.0
    return 1 - after / before if before > 0 else 0.0
