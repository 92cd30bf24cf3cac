"""CPU of a client's process per request: a bare grpc.aio call of the same message, and the asyncio client.

Everything the client says goes to a gateway with an upstream that answers at once, so what counts is the client's own
work: paced at 20 requests/s, where each wakes up the process, and with eight under way. `ours` is what the client adds
to gRPC's own Python. In turns, medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio
import numpy as np

from arlo.client import AsyncClient
from benchmarks import harness

LENGTH = 24
DIMS = 384
Call = Callable[[], Awaitable[object]]


async def paced(call: Call, rate: float, seconds: float) -> int:
    """One after another at this rate; how many."""
    count = round(rate * seconds)
    begin = time.monotonic()
    for k in range(count):
        await asyncio.sleep(max(0.0, begin + k / rate - time.monotonic()))
        await call()
    return count


async def eight(call: Call, seconds: float) -> int:
    """Eight under way all the time; how many ended."""
    until = time.monotonic() + seconds

    async def one() -> int:
        done = 0
        while time.monotonic() < until:
            await call()
            done += 1
        return done

    return sum(await asyncio.gather(*(one() for _ in range(8))))


async def cpu_us(load: Awaitable[int]) -> float:
    """Of this process, per request."""
    before = time.process_time()
    return (count := await load) and (time.process_time() - before) / count * 1e6


async def measure(target: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """By client and load: CPU of a request, microseconds, medians of the rounds."""
    rows: dict[str, dict[str, list[float]]] = {}
    ids = np.arange(1000, 1000 + LENGTH)
    async with grpc.aio.insecure_channel(target) as channel, AsyncClient(target, model="bench") as client:
        bare = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        message = harness.payload(LENGTH)
        calls: dict[str, Call] = {"grpc.aio": lambda: bare(message), "AsyncClient": lambda: client.infer(ids)}
        for call in calls.values():
            await eight(call, 0.5)
        for round_ in range(args.rounds):
            for name, call in calls.items():
                row = rows.setdefault(name, {})
                row.setdefault("at 20/s", []).append(await cpu_us(paced(call, 20, args.seconds)))
                row.setdefault("eight under way", []).append(await cpu_us(eight(call, args.seconds)))
            print(f"round {round_ + 1}: " + ", ".join(f"{n} {v}" for n, v in _last(rows).items()), flush=True)
    return {name: {k: statistics.median(v) for k, v in row.items()} for name, row in rows.items()}


def run(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        upstream_port = harness.free_port()
        output = f"embedding:FP32:1,{DIMS}"
        upstream = [harness.binary("arlo-instant-upstream"), "--port", str(upstream_port), "--output", output]
        stack.enter_context(harness.Program(upstream, log=work / "upstream.log"))
        harness.wait_for_port(upstream_port)
        backend = harness.Backend(endpoint=f"127.0.0.1:{upstream_port}", runtime="len64", max_length=64, latency_us=100)
        _, port = stack.enter_context(harness.gateway(work, [backend] * 4, dims=DIMS))
        return asyncio.run(measure(f"127.0.0.1:{port}", args))


def _last(rows: dict[str, dict[str, list[float]]]) -> dict[str, str]:
    return {name: " / ".join(f"{values[-1]:.0f} us" for values in row.values()) for name, row in rows.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    figures = run(args)
    path = harness.save("client_cpu", "python -m benchmarks.client_cpu " + " ".join(sys.argv[1:]), {"cpu_us": figures})
    print(f"CPU per request at 20/s / eight under way, us: {figures} -> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
