"""Speed of the simulator's event loop: simulated requests per second of wall time, one core.

300 workers with the eight runtimes of the paper's BERT-base estimate (1.15 ms at 64 tokens to 4.86 ms at 512), shared
out in proportion to the work of the tweets' lengths; Poisson arrivals; load is the rate over the one that would keep
all workers busy with every request on its ideal level. `uniform` runs on 300 workers of the longest runtime, as the
paper's ST does, at the same load of those. `batches`: the same lengths on 300 workers that hold all eight runtimes of
the A100's table, batches of up to 32 formed by the scheduler; the load is that of full batches. Timed is a whole
simulation from a new one to its totals, the copy of the arrivals included; making the arrivals is not. Cases alternate,
and the figure is the median.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.catalog.manifest import Runtime
from arlo.simulator.profiles import load_profile
from arlo.traces import rescale, tweet_lengths
from benchmarks import harness

WORKERS = 300
LEVELS = np.arange(64, 513, 64)
LATENCY_MS = 1.15 + (LEVELS - 64) * (4.86 - 1.15) / 448
LONGEST_ONLY = LEVELS[-1:], LATENCY_MS[-1:]
SLO_MS = 150.0
NS = 1_000_000
POLICIES = ("rs", "ilb", "ig", "infaas", "eft", "late", "uniform")
LOADS = (0.5, 0.8)
BATCHED, MAX_BATCH = "bert-base-a100", 32
BAR = 2_000_000  # requests per second, rs


@dataclasses.dataclass(frozen=True)
class Case:
    policy: str
    load: float
    # columns: one row per request is kept; timeout: clients leave after 1 s; hops: 0.1 ms each; batches: see the module
    variant: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.policy, f"{self.load:.0%}", self.variant)))


def cases() -> list[Case]:
    plain = [Case(policy, load) for load in LOADS for policy in POLICIES]
    batches = [Case("late", load, "batches") for load in LOADS]
    return plain + [Case("rs", 0.8, variant) for variant in ("columns", "timeout", "hops")] + batches


def shared_out(work: NDArray[Any], workers: int) -> NDArray[np.int64]:
    """Workers in proportion to `work`, one at least each; what is left goes to the largest remainders."""
    exact = work / work.sum() * (workers - len(work))
    whole = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: workers - len(work) - whole.sum()]] += 1
    shares: NDArray[np.int64] = whole + 1
    return shares


def points_ns(runtime: Runtime) -> list[tuple[int, int, int]]:
    return [(point.length, point.batch, round(point.latency_us * 1000)) for point in runtime.latency]


class Bench:
    def __init__(self, requests: int) -> None:
        drawn = np.random.default_rng(0)
        self.length = np.asarray(rescale(tweet_lengths().sample(requests, drawn), int(LEVELS[-1])), np.int32)
        self.gaps = np.cumsum(drawn.exponential(1.0, requests))
        self.level = np.searchsorted(LEVELS, self.length)
        self.batched = load_profile(BATCHED).static_runtimes(LEVELS.tolist(), max_batch=MAX_BATCH)

    def arrivals(self, case: Case) -> NDArray[np.int64]:
        """ns; the same stream for all, stretched to the load."""
        mean_ms = LATENCY_MS[-1] if case.policy == "uniform" else LATENCY_MS[self.level].mean()
        if case.variant == "batches":
            row_ms = np.array([runtime.latency_ns(MAX_BATCH) / MAX_BATCH / NS for runtime in self.batched])
            mean_ms = row_ms[self.level].mean()
        per_ms = case.load * WORKERS / mean_ms
        times: NDArray[np.int64] = (self.gaps / per_ms * NS).astype(np.int64)
        return times

    def run(self, case: Case, arrived: NDArray[np.int64]) -> tuple[float, dict[str, float]]:
        """Seconds of wall time, and the totals."""
        one_length = case.policy == "uniform"
        levels, latency = LONGEST_ONLY if one_length else (LEVELS, LATENCY_MS)
        work = np.bincount(self.level, LATENCY_MS[self.level], len(LEVELS))
        workers = [WORKERS] if one_length else shared_out(work, WORKERS)
        hop = NS // 10 if case.variant == "hops" else 0
        began = time.perf_counter()
        sim = _core.Simulation(
            case.policy,
            slo=int(SLO_MS * NS),
            overhead=int(0.8 * NS),
            max_queued=10**9,
            timeout=1000 * NS if case.variant == "timeout" else None,
            hop_out=hop,
            hop_back=hop,
            record=case.variant == "columns",
            batching="deadline" if case.variant == "batches" else "one",
        )
        if case.variant == "batches":
            held = [sim.add_runtime(each.max_length, 1, points_ns(each), max_batch=MAX_BATCH) for each in self.batched]
            bundle = sim.add_bundle(held)
            for _ in range(WORKERS):
                sim.add_worker(bundle, 0)
            levels, latency, workers = levels[:0], latency[:0], []
        for length, ms, count in zip(levels.tolist(), latency.tolist(), workers, strict=True):
            runtime = sim.add_runtime(length, int(SLO_MS / ms), [(length, 1, int(ms * NS))])
            for _ in range(int(count)):
                sim.add_worker(runtime, 0)
        sim.feed(arrived, self.length)
        sim.finish()
        totals = sim.totals()
        took = time.perf_counter() - began
        if totals["on_time"] + totals["late"] + totals["expired"] != len(arrived):
            raise SystemExit(f"{case.name}: not every request was served: {totals}")
        return took, totals


def measure(requests: int, repeats: int) -> dict[str, dict[str, Any]]:
    bench = Bench(requests)
    seconds: dict[str, list[float]] = {case.name: [] for case in cases()}
    rows: dict[str, dict[str, Any]] = {}
    for repeat in range(repeats):
        for case in cases():
            arrived = bench.arrivals(case)
            took, totals = bench.run(case, arrived)
            seconds[case.name].append(took)
            mean_ms = round(totals["latency_sum_ns"] / requests / NS, 4)
            if rows.setdefault(case.name, {"mean_ms": mean_ms})["mean_ms"] != mean_ms:
                raise SystemExit(f"{case.name}: another result than before")
        print(f"round {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
    for name, row in rows.items():
        row["requests_per_s"] = round(requests / statistics.median(seconds[name]))
        row["best_requests_per_s"] = round(requests / min(seconds[name]))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="simulated in each run (default 1000000)")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each case (default 7)")
    args = parser.parse_args()
    rows = measure(args.requests, args.repeats)
    print(f"{'case':<18} {'requests/s':>12} {'best':>12} {'mean ms':>9}")
    for name, row in rows.items():
        print(f"{name:<18} {row['requests_per_s']:>12,} {row['best_requests_per_s']:>12,} {row['mean_ms']:>9.3f}")
    command = "python -m benchmarks.simulation " + " ".join(sys.argv[1:])
    figures = {"workers": WORKERS, "levels": len(LEVELS), "requests": args.requests, "repeats": args.repeats}
    path = harness.save("simulation", command.strip(), {**figures, "rows": rows})
    print(f"-> {path}")
    slow = [name for name, row in rows.items() if name.startswith("rs ") and row["requests_per_s"] < BAR]
    if slow:
        print(f"below {BAR:,} requests/s: {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
