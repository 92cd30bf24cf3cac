"""Lengths that drift over seconds: what it is worth to plan for how they varied, and not for their mean alone.

The simulated control plane (Arlo, periodic plans, objective `queueing`) serves the same requests twice: as it is, and
with a window that says nothing of variation. Load is the work of the requests on their ideal runtimes over what the
GPUs can do. Then the time of a plan, for the demand of two minutes with the paper's drift. BERT-base, SLO 150 ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np

from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve
from arlo.planning.allocation.queueing import QueueingSolver
from arlo.planning.traffic.demand import DemandWindow
from arlo.simulator.profiles import load_profile
from arlo.simulator.run import run
from arlo.simulator.scenario.schemes import scheme
from arlo.traces import make_workload
from benchmarks import harness

SLO_MS = 150.0
LONGEST = 512
SIZES = ((40, 8), (300, 8), (1000, 16))  # workers, runtimes of the timed plans
WINDOW_S = 120
SAMPLED_RPS = 20_000  # of the timed plans; more requests would change no rate
NS = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Case:
    workers: int
    load: float
    drift: str = "paper"
    policy: str = "eft"
    length: str = "paper"
    arrivals: str = "twitter-stable"

    def __str__(self) -> str:
        return f"{self.workers:>3} GPUs {self.load:.0%} {self.policy:3} {self.length:6} {self.arrivals:14} {self.drift}"


CASES = (
    *(Case(10, load) for load in (0.3, 0.5, 0.7, 0.8, 0.9)),
    *(Case(40, load) for load in (0.5, 0.7, 0.85)),
    Case(90, 0.5),
    Case(10, 0.7, policy="rs"),
    Case(40, 0.7, policy="rs"),
    Case(40, 0.7, length="tweets", arrivals="twitter-bursty"),
    Case(40, 0.7, "weak"),
    Case(40, 0.7, "sample:50"),
    Case(40, 0.7, "none"),
    Case(10, 0.7, "none", length="tweets", arrivals="twitter-bursty"),
)


def without_variation() -> Any:
    """The window says nothing of how the demand varied."""
    return mock.patch.object(DemandWindow, "variation", return_value=None)


def simulate(case: Case, seed: int, duration_s: float) -> dict[str, float]:
    profile = load_profile("bert-base")
    arlo = scheme("arlo", profile, workers=case.workers, policy=case.policy)
    lengths = np.array([runtime.max_length for runtime in arlo.runtimes])
    times_s = np.array([runtime.points[0][2] for runtime in arlo.runtimes]) / 1000
    sample = make_workload(rate=SAMPLED_RPS, duration_s=5, length=case.length, drift="none", seed=seed)
    drawn = np.concatenate([length for _, length in sample.chunks()])
    rate = case.load * case.workers / times_s[np.searchsorted(lengths, drawn)].mean()
    workload = make_workload(
        arrivals=case.arrivals, rate=rate, duration_s=duration_s, length=case.length, drift=case.drift, seed=seed
    )
    result = run(arlo.scenario(workload))
    return {
        "attainment": result.slo_attainment,
        "mean_ms": result.mean_ms,
        "p98_ms": result.p98_ms,
        "replacements": result.replacements,
    }


def problem(workers: int, runtimes: int, load: float) -> AllocationProblem:
    """For what comes in a window with the paper's drift."""
    lengths = np.array([LONGEST * (i + 1) // runtimes for i in range(runtimes)])
    times_ms = 1.15 + (lengths - 64) * (4.86 - 1.15) / 448
    workload = make_workload(rate=SAMPLED_RPS, duration_s=WINDOW_S, length="paper", drift="paper", seed=1)
    window = DemandWindow(window_s=WINDOW_S)
    counts = np.zeros((WINDOW_S, LONGEST + 1), np.int64)
    for arrived, length in workload.chunks():
        np.add.at(counts, (arrived // NS, length), 1)
    for second, total in enumerate(np.cumsum(counts, axis=0)):
        if second == 0:
            window.add(0.0, 0, [0])
        window.add(second + 1.0, 0, total.tolist())
    seen = np.array(window.estimate(lengths.tolist(), SLO_MS).mean)
    demand = seen * load * workers * SLO_MS / float(seen @ times_ms)
    return AllocationProblem(
        workers,
        SLO_MS,
        tuple(lengths.tolist()),
        tuple(LatencyCurve.single(ms) for ms in times_ms.tolist()),
        tuple(demand.tolist()),
        variation=window.variation(lengths.tolist()),
    )


def plan_ms(given: AllocationProblem, repeats: int = 5) -> float:
    """CPU time of this thread, median."""
    took = []
    for _ in range(repeats):
        began = time.thread_time()
        QueueingSolver().solve(given, time_limit_s=60)
        took.append((time.thread_time() - began) * 1000)
    return round(statistics.median(took), 1)


def measure(seeds: list[int], duration_s: float) -> list[dict[str, Any]]:
    rows = []
    for number, case in enumerate(CASES, 1):
        print(f"{number} of {len(CASES)}: {case}", file=sys.stderr, flush=True)
        found: dict[str, Any] = {"case": dataclasses.asdict(case)}
        for name, context in (("without", without_variation()), ("with", nullcontext())):
            with context:
                runs = [simulate(case, seed, duration_s) for seed in seeds[: 1 if case.workers > 40 else None]]
            found[name] = {key: round(float(np.mean([r[key] for r in runs])), 5) for key in runs[0]}
        rows.append(found)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="above 40 GPUs the first only")
    parser.add_argument("--duration-s", type=float, default=360.0, help="of each simulated run (default 360)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")
    args = parser.parse_args()
    rows = measure(args.seeds, args.duration_s)
    times = []
    for workers, runtimes in SIZES:
        for load in (0.5, 0.8):
            given = problem(workers, runtimes, load)
            plain = dataclasses.replace(given, variation=None)
            times.append(
                {
                    "workers": workers,
                    "runtimes": runtimes,
                    "load": load,
                    "without_ms": plan_ms(plain),
                    "with_ms": plan_ms(given),
                }
            )
    figures = {"seeds": args.seeds, "duration_s": args.duration_s, "cases": rows, "plan": times}
    path = harness.save("drift", " ".join(["python -m benchmarks.drift", *sys.argv[1:]]).strip(), figures)
    if args.json:
        print(json.dumps(figures))
        return 0
    print(f"{'':55}{'on time %':>18}{'mean ms':>19}{'p98 ms':>19}{'replacements':>15}")
    for row, case in zip(rows, CASES, strict=True):
        old, new = row["without"], row["with"]
        print(
            f"{case!s:55}{old['attainment'] * 100:>9.3f}{new['attainment'] * 100:>9.3f}"
            f"{old['mean_ms']:>10.2f}{new['mean_ms']:>9.2f}{old['p98_ms']:>10.1f}{new['p98_ms']:>9.1f}"
            f"{old['replacements']:>8.1f}{new['replacements']:>7.1f}"
        )
    for row in times:
        print(
            f"a plan for {row['workers']} workers x {row['runtimes']} runtimes at {row['load']:.0%}: "
            f"{row['without_ms']} ms without, {row['with_ms']} ms with variation"
        )
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
