"""How long the exact allocation solver takes, beside the paper's Gurobi (Table 2), on random instances.

Every size is solved for six shapes of demand, 20 random instances each: `log_normal` lengths (load 20 to 98 %),
`uniform` shares, `sparse` (six bins in ten empty), `tight` (the lower bounds leave few workers free, so what is left
over travels through several runtimes), `close` (`log_normal` at 85 to 98 % with all latencies within 3 to 4 ms) and
`batched` (`log_normal`, all runtimes with curves of several batches, not convex). SLO 150 ms; latencies rise linearly
from 1.15 ms at length 64 to 4.86 ms at 512 but for `close`.

Times are of one `ExactSolver.solve`, best of three; each answer is proven optimal, which is checked.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import sys
from typing import Any

from arlo import _core
from arlo.planning.allocation.exact import MAX_STATES, ExactSolver
from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve
from benchmarks import harness

SIZES = ((50, 8, 156.0, 1.0), (200, 12, 623.0, 10.0), (1000, 16, 2612.0, 50.0))  # workers, runtimes, the paper, bar; ms
SHAPES = ("log_normal", "uniform", "sparse", "tight", "close", "batched")
SLO_MS = 150.0


def latencies(rng: random.Random, shape: str, lengths: tuple[int, ...]) -> list[float]:
    if shape == "close":
        return sorted(rng.uniform(3, 4) for _ in lengths)
    return [1.15 + (length - 64) * (4.86 - 1.15) / (512 - 64) for length in lengths]


def batched(rng: random.Random, latency_ms: float) -> LatencyCurve:
    """Up to 16 rows; twice the rows take 1.2 to 2.1 times as long."""
    points = [(1, latency_ms)]
    for rows in (2, 4, 8, 16):
        points.append((rows, points[-1][1] * rng.uniform(1.2, 2.1)))
    return LatencyCurve(tuple(points))


def shares(rng: random.Random, shape: str, lengths: tuple[int, ...]) -> list[float]:
    """Of the demand in each bin; any sum above 0."""
    if shape in ("log_normal", "close", "batched"):
        median, sigma = rng.uniform(3.5, 5.5), rng.uniform(0.5, 1.2)
        below = [0.5 * (1 + math.erf((math.log(n) - median) / sigma / math.sqrt(2))) for n in lengths]
        return [a - b for a, b in zip(below, [0.0, *below], strict=False)]
    parts = [rng.random() for _ in lengths]
    if shape == "sparse":
        parts = [part if rng.random() < 0.4 else 0.0 for part in parts]
        parts[rng.randrange(len(parts))] = rng.random()
    return parts


def random_problem(rng: random.Random, workers: int, count: int, shape: str) -> AllocationProblem:
    """A feasible one."""
    lengths = tuple(512 * (i + 1) // count for i in range(count))
    while True:
        make = batched if shape == "batched" else lambda _, ms: LatencyCurve.single(ms)
        curves = tuple(make(rng, ms) for ms in latencies(rng, shape, lengths))
        capacities = [curve.capacity(SLO_MS) for curve in curves]
        if shape == "tight":
            lower = [0] * count
            for _ in range(workers - 1 - rng.randint(0, count)):
                lower[rng.randrange(count)] += 1
            demand = [(n + 0.999 * rng.random()) * m for n, m in zip(lower, capacities, strict=True)]
        else:
            parts = shares(rng, shape, lengths)
            load = rng.uniform(0.85 if shape == "close" else 0.2, 0.98)
            scale = load * workers / sum(part / m for part, m in zip(parts, capacities, strict=True))
            demand = [part * scale for part in parts]
        problem = AllocationProblem(workers, SLO_MS, lengths, curves, tuple(demand))
        if problem.infeasible() is None:
            return problem


def looked_at(problem: AllocationProblem) -> int:
    """Partial allocations that the solver looked at."""
    runtimes = [
        (curve.points, m, lower, q)
        for curve, m, lower, q in zip(
            problem.curves, problem.capacities, problem.lower_bounds, problem.demand, strict=True
        )
    ]
    return _core.allocate_exact(problem.workers, runtimes, MAX_STATES)[3]


def measure(workers: int, count: int, shape: str, *, instances: int, seed: int) -> dict[str, Any]:
    rng = random.Random(f"{seed} {workers} {count} {shape}")
    times_ms, states, proven = [], [], 0
    for _ in range(instances):
        problem = random_problem(rng, workers, count, shape)
        found = [ExactSolver().solve(problem, time_limit_s=10.0) for _ in range(3)]
        times_ms.append(1000 * min(one.solve_s for one in found))
        states.append(looked_at(problem))
        proven += all(one.optimal and one.instances == found[0].instances for one in found)
    return {
        "workers": workers,
        "runtimes": count,
        "demand": shape,
        "instances": instances,
        "median_ms": round(statistics.median(times_ms), 3),
        "max_ms": round(max(times_ms), 3),
        "states_median": round(statistics.median(states)),
        "states_max": max(states),
        "proven": proven,
    }


@dataclasses.dataclass(frozen=True)
class Size:
    """All shapes of one size together."""

    workers: int
    runtimes: int
    paper_ms: float
    bar_ms: float
    worst_median_ms: float
    worst_ms: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=20, help="random instances for each size and shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    rows, sizes = [], []
    for workers, count, paper_ms, bar_ms in SIZES:
        of_size = [measure(workers, count, shape, instances=args.instances, seed=args.seed) for shape in SHAPES]
        rows += of_size
        worst_median_ms, worst_ms = (max(row[key] for row in of_size) for key in ("median_ms", "max_ms"))
        sizes.append(Size(workers, count, paper_ms, bar_ms, worst_median_ms, worst_ms))
    figures = {"sizes": [dataclasses.asdict(size) for size in sizes], "rows": rows}
    path = harness.save("allocation", " ".join(["python -m benchmarks.allocation", *sys.argv[1:]]), figures)
    if args.json:
        print(json.dumps(figures, indent=2))
    else:
        print(f"{'workers x runtimes':>18}  {'demand':<10} {'median ms':>9} {'max ms':>8} {'states':>8} {'proven':>6}")
        for row in rows:
            size = f"{row['workers']} x {row['runtimes']}"
            print(
                f"{size:>18}  {row['demand']:<10} {row['median_ms']:>9} {row['max_ms']:>8} {row['states_median']:>8}"
                f" {row['proven']:>3}/{row['instances']}"
            )
        for one in sizes:
            print(
                f"{one.workers} x {one.runtimes}: worst median {one.worst_median_ms} ms, worst {one.worst_ms} ms; "
                f"the paper's Gurobi {one.paper_ms:g} ms; bar {one.bar_ms:g} ms"
            )
        print(f"-> {path}")
    right = all(size.worst_median_ms <= size.bar_ms for size in sizes) and all(
        row["proven"] == row["instances"] for row in rows
    )
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
