"""Loki's experiments on its two pipelines, simulated, with its planners, routers and drop rules and Arlo's.

One fleet, one trace, one set of drawn children for all. Contenders:

    loki        as printed: its two programs, MostAccurateFirst, opportunistic rerouting; capacity used to the full, a
                worker holds one variant. (Pools with late binding, which the paper lacks, it has here, too.)
    inferline   the most accurate variants always; rows dropped at the last task when they are late
    proteus     each task for itself, always on all workers; dropped in the same way
    ...-spare   the same, planning for 1.25 times the demand: the headroom that `arlo` has
    arlo        prefix flows with a fifth of the capacity left free, prices, slack; every worker holds all variants
    arlo-plan   the same with one variant on a worker

A worker that changes loads for 0.3 s, one that is to hold all variants for 0.3 s each. Latencies are estimates
(latencies.py), and everything here is simulated. Violations are roots that were late or dropped, end
to end: a root is on time when all that it became is. `utility` is the accuracy over all roots, those not on time
counting 0.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.flow import DropName, Flow, RouterName
from arlo.catalog.flow_file import load_flow
from arlo.traces.readers import read_counts
from benchmarks.papers.loki.fleet import FlowResult, FlowRun, Hold, Planner, run
from benchmarks.papers.loki.planners import PlannerName, plan_as, planner_of

ROOT = Path(__file__).resolve().parents[3]
TWITTER = ROOT / "traces" / "data" / "twitter_load.json"
WORKERS = 20
LOAD_MS = 300.0


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to serve a flow."""

    planner: PlannerName
    router: RouterName
    drop: DropName
    hold: Hold = "plan"
    batching: str = "fill"
    shift: float = float("inf")
    spare: float = 1.0  # the demand is planned for times this


CONTENDERS = {
    "loki": Contender("loki", "maf", "reroute"),
    "loki-spare": Contender("loki", "maf", "reroute", spare=1.25),
    "inferline": Contender("inferline", "maf", "last"),
    "inferline-spare": Contender("inferline", "maf", "last", spare=1.25),
    "proteus": Contender("proteus", "maf", "last"),
    "arlo": Contender("arlo", "price", "slack", "all", "deadline", 0.2),
    "arlo-plan": Contender("arlo", "price", "slack", "plan", "deadline", 0.2),
}


def flow_of(name: str, slo_ms: float | None = None) -> Flow:
    """One of the two example flows, whose variants take time to load."""
    flow = load_flow(ROOT / "examples" / "simulate" / f"loki_{name}.toml")
    stages = tuple(
        dataclasses.replace(
            stage, variants=tuple(dataclasses.replace(variant, load_ms=LOAD_MS) for variant in stage.variants)
        )
        for stage in flow.stages
    )
    return dataclasses.replace(flow, stages=stages, slo_ms=slo_ms or flow.slo_ms)


def serve(
    flow: Flow,
    name: str,
    arrived: NDArray[np.int64],
    *,
    seed: int = 0,
    drop: DropName | None = None,
) -> FlowResult:
    """A contender's run."""
    how = CONTENDERS[name]
    flow = dataclasses.replace(flow, router=how.router, drop=drop or how.drop)
    return run(
        FlowRun(
            flow=flow,
            planner=_sparing(planner_of(flow, how.planner), how.spare),
            workers=WORKERS,
            arrived_ns=arrived,
            hold=how.hold,
            batching=how.batching,
            shift=how.shift,
            seed=seed,
            warmup_s=5,
        )
    )


def _sparing(planner: Planner, spare: float) -> Planner:
    return lambda demand, workers, before, rows: planner(demand * spare, workers, before, rows)


def poisson(rates: Sequence[float], seed: int) -> NDArray[np.int64]:
    """Arrivals in ns of a Poisson process whose rate changes each second."""
    random = np.random.default_rng(seed)
    counts = random.poisson(rates)
    seconds = [np.sort(random.random(count)) + second for second, count in enumerate(counts)]
    arrived: NDArray[np.int64] = np.round(np.concatenate(seconds) * 1e9).astype(np.int64)
    return arrived


def top_capacity(flow: Flow) -> float:
    """Roots a second that the most accurate variants carry on all workers, by the plan alone."""
    low, high = 1.0, 10_000.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        plan = plan_as(flow, "inferline", demand=middle, workers=WORKERS)
        low, high = (middle, high) if plan.served >= 1 - 1e-6 else (low, middle)
    return low


def figures(result: FlowResult) -> dict[str, float]:
    """The figures that are compared."""
    return {
        "violations": result.violations,
        "accuracy": result.accuracy,
        "utility": result.utility,
        "leaf_violations": result.leaf_violations,
        "workers": result.workers_mean,
        "rerouted": result.rerouted,
        "moves": result.moves,
        "plans": result.plans,
        "solve_ms": result.solve_ms_mean,
    }


def triangle(name: str, short: bool) -> dict[str, Any]:
    """Demand from 0.3 to 3.5 times the capacity of the most accurate variants, and back."""
    flow = flow_of(name)
    top = top_capacity(flow)
    half = 60 if short else 180
    rise = np.linspace(0.3, 3.5, half)
    rates = np.concatenate([rise, rise[::-1]]) * top
    arrived = poisson(rates.tolist(), 1)
    found: dict[str, Any] = {"top": top, "roots": len(arrived)}
    for contender in CONTENDERS:
        result = serve(flow, contender, arrived)
        seconds = {key: np.array(value) for key, value in result.seconds.items()}
        level = rates[: len(seconds["demand"])] / top
        upto = (level <= 2.5) & (np.arange(len(level)) >= 5)
        weight = seconds["demand"]
        off_peak = (level <= 0.6) & (np.arange(len(level)) >= 5)
        found[contender] = figures(result) | {
            "violations_up_to_2.5": float((seconds["violations"] * weight)[upto].sum() / weight[upto].sum()),
            "workers_off_peak": float(seconds["workers"][off_peak].mean()),
            "accuracy_above_2.5": float(
                (seconds["accuracy"] * weight)[level > 2.5].sum() / max(weight[level > 2.5].sum(), 1)
            ),
        }
    return found


LOW_OF_TOP = 50 / 425
TOP = {"traffic": 2.5, "social": 2.7}


def published(name: str, short: bool) -> dict[str, Any]:
    """Fig. 5 and 6 on published load: Twitter's, carried here, and with ARLO_TRACES the paper's own, Azure Functions
    2019, a minute of it in a second. Scaled as there: from LOW_OF_TOP to its top, which is TOP of our capacity."""
    flow = flow_of(name)
    top = top_capacity(flow)
    loads = {"twitter": np.repeat(json.loads(TWITTER.read_text())["relative"]["bursty"], 1 if short else 3)}
    if (folder := os.environ.get("ARLO_TRACES")) is not None:
        counts = read_counts(Path(folder) / "maf2019" / "inv_1350func_1440min_total_per_minute.csv")
        loads["azure 2019"] = np.asarray(counts.count, float)[: 240 if short else None]
    found: dict[str, Any] = {"top": top}
    for load, relative in loads.items():
        level = LOW_OF_TOP + (1 - LOW_OF_TOP) * (relative - relative.min()) / np.ptp(relative)
        arrived = poisson((level * top * TOP[name]).tolist(), 4)
        rows = found[load] = {"roots": len(arrived)}
        for contender in CONTENDERS:
            result = serve(flow, contender, arrived)
            workers = np.array(result.seconds["workers"])
            low = (level[: len(workers)] <= np.quantile(level, 0.1)) & (np.arange(len(workers)) >= 5)
            rows[contender] = figures(result) | {"workers_low": float(workers[low].mean())}
    return found


def drops(name: str, short: bool) -> dict[str, Any]:
    """Fig. 7: the outcome of rows that are behind, with Loki's planner and router; and ours at the same demand."""
    flow = flow_of(name)
    top = top_capacity(flow)
    seconds = np.arange(60 if short else 200)
    rates = top * (1.2 + 0.7 * np.sin(seconds / 20))
    arrived = poisson(rates.tolist(), 2)
    rules: tuple[DropName, ...] = ("none", "last", "per_task", "reroute", "slack")
    found: dict[str, Any] = {
        f"{which} {drop}": figures(serve(flow, which, arrived, drop=drop))
        for which in ("loki", "loki-spare")
        for drop in rules
    }
    return found | {which: figures(serve(flow, which, arrived)) for which in ("arlo", "arlo-plan")}


def slo(name: str, short: bool) -> dict[str, Any]:
    """Fig. 8: the same demand under other SLOs."""
    found: dict[str, Any] = {}
    base = flow_of(name)
    top = top_capacity(base)
    seconds = np.arange(40 if short else 120)
    arrived = poisson((top * (1.2 + 0.7 * np.sin(seconds / 20))).tolist(), 3)
    for slo_ms in (200, 250, 300, 350, 400):
        flow = flow_of(name, slo_ms)
        found[str(slo_ms)] = {which: figures(serve(flow, which, arrived)) for which in ("loki", "arlo")}
    return found


EXPERIMENTS = {"triangle": triangle, "published": published, "drops": drops, "slo": slo}
