"""Demand shift: short -> long -> short lengths on an emulated cluster with the real control plane.

Eight real Triton workers whose engines take ten times the paper's BERT-base estimate; each phase offers the same share
of what the workers can do for its lengths, so the request rates differ. The same trace is replayed against

    arlo     the runtime scheduler as users have it, with nothing told
    oracle   a run that knew the future: at each shift the best placement for the coming phase is put in place
    global   one placement, the best for the lengths of the whole trace (the paper's offline baseline, Table 3)
    even     the same number of instances for every runtime (Table 3)

Written: benchmarks/results/shift.json with the allocation over time, and reports/shift.html with the plots (Fig. 12).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import logging
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from arlo import config as configuration
from arlo.catalog.manifest import Manifest
from arlo.clock import monotonic_s, unix_s
from arlo.config import Config
from arlo.control import events
from arlo.control.plane import Cluster
from arlo.control.pool import make_pool
from arlo.control.serve import running
from arlo.planning.placement.assignment import assign
from arlo.planning.planner import Seen
from arlo.planning.traffic.demand import Demand
from arlo.replay import ReplayOptions, run_replay
from arlo.replay.records import latency_us
from arlo.report import figure as frame
from arlo.report import page
from arlo.traces import Trace
from arlo.workers.emulated.repository import write_emulated_repository
from benchmarks import harness

LENGTHS = (64, 128, 256, 384, 512)
LATENCY_MS = tuple(10 * (1.15 + (length - 64) * (4.86 - 1.15) / 448) for length in LENGTHS)
SLO_MS = 1500
WORKERS = 8
SCHEMES = ("arlo", "oracle", "global", "even")
# Log-normal lengths, as tweets and documents have them: median and sigma of each phase.
PHASES = ((40.0, 0.6), (280.0, 0.4), (40.0, 0.6))


@dataclasses.dataclass(frozen=True)
class Workload:
    """The trace, and when each phase begins."""

    trace: Trace
    begins_s: tuple[float, ...]
    demand: tuple[tuple[float, ...], ...]  # of each phase: requests per SLO period by bin
    overall: tuple[float, ...]


def workload(phase_s: float, load: float, seed: int) -> Workload:
    """Poisson arrivals; a phase's rate is `load` of what the workers do when each row runs on its ideal level."""
    rng = np.random.default_rng(seed)
    arrivals, lengths, begins, demand = [], [], [], []
    edges, times_ms = np.array(LENGTHS), np.array(LATENCY_MS)
    for index, (median, sigma) in enumerate(PHASES):
        drawn = np.clip(rng.lognormal(np.log(median), sigma, 100_000).astype(int), 4, LENGTHS[-1])
        level = np.searchsorted(edges, drawn)
        rate = load * WORKERS / (times_ms[level].mean() / 1000)
        count = rng.poisson(rate * phase_s)
        begin = index * phase_s
        arrivals.append(np.sort(rng.uniform(begin, begin + phase_s, count)))
        lengths.append(rng.choice(drawn, count))
        begins.append(begin)
        share = np.bincount(level, minlength=len(LENGTHS)) / len(drawn)
        demand.append(tuple(float(x) for x in share * rate * SLO_MS / 1000))
    trace = Trace(arrived_at_s=np.concatenate(arrivals), length=np.concatenate(lengths).astype(np.int32))
    return Workload(trace, tuple(begins), tuple(demand), tuple(np.mean(demand, axis=0)))


def best(cluster: Cluster, demand: tuple[float, ...]) -> dict[str, int]:
    """The plan for a known demand."""
    planner = cluster.scheduler.planner
    problem = planner.problem(WORKERS, Seen(Demand(planner.lengths, demand, demand, 0, 0.0)))
    allocation = problem.solve(None, time_limit_s=5.0).allocation
    return {r.name: n for r, n in zip(planner.planned, allocation.instances, strict=True) if n}


def write_config(folder: Path, scheme: str, period_s: float, allocation: dict[int, int]) -> Config:
    lines = ", ".join(f"{length} = {n}" for length, n in allocation.items() if n)
    path = folder / f"{scheme}.toml"
    path.write_text(
        f"""[model]
repository = "repository"
slo_ms = {SLO_MS}
[workers]
run_dir = "run-{scheme}"
linger_s = 0
[deployment]
allocation = {{{lines}}}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
log_level = "warning"
[control]
http_address = "127.0.0.1:0"
period_s = {period_s}
reallocate = {"true" if scheme == "arlo" else "false"}
"""
    )
    return configuration.load(path)


async def one(folder: Path, scheme: str, work: Workload, args: argparse.Namespace) -> dict[str, Any]:
    """Replay the trace against one scheme."""
    manifest = Manifest.load(folder / "repository")
    even = {length: WORKERS // len(LENGTHS) + (i < WORKERS % len(LENGTHS)) for i, length in enumerate(LENGTHS)}
    config = write_config(folder, scheme, args.period, even)
    cluster = Cluster(config, manifest, make_pool(config))
    samples: list[dict[str, Any]] = []
    async with running(cluster, asyncio.Event()) as up:
        assert up
        assert cluster.addresses is not None
        if scheme != "even":
            # All begin well placed: what is compared is how they follow.
            first = best(cluster, work.overall if scheme == "global" else work.demand[0])
            cluster.reconciler.want(assign(first, cluster.reconciler.views()))
            while cluster.reconciler.busy:
                await asyncio.sleep(0.05)
        options = ReplayOptions(
            endpoint=cluster.addresses.grpc, model="bench", slo_ms=SLO_MS, timeout_ms=20_000, seed=args.seed
        )
        replay = asyncio.create_task(asyncio.to_thread(run_replay, work.trace, options))
        while not replay.done():
            stats = cluster.scheduler.stats
            if stats is not None and sum(stats.arrivals_by_length):
                break
            await asyncio.sleep(0.02)
        begin_s, begin_unix_s = monotonic_s(), unix_s()
        phase = 0
        while not replay.done():
            now_s = monotonic_s() - begin_s
            if scheme == "oracle" and phase + 1 < len(PHASES) and now_s >= work.begins_s[phase + 1]:
                phase += 1
                cluster.reconciler.want(assign(best(cluster, work.demand[phase]), cluster.reconciler.views()))
            observed = Counter(name for names in cluster.status().workers for name in [names.serving] if name)
            samples.append(
                {"at_s": round(now_s, 2), "instances": [observed[r.name] for r in cluster.scheduler.planner.planned]}
            )
            await asyncio.sleep(0.1)
        result = await replay
        plans: list[dict[str, Any]] = [
            {
                "at_s": round(plan.at_ms / 1000 - begin_unix_s, 2),
                "reason": plan.reason,
                "moved": plan.moved,
                "instances": list(plan.instances.values()),
            }
            for plan in cluster.scheduler.plans
        ]
        counters = dict(cluster.counters)
    summary = result.summary
    assert summary.latency is not None, "no request was answered"
    records = result.records
    return {
        "mean_ms": summary.latency.mean_ms,
        "p98_ms": summary.latency.p98_ms,
        "attainment": summary.slo_attainment,
        "outcomes": dict(summary.outcomes),
        "by_phase_ms": by_phase(work, records, args.phase),
        "replacements": counters.get("replacements", 0),
        "plans": plans,
        "planned_s": [
            next((round(p["at_s"] - begin, 2) for p in plans if p["moved"] and p["at_s"] >= begin), None)
            for begin in work.begins_s[1:]
        ],
        "allocation": changes(samples),
        "settled_s": settled(work, samples, args.phase),
    }


def by_phase(work: Workload, records: Any, phase_s: float) -> list[float]:
    """Mean latency of the requests that arrived in each phase."""
    ok = records[records["code"] == 0]
    at_s, ms = ok["scheduled_us"] / 1e6, latency_us(ok) / 1000
    return [float(ms[(at_s >= begin) & (at_s < begin + phase_s)].mean()) for begin in work.begins_s]


def changes(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples at which the deployment became another one, and the last."""
    kept = samples[:1]
    for before, after in itertools.pairwise(samples):
        if before["instances"] != after["instances"]:
            kept.append(after)
    return [*kept, samples[-1]]


def settled(work: Workload, samples: list[dict[str, Any]], phase_s: float) -> list[float]:
    """Seconds from each shift to the last change of the deployment in the first half of the phase after it."""
    found = []
    for begin in work.begins_s[1:]:
        last = 0.0
        for before, after in itertools.pairwise(samples):
            inside = begin <= after["at_s"] < begin + phase_s / 2
            if inside and before["instances"] != after["instances"]:
                last = after["at_s"] - begin
        found.append(round(last, 2))
    return found


async def run(args: argparse.Namespace) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, Any]]] = {scheme: [] for scheme in args.schemes}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_emulated_repository(
            folder / "repository",
            model="bench",
            max_lengths=LENGTHS,
            latency_ms=LATENCY_MS,
            load_delay_ms=args.load_delay_ms,
        )
        for index in range(args.rounds):
            work = workload(args.phase, args.load, args.seed + index)
            for scheme in args.schemes:
                result = await one(folder, scheme, work, args)
                rounds[scheme].append(result)
                print(
                    f"round {index + 1} {scheme:7} mean {result['mean_ms']:.1f} ms  p98 {result['p98_ms']:.1f} ms  "
                    f"attainment {result['attainment']:.4f}  phases {[round(x, 1) for x in result['by_phase_ms']]}  "
                    f"replacements {result['replacements']}  planned after "
                    f"{result['planned_s']} settled after {result['settled_s']} s",
                    flush=True,
                )
    median = {
        scheme: {key: statistics.median(r[key] for r in results) for key in ("mean_ms", "p98_ms", "attainment")}
        for scheme, results in rounds.items()
    }
    figures: dict[str, Any] = {
        "workers": WORKERS,
        "max_lengths": LENGTHS,
        "latency_ms": LATENCY_MS,
        "load": args.load,
        "phase_s": args.phase,
        "period_s": args.period,
        "load_delay_ms": args.load_delay_ms,
        "median": median,
        "rounds": rounds,
    }
    if {"arlo", "oracle"} <= rounds.keys():
        ratios = [a["mean_ms"] / o["mean_ms"] for a, o in zip(rounds["arlo"], rounds["oracle"], strict=True)]
        figures["arlo_over_oracle_mean"] = statistics.median(ratios)
        print(f"arlo / oracle, mean latency: {figures['arlo_over_oracle_mean']:.3f} (bar: 1.10)")
    return figures


def plot(figures: dict[str, Any], path: Path) -> None:
    """Allocation over time of each scheme in the first round, as in Fig. 12, and the mean latency of each."""
    from plotly.subplots import make_subplots

    schemes = list(figures["rounds"])
    picture = make_subplots(
        rows=len(schemes) + 1,
        cols=1,
        subplot_titles=[f"{scheme}: instances per runtime" for scheme in schemes] + ["mean latency, ms (median)"],
        vertical_spacing=0.4 / (len(schemes) + 1),
    )
    for row, scheme in enumerate(schemes, start=1):
        samples = figures["rounds"][scheme][0]["allocation"]
        for index, length in enumerate(figures["max_lengths"]):
            picture.add_scatter(
                x=[s["at_s"] for s in samples],
                y=[s["instances"][index] for s in samples],
                name=str(length),
                legendgroup=str(length),
                showlegend=row == 1,
                stackgroup=scheme,
                line={"shape": "hv", "width": 0, "color": frame.color(index)},
                row=row,
                col=1,
            )
        for begin in range(1, len(PHASES)):
            picture.add_vline(x=begin * figures["phase_s"], line_dash="dot", row=row, col=1)
    picture.add_bar(
        x=schemes,
        y=[figures["median"][s]["mean_ms"] for s in schemes],
        text=[f"{figures['median'][s]['mean_ms']:.1f}" for s in schemes],
        showlegend=False,
        row=len(schemes) + 1,
        col=1,
    )
    frame.framed(
        picture,
        f"short -> long -> short lengths, {WORKERS} workers: instances of each max_length over time (s)",
        height=230 * (len(schemes) + 1),
        legend_title_text="max_length",
    )
    page.write(path, page.render("Lengths that shift", [page.plots([picture])]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", type=float, default=60.0, help="seconds of each phase (default: 60)")
    parser.add_argument("--period", type=float, default=20.0, help="control.period_s (default: 20)")
    parser.add_argument("--load", type=float, default=0.6, help="share of the workers' time (default: 0.6)")
    parser.add_argument("--load-delay-ms", type=int, default=300, help="of an engine (default: 300)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), choices=SCHEMES)
    args = parser.parse_args()
    events.configure(level=logging.WARNING)
    figures = asyncio.run(run(args))
    path = harness.save("shift", "python -m benchmarks.shift " + " ".join(sys.argv[1:]), figures)
    plot(figures, Path("reports/shift.html"))
    print(f"-> {path}, reports/shift.html")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
