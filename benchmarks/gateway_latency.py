"""Latency that the gateway adds to a real Triton worker at concurrency 1, p50.

One emulated worker that answers at once (0 ms profile); the same requests go to it directly and through the gateway,
in turns. The client is arlo-loadgen on one connection.
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

from arlo.workers import LocalPool
from arlo.workers.emulated.repository import write_emulated_repository
from benchmarks import harness

LENGTH = 64
DIMS = 384


def p50_us(work: Path, port: int, body: bytes, requests: int) -> float:
    harness.load(work, port, [body], "--concurrency", "1", "--channels", "1", "--requests", str(requests))
    records = np.load(work / "records.npy")
    return float(np.median(records["done_us"] - records["sent_us"]))


async def run(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        repository = work / "repository"
        write_emulated_repository(repository, model="bench", max_lengths=[LENGTH], latency_ms=[0.0], pooled_dims=DIMS)
        async with LocalPool(repository, workers=1, run_dir=work / "run") as pool:
            await pool.load("w0", f"bench_len{LENGTH}")
            endpoint = (await pool.workers())[0].endpoint
            backend = harness.Backend(endpoint=endpoint, runtime=f"bench_len{LENGTH}", max_length=LENGTH)
            async with harness.serving(work, [backend], dims=DIMS) as gateway:
                port = harness.port_of(gateway)
                direct_port = int(endpoint.rsplit(":", 1)[1])
                through, direct = harness.payload(LENGTH), harness.payload(LENGTH, model=f"bench_len{LENGTH}")
                rows: list[tuple[float, float]] = []
                for round_ in range(args.rounds):
                    alone = await asyncio.to_thread(p50_us, work, direct_port, direct, args.requests)
                    added = await asyncio.to_thread(p50_us, work, port, through, args.requests) - alone
                    rows.append((alone, added))
                    print(f"round {round_ + 1}  direct p50 {alone:6.0f} us  gateway adds {added:6.0f} us", flush=True)
    return {
        "direct_p50_us": statistics.median(r[0] for r in rows),
        "added_p50_us": statistics.median(r[1] for r in rows),
        "added_p50_us_rounds": [r[1] for r in rows],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    figures = asyncio.run(run(args))
    path = harness.save("gateway_latency", "python -m benchmarks.gateway_latency " + " ".join(sys.argv[1:]), figures)
    print(f"\nadded at concurrency 1, p50: {figures['added_p50_us']:.0f} us -> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
