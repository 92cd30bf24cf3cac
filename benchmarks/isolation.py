"""What a light client sees beside one that takes all it can: its p50 and p99 in quiet, meanwhile, and how they compare.

Two real Triton workers with emulated engines of 2 ms and a gateway with a tokenizer. The light client sends 100 short
texts a second over gRPC (a request each, a time-out of 10 s). Beside it, for `--seconds` each:

    core       no abuse: a process that only computes, for the machine is shared
    streams    three gRPC streams that send texts of 50 MB, one after the other
    words      two clients that send words of 1.9 MB to `/tokenize`, and two that have words of 150,000 letters embedded
    silent     1,500 silent connections to the API's port, where there are 1,024 descriptors; newcomers are counted, too
    cancels    a client that cancels two of three calls within 10 ms; those that it does not cancel are counted, too

`words` is of a Unigram tokenizer, which helper processes have; the others are of WordPiece.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import socket
import struct
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from arlo.clock import monotonic_s
from benchmarks import harness
from benchmarks.attacks import LENGTH, LightClient, seen, take_core, two_workers
from tests.fakes.attacks.run import asked_anew
from tests.fakes.gateway import UNLIMITED, Gateway, start_gateway
from tests.fakes.tiny_model import write_other_tokenizer, write_tokenizer
from tests.fakes.triton_workers import Workers

QUIET_S = 5.0


def of_text(text: str) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="bench")
    request.inputs.add(name="text", datatype="BYTES", shape=[1])
    packed = text.encode()
    request.raw_input_contents.append(struct.pack("<I", len(packed)) + packed)
    request.parameters["truncate"].string_param = "END"
    return bytes(request.SerializeToString())


async def many(works: list[Awaitable[None]], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*works)


async def core(_: Gateway, seconds: float) -> dict[str, Any]:
    await take_core(seconds)
    return {}


async def streams(gateway: Gateway, seconds: float) -> dict[str, Any]:
    met: Counter[str] = Counter()
    request = service_pb2.ModelInferRequest.FromString(of_text("word" * 12_500_000))

    async def one() -> None:
        async with grpc.aio.insecure_channel(gateway.grpc, options=UNLIMITED) as channel:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
            while True:
                await call.write(request)
                met[(await call.read()).error_message[:40] or "answered"] += 1

    await many([one() for _ in range(3)], seconds)
    return dict(met)


async def words(gateway: Gateway, seconds: float) -> dict[str, Any]:
    met: Counter[str] = Counter()

    def ask(path: str, letters: int) -> str:
        body = json.dumps({"model": "bench", "inputs": "x" * letters, "truncate": True}).encode()
        request = urllib.request.Request(f"http://{gateway.api}{path}", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return f"{path} {answer.status}"
        except urllib.error.HTTPError as error:
            return f"{path} {error.code}"

    async def one(path: str, letters: int) -> None:
        while True:
            met[await asyncio.to_thread(ask, path, letters)] += 1

    await many([one(*each) for each in [("/tokenize", 1_900_000), ("/embed", 150_000)] * 2], seconds)
    return dict(met)


async def silent(gateway: Gateway, seconds: float) -> dict[str, Any]:
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    host, _, port = gateway.api.rpartition(":")
    met: Counter[str] = Counter()
    small = of_text("a newcomer")
    end_s = monotonic_s() + seconds
    with contextlib.ExitStack() as stack:
        for _ in range(1500):
            with contextlib.suppress(OSError):
                stack.enter_context(await asyncio.to_thread(socket.create_connection, (host, int(port)), 2))
        while monotonic_s() < end_s:
            how = await asyncio.to_thread(asked_anew, gateway.grpc, small, 5.0)
            met[f"gRPC {how or 'not in time'}"] += 1
            try:
                with await asyncio.to_thread(urllib.request.urlopen, f"http://{gateway.api}/v1/models", None, 5):
                    met["HTTP 200"] += 1
            except OSError as error:
                met[f"HTTP {type(error).__name__}"] += 1
            await asyncio.sleep(0.2)
    return dict(met)


async def cancels(gateway: Gateway, seconds: float) -> dict[str, Any]:
    met: Counter[str] = Counter()
    dice = random.Random(1)
    request = service_pb2.ModelInferRequest.FromString(of_text("some words"))
    async with grpc.aio.insecure_channel(gateway.grpc, options=UNLIMITED) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        async def one() -> None:
            while True:
                call = stub.ModelInfer(request, timeout=30)
                if dice.random() < 2 / 3:
                    await asyncio.sleep(dice.uniform(0, 0.008))
                    met["cancelled"] += call.cancel()
                    continue
                try:
                    await call
                    met["answered"] += 1
                except grpc.aio.AioRpcError as error:
                    met[error.code().name] += 1

        await many([one() for _ in range(16)], seconds)
    return dict(met)


ABUSES: dict[str, Callable[[Gateway, float], Awaitable[dict[str, Any]]]] = {
    each.__name__: each for each in (core, streams, words, silent, cancels)
}


async def one(work: Path, workers: Workers, name: str, seconds: float) -> dict[str, Any]:
    work.mkdir()
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    if name == "words":
        write_other_tokenizer(work, "Unigram", special)
    else:
        write_tokenizer(work)
    gateway = await start_gateway(
        work, {"log_level": "warning", "drain_delay_ms": 0}, program=harness.binary("arlo-gateway")
    )
    try:
        deployment = workers.deployment("bench", [(0, LENGTH), (1, LENGTH)], slo_ms=1500, inflight_limit=2)
        deployment.model.tokenizer = (work / "tokenizer.json").read_bytes()
        await gateway.apply(deployment)
        light = of_text("a light client")
        await gateway.infer(service_pb2.ModelInferRequest.FromString(light), timeout=60)
        client = LightClient(work, harness.port_of(gateway), light, QUIET_S + seconds)
        await client.start()
        await asyncio.sleep(QUIET_S)
        begin_s = monotonic_s() - client.began_s
        met = await ABUSES[name](gateway, seconds)
        end_s = monotonic_s() - client.began_s
        records = await client.records()
    finally:
        gateway.process.kill()
        await gateway.process.wait()
        await gateway.close()
    return {"quiet": seen(records, 0.5, begin_s), "during": seen(records, begin_s, end_s), "met": met}


async def run(names: list[str], seconds: float) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with two_workers(Path(folder)) as workers:
            for name in names:
                await workers.whole()
                figures = results[name] = await one(Path(folder) / name, workers, name, seconds)
                quiet, during = figures["quiet"], figures["during"]
                times = during["p99_ms"] / quiet["p99_ms"]
                print(
                    f"{name:8} p50/p99 {quiet['p50_ms']:.1f}/{quiet['p99_ms']:.1f} ms quiet, "
                    f"{during['p50_ms']:.1f}/{during['p99_ms']:.1f} ms beside it ({times:.1f} "
                    f"times), {during['failed']} of {during['asked']} failed; it met {figures['met']}",
                    flush=True,
                )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ABUSES), metavar="NAME", help=", ".join(ABUSES))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each (default 15)")
    args = parser.parse_args()
    began_s = time.monotonic()
    abuses = asyncio.run(run(args.only or list(ABUSES), args.seconds))
    if args.only is None:
        figures = {"seconds": args.seconds, "took_s": round(time.monotonic() - began_s), "abuses": abuses}
        print(f"-> {harness.save('isolation', 'python -m benchmarks.isolation', figures)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
