"""What the price does when the last stage is asked for more than it carries: simulated, rows of a recorded cascade.

    python -m benchmarks.cascade.price

Workers of their own for each stage, with the times of `benchmarks.cascade.served --times layers`; for ten seconds the
last stage is offered one and a half times what it carries, the first has room. Without the price rows wait until they
are late; with it, rows have to be less sure to end earlier.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from arlo.simulator.cascade.engine import CascadeRun, run
from benchmarks import harness
from benchmarks.cascade import served
from benchmarks.cascade.cached import cache_root

WORKERS = (4, 4)
CALM_S, PRESSED_S, AFTER_S = 5.0, 10.0, 10.0
CALM, PRESSED = 0.6, 1.5  # of what the last stage carries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cascade", type=Path, default=cache_root() / "cascade" / "demo-1-6-40000")
    args = parser.parse_args()
    people = served.population(args.cascade, "layers")
    stages = served.runtimes("layers")
    reach = float(np.mean(people.journeys.confidence[:, 0] < people.rules.prices[0][0].t[0][1]))
    # What the last stage's workers carry, as rows that reach it.
    carried = served.highest(people, WORKERS[1], alone=True) / reach
    random = np.random.default_rng(4)
    spans = ((CALM, CALM_S), (PRESSED, PRESSED_S), (CALM, AFTER_S))
    gaps = np.concatenate([random.exponential(1e9 / (share * carried), int(share * carried * s)) for share, s in spans])
    at = np.cumsum(gaps).astype(np.int64)
    of_record = np.resize(_lengths(len(people.study.row)), len(at)).astype(np.int32)
    figures: dict[str, Any] = {"reach": reach, "carried_rps": carried}
    for name, price in (("off", False), ("auto", True)):
        result = run(
            CascadeRun(
                stages=stages,
                workers=WORKERS,
                rules=people.rules,
                journeys=people.journeys,
                arrived_ns=at,
                lengths=of_record,
                slo_ms=served.SLO_MS,
                timeout_ms=10 * served.SLO_MS,
                auto_price=price,
            )
        )
        figures[name] = {
            "on_time": result.on_time,
            "mean_ms": result.mean_ms,
            "p99_ms": result.p99_ms,
            "accuracy": result.accuracy,
            "exits": result.exits,
            "reasons": result.reasons,
            "price_at_the_end": result.price,
        }
        print(f"price {name:4}: {result}", flush=True)
    path = harness.save("cascade_price", "python -m benchmarks.cascade.price", figures)
    print(f"-> {path}")
    return 0


def _lengths(count: int) -> Any:
    """Of each record, as served.arrivals() has them."""
    return served.arrivals(float(count), 1.0, count)[1]


if __name__ == "__main__":
    raise SystemExit(main())
