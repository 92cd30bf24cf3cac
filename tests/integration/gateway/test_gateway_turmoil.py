"""All ports at once: clients that come, break off, half close and reset, while requests run and deployments change.

What matters is what a sanitizer sees of it; without one, that all who behave are answered, and nothing stays behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.fakes.gateway import Gateway, last_words
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import example, one_row, request_of
from tests.integration.gateway.load import Load

pytestmark = pytest.mark.integration

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PAGES = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"
SAID = {
    "http": (
        b"",
        b"GET /live",
        b"GET /livez HTTP/1.0\r\n\r\n",
        PAGES,
        PAGES * 20,
        b"x" * 9000,
        b"POST / HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    "grpc": (b"", PREFACE[:9], PREFACE + bytes(3) + b"\x04" + bytes(5), PAGES, PREFACE + b"\xff" * 40),
}
PLACEMENTS = ([(0, 512), (1, 512)], [(0, 512), (2, 128), (3, 64)], [(0, 512), (3, 512)])


async def break_in(address: str, said: bytes, how: str) -> None:
    """One connection that says something and then reads, stops writing, resets or leaves."""
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    try:
        with contextlib.suppress(OSError):  # it may be closed by then
            writer.write(said)
            if how == "half":
                writer.write_eof()
            if how in ("half", "read"):
                async with asyncio.timeout(0.05):
                    await reader.read(5000)
            if how == "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def strangers(addresses: dict[str, str], seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(60):
        kind = ("http", "http", "grpc", "admin")[random.integers(4)]
        said = SAID["grpc" if kind == "admin" else kind]
        how = ("half", "read", "reset", "leave")[random.integers(4)]
        await break_in(addresses[kind], said[random.integers(len(said))], how)


async def streams(gateway: Gateway, seed: int) -> None:
    """Streams that end well, are cancelled with answers on the way, or whose requests expire; and calls cut short."""
    random = np.random.default_rng(seed)
    for number in range(12):
        stream = gateway.stub.ModelStreamInfer()
        count = int(random.integers(1, 12))
        for _ in range(count):
            timeout_us = int(random.integers(500, 9000)) if number % 3 == 2 else None
            await stream.write(one_row(int(random.integers(1, 512)), timeout_us=timeout_us))
        if number % 3 == 0:
            await asyncio.sleep(random.uniform(0, 0.01))
            stream.cancel()
        else:
            await stream.done_writing()
            answers = [answer async for answer in stream]
            assert len(answers) == count
            assert number % 3 == 2 or not any(answer.error_message for answer in answers)
        batch = request_of(example(*random.integers(1, 512, 3).tolist()))
        with contextlib.suppress(grpc.aio.AioRpcError):
            await gateway.infer(batch, timeout=random.uniform(0.001, 0.03))


async def watchers(gateway: Gateway) -> None:
    for number in range(12):
        watch = gateway.watch(interval_ms=100)
        for _ in range(number % 3):
            await watch.read()
        await gateway.stats()
        watch.cancel()


async def deployments(gateway: Gateway, workers: Workers) -> None:
    """Instances come, go and are drained; one that takes every row stays."""
    for version in range(2, 14):
        await gateway.apply(workers.deployment("emu", PLACEMENTS[version % len(PLACEMENTS)], version=version))
        deployment = (await gateway.call("GetDeployment")).deployment
        await gateway.call("Drain", instance=deployment.instances[-1].id, timeout_ms=10_000)


def descriptors(gateway: Gateway) -> int:
    return sum(1 for _ in Path(f"/proc/{gateway.pid}/fd").iterdir())


def everyone(gateway: Gateway, workers: Workers) -> list[Awaitable[None]]:
    addresses = {"http": gateway.http, "grpc": gateway.grpc, "admin": gateway.admin}
    return [
        *(strangers(addresses, seed) for seed in range(4)),
        *(streams(gateway, seed) for seed in range(2)),
        watchers(gateway),
        deployments(gateway, workers),
    ]


@pytest.mark.parametrize("admin", ["tcp", "unix"])
@pytest.mark.sanitized
async def test_turmoil_on_all_ports(workers: Workers, start: Any, admin: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # a short path: a socket's is of 107 bytes at most
        address = f"unix:{Path(folder) / 'admin.sock'}" if admin == "unix" else "127.0.0.1:0"
        deployment = workers.deployment("emu", PLACEMENTS[0])
        async with start(deployment, admin_address=address, threads=3, log_level="error") as gateway:
            async with Load(gateway, concurrency=4):
                before = descriptors(gateway)
                await asyncio.gather(*everyone(gateway, workers))
            stats = await gateway.stats_when(lambda stats: stats.queued + stats.in_flight == 0, "idle")
            assert (stats.outcomes.failed, stats.ejections) == (0, 0)
            await until(lambda: descriptors(gateway) <= before + 2, "what has gone is closed")


@pytest.mark.sanitized
async def test_the_end_amid_turmoil(workers: Workers, start: Any) -> None:
    """Whatever is under way when the signal comes, the gateway ends by itself and says that all is well."""
    deployment = workers.deployment("emu", PLACEMENTS[0], inflight_limit=1)
    async with start(deployment, threads=3, drain_timeout_ms=100, log_level="error") as gateway:
        under_way = asyncio.gather(*everyone(gateway, workers), return_exceptions=True)
        await gateway.stats_when(lambda stats: stats.outcomes.on_time + stats.outcomes.late > 30, "all are at it")
        os.kill(gateway.pid, signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await gateway.process.wait() == 0, last_words(gateway.log)
        await under_way  # all of them break off, each in its own way
