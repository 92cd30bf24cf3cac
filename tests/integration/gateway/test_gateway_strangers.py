"""One client cannot hurt the others: what it may take of memory, threads, descriptors and log is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import resource
import socket
import stat
import struct
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from arlo.clock import monotonic_s
from tests.fakes.gateway import Gateway
from tests.fakes.processes import until
from tests.fakes.raw_http2 import MAX_CONCURRENT_STREAMS, RST_STREAM, RawHttp2
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import Example, check, example, one_row, request_of

pytestmark = pytest.mark.integration

INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def still_serves(gateway: Gateway) -> None:
    check(await gateway.infer(request_of(example(60)), timeout=10), example(60))


async def fault_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), raised.value.details() or ""


def page(gateway: Gateway, path: str) -> int:
    with urllib.request.urlopen(f"http://{gateway.http}{path}", timeout=10) as answer:
        return int(answer.status)


@contextlib.contextmanager
def connections(address: str, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sockets.append(stack.enter_context(socket.create_connection((host.strip("[]"), int(port)), timeout=10)))
            if said:
                sockets[-1].sendall(said)
        yield sockets


# --- the HTTP port ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [b"", b"GET /livez HTTP/1.1\r\nHost: slow\r\n", b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"]
)
async def test_idle_connections_do_not_hold_the_http_port(gateway: Gateway, said: bytes) -> None:
    with connections(gateway.http, 400, said):
        for _ in range(3):
            begin_s = monotonic_s()
            assert await asyncio.to_thread(page, gateway, "/livez") == 200
            assert monotonic_s() - begin_s < 2
        assert await asyncio.to_thread(page, gateway, "/metrics") == 200


@pytest.mark.sanitized
async def test_what_is_sent_to_the_http_port_by_mistake(gateway: Gateway) -> None:
    wrong = {
        b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET /livez HTTP/1.0\r\n\r\n": b"HTTP/1.1 200 OK",
        b"HEAD /readyz?x=1 HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n": b"HTTP/1.1 200 OK",
        b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello": b"HTTP/1.1 405 ",
        b"GET /elsewhere HTTP/1.0\r\n\r\n": b"HTTP/1.1 404 ",
        b"\r\nGET /livez HTTP/1.0\r\n\r\n": b"HTTP/1.1 200 OK",
        b"GET http://a/livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n": b"HTTP/1.1 200 OK",
        b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n": b"HTTP/1.1 400 ",
        b"\x16\x03\x01 hello\r\n\r\n": b"HTTP/1.1 400 ",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 9000: b"HTTP/1.1 431 ",
    }
    for said, wanted in wrong.items():
        with connections(gateway.http, 1, said) as (connection,):
            with connection.makefile("rb") as answer:
                assert (await asyncio.to_thread(answer.read)).startswith(wanted)


# --- the data port: messages ------------------------------------------------------------------------------------------


@pytest.mark.sanitized
async def test_counts_of_a_message_are_bounded_while_it_is_read(gateway: Gateway) -> None:
    """34 MB of empty inputs took 1.4 GB, and the only data thread for seconds."""
    before_mb = gateway.rss_mb()
    infer = gateway.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    for field, name in ((0x2A, "inputs"), (0x32, "outputs"), (0x3A, "raw_input_contents"), (0x22, "parameters")):
        code, said = await fault_of(infer(bytes((field, 0)) * (7 << 20)))
        assert (code, said) == (INVALID, f"the request has too many {name}: at most 64 are taken")
    await still_serves(gateway)
    assert gateway.rss_mb() < before_mb + 100


@pytest.mark.sanitized
async def test_compressed_messages_swell_to_the_largest_message_and_no_further(gateway: Gateway) -> None:
    """A megabyte of gzip became a gigabyte in memory."""
    before_mb = gateway.rss_mb()
    bomb = gzip.compress(bytes(48 << 20), 9)  # 48 kB: within the window of a connection
    for encoding in ("gzip", "identity", "unheard-of"):
        with RawHttp2(gateway.grpc) as client:
            for _ in range(4):
                client.call(bomb, headers={"grpc-encoding": encoding}, compressed=True)
            await asyncio.to_thread(client.pings_back)
    await still_serves(gateway)
    assert gateway.rss_mb() < before_mb + 50  # the largest message is of 16 MB


# --- the data port: readers that do not read --------------------------------------------------------------------------


@pytest.mark.sanitized
async def test_a_stream_that_is_not_read_is_not_read_from(workers: Workers, start: Any) -> None:
    """2,000 requests of some kilobytes, answers of 786 kB: they took all memory there was."""
    async with start(workers.deployment("wide", [(0, 512)])) as gateway:
        await gateway.infer(one_row(512, model="wide"))
        before_mb = gateway.rss_mb()
        stream = gateway.stub.ModelStreamInfer()

        async def send() -> None:
            for seed in range(2000):
                await stream.write(one_row(512, model="wide", seed=seed % 10))

        sending = asyncio.create_task(send())
        try:
            seen: list[int] = []

            async def at_rest() -> bool:
                stats = await gateway.stats()
                seen.append(stats.outcomes.on_time + stats.outcomes.late)
                return len(seen) > 20 and len(set(seen[-20:])) == 1 and stats.in_flight + stats.queued == 0

            await until(at_rest, "no more of its requests are taken", every_s=0.05)
            assert seen[-1] < 200
            assert gateway.rss_mb() < before_mb + 120
            check(await gateway.infer(one_row(30, model="wide")), example(30), model="wide", token_dims=384)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
        stream.cancel()


async def test_calls_wait_until_the_answers_to_others_are_taken(workers: Workers, start: Any) -> None:
    """With its window shut, a client lets each answer wait in the gateway: 480 MB were held so, and worked for."""
    async with start(workers.deployment("wide", [(0, 512), (1, 512)], inflight_limit=8)) as gateway:
        # Short in bytes: within the window of a connection, 50 at a time.
        sent = Example((np.ones(512, np.int64),), 512, mask=False, typed=True)
        body = request_of(sent, model="wide").SerializeToString()
        await gateway.infer(one_row(512, model="wide"))
        before_mb = gateway.rss_mb()
        with RawHttp2(gateway.grpc, window=0) as client:
            for _ in range(12):  # 470 MB of answers
                for _ in range(50):
                    client.call(body)
                await asyncio.to_thread(client.pings_back)
            stats = await gateway.stats_when(
                lambda stats: stats.in_flight + stats.queued == 0, "all at rest", timeout_s=60
            )
            assert stats.outcomes.on_time + stats.outcomes.late < 300
            assert gateway.rss_mb() < before_mb + 250
            check(await gateway.infer(one_row(30, model="wide")), example(30), model="wide", token_dims=384)


# --- the data port: connections, streams, headers ---------------------------------------------------------------------


@pytest.mark.sanitized
async def test_streams_of_a_connection_are_limited(gateway: Gateway) -> None:
    with RawHttp2(gateway.grpc) as client:
        assert client.settings[MAX_CONCURRENT_STREAMS] == 2048
        with contextlib.suppress(ConnectionError):  # it is closed before all is said
            for _ in range(5000):  # opened and reset at once
                stream = client.call(b"")
                client.send(RST_STREAM, 0, stream, struct.pack(">I", 8))
        with pytest.raises((ConnectionError, EOFError)):
            await asyncio.to_thread(client.pings_back)
    assert [line["limit"] for line in gateway.logged("client_over_limit")] == ["resets"]
    await still_serves(gateway)


@pytest.mark.sanitized
async def test_bad_headers_do_not_fill_the_log(gateway: Gateway) -> None:
    before = gateway.log.stat().st_size
    body = one_row(5).SerializeToString()
    with RawHttp2(gateway.grpc) as client:
        for _ in range(2000):
            client.call(body, headers={"grpc-timeout": "for ever"})
        await asyncio.to_thread(client.pings_back)
    await still_serves(gateway)
    assert gateway.log.stat().st_size - before < 60_000


@pytest.mark.sanitized
async def test_descriptors_are_as_many_as_the_machine_allows(start: Any) -> None:
    """Out of them once, gRPC accepts no connection ever again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        async with start() as gateway:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE) == (hard, hard)
            with connections(gateway.grpc, 400):
                assert await asyncio.to_thread(page, gateway, "/livez") == 200
                await gateway.stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- the admin port ---------------------------------------------------------------------------------------------------


@pytest.mark.sanitized
async def test_the_admin_port_as_a_socket_of_this_user(workers: Workers, start: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:  # a short path: a socket's is of 107 bytes at most
        path = Path(folder) / "admin.sock"
        deployment = workers.deployment("emu", [(0, 64)])
        async with start(deployment, admin_address=f"unix:{path}") as gateway:
            assert gateway.admin == f"unix:{path}"
            assert stat.S_ISSOCK(path.stat().st_mode)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            check(await gateway.infer(request_of(example(3))), example(3))
            assert not gateway.logged("admin_port_is_open")


async def test_an_admin_port_for_all_is_warned_of(start: Any) -> None:
    async with start(admin_address="0.0.0.0:0") as gateway:
        assert [line["level"] for line in gateway.logged("admin_port_is_open")] == ["warning"]


async def test_a_version_far_ahead_would_shut_out_all_later_ones(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("emu", [(0, 64)], version=7)) as gateway:
        far = workers.deployment("emu", [(0, 64)], version=2**64 - 1)
        code, said = await fault_of(gateway.call("Apply", deployment=far))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert "is far ahead of version 7, which is in force" in said
        await gateway.apply(workers.deployment("emu", [(1, 64)], version=8))
