"""Exact plans for bundles: which runtimes of five models a worker's memory holds, and how many of 50 workers each gets.

    python -m benchmarks.bundle_plan

Five models of eight lengths, BERT-base on an A100 by its published latencies, slower ones up to 2.3 times; memory,
lengths and rates are drawn. Both answers are the best there are (tests/unit/planning).
"""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from arlo.catalog.bundle import shared_bundle
from arlo.catalog.manifest import LatencyPoint, Runtime
from arlo.planning.lengths.holding import Wanted, best_together
from arlo.planning.models import ModelPlanner, Served
from arlo.planning.planner import PlannerSettings, Seen
from arlo.planning.traffic.demand import Demand
from arlo.simulator.profiles import load_profile
from benchmarks import harness

NAME = "bundle_plan"
WORKERS, MODELS, LENGTHS, SLO_MS = 50, 5, range(64, 513, 64), 100.0
MEMORY_MB = (3000, 5000, 8000)
ROUNDS = 30
SETTINGS = PlannerSettings(
    slo_ms=SLO_MS,
    policy="late",
    objective="queueing",
    solver="exact",
    solver_time_limit_s=5.0,
    window_s=120.0,
    min_gain=0.05,
    early=True,
)


def models(draw: random.Random) -> list[list[Runtime]]:
    static = load_profile("bert-base-a100").static_runtimes(LENGTHS, max_batch=32)
    return [
        [
            Runtime(
                name=f"model{number}_len{runtime.max_length}",
                max_length=runtime.max_length,
                max_batch=32,
                dynamic=False,
                engine="simulated",
                precision="fp16",
                device="A100",
                latency=tuple(
                    LatencyPoint(length=length, batch=rows, latency_us=1000 * ms * (1 + number / 3))
                    for length, rows, ms in runtime.points
                ),
                memory_mb=220 + runtime.max_length // 4 + draw.randrange(60),
            )
            for runtime in static
        ]
        for number in range(MODELS)
    ]


def timed(what: Callable[[], Any]) -> dict[str, float]:
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        what()
        took.append(1000 * (time.perf_counter() - began))
    return {"median_ms": statistics.median(took), "longest_ms": max(took)}


def main() -> int:
    draw = random.Random(1)
    built = models(draw)
    wanted = [
        Wanted(runtimes, {length: draw.randrange(1, 100) for length in range(1, 513)}, SLO_MS) for runtimes in built
    ]
    rows: dict[str, dict[str, float]] = {}
    for memory_mb in MEMORY_MB:
        rows[f"held in {memory_mb} MB"] = timed(functools.partial(best_together, wanted, memory_mb=memory_mb))
    served = [
        Served(bundle=shared_bundle(f"bundle{number}", [runtimes]), slo_ms=SLO_MS)
        for number, runtimes in enumerate(built)
    ]
    planner = ModelPlanner(SETTINGS, served)
    mean = tuple(draw.uniform(2, 12) for _ in planner.lengths)
    problem = planner.problem(WORKERS, Seen(Demand(planner.lengths, mean, mean, 1000, 60.0)))
    rows[f"{WORKERS} workers divided"] = timed(lambda: problem.solve(None, time_limit_s=5.0))
    for name, figures in rows.items():
        print(f"{name:22} median {figures['median_ms']:6.1f} ms, longest {figures['longest_ms']:6.1f} ms")
    print(f"-> {harness.save(NAME, f'python -m benchmarks.{NAME}', {'rows': rows})}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
