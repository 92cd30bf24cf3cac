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
import dataclasses
from typing import Any

from arlo.simulator.division import divide
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


def scenario(loads: list[Load], seconds: float) -> ScenarioConfig:
    """These models on workers that hold all of them."""
    return ScenarioConfig(
        run=RunSection(seed=1, warmup_s=1.0),
        workload=WorkloadSection(arrivals="poisson", duration_s=seconds + 1.0),
        cluster=ClusterSection(
            workers=WORKERS,
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


def on_workers(loads: list[Load], counts: tuple[int, ...], seconds: float) -> tuple[float, float]:
    """Mean latency and share on time of all when each has so many workers of its own."""
    config = scenario(loads, seconds)
    answered = on_time = requests = 0
    total_ms = 0.0
    for model, count in zip(config.model, counts, strict=True):
        one = config.of(model)
        result = run(build(dataclasses.replace(one, cluster=dataclasses.replace(one.cluster, workers=count))).scenario)
        answers = result.outcomes["on_time"] + result.outcomes["late"]
        answered, total_ms = answered + answers, total_ms + answers * result.mean_ms
        on_time, requests = on_time + result.outcomes["on_time"], requests + result.requests
    return total_ms / answered, on_time / requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run (default: 20)")
    args = parser.parse_args()
    loads = minute(0)
    knowing = divide(scenario(loads, args.seconds), [WORKERS])[0]
    fixed = divide(scenario([*[("mix", MEAN, 100.0)] * 3, RERANKER, CLASSIFIER], args.seconds), [WORKERS])[0].workers
    mean_ms, on_time = on_workers(loads, fixed, args.seconds)
    shared = knowing.shared
    rows: list[dict[str, Any]] = [
        {"who": "all on all", "mean_ms": shared.mean_ms, "slo_attainment": shared.slo_attainment},
        {
            "who": "divided, knowing",
            "mean_ms": knowing.mean_ms,
            "slo_attainment": knowing.slo_attainment,
            "workers": knowing.workers,
        },
        {"who": "divided, evenly over time", "mean_ms": mean_ms, "slo_attainment": on_time, "workers": fixed},
    ]
    for row in rows:
        counts = "" if "workers" not in row else f"  workers {'+'.join(map(str, row['workers']))}"
        print(f"{row['who']:26} mean {row['mean_ms']:8.2f} ms  on time {row['slo_attainment']:7.2%}{counts}")
    flooded = [(length, rate * (FLOOD if number == 0 else 1), slo) for number, (length, rate, slo) in enumerate(loads)]
    flood = run(build(scenario(flooded, min(args.seconds, 5.0))).scenario)
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
