"""The allocation problem in Gurobi.

N, C and R are separate variables; Eq. 4 and 5 take one binary per runtime ("something is left over"). The cost of
a runtime is N * g(C / N), see the module pieces: for each quadratic piece of g the share x of C in it and, in place of
bend * x^2 / N, bend * s with s * N >= x^2. Non-convex stretches of g take a binary each.

The cones s * N >= x^2 are given as tangents, s >= 2 b x - b^2 N, added at the loads b = x / N of the solutions until
the true cost of one (Eq. 1) is within 1e-6 of the bound. Native cones were as fast, but some proofs were wrong
(1 to 13 of 1500 under most settings of tolerances, cuts and scaling). The pip package of Gurobi has a licence for
2000 variables and 2000 constraints.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from arlo.clock import monotonic_s
from arlo.planning.allocation.bounds import GAP, Bounds, SolverMissing, bounds
from arlo.planning.allocation.pieces import groups
from arlo.planning.allocation.problem import Allocation, AllocationProblem, SolverError, flow

MAX_ROUNDS = 200
FIRST_STEP = 1.3  # ratio of neighbouring loads of the first tangents
LEAST = 0.02  # the smallest of these loads
TOO_LARGE = 10010  # GRB.ERROR_SIZE_LIMIT_EXCEEDED
NO_LICENSE = 10009  # GRB.ERROR_NO_LICENSE


@dataclasses.dataclass(frozen=True, slots=True)
class Cone:
    """The cone s * n >= x^2 as tangents; `loads`: where it has them."""

    x: Any
    s: Any
    n: Any
    loads: list[float]

    def add(self, model: Any, load: float) -> bool:
        """Add a tangent, unless it exists."""
        if any(abs(load - known) <= 1e-9 * known for known in self.loads):
            return False
        self.loads.append(load)
        model.addConstr(self.s >= 2 * load * self.x - load * load * self.n)
        return True

    def sharpen(self, model: Any) -> bool:
        """Add a tangent at the solution; False when it exists already."""
        n, x = round(self.n.X), self.x.X
        return n > 0 and x > 1e-9 and self.add(model, x / n)


@dataclasses.dataclass(slots=True)
class GurobiSolver:
    """Solves Eq. 1-7 with Gurobi, single-threaded and with a fixed seed."""

    name: str = "gurobi"
    threads: int = 1

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        """An optimum, `optimal` when Gurobi's bound is within 1e-6 of it.

        SolverError: the package is missing, the licence does not cover the model, Eq. 2, 3 and 7 cannot hold, or no
        allocation was found in time.
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
                instances, cones = build(gurobipy, model, problem, known)
                return self._rounds(
                    problem, known, model, instances, cones, started_s=started_s, time_limit_s=time_limit_s
                )
        except gurobipy.GurobiError as error:
            raise _said(error, problem) from None

    def _rounds(
        self,
        problem: AllocationProblem,
        known: Bounds,
        model: Any,
        instances: list[Any],
        cones: list[Cone],
        *,
        started_s: float,
        time_limit_s: float,
    ) -> Allocation:
        """Solve and sharpen. The objective is that of Eq. 1 at the N found, not the model's own sum."""
        best: tuple[int, ...] | None = None
        value, bound = math.inf, -math.inf
        for _ in range(MAX_ROUNDS):
            left_s = time_limit_s - (monotonic_s() - started_s)
            if left_s <= 0:
                break
            model.setParam("TimeLimit", left_s)
            try:
                model.optimize()
            except Exception as error:
                # The tangents of later rounds can outgrow the licence; the earlier solution still holds.
                if best is None or getattr(error, "errno", None) != TOO_LARGE:
                    raise
                break
            if model.SolCount == 0:
                break
            found = tuple(round(variable.X) for variable in instances)
            objective = flow(problem, found).objective
            bound = max(bound, model.ObjBound * known.cost_unit)
            if objective < value:
                best, value = found, objective
            done = value - bound <= GAP * abs(value)
            new = 0 if done else sum(cone.sharpen(model) for cone in cones)
            if new == 0:
                break
        if best is None:
            raise SolverError(
                f"gurobi found no allocation in {monotonic_s() - started_s:.3g} s (status {model.Status})"
            )
        return Allocation(
            instances=best,
            objective=value,
            solver=self.name,
            solve_s=monotonic_s() - started_s,
            optimal=value - bound <= GAP * abs(value),
        )


def build(gurobipy: Any, model: Any, problem: AllocationProblem, known: Bounds) -> tuple[list[Any], list[Cone]]:
    """Put Eq. 1-7 into an empty model; returns the variables N and the cones.

    Requests are in known.unit, costs in known.cost_unit.
    """
    grb = gurobipy.GRB
    last = len(problem.demand) - 1
    n = [model.addVar(lb=low, ub=high, vtype=grb.INTEGER) for low, high in zip(known.lower, known.upper, strict=True)]
    for variable, start in zip(n, known.start, strict=True):
        variable.Start = start
    model.addConstr(gurobipy.quicksum(n) == problem.workers)  # Eq. 2; Eq. 3 and 7 are the lower bounds of N
    cost = gurobipy.LinExpr()
    cones: list[Cone] = []
    rest: Any = 0.0
    most = 0.0  # the largest amount left over before i
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
            mine, bent = _cost(gurobipy, model, problem, known, i, n=n[i], processed=processed, most=most_here)
            cost += mine
            cones += bent
    model.setObjective(cost, grb.MINIMIZE)
    return n, cones


def _cost(
    gurobipy: Any, model: Any, problem: AllocationProblem, known: Bounds, i: int, *, n: Any, processed: Any, most: float
) -> tuple[Any, list[Cone]]:
    """The cost N * g(C / N) of runtime i and its cones; C is the expression `processed`, at most `most` units."""
    grb = gurobipy.GRB
    limit = problem.capacities[i] if i < len(problem.demand) - 1 else math.inf
    unit = known.unit
    cost = gurobipy.LinExpr()
    cones = []
    shares = []
    before: tuple[Any, Any, float] | None = None  # of the group before: its share, its capacity, the most of it
    for group in groups(problem.curves[i], limit):
        share = gurobipy.LinExpr()
        for piece in group.pieces:
            # Each piece has a separate unit, so that x and s are near N: narrow pieces would drown in tolerances.
            own = min(piece.width, known.unit)
            x = model.addVar(lb=0.0, ub=most * unit / own)
            if math.isfinite(piece.width):
                model.addConstr(x <= piece.width / own * n)
            share.addTerms(own / unit, x)
            cost.addTerms(piece.slope * own / known.cost_unit, x)
            if piece.bend:
                # s is x^2 / N, and x / N is within the piece.
                s = model.addVar(lb=0.0, ub=most * unit / own * min(most * unit, piece.width) / own)
                if piece.bend > 0:
                    cone = Cone(x, s, n, [])
                    load = min(most * unit, piece.width) / own
                    while load > LEAST:
                        cone.add(model, load)
                        load /= FIRST_STEP
                    cones.append(cone)
                else:
                    # Concave, so s goes up: the second constraint holds it at 0 where n is 0.
                    model.addConstr(s * n <= x * x)
                    model.addConstr(s <= piece.width / own * x)
                cost.addTerms(piece.bend * own * own / known.cost_unit, s)
        if before is not None:
            full, room, top = before
            entered = model.addVar(vtype=grb.BINARY)
            model.addConstr(share <= most * entered)
            model.addConstr(full >= room - top * (1 - entered))
        room = group.width / unit if math.isfinite(group.width) else 0.0
        before = (share, room * n, room * known.upper[i])
        shares.append(share)
    model.addConstr(gurobipy.quicksum(shares) == processed)
    return cost, cones


def _said(error: Any, problem: AllocationProblem) -> SolverError:
    if error.errno == TOO_LARGE:
        return SolverMissing(
            f"{problem.workers} workers and {len(problem.demand)} runtimes are too large for the licence that gurobipy "
            "has here (the one of the pip package covers 2000 variables): use the solver exact"
        )
    if error.errno == NO_LICENSE:
        return SolverMissing(f"gurobipy has no valid licence here ({error}): use the solver exact")
    return SolverError(f"gurobi failed: {error}")
