"""Allocation objectives compared by simulation: Eq. 1 as printed, `queueing`, and simpler rules for reference.

Every allocation serves the same requests in an event-driven simulation around the gateway's own dispatch core: random
arrivals, static runtimes with a fixed time, the paper's BERT-base estimate (1.15 ms at 64 tokens to 4.86 ms at 512) and
SLO (150 ms). Load is the arrival rate over the one at which the ideal levels' work fills all workers. On small clusters
a local search with the simulator itself (`reached`) shows what can be had. Nothing here is random but by its seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import heapq
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.planning.allocation.bounds import proportional
from arlo.planning.allocation.problem import AllocationProblem, LatencyCurve
from arlo.planning.allocation.queueing import QueueingSolver, predicted_mean_ms, square_root
from arlo.planning.allocation.solve import allocate, make_solver
from arlo.traces import rescale, tweet_lengths
from benchmarks import harness

SLO_MS = 150.0
LONGEST = 512
CLUSTERS = ((8, 4), (10, 8), (40, 8), (90, 8))  # workers, runtimes
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
SEARCHED = ((8, 4), (10, 8)), (0.5, 0.7, 0.85)
BURST, SOJOURN_MS = 1.3, 500.0  # of the two-state arrivals: rates 1.3 and 0.7 of the mean, half a second each
BURST_LOADS = (0.5, 0.7, 0.8)
POLICIES = ("eft", "rs")
# Latency by runtime, ms; the constant that the model of `queueing` fits to simulation was not fitted with these.
OTHER_TABLES = {
    "staircase": (2.0, 2.02, 2.04, 4.0, 4.05, 4.1, 8.0, 8.1),
    "wide": (1.0, 3.0, 6.0, 10.0, 16.0, 24.0, 36.0, 50.0),
    "flat": (5.0, 5.1, 5.2, 5.3, 5.4, 5.5, 5.6, 5.7),
}
OTHER_WORKERS, OTHER_LOADS = (10, 40), (0.5, 0.7, 0.85)
NS = 1_000_000


def tweets(n: int, rng: np.random.Generator) -> NDArray[Any]:
    return np.asarray(rescale(tweet_lengths().sample(n, rng), LONGEST))


def uniform(n: int, rng: np.random.Generator) -> NDArray[Any]:
    return np.asarray(rng.integers(1, LONGEST, n, endpoint=True))


def lognormal(n: int, rng: np.random.Generator) -> NDArray[Any]:
    return np.asarray(np.clip(np.rint(np.exp(rng.normal(math.log(60), 0.7, n))), 1, LONGEST))


def bimodal(n: int, rng: np.random.Generator) -> NDArray[Any]:
    drawn = np.where(rng.random(n) < 0.7, rng.normal(40, 15, n), rng.normal(420, 50, n))
    return np.asarray(np.clip(np.rint(drawn), 1, LONGEST))


LENGTHS: dict[str, Callable[[int, np.random.Generator], NDArray[Any]]] = {
    f.__name__: f for f in (tweets, uniform, lognormal, bimodal)
}


@dataclasses.dataclass(frozen=True)
class Case:
    lengths: str
    workers: int
    runtimes: int
    load: float
    arrivals: str  # poisson, bursty
    table: str = ""  # of OTHER_TABLES

    @functools.cached_property
    def max_lengths(self) -> NDArray[np.int64]:
        return np.array([LONGEST * (i + 1) // self.runtimes for i in range(self.runtimes)])

    @functools.cached_property
    def latency_ms(self) -> NDArray[np.float64]:
        if self.table:
            return np.array(OTHER_TABLES[self.table])
        return np.asarray(1.15 + (self.max_lengths - 64) * (4.86 - 1.15) / 448)

    @functools.cached_property
    def problem(self) -> AllocationProblem:
        drawn = LENGTHS[self.lengths](200_000, np.random.default_rng(7))
        share = np.bincount(np.searchsorted(self.max_lengths, drawn), minlength=self.runtimes) / len(drawn)
        per_ms = share * self.load * self.workers / (share @ self.latency_ms)
        return AllocationProblem(
            self.workers,
            SLO_MS,
            tuple(self.max_lengths.tolist()),
            tuple(LatencyCurve.single(ms) for ms in self.latency_ms.tolist()),
            tuple((per_ms * SLO_MS).tolist()),
        )

    def requests(self, count: int, seed: int) -> tuple[list[int], list[int]]:
        """Arrival times in ns, lengths."""
        rng = np.random.default_rng([seed, 0])
        at = np.cumsum(rng.exponential(SLO_MS / sum(self.problem.demand), count))
        if self.arrivals == "bursty":
            # A Poisson process in stretched time: while the rate is high, time runs slower.
            real, stretched, high = [0.0], [0.0], True
            while stretched[-1] < at[-1]:
                stay = rng.exponential(SOJOURN_MS)
                real.append(real[-1] + stay)
                stretched.append(stretched[-1] + stay * (BURST if high else 2 - BURST))
                high = not high
            at = np.interp(at, stretched, real)
        drawn = LENGTHS[self.lengths](count, np.random.default_rng([seed, 1]))
        return (at * NS).astype(np.int64).tolist(), drawn.astype(int).tolist()


def simulate(case: Case, instances: Sequence[int], policy: str, requests: tuple[list[int], list[int]]) -> NDArray[Any]:
    """Latency of each request in ms, the first tenth left out. Event order at equal times: finish before arrive."""
    scheduler = _core.Scheduler(policy, max_queued=1 << 30)
    took: list[int] = []  # ns, by instance
    for length, ms, capacity, n in zip(
        case.max_lengths.tolist(), case.latency_ms.tolist(), case.problem.capacities, instances, strict=True
    ):
        runtime = scheduler.add_runtime(length, capacity, [(length, 1, round(ms * NS))])
        for _ in range(n):
            scheduler.join(runtime, 2, 0)
            took.append(round(ms * NS))
    free = [0] * len(took)
    running: list[tuple[int, int, int]] = []  # end, handle, request
    at, lengths = requests
    latency = np.zeros(len(at))

    def start(actions: Iterable[_core.Action], now: int) -> None:
        for action in actions:
            instance = action.instance
            assert instance is not None
            free[instance] = max(free[instance], now) + took[instance]
            heapq.heappush(running, (free[instance], action.handle, action.tag))

    def finish_until(now: float) -> None:
        while running and running[0][0] <= now:
            end, handle, request = heapq.heappop(running)
            latency[request] = end - at[request]
            start(scheduler.finish(handle, end), end)

    for request, (now, length) in enumerate(zip(at, lengths, strict=True)):
        finish_until(now)
        start(scheduler.arrive(request, length, now)[2], now)
    finish_until(math.inf)
    return latency[len(latency) // 10 :] / NS


def figures(latency: NDArray[Any]) -> dict[str, float]:
    return {
        "mean_ms": float(latency.mean()),
        "p98_ms": float(np.percentile(latency, 98)),
        "attainment": float((latency <= SLO_MS).mean()),
    }


def contenders(case: Case, policy: str) -> dict[str, tuple[int, ...]]:
    problem = case.problem
    found = {
        "paper": allocate(problem, make_solver("exact", objective="paper"), time_limit_s=10).instances,
        "queueing": QueueingSolver(policy).solve(problem, time_limit_s=10).instances,
        "proportional": proportional(problem),
        "square_root": tuple(square_root(problem)[0]),
    }
    if policy != "eft":
        found["queueing_eft"] = QueueingSolver().solve(problem, time_limit_s=10).instances
    if case.arrivals == "bursty":
        known = dataclasses.replace(problem, burst=BURST)
        found["queueing_burst"] = QueueingSolver(policy).solve(known, time_limit_s=10).instances
    return found


def reached(mean: Callable[[tuple[int, ...]], float], starts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The best found by moving one worker at a time with the simulator as the judge."""

    def descend(best: tuple[int, ...]) -> tuple[int, ...]:
        while True:
            near = []
            for i, j in itertools.permutations(range(len(best)), 2):
                if best[i] > int(i == len(best) - 1):
                    moved = list(best)
                    moved[i] -= 1
                    moved[j] += 1
                    near.append(tuple(moved))
            found = min(near, key=mean)
            if mean(found) >= mean(best):
                return best
            best = found

    return min((descend(start) for start in starts), key=mean)


def measure(case: Case, policy: str, count: int, seed: int) -> dict[str, Any]:
    """Figures of every contender; for each the mean latency that `queueing` predicts for it."""
    requests = case.requests(count, seed)
    allocations = contenders(case, policy)
    latencies = {n: figures(simulate(case, n, policy, requests)) for n in set(allocations.values())}
    return {
        "case": case,
        "policy": policy,
        "instances": allocations,
        "figures": {name: latencies[n] for name, n in allocations.items()},
        "predicted_ms": {
            name: predicted_mean_ms(case.problem, n, policy=policy)
            for name, n in allocations.items()
            if name != "queueing_burst"
        },
    }


def compared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each contender: mean and p98 over those of `queueing` (geometric mean, worst and best case), attainment, and
    the share of the cases in which its mean is lower than that of `queueing` by more than 1 %."""
    out: dict[str, Any] = {}
    for name in rows[0]["figures"]:
        ratio = np.array([r["figures"][name]["mean_ms"] / r["figures"]["queueing"]["mean_ms"] for r in rows])
        tail = np.array([r["figures"][name]["p98_ms"] / r["figures"]["queueing"]["p98_ms"] for r in rows])
        out[name] = {
            "mean_over_queueing": geometric(ratio),
            "worst": round(float(ratio.max()), 3),
            "best": round(float(ratio.min()), 3),
            "p98_over_queueing": geometric(tail),
            "attainment": round(float(np.mean([r["figures"][name]["attainment"] for r in rows])), 5),
            "better_than_queueing": round(float((ratio < 0.99).mean()), 3),
        }
    return out


def geometric(values: NDArray[Any]) -> float:
    return round(float(np.exp(np.log(values).mean())), 4)


def prediction_error(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Predicted over simulated mean latency, over all contenders' allocations, by the highest utilisation of a suffix
    of levels: the 5th, 50th and 95th percentile."""
    bins: dict[str, list[float]] = {}
    edges = ((0, 0.7), (0.7, 0.85), (0.85, 0.92), (0.92, 0.97), (0.97, 1.0), (1.0, math.inf))
    for row in rows:
        problem = row["case"].problem
        for name, predicted in row["predicted_ms"].items():
            served = np.cumsum(
                [n / ms for n, ms in zip(row["instances"][name], row["case"].latency_ms, strict=True)][::-1]
            )
            used = float((np.cumsum(problem.demand[::-1]) / SLO_MS / served).max())
            low, high = next((a, b) for a, b in edges if a <= used < b)
            bins.setdefault(f"{low:g}-{high:g}", []).append(predicted / row["figures"][name]["mean_ms"])
    return {
        name: {"allocations": len(v), **{f"p{q}": round(float(np.percentile(v, q)), 3) for q in (5, 50, 95)}}
        for name, v in sorted(bins.items())
    }


def search_gap(count: int, seed: int) -> dict[str, Any]:
    """Mean latency over that of the best allocation found with the simulator, under eft."""
    ratios: dict[str, list[float]] = {}
    clusters, loads = SEARCHED
    for name, (workers, runtimes), load in itertools.product(LENGTHS, clusters, loads):
        case = Case(name, workers, runtimes, load, "poisson")
        requests = case.requests(count, seed + 1)
        found = contenders(case, "eft")

        @functools.cache
        def mean(n: tuple[int, ...], case: Case = case, requests: Any = requests) -> float:
            return float(simulate(case, n, "eft", requests).mean())

        best = reached(mean, {found["queueing"], found["proportional"]})
        for contender, n in found.items():
            ratios.setdefault(contender, []).append(mean(n) / mean(best))
    return {
        name: {"mean_over_reached": geometric(np.array(v)), "worst": round(max(v), 3)} for name, v in ratios.items()
    }


def run(count: int, seed: int, note: Callable[[str], None]) -> dict[str, Any]:
    out: dict[str, Any] = {"requests": count, "seed": seed}
    for policy, arrivals in itertools.product(POLICIES, ("poisson", "bursty")):
        loads = LOADS if arrivals == "poisson" else BURST_LOADS
        rows = [
            measure(Case(name, workers, runtimes, load, arrivals), policy, count, seed)
            for name, (workers, runtimes), load in itertools.product(LENGTHS, CLUSTERS, loads)
        ]
        part: dict[str, Any] = {
            "cases": len(rows),
            "all": compared(rows),
            "by_load": {
                f"{load:g}": {
                    name: v["mean_over_queueing"]
                    for name, v in compared([r for r in rows if r["case"].load == load]).items()
                }
                for load in loads
            },
        }
        if arrivals == "poisson":
            part["predicted_over_simulated"] = prediction_error(rows)
            part["loses_most"] = [
                {
                    **dataclasses.asdict(r["case"]),
                    "against": name,
                    "instances": {k: list(r["instances"][k]) for k in ("queueing", name)},
                    "mean_ms": {k: round(r["figures"][k]["mean_ms"], 3) for k in ("queueing", name)},
                }
                for _, name, r in sorted(
                    (
                        (r["figures"][name]["mean_ms"] / r["figures"]["queueing"]["mean_ms"], name, r)
                        for r in rows
                        for name in ("paper", "proportional", "square_root")
                    ),
                    key=lambda x: x[0],
                )[:5]
            ]
        out[f"{policy}_{arrivals}"] = part
        note(f"{policy}, {arrivals} arrivals, {len(rows)} cases: mean and p98 over those of queueing, attainment")
        for name, v in part["all"].items():
            note(
                f"  {name:15} {v['mean_over_queueing']:8.3f} (worst {v['worst']:.3g}, best {v['best']:.3g})"
                f" {v['p98_over_queueing']:8.3f} {v['attainment']:.4f}"
            )
    for table in OTHER_TABLES:
        rows = [
            measure(Case(name, workers, 8, load, "poisson", table), "eft", count // 2, seed)
            for name, workers, load in itertools.product(LENGTHS, OTHER_WORKERS, OTHER_LOADS)
        ]
        found = {"cases": len(rows), "all": compared(rows), "predicted_over_simulated": prediction_error(rows)}
        out[f"eft_poisson_{table}"] = found
        note(f"eft, poisson arrivals, latencies {table}, {len(rows)} cases: mean over that of queueing")
        for name, v in compared(rows).items():
            note(f"  {name:15} {v['mean_over_queueing']:8.3f} (worst {v['worst']:.3g}, best {v['best']:.3g})")
    out["search"] = search_gap(count // 2, seed)
    note("mean over that of the best allocation found with the simulator (eft, 8 and 10 workers)")
    for name, v in out["search"].items():
        note(f"  {name:15} {v['mean_over_reached']:8.3f} (worst {v['worst']:.3g})")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=30_000, help="of each simulated run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")
    args = parser.parse_args()

    def note(line: str) -> None:
        if not args.json:
            print(line, flush=True)

    found = run(args.requests, args.seed, note)
    path = harness.save("objective", " ".join(["python -m benchmarks.objective", *sys.argv[1:]]).strip(), found)
    print(json.dumps(found) if args.json else f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
