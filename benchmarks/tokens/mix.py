"""Queries of several tasks, utilities and deadlines on what was measured: does choosing beat the best count by 15 %?

    python -m benchmarks.tokens.mix [--queries 20000] [--out benchmarks/results/token_mix.json]

Accuracies and latencies are those of benchmarks/results: the text body of `make adapt-demo`, and the two tasks on
images at 112 and 224 pixels of `make adapt-demo-images`. Queries are OTAS's Table II on them: each task with a short
deadline and with a long one, utilities 0.3 and 0.01, 1 and 0.2; deadlines are as many full batches long as the paper's
are (0.6 s and 1 s, where 64 rows take 133 ms). Utility is simulated. `bound` is what no policy can beat: every query
right as often as the most accurate count has it, and in time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from arlo.simulator.tokens.file import QueryKind, TokenSpec, TokenVariant
from arlo.simulator.tokens.run import draw_kinds, run
from benchmarks.tokens.papers import LOADS, best_fixed, poisson

RESULTS = Path("benchmarks/results")
MEASURED = ("token_adapt", "token_adapt_images", "token_adapt_images_224")
SLO_BATCHES = (0.6 / 0.133, 1.0 / 0.133)  # full batches
UTILITIES = ((0.3, 0.01), (1.0, 0.2))  # of a task: short, long deadline; tasks in turn
POLICIES = ("printed", "exact", "price")


def spec_of(name: str) -> TokenSpec:
    """What was measured, with Table II's queries."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    variants = sorted(found["variants"], key=lambda each: each["tokens"])
    latency = [tuple(sorted((int(rows), ms) for rows, ms in each["latency_ms"].items())) for each in variants]
    plain = latency[[each["tokens"] for each in variants].index(0)]
    rows, batch_ms = plain[-1]
    by_task = [each.get("by_task") or {"all": each["accuracy"]} for each in variants]
    accuracy = {task: tuple(float(each[task]) for each in by_task) for task in by_task[0]}
    return TokenSpec(
        name=name,
        variants=tuple(
            TokenVariant(tokens=each["tokens"], latency=points) for each, points in zip(variants, latency, strict=True)
        ),
        accuracy=accuracy,
        queries=tuple(
            QueryKind(task=task, slo_ms=times * batch_ms, utility=utility)
            for number, task in enumerate(accuracy)
            for times, utility in zip(SLO_BATCHES, UTILITIES[(number + 1) % 2], strict=True)
        ),
        batch=rows,
        delta_ms=SLO_BATCHES[0] * batch_ms,
        eta_ms=SLO_BATCHES[0] * batch_ms,
        initial_s=3 * SLO_BATCHES[0] * batch_ms / 1000,
        horizon_s=8 * SLO_BATCHES[0] * batch_ms / 1000,
        window_s=SLO_BATCHES[1] * batch_ms / 1000,
    )


def row_of(spec: TokenSpec, load: float, queries: int) -> dict[str, Any]:
    """Utility of every policy at a load, a share of what all tokens carry."""
    rate = load * spec.capacity(0)
    arrived = poisson(rate, max(1, round(queries / rate)), 1)
    kind = draw_kinds(spec, len(arrived), 1)
    tokens, best = best_fixed(spec, arrived, kind)
    bound = sum(
        int((kind == number).sum()) * query.utility * max(spec.accuracy[query.task])
        for number, query in enumerate(spec.queries)
    )
    row = {name: run(spec, name, arrived, kind).utility for name in POLICIES}
    return {"load": load, "best_fixed": best, "best_tokens": tokens, "bound": bound, **row}


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=20_000, help="of each load")
    parser.add_argument("--out", type=Path, default=RESULTS / "token_mix.json")
    args = parser.parse_args()
    result: dict[str, Any] = {"queries": args.queries}
    for name in MEASURED:
        spec = spec_of(name)
        result[name] = [row_of(spec, load, args.queries) for load in LOADS]
        print(f"\n{name}\nload  best fixed        printed/best  exact/best  price/best  bound/best")
        for row in result[name]:
            shares = "".join(f"{row[each] / row['best_fixed']:12.3f}" for each in (*POLICIES, "bound"))
            print(f"{row['load']:4.2f}  {row['best_fixed']:9,.0f} ({row['best_tokens']:3}){shares}")
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
