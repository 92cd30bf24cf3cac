"""Loki's figures (HPDC'24) next to those of its planner and the others here: from plans alone, then simulated.

    python -m benchmarks.papers.loki [--only plans,triangle,published,drops,slo] [--flow traffic] [--short]

plans: Fig. 1, capacities of detection before car classification on 20 workers: most accurate variants (phase 1), then
the second task gives way (phase 2), then the first one too (phase 3). Fig. 5 and 6, workers at the trace's low, and the
accuracy at the capacity that the paper says Loki reaches; demands are those of the paper as shares of InferLine's
capacity. Section 6.5, milliseconds of CPU of a plan, over demands; and of a larger problem: 200 workers, 3 stages, 8
variants each of 8 lengths.
triangle: Fig. 5 and 6 under a demand that rises and falls; published: under published load. drops: Fig. 7. slo: Fig. 8.

Latencies of the examples are estimates (latencies.py): absolute rates are not the paper's, and ratios are only as good
as they are.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from arlo.catalog.flow import Expand, Flow, FlowEdge, FlowStage, FlowVariant, table_of_ms
from arlo.catalog.flow_file import load_flow
from arlo.planning.flows.build import problem
from arlo.planning.flows.curve import capacity
from arlo.planning.flows.exact import ExactFlowSolver
from arlo.planning.flows.planners import make_plan
from arlo.planning.flows.problem import FlowPlan
from arlo.planning.flows.steps import best_variants
from benchmarks import harness
from benchmarks.papers.loki.planners import PLANNERS, PlannerName, plan_as, stage_rates_of, sweep
from benchmarks.papers.loki.routing import by_plan, maf
from benchmarks.papers.loki.simulated import EXPERIMENTS, LOW_OF_TOP, TOP, WORKERS

EXAMPLES = harness.ROOT / "examples" / "simulate"
FIG1 = {"most accurate": 560, "second task": 1550, "both tasks": 1765}
SAID = {"servers": 2.67, "plan_ms": 500, "router_ms": 0.15}


def chain(flow: Flow) -> Flow:
    """The traffic flow without faces: the pipeline of Fig. 1."""
    return dataclasses.replace(
        flow,
        stages=tuple(stage for stage in flow.stages if stage.name != "faces"),
        edges=tuple(edge for edge in flow.edges if edge.head != "faces"),
    )


def figure_1(flow: Flow) -> dict[str, tuple[float, float]]:
    """(requests per second that 20 workers carry, accuracy there), by what may give way."""
    best = best_variants(flow)
    phases = {
        "most accurate": best,
        "second task": [best[0], list(range(len(flow.stages[1].variants)))],
        "both tasks": [list(range(len(stage.variants))) for stage in flow.stages],
    }
    found = {}
    for name, variants in phases.items():
        rate = capacity(flow, WORKERS, variants=variants)
        asked = problem(flow, demand=rate * 0.999, workers=WORKERS, utilisation=1.0, variants=variants)
        answer = ExactFlowSolver().solve(asked)
        found[name] = (rate, answer.accuracy if answer is not None else 0.0)
    return found


def figure_5(name: str) -> dict[str, Any]:
    """Every planner at the trace's low and top."""
    flow = load_flow(EXAMPLES / f"loki_{name}.toml")
    inferline = capacity(flow, WORKERS, variants=best_variants(flow))
    top = TOP[name] * inferline
    found: dict[str, Any] = {"capacity_inferline": inferline, "capacity_loki": capacity(flow, WORKERS), "planners": {}}
    for planner in PLANNERS:
        low, high = sweep(flow, planner, WORKERS, [LOW_OF_TOP * top, top])
        found["planners"][planner] = {
            "workers_low": low.workers,
            "served_top": _served(high, planner),
            "accuracy_top": high.accuracy,
            "accuracy_low": low.accuracy,
        }
    found["servers"] = WORKERS / found["planners"]["loki"]["workers_low"]
    return found


def _served(plan: FlowPlan, planner: str) -> float:
    """The share served. Proteus plans its stages for demands that it saw before, not for the present ones."""
    if planner != "proteus":
        return float(plan.served)
    rates = stage_rates_of(plan, plan.demand)
    if rates is None:
        return 0.0
    carried = []
    for stage, rate in enumerate(rates):
        room = sum(pool.capacity for pool in plan.pools if pool.stage == stage)
        carried.append(min(1.0, room / rate) if rate > 0 else 1.0)
    return float(min(carried))


def cpu_ms(do: Callable[[], object]) -> float:
    """Milliseconds of CPU time, so that other work may run at the same time."""
    before_s = time.process_time()
    do()
    return (time.process_time() - before_s) * 1e3


def times(flow: Flow, demands: list[float]) -> dict[str, dict[str, float]]:
    """Milliseconds of plans and routers over demands: median and most."""
    found: dict[str, dict[str, float]] = {}
    compared: tuple[PlannerName, ...] = ("arlo", "loki")
    for planner in compared:
        taken = [
            cpu_ms(functools.partial(plan_as, flow, planner, demand=demand, workers=WORKERS))
            for demand in demands
            for _ in range(3)
        ]
        found[planner] = {"median_ms": statistics.median(taken), "most_ms": max(taken)}
    plan = plan_as(flow, "loki", demand=demands[len(demands) // 2], workers=WORKERS)
    for name, router in (("maf", maf), ("plan", by_plan)):
        each = [cpu_ms(functools.partial(router, plan, plan.demand)) for _ in range(200)]
        found[f"router {name}"] = {"median_ms": statistics.median(each), "most_ms": max(each)}
    return found


def large(seed: int) -> Flow:
    """Three stages, 8 variants each of 8 lengths; a chain or a tree in turn."""
    rng = random.Random(seed)
    lengths = tuple(64 * i for i in range(1, 9))
    stages = []
    for s in range(3):
        variants = []
        for k in range(8):
            base = 2 * 1.5**k * rng.uniform(0.9, 1.1)
            points = [(n, rows, base * (n / 64) ** 1.05 * rows**0.8) for n in lengths for rows in (1, 2, 4, 8, 16, 32)]
            variants.append(
                FlowVariant(
                    name=f"v{k}",
                    accuracy=(round(1 - 0.02 * (7 - k) ** 1.2 * rng.uniform(0.8, 1.2), 4),),
                    table=table_of_ms(points),
                    max_lengths=lengths,
                    max_batch=32,
                )
            )
        spread = tuple((n - 10, rng.random()) for n in lengths)
        stages.append(FlowStage(name=f"s{s}", variants=tuple(variants), lengths=spread))
    edges = tuple(
        FlowEdge(tail=tail, head=head, expand=Expand(factor=tuple(rng.uniform(0.5, 3) for _ in range(8))))
        for tail, head in (("s0", "s1"), ("s0" if seed % 2 else "s1", "s2"))
    )
    return Flow(name=f"large-{seed}", slo_ms=1500, stages=tuple(stages), edges=edges)


def large_times() -> dict[str, float]:
    """Milliseconds of plans for 200 workers, and how many of them are proven."""
    plans: list[FlowPlan] = []
    demands = (100, 300, 1000, 2000, 4000)
    taken = [
        cpu_ms(lambda seed=seed, demand=demand: plans.append(make_plan(large(seed), demand=demand, workers=200)))  # type: ignore[misc]
        for seed in range(6)
        for demand in demands
    ]
    return {
        "median_ms": statistics.median(taken),
        "most_ms": max(taken),
        "proven": sum(plan.optimal for plan in plans) / len(plans),
    }


def plans(flows: list[str]) -> dict[str, Any]:
    """Figures from plans alone, printed next to the paper's."""
    first = figure_1(chain(load_flow(EXAMPLES / "loki_traffic.toml")))
    figures: dict[str, Any] = {"figure_1": first, "figures_5_6": {}, "times": {}}
    least, paper_least = first["most accurate"][0], FIG1["most accurate"]
    print("Fig. 1, capacity of 20 workers (paper):")
    for name, (rate, accuracy) in first.items():
        print(
            f"  {name:14} {rate:8.4g}/s, x {rate / least:.2f}, accuracy {accuracy:.1%}"
            f" (paper {FIG1[name]}/s, x {FIG1[name] / paper_least:.2f})"
        )
    for name in flows:
        figures["figures_5_6"][name] = found = figure_5(name)
        print(
            f"{name}: InferLine {found['capacity_inferline']:.4g}/s, cheapest variants {found['capacity_loki']:.4g}/s;"
            f" off-peak Loki uses 1/{found['servers']:.2f} of the workers (paper 1/{SAID['servers']})"
        )
        for planner, row in found["planners"].items():
            print(
                f"  {planner:10} low: {row['workers_low']:2} workers, accuracy {row['accuracy_low']:.1%};"
                f" x {TOP[name]}: served {row['served_top']:.1%}, accuracy {row['accuracy_top']:.1%}"
            )
        demands = [found["capacity_inferline"] * part for part in (0.3, 0.6, 0.9, 1.2, 1.6, 2.0, 2.5)]
        figures["times"][name] = taken = times(load_flow(EXAMPLES / f"loki_{name}.toml"), demands)
        for planner, row in taken.items():
            paper = SAID["router_ms"] if planner.startswith("router") else SAID["plan_ms"]
            print(f"  {planner:12} median {row['median_ms']:.3g} ms, most {row['most_ms']:.3g} ms (paper {paper} ms)")
    figures["times"]["large"] = big = large_times()
    print(
        f"200 workers, 3 stages x 8 variants x 8 lengths: median {big['median_ms']:.3g} ms,"
        f" most {big['most_ms']:.3g} ms, proven {big['proven']:.0%}"
    )
    return figures


def line(value: Any) -> str:
    """Nested figures on one line."""
    if not isinstance(value, dict):
        return f"{value:.4g}"
    return "; ".join(
        f"{key}: {line(each)}" if isinstance(each, dict) else f"{key} {each:.4g}" for key, each in value.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="shorter runs, for a look; nothing is kept")
    parser.add_argument("--only", default=",".join(["plans", *EXPERIMENTS]), help="experiments, joined by commas")
    parser.add_argument("--flow", default="traffic,social", help="flows, joined by commas")
    args = parser.parse_args()
    only, flows = args.only.split(","), args.flow.split(",")
    figures = plans(flows) if "plans" in only else {}
    for name in flows:
        for experiment in (each for each in only if each != "plans"):
            figures[f"{name} {experiment}"] = found = EXPERIMENTS[experiment](name, args.short)
            print(
                f"== {name}: {experiment}",
                *(f"  {key:14} {line(each)}" for key, each in found.items()),
                sep="\n",
                flush=True,
            )
    if not args.short:
        print(f"-> {harness.save('loki', ' '.join(['python -m benchmarks.papers.loki', *sys.argv[1:]]), figures)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
