"""The problem as a mixed-integer program with a variable for each prefix: what solver packages are given (U1-U7).

It is built from prefixes, not from policies as the exact solver's, so that one can check the other. Small problems
only: there is a variable for each path of options.
"""

from __future__ import annotations

import dataclasses
import math

from arlo.planning.allocation.problem import SolverError
from arlo.planning.flows.problem import Answer, FlowProblem
from benchmarks.papers.rows import Program

MAX_VARIABLES = 500_000
Path = tuple[int, ...]  # options from the root to a stage


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where a program holds what."""

    instances: tuple[tuple[int, ...], ...]  # by stage and option
    paths: dict[tuple[int, Path], int]  # (stage, path) -> column
    value: dict[int, float]  # column -> value that a share of 1 adds


def build(problem: FlowProblem, *, served: float, served_only: bool, target: float) -> tuple[Program, Layout]:
    """min -(value): U1-U7, with one binary for each batch cap where a variant has only one."""
    program = Program()
    stages = problem.stages
    counts = tuple(tuple(program.column(0, problem.workers, integer=True) for _ in stage.options) for stage in stages)
    paths: dict[tuple[int, Path], int] = {}
    value: dict[int, float] = {}
    loads: dict[tuple[int, int], list[tuple[int, float]]] = {}
    # (stage, path) -> rows per second, weight of the accuracy, seconds, variants as one number
    known: dict[tuple[int, Path], tuple[float, float, float, int]] = {}
    for at, stage in enumerate(stages):
        above = (
            [((), (problem.demand, 1.0, 0.0, 0))]
            if stage.parent < 0
            else [(path, state) for (j, path), state in known.items() if j == stage.parent]
        )
        for path, (rows, weight, seconds, number) in above:
            last = stages[stage.parent].options[path[-1]].variant if path else 0
            come = rows * stage.factor[last] if path else rows
            rest = weight * (1 - stages[stage.parent].exit[last]) * stage.weight if path else 1.0
            terms = []
            for o, option in enumerate(stage.options):
                time = seconds + option.latency_s
                if time > stage.limit_s * (1 + 1e-12):
                    continue
                index = number * stage.variants + option.variant
                energy = problem.joule * come / problem.demand * option.work_s * option.watts
                worth = 0.0 if served_only else rest * stage.exit[option.variant] * stage.accuracy[index] - energy
                column = program.column(0, 1, cost=-worth)
                if len(paths) > MAX_VARIABLES:
                    raise SolverError(f"more than {MAX_VARIABLES:,} paths of options: use the solver exact")
                paths[at, (*path, o)] = column
                value[column] = worth
                known[at, (*path, o)] = (come, rest, time, index)
                loads.setdefault((at, o), []).append((column, come * option.work_s / problem.utilisation))
                terms.append((column, 1.0))
            if not path:
                unserved = program.column(0, 1, cost=1.0 if served_only else problem.unserved)
                program.row(served, [*terms, (unserved, 1.0)], served)  # U1
                value[unserved] = -1.0 if served_only else -problem.unserved
            else:
                program.row(0.0, [*terms, (paths[stage.parent, path], -1.0)], 0.0)  # U2
    for (at, o), terms in loads.items():
        program.row(-math.inf, [*terms, (counts[at][o], -1.0)], 0.0)  # U3, U5
    program.row(0, [(column, 1.0) for each in counts for column in each], problem.workers)  # U6
    for at, most in enumerate(problem.held):
        for variant, count in enumerate(most):
            mine = [
                column
                for column, option in zip(counts[at], stages[at].options, strict=True)
                if option.variant == variant
            ]
            program.row(0, [(column, 1.0) for column in mine], count)
    if problem.single_batch:
        for at, stage in enumerate(stages):
            for variant in range(stage.variants):
                mine = [o for o, option in enumerate(stage.options) if option.variant == variant]
                chosen = [program.column(0, 1, integer=True) for _ in mine]
                for o, z in zip(mine, chosen, strict=True):
                    program.row(-math.inf, [(counts[at][o], 1.0), (z, -float(problem.workers))], 0.0)
                program.row(0, [(z, 1.0) for z in chosen], 1)
    if math.isfinite(target):
        program.row(target, list(value.items()))
    return program, Layout(counts, paths, value)


def read(problem: FlowProblem, layout: Layout, values: list[float], bound: float, *, served_only: bool) -> Answer:
    """Of a solution's columns."""
    stages = problem.stages
    mixes = _policies(problem, layout, values)
    accuracy = math.fsum(share * problem.accuracy(policy) for policy, share in mixes)
    got = math.fsum(share for _, share in mixes)
    found = math.fsum(worth * values[column] for column, worth in layout.value.items())
    return Answer(
        instances=tuple(tuple(round(values[column]) for column in layout.instances[at]) for at in range(len(stages))),
        mixes=mixes,
        accuracy=accuracy,
        served=got,
        relaxed=bound,
        bound=bound,
        price=math.nan,
        optimal=bound - found <= 1e-6,
    )


def _policies(problem: FlowProblem, layout: Layout, values: list[float]) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Prefix flows as a mixture of policies: at each stage the path's shares, whatever other branches do."""
    mixes: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for at, stage in enumerate(problem.stages):
        more = []
        for policy, share in mixes:
            line = problem.line(at)[:-1]
            path = tuple(policy[j] for j in line)
            parts = {
                o: max(values[layout.paths[at, (*path, o)]], 0.0)
                for o in range(len(stage.options))
                if (at, (*path, o)) in layout.paths
            }
            total = sum(parts.values()) if stage.parent >= 0 else 1.0
            more += [((*policy, o), share * part / total) for o, part in parts.items() if total > 0 and part > 1e-12]
        mixes = more
    return tuple(mixes)
