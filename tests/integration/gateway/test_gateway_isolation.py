"""One client must not stop the others: what is large, slow or silent costs whoever sends it.

Light requests are sent one after the other while a heavy one is under way. Were it read on the thread that serves them,
or in one line with them, next to none would be answered before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tritonclient.grpc import service_pb2_grpc

from tests.fakes.gateway import UNLIMITED, Gateway
from tests.fakes.h2_client import H2Client, connect
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import of_text, one_row

pytestmark = pytest.mark.integration

BESIDE = 8  # light requests that are answered before a heavy one
LONG = "amber basil cedar " * 800_000  # 14 MB
LENGTHS = [(0, 64), (1, 128), (2, 256), (3, 512)]


def children(pid: int) -> set[int]:
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(each) for each in path.read_text().split()}
    return found


def helpers_ms(gateway: Gateway) -> int:
    """CPU time of the gateway's helpers."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in children(gateway.pid)]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) * 1000 // os.sysconf("SC_CLK_TCK")


async def beside(heavy: Any, gateway: Gateway, light: Any, clients: int = 1, *, helped: bool = False) -> int:
    """How many light requests were answered before a heavy one, which each of so many clients has sent on a stream.

    `helped`: by helpers, which are at it before the light ones begin; counted until half of their work is done.
    """
    before_ms = helpers_ms(gateway)
    async with contextlib.AsyncExitStack() as stack:
        streams = []
        for _ in range(clients):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(gateway.grpc, options=UNLIMITED))
            streams.append(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer())
            await streams[-1].write(heavy)  # most of it has been taken then
        heavy_ones = asyncio.gather(*(stream.read() for stream in streams))
        if helped:
            await until(lambda: helpers_ms(gateway) > before_ms + 30, "a helper is at the heavy one")
        answered_ms = []  # and what the helpers had done by then
        while not heavy_ones.done():
            await gateway.infer(light, timeout=60)
            if not heavy_ones.done():
                answered_ms.append(helpers_ms(gateway))
        for each in await heavy_ones:
            assert not each.error_message
        for stream in streams:
            await stream.done_writing()
            assert (await stream.read()) is grpc.aio.EOF
        half_ms = (before_ms + helpers_ms(gateway)) / 2
        return sum(ms < half_ms or not helped for ms in answered_ms)


@pytest.mark.parametrize("pair", [False, True])
async def test_long_texts_of_a_stream_are_read_aside(workers: Workers, start: Any, tokenizer: Path, pair: bool) -> None:
    deployment = workers.deployment("emu", LENGTHS)
    deployment.model.tokenizer = tokenizer.read_bytes()
    request = of_text(["short"], [LONG], truncate="END") if pair else of_text([LONG], truncate="START")
    async with start(deployment) as gateway:
        await gateway.infer(of_text(["a"]), timeout=20)
        assert await beside(request, gateway, of_text(["a few words"])) >= BESIDE


async def test_what_a_client_gives_up_is_not_read(workers: Workers, start: Any, tokenizer: Path) -> None:
    """Long texts that wait to be read go with their streams: neither their memory nor their time is taken."""
    deployment = workers.deployment("emu", LENGTHS)
    deployment.model.tokenizer = tokenizer.read_bytes()
    async with start(deployment) as gateway, grpc.aio.insecure_channel(gateway.grpc, options=UNLIMITED) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        await gateway.infer(of_text(["a"]), timeout=20)
        before_mb = gateway.rss_mb()
        for _ in range(12):
            streams = [stub.ModelStreamInfer() for _ in range(2)]
            for stream in streams:
                await stream.write(of_text([LONG], truncate="START"))
                stream.cancel()
        await gateway.infer(of_text(["a"]), timeout=20)
        # One may still be read, and one was on its way.
        await until(lambda: gateway.rss_mb() < before_mb + 150, f"memory is back: {before_mb:.0f} MB", timeout_s=20)


@pytest.fixture
def elsewhere(workers: Workers) -> Any:
    """A deployment whose texts are made token ids by helpers."""
    words = Tokenizer(models.WordLevel({"[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    deployment = workers.deployment("emu", LENGTHS)
    deployment.model.tokenizer = words.to_str().encode()
    return deployment


def with_helpers(count: int) -> dict[str, Any]:
    return {"text_helpers": count, "text_command": [sys.executable, "-P", "-m", "arlo.front.helper"]}


async def started(gateway: Gateway, helpers: int) -> None:
    async def all_of_them() -> bool:
        await asyncio.gather(*(gateway.infer(of_text(["a"]), timeout=60) for _ in range(8)))
        return len(children(gateway.pid)) == helpers

    await until(all_of_them, "all helpers have started")


async def test_requests_take_turns_at_a_helper(start: Any, elsewhere: Any) -> None:
    async with start(elsewhere, **with_helpers(1)) as gateway:
        await started(gateway, 1)
        heavy = of_text(["a b " * 20_000] * 64, truncate="END")
        assert await beside(heavy, gateway, of_text(["a b"]), helped=True) >= BESIDE


async def test_long_rows_leave_a_helper_to_others(start: Any, elsewhere: Any) -> None:
    """Two of them at once, and two helpers."""
    async with start(elsewhere, **with_helpers(2)) as gateway:
        await started(gateway, 2)
        heavy = of_text(["ab" * 60_000] * 32, truncate="END")
        assert await beside(heavy, gateway, of_text(["a b"]), clients=2, helped=True) >= BESIDE


async def test_what_takes_too_long_is_not_tried_again(start: Any, elsewhere: Any) -> None:
    async with start(elsewhere, **with_helpers(1)) as gateway:
        await gateway.infer(of_text(["a"]), timeout=60)
        (helper,) = children(gateway.pid)
        os.kill(helper, signal.SIGSTOP)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.infer(of_text(["a b"]), timeout=60)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, caught.value
        assert "takes too long" in str(caught.value.details())
        assert len(gateway.logged("text_helper_ended")) == 1
        await gateway.infer(of_text(["a b"]), timeout=60)
        assert helper not in children(gateway.pid)


FLOODS = {
    "silent": ("api", b""),
    "half a head": ("api", b"POST /embed HTTP/1.1\r\nHost: a\r\nX-A"),
    "half a body": ("api", b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"),
    "silent on the data port": ("grpc", b""),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_newcomers_find_room_beside_connections_that_wait(workers: Workers, start: Any, flood: str) -> None:
    """More of them than there are descriptors, at one port; both take others."""
    port, said = FLOODS[flood]
    small = one_row(5).SerializeToString()
    async with start(workers.deployment("emu", LENGTHS)) as gateway, contextlib.AsyncExitStack() as stack:
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (256, 256))
        host, _, number = getattr(gateway, port).rpartition(":")

        def crowd() -> None:
            for _ in range(400):
                with contextlib.suppress(OSError):
                    each = stack.enter_context(socket.create_connection((host, int(number)), timeout=10))
                    each.sendall(said)

        def over_http() -> bool:
            with contextlib.closing(http.client.HTTPConnection(gateway.api, timeout=5)) as client:
                client.request("GET", "/v1/models")
                return client.getresponse().status == 200

        def over_grpc() -> bool:
            with H2Client(connect(gateway.grpc)) as client:
                return client.infer(small).status == "0"

        async def both() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return await asyncio.to_thread(over_grpc) and await asyncio.to_thread(over_http)
            return False

        await asyncio.to_thread(crowd)
        await until(both, "newcomers of both ports are answered", timeout_s=20)
        await gateway.infer(one_row(5), timeout=10)  # on a connection that was there before
