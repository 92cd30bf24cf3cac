"""The allocation problem in HiGHS: linear programs with integers, made sharper until they meet the true cost.

Eq. 2-5 and 7 are linear with one binary per runtime. The cost N * g(C / N) is convex where g is (see
the module pieces), so that each tangent of g at a load b bounds it from below by a plane: slope * C + offset * N.
A round solves the program with the tangents so far, takes the true value of its N (Eq. 1) as upper and its bound as
lower bound, and adds the tangents at its loads. Concave pieces of g are bounded by their chord and are cut in two at
the load found. It ends when both bounds are within 1e-6 of each other.
"""

from __future__ import annotations

import dataclasses
import math

from arlo.clock import monotonic_s
from arlo.planning.allocation.bounds import GAP, Bounds, SolverMissing, bounds
from arlo.planning.allocation.pieces import Group, groups
from arlo.planning.allocation.problem import Allocation, AllocationProblem, SolverError, flow
from benchmarks.papers.rows import Program

MAX_ROUNDS = 200
FIRST_STEP = 1.15  # ratio of neighbouring loads of the first tangents


@dataclasses.dataclass(slots=True)
class Stretch:
    """A group of pieces of one runtime and the loads, above its start, at which it has tangents."""

    group: Group
    loads: list[float]

    def add(self, load: float) -> bool:
        """One more tangent, unless it is there already."""
        if any(abs(load - known) <= 1e-9 * max(load, 1.0) for known in self.loads):
            return False
        self.loads.append(load)
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """Where a program holds N, and for each runtime and stretch the share of C in it."""

    instances: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(slots=True)
class HighsSolver:
    """Eq. 1-7 by HiGHS, single-threaded and with a fixed seed."""

    name: str = "highs"

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        """An optimum, `optimal` when the bound is within 1e-6 of it.

        SolverError: the package is missing, Eq. 2, 3 and 7 cannot hold, or there was no allocation in time.
        """
        try:
            import highspy
        except ImportError:
            raise SolverMissing("the solver highs needs its package: pip install highspy") from None
        started_s = monotonic_s()
        known = bounds(problem)
        stretches = _stretches(problem, known)
        best: tuple[int, ...] | None = None
        value, bound = math.inf, -math.inf
        for _ in range(MAX_ROUNDS):
            program, columns = build(problem, known, stretches)
            start = dict(zip(columns.instances, map(float, best or known.start), strict=True))
            left_s = time_limit_s - (monotonic_s() - started_s)
            solved = program.solve(highspy, gap=GAP / 10, start=start, time_limit_s=left_s) if left_s > 0 else None
            if solved is None:
                break
            found = tuple(round(solved.values[column]) for column in columns.instances)
            objective = flow(problem, found).objective
            bound = max(bound, solved.bound * known.cost_unit)
            if objective < value:
                best, value = found, objective
            if value - bound <= GAP * abs(value) or not _sharpen(stretches, columns, solved.values, known.unit):
                break
        if best is None:
            raise SolverError(f"highs found no allocation in {monotonic_s() - started_s:.3g} s")
        return Allocation(
            instances=best,
            objective=value,
            solver=self.name,
            solve_s=monotonic_s() - started_s,
            optimal=value - bound <= GAP * abs(value),
        )


def build(problem: AllocationProblem, known: Bounds, stretches: list[list[Stretch]]) -> tuple[Program, Columns]:
    """Eq. 1-7 with the tangents so far. Requests in known.unit, costs in known.cost_unit."""
    program = Program()
    n = tuple(program.column(low, high, integer=True) for low, high in zip(known.lower, known.upper, strict=True))
    program.row(problem.workers, [(each, 1.0) for each in n], problem.workers)  # Eq. 2; lower bounds: Eq. 3 and 7
    shares = []
    rest: list[tuple[int, float]] = []
    most = 0.0
    last = len(n) - 1
    for i, (m, q) in enumerate(zip(problem.capacities, problem.demand, strict=True)):
        most_here = most + q / known.unit
        mine = _cost(program, known, stretches[i], n=n[i], top=known.upper[i], most=most_here)
        shares.append(mine)
        processed = [(share, 1.0) for share in mine]
        out: list[tuple[int, float]] = []
        if i < last:
            most = known.left_over[i] / known.unit
            out = [(program.column(0.0, most), 1.0)]
        # Eq. 4 and 5: what arrives is processed here or left over.
        program.row(q / known.unit, [*processed, *out, *((c, -f) for c, f in rest)], q / known.unit)
        rest = out
        if i == last or m == 0:
            continue
        capacity = m / known.unit
        program.row(0.0, [(n[i], capacity), *((c, -f) for c, f in processed)])
        if most > 0:
            # Something is left over only where all N_i * M_i is used.
            spills = program.column(0.0, 1.0, integer=True)
            program.row(0.0, [(spills, most), (out[0][0], -1.0)])
            top = capacity * known.upper[i]
            program.row(-math.inf, [(n[i], capacity), *((c, -f) for c, f in processed), (spills, top)], top)
            program.row(-math.inf, [(n[i], 1.0), (spills, known.upper[i] - known.spills[i])], known.upper[i])
            program.row(known.keeps[i], [(n[i], 1.0), (spills, known.keeps[i] - known.lower[i])])
    return program, Columns(n, tuple(shares))


def _cost(
    program: Program, known: Bounds, stretches: list[Stretch], *, n: int, top: int, most: float
) -> tuple[int, ...]:
    """Columns of the shares of C_i by stretch, with rows that bound their cost and fill the stretches in order.

    `n`: the column of N_i, which is at most `top`; C_i is at most `most` units.
    """
    shares: list[int] = []
    unit, scale = known.unit, 1 / known.cost_unit
    for stretch in stretches:
        share = program.column(0.0, most)
        cost = program.column(0.0, math.inf, cost=1.0)
        room = stretch.group.width / unit if math.isfinite(stretch.group.width) else None
        if room is not None:
            program.row(0.0, [(n, room), (share, -1.0)])
        if stretch.group.concave:
            program.row(0.0, [(cost, 1.0), (share, -stretch.group.chord() * unit * scale)])
        for load in [] if stretch.group.concave else stretch.loads:
            slope, offset = stretch.group.tangent(load)
            # Where g is linear the offset is rounding, too small for a matrix.
            terms = [(n, -offset * scale)] if abs(offset) > 1e-9 * slope else []
            program.row(0.0, [(cost, 1.0), (share, -slope * unit * scale), *terms])
        if shares:
            before = stretches[len(shares) - 1].group.width / unit
            entered = program.column(0.0, 1.0, integer=True)
            program.row(0.0, [(entered, most), (share, -1.0)])
            held = before * top
            program.row(-held, [(shares[-1], 1.0), (n, -before), (entered, -held)])
        shares.append(share)
    return tuple(shares)


def _stretches(problem: AllocationProblem, known: Bounds) -> list[list[Stretch]]:
    """The groups of every runtime with their first tangents, at loads in equal ratios over what can occur."""
    found = []
    last = len(problem.demand) - 1
    rest = 0.0
    for i, (curve, m, q) in enumerate(zip(problem.curves, problem.capacities, problem.demand, strict=True)):
        top = rest + q if i == last else min(rest + q, float(m))
        mine = []
        for group in groups(curve, math.inf if i == last else float(m)):
            stretch = Stretch(group, [])
            end = min(group.width, max(top - group.low, 0.0))
            load = max((rest + q) / known.upper[i] if known.upper[i] else 0.0, group.low + 1e-3, 1.0) - group.low
            stretch.add(min(0.5 * min(1.0, group.width), end))
            while load < end:
                stretch.add(load)
                load = (group.low + load) * FIRST_STEP - group.low
            stretch.add(end)
            mine.append(stretch)
        found.append(mine)
        rest = known.left_over[i]
    return found


def _sharpen(stretches: list[list[Stretch]], columns: Columns, values: tuple[float, ...], unit: float) -> bool:
    """Tangents at the loads of a solution; concave groups are split there. False when nothing is new."""
    new = False
    for mine, shares, column in zip(stretches, columns.shares, columns.instances, strict=True):
        n = round(values[column])
        if n == 0:
            continue
        # From the end, so that a split does not move the stretches still to be looked at.
        for k in range(len(mine) - 1, -1, -1):
            load = values[shares[k]] * unit / n
            stretch = mine[k]
            if not stretch.group.concave:
                new |= load > 0 and stretch.add(load)
            elif 1e-6 * stretch.group.width < load < (1 - 1e-6) * stretch.group.width:
                mine[k : k + 1] = [Stretch(part, []) for part in stretch.group.split(load)]
                new = True
    return new
