"""A mixed-integer linear program as rows and columns, and its solution by HiGHS."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from arlo.clock import monotonic_s
from arlo.planning.allocation.problem import SolverError

Terms = Sequence[tuple[int, float]]  # (column, factor)


@dataclasses.dataclass(frozen=True, slots=True)
class Solved:
    """A solution by HiGHS: columns, the value of the objective, a proven lower bound of it."""

    values: tuple[float, ...]
    bound: float


@dataclasses.dataclass(slots=True)
class Program:
    """min sum cost * x subject to low <= rows <= high; built one column and one row at a time."""

    lower: list[float] = dataclasses.field(default_factory=list)
    upper: list[float] = dataclasses.field(default_factory=list)
    cost: list[float] = dataclasses.field(default_factory=list)
    integer: list[bool] = dataclasses.field(default_factory=list)
    rows: list[tuple[float, Terms, float]] = dataclasses.field(default_factory=list)

    def column(self, lower: float, upper: float, *, cost: float = 0.0, integer: bool = False) -> int:
        """Add a variable; returns its number."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.cost.append(cost)
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(self, low: float, terms: Terms, high: float = math.inf) -> None:
        """Add low <= sum of factor * column <= high."""
        self.rows.append((low, terms, high))

    def solve(self, highspy: Any, *, gap: float, start: dict[int, float], time_limit_s: float) -> Solved | None:
        """Solve by HiGHS, on one thread; None if time ran out before there was a solution.

        `start`: values of some columns to begin with. SolverError when HiGHS fails or finds no solution at all.
        """
        started_s = monotonic_s()
        # With tolerances this tight presolve fails now and then ("Solve error"); without it the same program is solved.
        for presolve in ("choose", "off"):
            solver = highspy.Highs()
            for option, value in (
                ("output_flag", False),
                ("threads", 1),
                ("random_seed", 1),
                ("presolve", presolve),
                ("time_limit", max(time_limit_s - (monotonic_s() - started_s), 0.0)),
                ("mip_rel_gap", gap),
                ("mip_abs_gap", 0.0),
                ("mip_feasibility_tolerance", 1e-8),
                ("primal_feasibility_tolerance", 1e-9),
                ("dual_feasibility_tolerance", 1e-9),
            ):
                solver.setOptionValue(option, value)
            solver.passModel(self._lp(highspy))
            if start:
                solver.setSolution(len(start), list(start), list(start.values()))
            solver.run()
            status = solver.getModelStatus()
            if status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit):
                break
        else:
            raise SolverError(f"highs ended with {solver.modelStatusToString(status)!r}")
        info = solver.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        return Solved(tuple(solver.getSolution().col_value), info.mip_dual_bound)

    def _lp(self, highspy: Any) -> Any:
        import numpy as np

        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.rows)
        lp.col_cost_ = np.array(self.cost, np.float64)
        lp.col_lower_ = np.array(self.lower, np.float64)
        lp.col_upper_ = np.array(self.upper, np.float64)
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if each else kinds.kContinuous for each in self.integer]
        lp.row_lower_ = np.array([low for low, _, _ in self.rows], np.float64)
        lp.row_upper_ = np.array([high for _, _, high in self.rows], np.float64)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(terms) for _, terms, _ in self.rows)]).astype(np.int32)
        lp.a_matrix_.index_ = np.array([column for _, terms, _ in self.rows for column, _ in terms], np.int32)
        lp.a_matrix_.value_ = np.array([factor for _, terms, _ in self.rows for _, factor in terms], np.float64)
        return lp
