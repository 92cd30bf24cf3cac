"""The allocation solvers on random instances: do they agree, and how long do they take.

Wherever `gurobi` or `highs` proves an optimum, `exact` must have the same objective to 1e-6 relative, and the other way
round. Sizes: 2 to 60 workers and 2 to 8 runtimes, one in fifty up to 200 workers and 12 runtimes; a third of the
runtimes have batched latency curves, kinks that are not convex included; a tenth of the demand bins are empty.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import statistics
import sys
from typing import Any

from arlo.planning.allocation.problem import Allocation, AllocationProblem, LatencyCurve, SolverError
from arlo.planning.allocation.solve import SOLVERS, make_solver
from benchmarks import harness

AGREE = 1e-6


def random_curve(rng: random.Random, latency_ms: float) -> LatencyCurve:
    """max_batch 1 for two runtimes in three; else up to 32 rows, each further one at 0 to 1.2 of the first."""
    if rng.random() < 2 / 3:
        return LatencyCurve.single(latency_ms)
    rows = sorted(rng.sample(range(2, 33), rng.randint(1, 4)))
    times = sorted(latency_ms * (1 + (row - 1) * rng.uniform(0, 1.2)) for row in rows)
    return LatencyCurve(((1, latency_ms), *zip(rows, times, strict=True)))


def random_problem(seed: int, *, large: bool = False) -> AllocationProblem:
    """A feasible problem. Load: 5 to 100 % of what the workers carry, unevenly over the bins."""
    rng = random.Random(seed)
    while True:
        workers = rng.randint(61, 200) if large else rng.randint(2, 60)
        count = rng.randint(8, 12) if large else rng.randint(2, 8)
        slo_ms = rng.choice([50.0, 150.0, 450.0])
        latencies = sorted(rng.uniform(0.5, 20) for _ in range(count))
        curves = tuple(random_curve(rng, latency) for latency in latencies)
        share = [rng.random() ** 2 if rng.random() > 0.1 else 0.0 for _ in range(count)]
        load = rng.uniform(0.05, 1.0) * workers / (sum(share) or 1.0)
        demand = [load * part * curve.capacity(slo_ms) for part, curve in zip(share, curves, strict=True)]
        if rng.random() < 0.3:
            demand = [float(round(q)) for q in demand]
        problem = AllocationProblem(workers, slo_ms, tuple(64 * (i + 1) for i in range(count)), curves, tuple(demand))
        if problem.infeasible() is None:
            return problem


@dataclasses.dataclass(slots=True)
class Counts:
    """What came of one solver."""

    proven: int = 0
    unproven: int = 0
    failed: int = 0
    times_s: list[float] = dataclasses.field(default_factory=list)

    def add(self, answer: Allocation | SolverError) -> None:
        if isinstance(answer, SolverError):
            self.failed += 1
            return
        self.proven += answer.optimal
        self.unproven += not answer.optimal
        self.times_s.append(answer.solve_s)

    def figures(self) -> dict[str, Any]:
        times = sorted(self.times_s) or [0.0]
        return {
            "proven": self.proven,
            "unproven": self.unproven,
            "failed": self.failed,
            "median_ms": round(1000 * statistics.median(times), 3),
            "p98_ms": round(1000 * times[min(len(times) - 1, int(0.98 * len(times)))], 3),
            "max_ms": round(1000 * times[-1], 3),
        }


def answers(problem: AllocationProblem, solvers: list[str], limit_s: float) -> dict[str, Allocation | SolverError]:
    """What each solver says to one problem."""
    found: dict[str, Allocation | SolverError] = {}
    for name in solvers:
        try:
            found[name] = make_solver(name).solve(problem, time_limit_s=limit_s)
        except SolverError as error:
            found[name] = error
    return found


def disagreements(found: dict[str, Allocation | SolverError]) -> list[str]:
    """Pairs in which one proved an optimum that the other, proven or not, contradicts."""
    said = []
    solved = [answer for answer in found.values() if isinstance(answer, Allocation)]
    for a, b in itertools.permutations(solved, 2):
        near = AGREE * max(abs(a.objective), 1e-12)
        # Above a proven optimum another may only be where it proved nothing.
        if a.optimal and (b.objective < a.objective - near or (b.optimal and b.objective > a.objective + near)):
            said.append(f"{a.solver} proved {a.objective!r} with {a.instances}, {b.solver} found {b.objective!r}")
    return said


def run(args: argparse.Namespace) -> dict[str, Any]:
    counts = {name: Counts() for name in args.solvers}
    pairs = dict.fromkeys((f"{a}={b}" for a, b in itertools.combinations(args.solvers, 2)), 0)
    wrong = []
    for seed in range(args.first, args.first + args.instances):
        problem = random_problem(seed, large=seed % 50 == 49)
        found = answers(problem, args.solvers, args.time_limit_s)
        for name, answer in found.items():
            counts[name].add(answer)
            if isinstance(answer, SolverError):
                print(f"seed {seed}: {name}: {answer}", file=sys.stderr, flush=True)
            elif not answer.optimal:
                print(f"seed {seed}: {name} unproven after {answer.solve_s:.3g} s", file=sys.stderr, flush=True)
        for a, b in itertools.combinations(args.solvers, 2):
            one, other = found[a], found[b]
            if isinstance(one, Allocation) and isinstance(other, Allocation) and one.optimal and other.optimal:
                near = AGREE * max(abs(one.objective), 1e-12)
                pairs[f"{a}={b}"] += abs(one.objective - other.objective) <= near
        for line in disagreements(found):
            wrong.append(f"seed {seed}: {line}")
            print(f"DISAGREE {wrong[-1]}", file=sys.stderr, flush=True)
    return {
        "instances": args.instances,
        "first_seed": args.first,
        "proven_by_both_and_equal": pairs,
        "disagreements": wrong,
        "solvers": {name: each.figures() for name, each in counts.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first instance")
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=SOLVERS)
    parser.add_argument("--time-limit-s", type=float, default=30.0, help="for each instance and solver")
    parser.add_argument("--json", action="store_true", help="print the figures too")
    args = parser.parse_args()
    figures = run(args)
    path = harness.save("solvers", "python -m benchmarks.solvers " + " ".join(sys.argv[1:]), figures)
    print(json.dumps(figures, indent=2) if args.json else f"-> {path}")
    return 1 if figures["disagreements"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
