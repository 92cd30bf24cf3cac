"""Several models on the same workers, against workers that are divided among them, simulated.

    python -m benchmarks.models [--seconds 20]

Five models on eight A100s (published latencies). Three of them take turns in being popular: one has 24,000 requests/s
of a mix of lengths, the other two 4,000; beside them a reranker (passages, SLO 250 ms) and a classifier (tweets, SLO 50
ms).

* `all on all`: every worker holds the lengths of all five.
* `divided, knowing`: each model has workers of its own, as many as make the mean latency of all least; it is known when
  popularity turns, and moves take no time.
* `divided, evenly over time`: the same, for the mean of the rates, as who does not move workers would.

Then what each model gets when one asks for ten times what the workers carry.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from typing import Any

from arlo.simulator.run import run
from arlo.simulator.scenario.build import build
from arlo.simulator.scenario.file import ModelSection, ScenarioConfig
from arlo.simulator.scenario.sections import ClusterSection, DispatchSection, RunSection, WorkloadSection
from benchmarks import harness

NAME = "models"
WORKERS = 8
POPULAR, OTHER = 24_000.0, 4_000.0
MEAN = (POPULAR + 2 * OTHER) / 3
FLOOD = 10
Load = tuple[str, float, float]
"""Of a model: lengths, requests per second, SLO in ms."""
RERANKER: Load = ("rag", 1_000.0, 250.0)
CLASSIFIER: Load = ("tweets", 4_000.0, 50.0)


def minute(popular: int) -> list[Load]:
    """The loads while one of the first three is popular."""
    mixes: list[Load] = [("mix", POPULAR if number == popular else OTHER, 100.0) for number in range(3)]
    return [*mixes, RERANKER, CLASSIFIER]


def simulated(loads: list[Load], workers: int, seconds: float, *, seed: int = 1) -> Any:
    """These models on so many workers that hold all of them."""
    config = ScenarioConfig(
        run=RunSection(seed=seed, warmup_s=1.0),
        workload=WorkloadSection(arrivals="poisson", duration_s=seconds + 1.0),
        cluster=ClusterSection(
            workers=workers,
            profile="bert-base-a100",
            max_lengths=(64, 128, 256, 512),
            max_batch=32,
            bundle="all",
            timeout_ms=1000.0,
        ),
        dispatch=DispatchSection(batching="deadline"),
        model=tuple(
            ModelSection(name=f"{number}", length=length, rate=rate, slo_ms=slo_ms)
            for number, (length, rate, slo_ms) in enumerate(loads)
        ),
    )
    return run(build(config).scenario)


@functools.cache
def alone(load: Load, workers: int, seconds: float) -> tuple[float, float]:
    """Mean latency in ms and share on time of one model on workers of its own."""
    result = simulated([load], workers, seconds)
    return result.mean_ms, result.slo_attainment


def divided(loads: list[Load], counts: tuple[int, ...], seconds: float) -> tuple[float, float]:
    """Mean latency and share on time, over the requests of all."""
    each = [alone(load, count, seconds) for load, count in zip(loads, counts, strict=True)]
    rates = [rate for _, rate, _ in loads]
    mean_ms = sum(rate * ms for rate, (ms, _) in zip(rates, each, strict=True)) / sum(rates)
    return mean_ms, sum(rate * on_time for rate, (_, on_time) in zip(rates, each, strict=True)) / sum(rates)


def best_division(loads: list[Load], seconds: float) -> tuple[int, ...]:
    """Workers for each, at least one, by what is on time and then by mean latency."""
    ways = itertools.product(range(1, WORKERS + 1), repeat=len(loads))
    fitting = [counts for counts in ways if sum(counts) == WORKERS]
    return min(
        fitting, key=lambda counts: (-round(divided(loads, counts, seconds)[1], 3), divided(loads, counts, seconds))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run (default: 20)")
    args = parser.parse_args()
    loads = minute(0)
    together = simulated(loads, WORKERS, args.seconds)
    knowing = best_division(loads, args.seconds)
    fixed = best_division([*[("mix", MEAN, 100.0)] * 3, RERANKER, CLASSIFIER], args.seconds)
    rows: list[dict[str, Any]] = [
        {"who": "all on all", "mean_ms": together.mean_ms, "slo_attainment": together.slo_attainment},
    ]
    for who, counts in (("divided, knowing", knowing), ("divided, evenly over time", fixed)):
        mean_ms, on_time = divided(loads, counts, args.seconds)
        rows.append({"who": who, "mean_ms": mean_ms, "slo_attainment": on_time, "workers": counts})
    for row in rows:
        counts = "" if "workers" not in row else f"  workers {'+'.join(map(str, row['workers']))}"
        print(f"{row['who']:26} mean {row['mean_ms']:8.2f} ms  on time {row['slo_attainment']:7.2%}{counts}")
    flooded = [(length, rate * (FLOOD if number == 0 else 1), slo) for number, (length, rate, slo) in enumerate(loads)]
    flood = simulated(flooded, WORKERS, min(args.seconds, 5.0))
    print(f"\n{FLOOD} times as much of the first:")
    models = [dict(model) for model in flood.models]
    for (length, rate, slo_ms), model in zip(flooded, models, strict=True):
        print(
            f"  {length:7} {rate:9,.0f}/s  SLO {slo_ms:4g} ms  on time {model['slo_attainment']:7.2%}  "
            f"{model['goodput_rps']:9,.0f}/s  p99 {model['p99_ms']:6.1f} ms"
        )
    path = harness.save(
        NAME, f"python -m benchmarks.{NAME} --seconds {args.seconds:g}", {"rows": rows, "flood": models}
    )
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
