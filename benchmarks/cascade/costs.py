"""What cascades cost offline, in seconds of this process's CPU time, so that other work beside it counts little.

    python -m benchmarks.cascade.costs

Exact search over two stages with 100,000 records and three stages with 5,000; 1,000 workers divided among four stages
of twelve lengths each; decisions by the core that gateway and simulator share, and rows that the simulator plays.
Rows are random: how long all this takes does not depend on what they say.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from arlo import _core
from arlo.cascade.search import exact
from arlo.cascade.search.table import Table
from arlo.cascade.spec import Rules, hard
from arlo.planning.stages import divide
from arlo.simulator.cascade.engine import CascadeRun, Journeys, run, twin
from arlo.simulator.scenario.scenario import RuntimeModel

TIMES = 3  # of which the median is told
LENGTHS = 12


def table(rows: int, stages: int) -> Table:
    """Of rows whose later stages are right more often."""
    random = np.random.default_rng(stages)
    right = random.random((rows, stages)) < np.linspace(0.75, 0.9, stages)
    return Table.of(random.random((rows, stages - 1)), right, [3.0**stage for stage in range(stages)])


def stage_curve(work: float, workers: int) -> float:
    """Mean wait of rows of twelve lengths, each with its part of a stage's workers (M/M/n-like)."""
    part, each = workers / LENGTHS, work / LENGTHS
    return sum(each / (part - each) if part > each else math.inf for _ in range(LENGTHS))


def decisions(rows: int = 1_000_000) -> float:
    """Decisions a second."""
    random = np.random.default_rng(0)
    sure, length = random.random(rows), random.integers(2, 64, rows).astype(np.int32)
    rules = twin(Rules(prices=((hard(0.7), hard(0.6)),)))
    return rows / seconds(lambda: _core.cascade_decide(rules, 0, sure, length))


def simulated(rows: int = 400_000) -> float:
    """Visits that ended in a decision, a second of simulation."""
    random = np.random.default_rng(0)
    confidence = np.stack([random.random(5000), np.ones(5000)], axis=1)
    runtimes = [
        RuntimeModel(name=name, max_length=64, points=((64, 1, ms), (64, 8, 2 * ms)))
        for name, ms in (("a", 1.0), ("b", 6.0))
    ]
    job = CascadeRun(
        stages=[[each] for each in runtimes],
        workers=(8, 16),
        rules=Rules(prices=((hard(0.4),),)),
        journeys=Journeys(confidence=confidence, correct=np.ones((5000, 2), np.bool_)),
        arrived_ns=random.exponential(1e9 / 4000, rows).cumsum().astype(np.int64),
        lengths=np.full(rows, 30, np.int32),
        slo_ms=100,
    )
    return rows / seconds(lambda: run(job))


def seconds(work: Callable[[], Any]) -> float:
    """CPU time, the median of a few."""
    took = []
    for _ in range(TIMES):
        begun = time.process_time()
        work()
        took.append(time.process_time() - begun)
    return float(np.median(took))


def main() -> int:
    """Print each figure and its bar."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    curves = [partial(stage_curve, work) for work in (20.0, 60.0, 150.0, 400.0)]
    for what, found, bar in (
        ("exact search, 2 stages, 100,000 records", seconds(lambda: exact.search(table(100_000, 2))), "1 s"),
        ("exact search, 3 stages, 5,000 records", seconds(lambda: exact.search(table(5_000, 3))), "20 s"),
        ("1,000 workers among 4 stages of 12 lengths", seconds(lambda: divide(curves, 1000)), "2 s"),
    ):
        print(f"{what:45} {found:8.2f} s      bar {bar}", flush=True)
    print(f"{'decisions':45} {decisions() / 1e6:8.1f} M/s    bar 2 M/s")
    print(f"{'rows simulated, two stages':45} {simulated() / 1e6:8.2f} M/s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
