"""Millions of mixed requests through one gateway: memory and descriptors stay flat, and the books add up.

Instances of arlo-instant-upstream answer at once. In each of ten steps arlo-loadgen sends its share of the requests, 64
at a time: one row of 1 to 512 tokens, eight rows, and one in fifty that is wrong in one of five ways. Meanwhile other
clients misbehave: streams that end well or are cut off, calls cancelled or with deadlines of milliseconds, connections
that break off within a message. After each step, once the gateway is idle, the figures are taken:

    rss_mb, descriptors   of the gateway
    books                 rows and requests as the gateway counts them (`Stats`), and as clients saw them
    executed              rows that the upstream executed

The books add up when nothing is queued or in flight at rest; when each row that arrived, and each request that was
refused unread, has ended once; when clients of arlo-loadgen saw every answer sent to them; and when the workers
executed as many rows as were started. Prints the figures as JSON; if a check fails, `ok` is false and the exit status
is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks import harness
from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.raw_http2 import RawHttp2

LENGTHS = (64, 512)
INSTANCES = 8  # of each length
STEPS = 10
WRONG_EVERY = 50
GROWN_MB, GROWN_DESCRIPTORS = 30, 10  # from the second step on
REFUSED = {"3", "5"}  # INVALID_ARGUMENT and NOT_FOUND, as arlo-loadgen counts them
QUIET = {"log_level": "error", "drain_delay_ms": 0}


def rows(lengths: list[int], **changes: Any) -> Any:
    """A request of rows of these lengths."""
    ids = np.ones((len(lengths), max(lengths)), "<i8")
    mask = (np.arange(ids.shape[1])[None] < np.array(lengths)[:, None]).astype("<i8")
    request = service_pb2.ModelInferRequest(model_name="bench", **changes)
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        request.inputs.add(name=name, datatype="INT64", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    request.outputs.add(name="embedding")
    return request


def wrong_requests() -> list[bytes]:
    """Five requests to be refused: an unknown output, too long a row, a wrong type, a wrong size, a sequence."""
    output = rows([5])
    output.outputs[0].name = "nothing"
    kind = rows([5])
    kind.inputs[0].datatype = "FP32"
    size = rows([5])
    size.raw_input_contents[0] = size.raw_input_contents[0][:-1]
    sequence = rows([5])
    sequence.parameters["sequence_id"].int64_param = 7
    return [bytes(each.SerializeToString()) for each in (output, rows([600]), kind, size, sequence)]


def payloads() -> tuple[list[bytes], int]:
    """The requests that arlo-loadgen cycles through, and the total rows of the good ones."""
    dice = random.Random(1)
    wrong = wrong_requests()
    out, total = [], 0
    for number in range(len(wrong) * WRONG_EVERY):
        if number % WRONG_EVERY == 0:
            out.append(wrong[number // WRONG_EVERY])
            continue
        lengths = [dice.randint(1, 512) for _ in range(8 if number % 10 == 1 else 1)]
        total += len(lengths)
        out.append(bytes(rows(lengths).SerializeToString()))
    return out, total


class Others:
    """Clients that misbehave until stop() is called."""

    def __init__(self, gateway: Gateway) -> None:
        self.done: dict[str, int] = {}
        self._gateway = gateway
        self._dice = random.Random(2)
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._stopped = False
        kinds = (self._stream, self._cut_stream, self._cancelled, self._hasty, self._broken_off)
        self._tasks = [asyncio.create_task(self._again(kind)) for kind in kinds]

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def _again(self, kind: Any) -> None:
        name = kind.__name__.strip("_")
        while not self._stopped:
            await kind()
            self.done[name] = self.done.get(name, 0) + 1
            await asyncio.sleep(0.05)  # all on one connection: more cancels than limits.resets would end it

    def _one(self) -> Any:
        return rows([self._dice.randint(1, 512)])

    async def _stream(self) -> None:
        stream = self._gateway.stub.ModelStreamInfer()
        for _ in range(20):
            await stream.write(self._one())
        await stream.done_writing()
        answers = [answer async for answer in stream]
        assert len(answers) == 20

    async def _cut_stream(self) -> None:
        stream = self._gateway.stub.ModelStreamInfer()
        for _ in range(self._dice.randint(1, 20)):
            await stream.write(self._one())
        stream.cancel()

    async def _cancelled(self) -> None:
        call = self._gateway.stub.ModelInfer(self._one())
        await asyncio.sleep(self._dice.uniform(0, 0.003))
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await call

    async def _hasty(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._gateway.stub.ModelInfer(self._one(), timeout=self._dice.uniform(0.0005, 0.005))

    async def _broken_off(self) -> None:
        await asyncio.to_thread(self._break_off)

    def _break_off(self) -> None:
        """Send a whole call without waiting for its answer, and one that ends within its message."""
        body = bytes(self._one().SerializeToString())
        with RawHttp2(self._gateway.grpc) as client:
            client.call(body)
            client.call(body, cut=len(body) // 2)
            if self._dice.random() < 0.5:
                client.reset()


def books_of(stats: Any) -> dict[str, int]:
    """The gateway's counters since its start."""
    fields = ("on_time", "late", "rejected", "expired", "cancelled", "failed", "overloaded")
    outcomes = {field: int(getattr(stats.outcomes, field)) for field in fields}
    return {
        **outcomes,
        "ended": sum(outcomes.values()) - outcomes["overloaded"],  # which are among the rejected and the expired
        "arrived": sum(stats.arrivals_by_length),
        "dispatched": sum(level.dispatched for level in stats.levels),
        "started": sum(instance.started for instance in stats.instances),
        "retries": int(stats.retries),
    }


async def at_rest(gateway: Gateway, upstream: str) -> tuple[dict[str, int], int]:
    """The books once nothing moves any more, and the rows that were executed."""
    seen: list[tuple[dict[str, int], int]] = []
    for _ in range(200):
        stats = await gateway.stats_when(lambda s: s.queued + s.parked + s.in_flight == 0, "all at rest", timeout_s=60)
        seen.append((books_of(stats), await asyncio.to_thread(executed_by, upstream)))
        if len(seen) > 5 and all(each == seen[-1] for each in seen[-5:]):
            break
        await asyncio.sleep(0.1)
    return seen[-1]


def executed_by(upstream: str) -> int:
    """Rows that the upstream executed since its start."""
    with grpc.insecure_channel(upstream) as channel:
        statistics = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStatistics(
            service_pb2.ModelStatisticsRequest()
        )
    return int(statistics.model_stats[0].execution_count)


def deployment_of(upstream: str) -> Any:
    """INSTANCES of each length."""
    wanted = harness.deployment(upstream, f"bench_len{LENGTHS[0]}", LENGTHS[0], dims=4, instances=INSTANCES)
    longer = harness.deployment(upstream, f"bench_len{LENGTHS[1]}", LENGTHS[1], dims=4, instances=INSTANCES)
    for instance in longer.instances:
        instance.id = f"longer.{instance.id}"
    wanted.runtimes.extend(longer.runtimes)
    wanted.instances.extend(longer.instances)
    return wanted


async def step(work: Path, gateway: Gateway, count: int, sent: list[bytes]) -> dict[str, Any]:
    """Run one step; returns arlo-loadgen's report of its share."""
    flags = ["--concurrency", "64", "--channels", "4", "--requests", str(count)]
    return await asyncio.to_thread(harness.load, work, harness.port_of(gateway), sent, *flags)


def wrong_of(books: dict[str, int], executed: int, codes: dict[str, int], rows_sent: int) -> list[str]:
    """Discrepancies of the books. `codes`: status codes that arlo-loadgen saw so far; `rows_sent`: in good requests."""
    refused = sum(codes.get(code, 0) for code in REFUSED)
    answered = books["on_time"] + books["late"]
    checks = {
        f"{books['ended']} ended, of {books['arrived']} rows that arrived and {refused} that were refused": (
            books["ended"] == books["arrived"] + refused
        ),
        f"clients saw {codes}": set(codes) <= {"0", *REFUSED},
        f"{answered} rows answered, {rows_sent} of them sent by arlo-loadgen": answered >= rows_sent,
        f"{books['failed']} rows failed": books["failed"] == 0,
        f"{books['dispatched']} dispatched, {books['started']} started, {executed} executed": (
            books["dispatched"] == books["started"] == executed
        ),
    }
    return [what for what, holds in checks.items() if not holds]


async def soak(work: Path, upstream: str, requests: int) -> dict[str, Any]:
    wanted = deployment_of(upstream)
    sent, rows_a_cycle = payloads()
    count = max(1, round(requests / STEPS / len(sent))) * len(sent)  # whole cycles, so that the rows are known
    steps: list[dict[str, Any]] = []
    codes: dict[str, int] = {}
    async with gateway_of(work, wanted, QUIET, program=harness.binary("arlo-gateway")) as gateway:
        others = Others(gateway)
        for number in range(1, STEPS + 1):
            others.start()
            report = await step(work, gateway, count, sent)
            await others.stop()
            for code, seen in report["codes"].items():
                codes[code] = codes.get(code, 0) + seen
            books, executed = await at_rest(gateway, upstream)
            measured = harness.Measured(gateway.pid)
            wrong = wrong_of(books, executed, codes, rows_a_cycle * number * count // len(sent))
            steps.append(
                {
                    "requests": number * count,
                    "rate_rps": count / report["duration_s"],
                    "rss_mb": measured.rss_mb(),
                    "descriptors": len(list(Path(f"/proc/{gateway.pid}/fd").iterdir())),
                    "wrong": wrong,
                }
            )
            last = steps[-1]
            print(
                f"{last['requests']:>10} requests  {last['rate_rps']:6.0f}/s  {last['rss_mb']:6.1f} MB  "
                f"{last['descriptors']} descriptors  {'; '.join(wrong) or 'books add up'}",
                file=sys.stderr,
                flush=True,
            )
    later = steps[1:]
    grown_mb = max(each["rss_mb"] for each in later) - later[0]["rss_mb"]
    grown_fds = max(each["descriptors"] for each in later) - later[0]["descriptors"]
    return {
        "requests": STEPS * count,
        "ok": grown_mb <= GROWN_MB and grown_fds <= GROWN_DESCRIPTORS and not any(each["wrong"] for each in steps),
        "grown_mb": grown_mb,
        "grown_descriptors": grown_fds,
        "books": books,
        "executed": executed,
        "codes": codes,
        "others": others.done,
        "steps": steps,
    }


async def run(requests: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        work, port = Path(folder), harness.free_port()
        command = [harness.binary("arlo-instant-upstream"), "--port", port, "--output", "embedding:FP32:1,4"]
        with harness.Program(command, log=work / "upstream.log"):
            await asyncio.to_thread(harness.wait_for_port, port)
            return await soak(work, f"127.0.0.1:{port}", requests)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="of arlo-loadgen (default 1,000,000)")
    args = parser.parse_args()
    figures = asyncio.run(run(args.requests))
    path = harness.save("soak", "python -m benchmarks.load.soak " + " ".join(sys.argv[1:]), figures)
    print(json.dumps(figures, indent=2))
    print(f"-> {path}", file=sys.stderr)
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
