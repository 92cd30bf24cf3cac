"""One model: the number of workers for each static runtime. Pure.

Demand is planned for the static runtimes; of several with one max_length, for the quickest. Dynamic runtimes used
with them keep their workers. Without static runtimes there is nothing to plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from arlo.catalog.manifest import Runtime
from arlo.planning.allocation.curves import curve, curves, static_runtimes
from arlo.planning.allocation.problem import Allocation, AllocationProblem, Solver, flow
from arlo.planning.allocation.queueing import burst_factor, predicted_mean_ms
from arlo.planning.allocation.solve import allocate_or_keep, make_solver
from arlo.planning.planner import BURST_S, Answer, PlannerSettings, Problem, Seen, Subject
from arlo.planning.traffic.demand import Demand

BURST_POLICIES = ("eft", "late")  # policies under which a bursty model paid in measurements


@dataclasses.dataclass(frozen=True, slots=True)
class ByLength(Problem):
    """Divides workers among the static runtimes of one model, ascending."""

    problem: AllocationProblem
    solver: Solver
    objective: str
    policy: str

    def solve(self, last: Allocation | None, *, time_limit_s: float) -> Answer:
        return Answer(*allocate_or_keep(self.problem, self.solver, last, time_limit_s=time_limit_s))

    def loss(self, instances: Sequence[int]) -> float:
        if not instances[-1]:
            return float("inf")
        if self.objective == "queueing":
            return predicted_mean_ms(self.problem, instances, policy=self.policy)
        return flow(self.problem, instances).mean_ms


class Lengths(Subject):
    """See the module."""

    def __init__(self, settings: PlannerSettings, runtimes: Sequence[Runtime]) -> None:
        """`runtimes`: all of the model's, in any order; at least one."""
        self._settings = settings
        self.solver = make_solver(settings.solver, objective=settings.objective, policy=settings.policy)
        self.planned = static_runtimes(runtimes)
        self.lengths = tuple(runtime.max_length for runtime in self.planned)
        self._curves = tuple(curves(self.planned))
        self.load_lengths, self.load_curves = self.lengths, self._curves
        if not self.lengths:  # by the measured lengths of the dynamic one
            longest = max(runtimes, key=lambda runtime: runtime.max_length)
            self.load_lengths = tuple(sorted({point.length for point in longest.latency}))
            self.load_curves = tuple(curve(longest, length) for length in self.load_lengths)

    def problem(self, workers: int, seen: Seen | None, wanted: Sequence[int]) -> ByLength:
        """The problem of these workers and requests; `seen` None: the lengths are not known yet."""
        del wanted
        seen, settings = seen if seen is not None else self._stand_in(workers), self._settings
        burst = 1.0
        if settings.policy in BURST_POLICIES:
            # The burst of all requests: if only the lengths vary, `variation` covers that.
            burst = burst_factor(seen.demand.pooled(), seen.dispersion, slo_ms=settings.slo_ms, span_s=BURST_S)
        problem = AllocationProblem(
            workers,
            float(settings.slo_ms),
            self.lengths,
            self._curves,
            seen.demand.mean,
            burst=burst,
            variation=seen.variation,
        )
        return ByLength(problem, self.solver, settings.objective, settings.policy)

    def _stand_in(self, workers: int) -> Seen:
        """A guess: each length up to the longest is equally likely, at half of the workers' capacity."""
        scale = 0.5 * workers * self._settings.slo_ms
        widths = [b - a for a, b in zip((0, *self.lengths), self.lengths, strict=False)]
        work = sum(width * line.batch_ms(1) for width, line in zip(widths, self._curves, strict=True))
        mean = tuple(width * scale / work for width in widths)
        return Seen(Demand(self.lengths, mean, mean, 0, 0.0))
