"""The exact solver: C++ (src/solve), proven optimal, milliseconds for a thousand workers.

How it works: the chain of Eq. 4-5 is searched runtime by runtime over (workers used, R). A Lagrange price for workers
gives a lower bound for the remaining runtimes; states that cannot come near the bound are never examined. Only the
speed depends on the shape of the latency curves.
"""

from __future__ import annotations

from arlo import _core
from arlo.clock import monotonic_s
from arlo.planning.allocation.problem import Allocation, AllocationProblem, SolverError

# The C++ core reads no clock: the limit becomes a number of partial allocations, fewer than a slow core examines in
# that time (measured: 20 to 150 million a second).
STATES_PER_S = 10_000_000
MAX_STATES = 100_000_000


class ExactSolver:
    """Solves a feasible problem (`problem.infeasible()` is None) to its proven optimum.

    Among equally good allocations it takes the one with the most instances on the longest runtime; among those, the
    most on the next longest, and so on. The time limit becomes a number of states; when it is reached, the result is
    the best allocation so far, with `optimal` False.
    """

    name = "exact"

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        """Minimises Eq. 1. SolverError when the lower bounds need more workers than there are."""
        began_s = monotonic_s()
        runtimes = [
            (curve.points, capacity, lower, demand)
            for curve, capacity, lower, demand in zip(
                problem.curves, problem.capacities, problem.lower_bounds, problem.demand, strict=True
            )
        ]
        states = int(min(max(time_limit_s, 0.0) * STATES_PER_S, MAX_STATES))
        instances, objective, optimal, _ = _core.allocate_exact(problem.workers, runtimes, states)
        if not instances:
            raise SolverError(f"the exact solver needs a feasible problem: {problem.infeasible()}")
        return Allocation(
            instances=tuple(instances),
            objective=objective,
            solver=self.name,
            solve_s=monotonic_s() - began_s,
            optimal=optimal,
        )
