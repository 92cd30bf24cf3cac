"""Dispatch policies on an emulated cluster: real Triton workers, real gateway, times from a table, open-loop load.

Eight workers whose runtimes take ten times the paper's BERT-base estimate (11.5 ms at 64 tokens to 48.6 ms at 512), so
that a small machine carries the load; tweet lengths rescaled to 512; Poisson arrivals. Every policy sees the same
requests, in turns. Load is the rate over the rate at which the ideal levels' work would fill all workers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from arlo.replay import ReplayOptions, run_replay
from arlo.traces import poisson, rescale, tweet_lengths
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import write_emulated_repository
from benchmarks import harness

LEVELS = {128: 2, 256: 3, 384: 2, 512: 1}  # max_length -> instances
LATENCY_MS = {length: 10 * (1.15 + (length - 64) * (4.86 - 1.15) / 448) for length in LEVELS}
POLICIES = ("rs", "ilb", "ig", "eft", "late")
SLO_MS = 1500.0  # ten times the paper's 150 ms


def full_rate(lengths: Any) -> float:
    """Requests per second that would keep all workers busy if each ran on its ideal level."""
    drawn = lengths(200_000, np.random.default_rng(0))
    levels = np.array(sorted(LEVELS))
    work_ms = np.array([LATENCY_MS[int(n)] for n in levels])[np.searchsorted(levels, drawn)]
    return float(sum(LEVELS.values()) / (work_ms.mean() / 1000))


async def run(args: argparse.Namespace) -> dict[str, Any]:
    tweets = tweet_lengths()

    def lengths(n: int, rng: np.random.Generator) -> Any:
        return rescale(tweets.sample(n, rng), 512)

    top = full_rate(lengths)
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        repository = work / "repository"
        manifest = write_emulated_repository(
            repository,
            model="bench",
            max_lengths=list(LEVELS),
            latency_ms=list(LATENCY_MS.values()),
            pooled_dims=4,
        )
        placed = [runtime for runtime in manifest.runtimes for _ in range(LEVELS[runtime.max_length])]
        async with LocalPool(repository, workers=len(placed), run_dir=work / "run") as pool:
            workers = await pool.workers()
            await asyncio.gather(*(pool.load(w.id, r.name) for w, r in zip(workers, placed, strict=True)))
            backends = [
                harness.Backend(
                    endpoint=w.endpoint,
                    runtime=r.name,
                    max_length=r.max_length,
                    latency_us=round(r.latency[0].latency_us),
                    capacity=int(SLO_MS * 1000 // r.latency[0].latency_us),
                )
                for w, r in zip(workers, placed, strict=True)
            ]
            for load in args.loads:
                for seed in range(args.rounds):
                    trace = poisson(top * load, args.duration, lengths, seed)
                    for policy in args.policies:
                        result = await one(work, backends, policy, trace)
                        rows.setdefault(f"{load:.2f}", {}).setdefault(policy, []).append(result)
                        print(
                            f"load {load:.2f} round {seed + 1} {policy:5} "
                            + "  ".join(f"{k} {v:.4g}" for k, v in result.items()),
                            flush=True,
                        )
    return {
        "rate_at_load_1_rps": top,
        "median": {
            load: {
                policy: {k: statistics.median(r[k] for r in results) for k in results[0]}
                for policy, results in by_policy.items()
            }
            for load, by_policy in rows.items()
        },
    }


async def one(work: Path, backends: list[harness.Backend], policy: str, trace: Any) -> dict[str, float]:
    async with harness.serving(work, backends, dims=4, policy=policy, inflight_limit=2) as gateway:
        options = ReplayOptions(endpoint=gateway.grpc, model="bench", slo_ms=SLO_MS, timeout_ms=20_000)
        summary = (await asyncio.to_thread(run_replay, trace, options)).summary
    if summary.outcomes["failed"]:
        raise SystemExit(f"{summary.outcomes['failed']} requests failed")
    assert summary.latency is not None, "no request was answered"
    return {
        "mean_ms": summary.latency.mean_ms,
        "p98_ms": summary.latency.p98_ms,
        "attainment": summary.slo_attainment,
        "demoted": sum(level.demoted for level in summary.levels) / len(trace.length),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=float, default=30.0, help="seconds of each run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.7, 0.85])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    args = parser.parse_args()
    figures = asyncio.run(run(args))
    path = harness.save("policies", "python -m benchmarks.policies " + " ".join(sys.argv[1:]), figures)
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
