"""HiGHS on a flow's program: to check the exact solver."""

from __future__ import annotations

import math

from arlo.planning.allocation.bounds import SolverMissing
from arlo.planning.flows.problem import Answer, FlowProblem
from tests.fakes.flow_programs import program


class HighsFlowSolver:
    """U1-U7 by HiGHS, on one thread. SolverError when it fails; SolverMissing without the package."""

    name = "highs"

    def __init__(self, time_limit_s: float = 60.0) -> None:
        self.time_limit_s = time_limit_s

    def solve(
        self, problem: FlowProblem, *, served: float = 1.0, served_only: bool = False, target: float = math.inf
    ) -> Answer | None:
        """See FlowSolver. Its bound is that of the whole search, and `relaxed` the same; it knows no price."""
        try:
            import highspy
        except ImportError:
            raise SolverMissing("the solver highs needs its package: pip install highspy") from None
        made, layout = program.build(problem, served=served, served_only=served_only, target=target)
        solved = made.solve(highspy, gap=1e-9, start={}, time_limit_s=self.time_limit_s)
        if solved is None:
            return None
        return program.read(problem, layout, list(solved.values), -solved.bound, served_only=served_only)
