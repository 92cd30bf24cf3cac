"""Fig. 8 on the emulated cluster: the real control plane adds and releases Triton workers under a load that varies.

    python -m benchmarks.testbed --scaling

BERT-large in its own time, Twitter-Bursty arrivals whose rate goes the way of Twitter's most varying window. That
window lasts ten minutes; here it is squeezed, and with it the periods of the control plane (plans, release of workers,
cool-down). What cannot be squeezed is the 10 s that latencies are looked back on, and the start of a Triton process.

The same requests are then served in the simulator: the same settings, the overheads as measured on this cluster, and a
start and a replacement of a worker as long as they took in these runs. Written: benchmarks/results/testbed_scaling.json
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.config.keeping import ControlConfig, ScalingConfig
from arlo.config.model import DispatchConfig
from arlo.simulator.report.result import Result
from arlo.simulator.run import run as simulate
from arlo.simulator.scenario.scenario import Allocate, Scale, Scenario
from arlo.simulator.scenario.schemes import scheme
from benchmarks import harness
from benchmarks.testbed import results
from benchmarks.testbed.calibrate import Calibration, calibrate
from benchmarks.testbed.cluster import emulated_cluster
from benchmarks.testbed.compare import curve, figures
from benchmarks.testbed.scaled import (
    CONTENDERS,
    MODEL,
    MOST,
    TIMEOUT_MS,
    WORKERS,
    Contender,
    Course,
    course,
    first,
    runtimes_of,
    serve,
)
from benchmarks.testbed.schemes import Bed, Cluster
from benchmarks.testbed.simulated import ANSWERED, scenario

NOT_HERE = (
    "INFaaS: it adds a replica to the variant that lacks one; the control plane knows no such choice, so INFaaS scales "
    "in the simulator only (python -m benchmarks.figures, fig08)"
)
DIFFERENCES = (
    "after a shift the control plane's load is that of the requests since then, the simulated one's that of 10 s",
    "a Triton process that starts takes CPU time from the others on this machine",
    "a worker that is let go counts until its process has ended; simulated, until its last request is answered",
)


def simulated(
    contender: Contender,
    cluster: Cluster,
    what: Course,
    overheads: Calibration,
    *,
    start_s: float,
    replacement_s: float,
) -> Scenario:
    """The same cluster, requests and settings."""
    defaults = DispatchConfig()
    dispatch = {
        "lambda": defaults.lambda_,
        "alpha": defaults.alpha,
        "max_peek": defaults.max_peek,
        "max_queued": defaults.max_queued,
    }
    control, scaling = ControlConfig(), ScalingConfig()
    planned = contender.planned is not None
    at_a_time = control.max_moving if contender.shipped else control.max_unavailable
    return dataclasses.replace(
        scenario(what.trace, cluster, overheads, dispatch, TIMEOUT_MS),
        allocate=Allocate(
            kind="periodic" if planned else "fixed",
            start=cluster.instances,
            period_s=what.period_s,
            objective=contender.planned or "queueing",
            replacement_s=replacement_s,
            max_parallel=max(1, int(at_a_time * WORKERS)),
            min_gain=control.min_gain if contender.shipped else 0.0,
            shift=planned and contender.shipped and control.early,
        ),
        scale=Scale(
            kind="headroom" if contender.scaling == "headroom" else "target",
            min_workers=1,
            max_workers=MOST,
            scale_out_share=scaling.scale_out_share,
            scale_in_share=scaling.scale_in_share,
            scale_in_period_s=what.scale_in_period_s,
            headroom=scaling.headroom,
            cooldown_s=what.cooldown_s,
            start_s=start_s,
            replan=planned,
        ),
    )


def of_simulation(result: Result, slo_ms: float) -> dict[str, Any]:
    """The figures of `serve`, as far as the simulator has them."""
    assert result.columns is not None
    answered = result.columns["outcome"] < ANSWERED
    latency_ms = np.where(answered, result.columns["latency_ns"] / 1e6, np.nan)
    time_s, present = result.timeline["time_s"], result.timeline["present"]
    inside = time_s <= result.duration_s
    kept = np.flatnonzero(np.concatenate(([True], np.diff(present[inside]) != 0)))
    return {
        **figures(latency_ms, slo_ms),
        "outcomes": {name: count for name, count in result.outcomes.items() if count},
        "workers_mean": result.workers_mean,
        "workers_max": result.workers_max,
        "workers": [(0.0, WORKERS), *((float(time_s[i]), int(present[i])) for i in kept)],
        "replacements": result.replacements,
        "curve_ms": curve(latency_ms),
    }


# --- the bench ---

HEADER = (
    f"{'':28}{'cluster':^45}   {'simulator':^37}\n"
    f"{'scheme':17}{'scales by':11}{'workers':>8}{'most':>5}{'mean':>8}{'p98 ms':>8}{'on time':>9}{'failed':>7}"
    f"   {'workers':>8}{'most':>5}{'mean':>8}{'p98 ms':>8}{'on time':>9}"
)


def line(run: dict[str, Any]) -> str:
    """A row of the table."""

    def side(found: dict[str, Any]) -> str:
        return (
            f"{found['workers_mean']:8.2f}{found['workers_max']:5}{found['mean_ms']:8.1f}{found['p98_ms']:8.1f}"
            f"{found['attainment']:9.4f}"
        )

    real = run["cluster"]
    return (
        f"{run['title']:17}{run['scaling']:11}{side(real)}{real['outcomes'].get('failed', 0):7}"
        f"   {side(run['simulated'])}" + "".join(f"\n   not valid: {problem}" for problem in run["problems"])
    )


async def bench(args: argparse.Namespace) -> dict[str, Any]:
    bed = Bed(MODEL, 1.0, WORKERS)
    what = course(args.rate, args.duration, args.seed)
    minutes = (len(args.contenders) * (args.duration + 15) + 30) / 60
    print(
        f"{MODEL} in its own time, SLO {bed.slo_ms:g} ms, {WORKERS} workers at the start, 1 to {MOST}\n"
        f"{len(what.trace)} requests: {what.about}\n"
        f"squeezed to {what.squeeze:.2f}: plans every {what.period_s:g} s, release after "
        f"{what.scale_in_period_s:g} s of calm, cool-down {what.cooldown_s:g} s; latencies of the last 10 s\n"
        f"not here: {NOT_HERE}\n"
        f"{len(args.contenders)} runs, about {minutes:.0f} minutes",
        flush=True,
    )
    found: list[tuple[Contender, Cluster, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with emulated_cluster(folder / "calibration", bed.static, len(bed.static)) as cluster:
            overheads, calibration = await calibrate(cluster, bed, rounds=3)
        print("measured: " + ", ".join(f"{k} {v:.3f}" for k, v in dataclasses.asdict(overheads).items()), flush=True)
        for number, contender in enumerate(CONTENDERS[name] for name in args.contenders):
            runtimes = runtimes_of(contender, bed)
            policy = scheme(contender.scheme, bed.profile, workers=WORKERS).dispatch.policy
            instances = first(contender, runtimes, what, bed.slo_ms, policy)
            placed = Cluster(contender.name, policy, runtimes, instances, bed.slo_ms)
            real = await serve(folder / contender.name, contender, placed, what)
            found.append((contender, placed, real))
            print(
                f"{number + 1} of {len(args.contenders)}: {contender.title} ({contender.scaling}): "
                f"{real['workers_mean']:.2f} workers, p98 {real['p98_ms']:.1f} ms, {len(real['starts_s'])} started in "
                f"{[round(s, 1) for s in real['starts_s']]} s",
                flush=True,
            )
    start_s = median([s for _, _, real in found for s in real["starts_s"]], 1.0)
    print(f"a worker serves {start_s:.2f} s after it was asked for (median)\n{HEADER}", flush=True)
    runs = []
    for contender, placed, real in found:
        # Make before break: the old runtime serves until the new one is there.
        replacement_s = median([move["out_of_service_s"] for move in real["moves"]], 0.0 if contender.shipped else 1.0)
        plan = simulated(contender, placed, what, overheads, start_s=start_s, replacement_s=replacement_s)
        told_of = of_simulation(simulate(plan), bed.slo_ms)
        runs.append(
            {
                "scheme": contender.name,
                "title": contender.title,
                "scaling": contender.scaling,
                "policy": placed.policy,
                "objective": contender.planned,
                "shipped": contender.shipped,
                "start": {r.name: n for r, n in zip(placed.runtimes, placed.instances, strict=True) if n},
                "start_s": start_s,
                "replacement_s": replacement_s,
                "valid": not real["problems"],
                "problems": real["problems"],
                "cluster": real,
                "simulated": told_of,
            }
        )
        print(line(runs[-1]), flush=True)
    return {
        "model": MODEL,
        "profile": bed.profile.describe(),
        "stretch": 1.0,
        "slo_ms": bed.slo_ms,
        "workers": WORKERS,
        "max_workers": MOST,
        "rate_rps": args.rate,
        "workload": what.about,
        "requests": len(what.trace),
        "duration_s": what.duration_s,
        "squeeze": what.squeeze,
        "period_s": what.period_s,
        "scale_in_period_s": what.scale_in_period_s,
        "cooldown_s": what.cooldown_s,
        "calibration": calibration,
        "load_rps": what.load(),
        "not_here": NOT_HERE,
        "differences": DIFFERENCES,
        "runs": runs,
    }


def median(values: Sequence[float], otherwise: float) -> float:
    return statistics.median(values) if values else otherwise


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.testbed --scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scaling", action="store_true", required=True, help="this bench")
    parser.add_argument("--short", action="store_true", help="Arlo by headroom only, 30 s; writes nothing")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=None, help="default: all")
    parser.add_argument("--rate", type=float, default=350.0, help="mean requests per second (default: 350)")
    parser.add_argument("--duration", type=float, default=150.0, help="seconds of each run (default: 150)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.short:
        args.duration = min(args.duration, 30.0)
    args.contenders = args.contenders or (["arlo-headroom"] if args.short else list(CONTENDERS))
    found = asyncio.run(bench(args))
    if not args.short:
        command = shlex.join(["python", "-m", "benchmarks.testbed", *sys.argv[1:]])
        print(f"-> {harness.save(results.SCALING, command, found)}")
    return 0 if all(run["valid"] for run in found["runs"]) else 1
