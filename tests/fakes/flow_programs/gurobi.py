"""Gurobi on a flow's program: what the paper uses (Loki, section 4), and to check the exact solver."""

from __future__ import annotations

import math

from arlo.planning.allocation.bounds import SolverMissing
from arlo.planning.flows.problem import Answer, FlowProblem
from tests.fakes.flow_programs import program


class GurobiFlowSolver:
    """U1-U7 by Gurobi, on one thread. SolverError when it fails; SolverMissing without package or licence."""

    name = "gurobi"

    def __init__(self, time_limit_s: float = 60.0) -> None:
        self.time_limit_s = time_limit_s

    def solve(
        self, problem: FlowProblem, *, served: float = 1.0, served_only: bool = False, target: float = math.inf
    ) -> Answer | None:
        """See FlowSolver. Its bound is that of the whole search, and `relaxed` the same; it knows no price."""
        try:
            import gurobipy
        except ImportError:
            raise SolverMissing(
                "the solver gurobi needs its package: pip install 'arlo-serve[gurobi]', or use the solver exact"
            ) from None
        made, layout = program.build(problem, served=served, served_only=served_only, target=target)
        grb = gurobipy.GRB
        try:
            with gurobipy.Env(params={"OutputFlag": 0}) as env, gurobipy.Model(env=env) as model:
                for name, value in (("Threads", 1), ("Seed", 1), ("MIPGap", 1e-9), ("TimeLimit", self.time_limit_s)):
                    model.setParam(name, value)
                columns = [
                    model.addVar(lb=low, ub=high, obj=cost, vtype=grb.INTEGER if whole else grb.CONTINUOUS)
                    for low, high, cost, whole in zip(made.lower, made.upper, made.cost, made.integer, strict=True)
                ]
                for low, terms, high in made.rows:
                    row = gurobipy.LinExpr([(factor, columns[column]) for column, factor in terms])
                    if math.isfinite(low):
                        model.addConstr(row >= low)
                    if math.isfinite(high):
                        model.addConstr(row <= high)
                model.optimize()
                if model.SolCount == 0:
                    return None
                values, bound = [column.X for column in columns], model.ObjBound
        except gurobipy.GurobiError as error:
            raise SolverMissing(f"gurobi cannot solve this here ({error}): use the solver exact") from None
        return program.read(problem, layout, values, -bound, served_only=served_only)
