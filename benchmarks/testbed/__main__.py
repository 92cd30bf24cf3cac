"""Runs the testbed: traces on the emulated cluster, then in the simulator, and the two side by side."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from arlo.replay.progress import Progress
from arlo.report.progress import LiveBar
from arlo.simulator.scenario.schemes import SCHEMES
from arlo.traces import poisson
from benchmarks import harness
from benchmarks.testbed import results, scaling
from benchmarks.testbed.calibrate import PAPER, Calibration, calibrate
from benchmarks.testbed.cluster import PATIENT_MS, EmulatedCluster, emulated_cluster
from benchmarks.testbed.compare import QUANTILES, compare, curve, figures
from benchmarks.testbed.schemes import CONTENDERS, INFLIGHT_LIMIT, TITLES, Bed, Cluster, tweets
from benchmarks.testbed.simulated import simulate

BAR_PERCENT = 5.0
ATTEMPTS = 3  # of a run in which the load generator lagged; what the two sides say plays no part in it
# Requests per second in the paper's time, for Fig. 6 and 7: what ST carries and a little less.
RATES_RPS = {"bert-base": (500.0, 1000.0, 1600.0, 1900.0), "bert-large": (200.0, 400.0, 550.0, 680.0)}
HEADER = (
    f"{'':25}{'cluster, ms':^28} {'simulator, error in %':^34} {'paper overhead, %':^18}\n"
    f"{'scheme':13}{'req/s':>6}{'load':>6}{'mean':>7}{'p50':>7}{'p98':>7}{'p99':>7}"
    f"  {'mean':>12}{'p98':>14}{'p50':>7} {'mean':>8}{'p98':>8}   {'on time':>7} {'sim':>6}"
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run to make."""

    cluster: Cluster
    rate_rps: float
    timeout_ms: float
    round: int
    number: str  # of the run, for people


def plans(bed: Bed, args: argparse.Namespace) -> list[Plan]:
    """In the order in which they are run: contenders alternate, so that a disturbance meets all of them."""
    if args.schemes:
        rates = [rate / bed.stretch for rate in args.rates or RATES_RPS[bed.model]]
        names = args.contenders or list(SCHEMES)
    else:
        rates = [load * bed.full_rate_rps for load in args.loads]
        names = args.contenders or ["rs", "late"]
    if args.short:
        rates, names = rates[:1], names[-1:]
    todo = list(itertools.product(range(args.rounds), args.timeouts or [PATIENT_MS], rates, names))
    return [
        Plan(bed.cluster(name, rate), rate, timeout_ms, round_, f"{number} of {len(todo)}")
        for number, (round_, timeout_ms, rate, name) in enumerate(todo, start=1)
    ]


async def one(
    cluster: EmulatedCluster, bed: Bed, plan: Plan, calibration: Calibration, args: argparse.Namespace
) -> dict[str, Any]:
    """Run one plan on both sides."""
    await cluster.prepare(plan.cluster.placed())
    trace = poisson(plan.rate_rps, args.warmup + args.duration, tweets, seed=args.seed + plan.round)
    title = f"run {plan.number}, {TITLES[plan.cluster.name]} at {plan.rate_rps:.0f} req/s"
    with LiveBar(Console(stderr=True), title) as bar:

        def show(at: Progress) -> None:
            bar.show(at.sent, at.total, f"{title}: {at.sent} of {at.total} requests")

        run = await asyncio.to_thread(cluster.run, trace, plan.cluster, timeout_ms=plan.timeout_ms, on_progress=show)
    real = run.side.after(args.warmup)
    found: dict[str, Any] = {
        "scheme": plan.cluster.name,
        "policy": plan.cluster.policy,
        "rate_rps": plan.rate_rps,
        "load": plan.rate_rps / bed.full_rate_rps,
        "timeout_ms": plan.timeout_ms,
        "round": plan.round,
        "instances": {r.name: n for r, n in zip(plan.cluster.runtimes, plan.cluster.instances, strict=True) if n},
        "valid": not run.problems,
        "problems": run.problems,
        "cluster": figures(real.latency_ms, bed.slo_ms),
        "parts": run.parts,
        "sends": run.sends,
        "cpu": run.cpu,
        "outcomes": run.outcomes,
        "curve_ms": curve(real.latency_ms),
    }
    kept: dict[str, Any] = {"arrived_s": real.arrived_s, "length": real.length, "cluster_ms": real.latency_ms}
    for side, told in zip(results.SIDES, (calibration, PAPER), strict=True):
        simulated = simulate(trace, plan.cluster, told, run.dispatch, plan.timeout_ms).after(args.warmup)
        found[side] = compare(real, simulated, bed.slo_ms)
        kept[f"{side}_ms"] = simulated.latency_ms
    if args.records is not None:
        args.records.mkdir(parents=True, exist_ok=True)
        name = f"{plan.cluster.name}-{plan.rate_rps:.0f}-{plan.round}.npz"
        np.savez_compressed(args.records / name, **kept)
    return found


def line(run: dict[str, Any]) -> str:
    """A row of the table."""
    real, ours, paper = run["cluster"], run["calibrated"], run["paper"]
    error, spread, plain = ours["error_percent"], ours["spread_percent"], paper["error_percent"]
    return (
        f"{TITLES[run['scheme']]:13}{run['rate_rps']:6.0f}{run['load']:6.2f}"
        f"{real['mean_ms']:7.1f}{real['p50_ms']:7.1f}{real['p98_ms']:7.1f}{real['p99_ms']:7.1f}"
        f"  {error['mean_ms']:+6.2f} ±{spread['mean_ms']:4.2f}{error['p98_ms']:+7.2f} ±{spread['p98_ms']:5.2f}"
        f"{error['p50_ms']:+7.2f} {plain['mean_ms']:+8.2f}{plain['p98_ms']:+8.2f}"
        f"   {real['attainment']:7.4f} {ours['simulated']['attainment']:6.4f}"
        + ("" if run["timeout_ms"] == PATIENT_MS else f"   time-out {run['timeout_ms']:g} ms, {answered(run)}")
        + "".join(f"\n   not valid: {problem}" for problem in run["problems"])
        + disturbed(run["cpu"])
    )


def answered(run: dict[str, Any]) -> str:
    """The shares that were answered."""
    sides = (run["cluster"], run["calibrated"]["simulated"])
    real, simulated = (side["answered"] / side["requests"] for side in sides)
    return f"answered {real:.4f} and {simulated:.4f}"


def disturbed(cpu: dict[str, float]) -> str:
    """A word where other programs took much of the machine."""
    others = cpu["busy"] - cpu["own"]
    return f"\n   other programs took {100 * others:.0f} % of the machine" if others > 0.25 else ""


async def bench(bed: Bed, args: argparse.Namespace) -> dict[str, Any]:
    todo = plans(bed, args)
    each_s = args.warmup + args.duration + 2
    print(
        f"{bed.model}, times x{bed.stretch:g}, {bed.workers} workers, SLO {bed.slo_ms:g} ms, load 1 is "
        f"{bed.full_rate_rps:.0f} req/s; {len(todo)} runs, about {(len(todo) * each_s + 40) / 60:.0f} minutes",
        flush=True,
    )
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        async with emulated_cluster(Path(folder), bed.all_runtimes, bed.workers) as cluster:
            made, measured = await calibrate(cluster, bed, rounds=3 if args.short else 8)
            print("measured: " + ", ".join(f"{k} {v:.3f}" for k, v in dataclasses.asdict(made).items()))
            print(HEADER, flush=True)
            for plan in todo:
                for _ in range(ATTEMPTS):
                    runs.append(await one(cluster, bed, plan, made, args))
                    print(line(runs[-1]), flush=True)
                    if runs[-1]["valid"]:
                        break
            again = None if args.short else (await calibrate(cluster, bed, rounds=4))[1]
    return {
        "model": bed.model,
        "profile": bed.profile.describe(),
        "stretch": bed.stretch,
        "workers": bed.workers,
        "slo_ms": bed.slo_ms,
        "inflight_limit": INFLIGHT_LIMIT,
        "rate_at_load_1_rps": bed.full_rate_rps,
        "duration_s": args.duration,
        "warmup_s": args.warmup,
        "calibration": measured,
        "calibration_after": again,
        "quantiles": QUANTILES.tolist(),
        "summary": results.summarize(runs),
        "runs": runs,
    }


def main() -> int:
    if "--scaling" in sys.argv[1:]:
        return scaling.main()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.testbed", description=__doc__)
    parser.add_argument("--schemes", action="store_true", help="ST, DT, INFaaS and Arlo over the rate (Fig. 6 and 7)")
    parser.add_argument("--scaling", action="store_true", help="workers that come and go (Fig. 8); has its own --help")
    parser.add_argument("--short", action="store_true", help="the first load and one contender, 10 s; writes nothing")
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, help="default: rs late; with --schemes all of them"
    )
    parser.add_argument("--loads", type=float, nargs="+", default=[0.4, 0.65, 0.85], metavar="SHARE")
    parser.add_argument(
        "--timeouts",
        type=float,
        nargs="+",
        metavar="MS",
        help="of the clients; goes to a file of its own (default: a minute)",
    )
    parser.add_argument("--rates", type=float, nargs="+", metavar="RPS", help="--schemes: in the paper's time")
    parser.add_argument("--model", choices=sorted(RATES_RPS), default="bert-base")
    parser.add_argument("--stretch", type=float, default=10.0, help="times the latency profile and SLO (default: 10)")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--duration", type=float, default=40.0, help="seconds of each run (default: 40)")
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds before, not counted (default: 3)")
    parser.add_argument("--rounds", type=int, default=2, help="with traces of their own (default: 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records", type=Path, metavar="FOLDER", help="keep both sides' latencies by request (.npz)")
    args = parser.parse_args()
    if args.schemes and args.timeouts:
        parser.error("--timeouts goes with --loads, not with --schemes")
    if args.short:
        args.duration, args.rounds, args.warmup = min(args.duration, 10.0), 1, min(args.warmup, 2.0)
    found = asyncio.run(bench(Bed(args.model, args.stretch, args.workers), args))
    summary = found["summary"]
    if summary["valid"]:
        worst, plain = summary["calibrated"], summary["paper"]
        print(
            f"largest error over {summary['valid']} valid runs: mean {worst['mean_ms']:.2f} %, "
            f"p98 {worst['p98_ms']:.2f} % (bar: {BAR_PERCENT:g} %); with the paper's overhead of "
            f"{PAPER.overhead_ms} ms: mean {plain['mean_ms']:.2f} %, p98 {plain['p98_ms']:.2f} %"
        )
    if not args.short:
        command = shlex.join(["python", "-m", "benchmarks.testbed", *sys.argv[1:]])
        print(f"-> {harness.save(results.name_of(args.model, args.schemes, bool(args.timeouts)), command, found)}")
    return 0 if summary["without_valid"] == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
