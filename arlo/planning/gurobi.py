"""The allocation problem in Gurobi: a mixed-integer program with rotated cones.

N, C and R are variables of their own; Eq. 4 and 5 take one binary per runtime ("something is left over"). The cost of
a runtime is N * g(C / N), see arlo.planning.pieces: for each quadratic piece of g the share x of C in it and, in place
of bend * x^2 / N, bend * s with s * N >= x^2. Stretches of g that are not convex take a binary each. The pip package of
Gurobi brings a licence for 2000 variables, 2000 linear constraints and 200 variables in a model with cones.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from arlo.clock import monotonic_s
from arlo.planning.bounds import GAP, Bounds, SolverMissing, bounds
from arlo.planning.pieces import groups
from arlo.planning.problem import Allocation, AllocationProblem, SolverError, flow

TOO_LARGE = 10010  # GRB.ERROR_SIZE_LIMIT_EXCEEDED
NO_LICENSE = 10009  # GRB.ERROR_NO_LICENSE


@dataclasses.dataclass(slots=True)
class GurobiSolver:
    """Eq. 1-7 by Gurobi, single-threaded and with a fixed seed."""

    name: str = "gurobi"
    threads: int = 1

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        """An optimum, `optimal` when Gurobi's bound is within 1e-6 of it.

        SolverError: the package is missing, the licence does not cover the model, Eq. 2, 3 and 7 cannot hold, or there
        was no allocation in time.
        """
        try:
            import gurobipy
        except ImportError:
            raise SolverMissing(
                "the solver gurobi needs its package: pip install 'arlo-serve[gurobi]', or use the solver exact"
            ) from None
        started_s = monotonic_s()
        known = bounds(problem)
        try:
            with (
                gurobipy.Env(params={"OutputFlag": 0}) as env,
                gurobipy.Model("allocation", env=env) as model,
            ):
                model.setParam("Threads", self.threads)
                model.setParam("Seed", 1)
                model.setParam("MIPGap", GAP / 10)
                model.setParam("IntFeasTol", 1e-9)
                model.setParam("FeasibilityTol", 1e-9)
                instances = build(gurobipy, model, problem, known)
                model.setParam("TimeLimit", max(time_limit_s - (monotonic_s() - started_s), 0.0))
                model.optimize()
                return self._answer(problem, known, model, instances, started_s)
        except gurobipy.GurobiError as error:
            raise _said(error, problem) from None

    def _answer(
        self, problem: AllocationProblem, known: Bounds, model: Any, instances: list[Any], started_s: float
    ) -> Allocation:
        """What a solved model says. The objective is that of Eq. 1 at its N, not the model's own sum."""
        if model.SolCount == 0:
            raise SolverError(
                f"gurobi found no allocation in {monotonic_s() - started_s:.3g} s (status {model.Status})"
            )
        found = tuple(round(variable.X) for variable in instances)
        objective = flow(problem, found).objective
        bound = model.ObjBound * known.cost_unit
        return Allocation(
            instances=found,
            objective=objective,
            solver=self.name,
            solve_s=monotonic_s() - started_s,
            optimal=objective - bound <= GAP * abs(objective),
        )


def build(gurobipy: Any, model: Any, problem: AllocationProblem, known: Bounds) -> list[Any]:
    """Put Eq. 1-7 into an empty model; returns the variables N. Requests in known.unit, costs in known.cost_unit."""
    grb = gurobipy.GRB
    last = len(problem.demand) - 1
    n = [model.addVar(lb=low, ub=high, vtype=grb.INTEGER) for low, high in zip(known.lower, known.upper, strict=True)]
    for variable, start in zip(n, known.start, strict=True):
        variable.Start = start
    model.addConstr(gurobipy.quicksum(n) == problem.workers)  # Eq. 2; Eq. 3 and 7 are the lower bounds of N
    cost = gurobipy.LinExpr()
    rest: Any = 0.0
    most = 0.0  # that can be left over before i
    for i, (m, q) in enumerate(zip(problem.capacities, problem.demand, strict=True)):
        capacity, q_units = m / known.unit, q / known.unit
        arriving = rest + q_units
        most_here = most + q_units
        if i == last:
            processed = arriving
        else:
            most = known.left_over[i] / known.unit
            rest = model.addVar(lb=0.0, ub=most)
            processed = arriving - rest
            # Eq. 4 and 5: something is left over only where all N_i * M_i is used.
            model.addConstr(processed <= capacity * n[i])
            model.addConstr(processed >= 0)
            if most > 0 and m > 0:
                spills = model.addVar(vtype=grb.BINARY)
                model.addConstr(rest <= most * spills)
                model.addConstr(capacity * n[i] - processed <= capacity * known.upper[i] * (1 - spills))
                model.addConstr(n[i] <= known.upper[i] - (known.upper[i] - known.spills[i]) * spills)
                model.addConstr(n[i] >= known.keeps[i] - (known.keeps[i] - known.lower[i]) * spills)
        if m > 0 or i == last:
            cost += _cost(gurobipy, model, problem, known, i, n=n[i], processed=processed, most=most_here)
    model.setObjective(cost, grb.MINIMIZE)
    return n


def _cost(
    gurobipy: Any, model: Any, problem: AllocationProblem, known: Bounds, i: int, *, n: Any, processed: Any, most: float
) -> Any:
    """N * g(C / N) of runtime i, where C is the expression `processed` (at most `most`, both in units)."""
    grb = gurobipy.GRB
    limit = problem.capacities[i] if i < len(problem.demand) - 1 else math.inf
    unit, scale = known.unit, known.unit / known.cost_unit
    cost = gurobipy.LinExpr()
    shares = []
    before: tuple[Any, Any, float] | None = None  # of the group before: its share, how much it can hold, the most of it
    for group in groups(problem.curves[i], limit):
        share = gurobipy.LinExpr()
        for piece in group.pieces:
            x = model.addVar(lb=0.0, ub=most)
            if math.isfinite(piece.width):
                model.addConstr(x <= piece.width / unit * n)
            share += x
            cost.addTerms(piece.slope * scale, x)
            if piece.bend:
                s = model.addVar(lb=0.0, ub=most * min(most, piece.width / unit))  # x^2 / N, and x / N is in the piece
                if piece.bend > 0:
                    model.addConstr(s * n >= x * x)
                else:
                    # Concave, so s goes up: the second one holds it at 0 where n is 0.
                    model.addConstr(s * n <= x * x)
                    model.addConstr(s <= piece.width / unit * x)
                cost.addTerms(piece.bend * scale * unit, s)
        if before is not None:
            full, room, top = before
            entered = model.addVar(vtype=grb.BINARY)
            model.addConstr(share <= most * entered)
            model.addConstr(full >= room - top * (1 - entered))
        room = group.width / unit if math.isfinite(group.width) else 0.0
        before = (share, room * n, room * known.upper[i])
        shares.append(share)
    model.addConstr(gurobipy.quicksum(shares) == processed)
    return cost


def _said(error: Any, problem: AllocationProblem) -> SolverError:
    if error.errno == TOO_LARGE:
        return SolverMissing(
            f"{problem.workers} workers and {len(problem.demand)} runtimes are too large for the licence that gurobipy "
            "has here (the one of the pip package covers 2000 variables): use the solver exact"
        )
    if error.errno == NO_LICENSE:
        return SolverMissing(f"gurobipy has no valid licence here ({error}): use the solver exact")
    return SolverError(f"gurobi failed: {error}")
