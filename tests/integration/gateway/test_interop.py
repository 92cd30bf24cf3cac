"""Clients of gRPC as they come: `tritonclient` and `grpcio` with their options, `@grpc/grpc-js`, curl."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.fakes.gateway import UNLIMITED, Gateway
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, check_result, example, inputs_of, one_row, request_of

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
COMPRESSIONS = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}


def answer_of(body: bytes) -> Any:
    return service_pb2.ModelInferResponse.FromString(body)


# --- tritonclient -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tritonclient_compresses(gateway: Gateway, compression: str) -> None:
    with triton.InferenceServerClient(gateway.grpc) as client:
        for sent in (example(3), example(500, 20)):
            check_result(client.infer("emu", inputs_of(sent), compression_algorithm=compression), sent)


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_tritonclient_compresses_with_asyncio(gateway: Gateway, compression: str) -> None:
    sent = [example(1 + 40 * number, seed=number) for number in range(10)]
    async with triton_aio.InferenceServerClient(gateway.grpc) as client:
        calls = (client.infer("emu", inputs_of(each, triton_aio), compression_algorithm=compression) for each in sent)
        for result, each in zip(await asyncio.gather(*calls), sent, strict=True):
            check_result(result, each)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tritonclient_compresses_a_stream(gateway: Gateway, compression: str) -> None:
    sent = {str(number): example(1 + 50 * number, seed=number) for number in range(10)}
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(gateway.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm=compression)
        for name, each in sent.items():
            client.async_stream_infer("emu", inputs_of(each), request_id=name)
        for _ in range(len(sent)):
            result, error = answers.get(timeout=20)
            assert error is None
            check_result(result, sent.pop(result.get_response().id))
        client.stop_stream()


# --- grpcio -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_a_channel_that_compresses(gateway: Gateway, compression: str) -> None:
    """Also calls of it that do not, and messages of both kinds on a stream."""
    async with grpc.aio.insecure_channel(gateway.grpc, compression=COMPRESSIONS[compression]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for one in (None, grpc.Compression.NoCompression):
            check(await stub.ModelInfer(request_of(example(200)), compression=one, timeout=10), example(200))
        stream = stub.ModelStreamInfer(timeout=10)
        for seed in range(5):
            await stream.write(request_of(example(100, seed=seed)))
            check((await stream.read()).infer_response, example(100, seed=seed))
        stream.cancel()


async def test_keepalive_pings(gateway: Gateway) -> None:
    """More of them than a server of gRPC likes: what is asked meanwhile is answered all the same."""
    options = [
        ("grpc.keepalive_time_ms", 50),
        ("grpc.keepalive_timeout_ms", 2000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(gateway.grpc, options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for seed in range(4):
            sent = example(50, seed=seed)
            check(await stub.ModelInfer(request_of(sent), timeout=10, wait_for_ready=True), sent)
            await asyncio.sleep(0.2)


async def test_wait_for_ready(start: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ServerLive(service_pb2.ServerLiveRequest(), wait_for_ready=True, timeout=20)
        waiting = asyncio.ensure_future(call)
        await asyncio.sleep(0.2)
        assert not waiting.done()
        async with start(grpc_address=address):
            assert (await waiting).live


async def test_metadata(gateway: Gateway) -> None:
    """Text, bytes, many, long; a name twice. The limit of all is 16 KiB."""
    every_byte = bytes(range(256))
    for metadata in (
        [("x-text", " with  spaces "), ("x-text", "twice"), ("x-empty", "")],
        [("x-bin", every_byte), ("x-empty-bin", b""), ("x-bin", every_byte[::-1])],
        [(f"x-{number}", "v" * 20) for number in range(100)],
        [("x-long", "v" * 10_000)],
        [("x-long-bin", every_byte * 20)],
        [("user-agent", "someone else's"), ("traceparent", f"00-{'a' * 32}-{'b' * 16}-01")],
    ):
        check(await gateway.infer(request_of(example(9)), metadata=metadata, timeout=10), example(9))


async def test_a_client_with_small_limits_hurts_itself_alone(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("wide", [(0, 512)])) as gateway:
        options = [("grpc.max_receive_message_length", 10_000), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(gateway.grpc, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            small = example(300, outputs=("embedding",))
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await stub.ModelInfer(one_row(300, model="wide"), timeout=10)
                assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                check(await stub.ModelInfer(request_of(small, model="wide"), timeout=10), small, model="wide")


async def test_messages_of_tens_of_megabytes(workers: Workers, start: Any) -> None:
    """Both ways and four at a time: 30 MB there (a field of a later protocol), 25 MB back."""
    async with start(workers.deployment("wide", [(0, 512), (1, 512)]), max_message_bytes=64 << 20) as gateway:
        sent = example(*[512] * 32)
        request = request_of(sent, model="wide")
        filler = 30 << 20
        request.MergeFromString(b"\xa2\x06" + varint(filler) + bytes(filler))
        async with grpc.aio.insecure_channel(gateway.grpc, options=UNLIMITED) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for answer in await asyncio.gather(*(stub.ModelInfer(request, timeout=60) for _ in range(4))):
                check(answer, sent, model="wide", token_dims=384)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


async def test_a_thousand_calls_at_a_time(gateway: Gateway) -> None:
    async with grpc.aio.insecure_channel(gateway.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        sent = [example(1 + number % 60, seed=number, outputs=("embedding",)) for number in range(1000)]
        answers = await asyncio.gather(*(stub.ModelInfer(request_of(each), timeout=30) for each in sent))
        for answer, each in zip(answers, sent, strict=True):
            check(answer, each)


# --- others -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grpc_js() -> Callable[..., Any]:
    """grpc_js(address, calls, **more): the results of calls that client.js makes, see there."""
    modules = ROOT / "build" / "grpc_js" / "node_modules"
    node = shutil.which("node")
    if node is None or not (modules / "@grpc" / "grpc-js").is_dir():
        pytest.skip("needs node and @grpc/grpc-js: `make interop` installs the package and runs this")

    def run(address: str, calls: list[dict[str, Any]], **more: Any) -> Any:
        program = Path(__file__).parent / "grpc_js" / "client.js"
        done = subprocess.run(
            [node, str(program)],
            input=json.dumps({"address": address, "calls": calls, **more}),
            env={**os.environ, "NODE_PATH": str(modules)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


def hex_of(request: Any) -> str:
    return str(request.SerializeToString().hex())


async def test_grpc_js(gateway: Gateway, grpc_js: Callable[..., Any]) -> None:
    sent = [example(1 + 9 * number % 512, seed=number) for number in range(200)]
    calls: list[dict[str, Any]] = [{"path": INFER, "bodies": [hex_of(request_of(each))]} for each in sent]
    results = await asyncio.to_thread(grpc_js, gateway.grpc, calls)
    for result, each in zip(results, sent, strict=True):
        assert result["code"] == 0, result
        check(answer_of(bytes.fromhex(result["answers"][0])), each)


async def test_grpc_js_errors_and_metadata(gateway: Gateway, grpc_js: Callable[..., Any]) -> None:
    good = hex_of(one_row(5))
    calls: list[dict[str, Any]] = [
        {"path": INFER, "bodies": [hex_of(one_row(5, model="nobody"))]},
        {"path": "/inference.GRPCInferenceService/Nothing", "bodies": [good]},
        {"path": INFER, "bodies": [good], "metadata": {"x-text": "a b", "x-bin": "00ff10"}},
        {"path": INFER, "bodies": ["ffffff"]},
        {"path": INFER, "bodies": [good], "timeout_ms": 10_000},
    ]
    results = await asyncio.to_thread(grpc_js, gateway.grpc, calls)
    codes = [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK]
    codes += [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OK]
    assert [result["code"] for result in results] == [code.value[0] for code in codes]
    assert "nobody" in results[0]["details"]


async def test_grpc_js_streams(gateway: Gateway, grpc_js: Callable[..., Any]) -> None:
    sent = {str(number): example(1 + 20 * number, seed=number, id=str(number)) for number in range(20)}
    bodies = [hex_of(request_of(each)) for each in sent.values()]
    (result,) = await asyncio.to_thread(grpc_js, gateway.grpc, [{"path": STREAM, "bodies": bodies, "stream": True}])
    assert result["code"] == 0, result
    for answer in result["answers"]:
        response = service_pb2.ModelStreamInferResponse.FromString(bytes.fromhex(answer)).infer_response
        check(response, sent.pop(response.id))
    assert not sent


@pytest.mark.parametrize("compression", [1, 2], ids=["deflate", "gzip"])
async def test_grpc_js_compresses(gateway: Gateway, grpc_js: Callable[..., Any], compression: int) -> None:
    calls = [{"path": INFER, "bodies": [hex_of(request_of(example(300)))]}]
    options = {"grpc.default_compression_algorithm": compression}
    (result,) = await asyncio.to_thread(grpc_js, gateway.grpc, calls, options=options)
    assert result["code"] == 0, result
    check(answer_of(bytes.fromhex(result["answers"][0])), example(300))


async def test_curl(gateway: Gateway, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    body = request_of(example(40)).SerializeToString()
    (tmp_path / "body").write_bytes(b"\0" + struct.pack(">I", len(body)) + body)
    command = ["curl", "-sS", "--http2-prior-knowledge", "--max-time", "20", "-D", str(tmp_path / "head")]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", "-o", str(tmp_path / "answer")]
    command += ["--data-binary", f"@{tmp_path / 'body'}", f"http://{gateway.grpc}{INFER}"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head = (tmp_path / "head").read_text().lower()
    assert head.startswith("http/2 200")
    assert "content-type: application/grpc" in head
    assert "grpc-status: 0" in head
    check(answer_of((tmp_path / "answer").read_bytes()[5:]), example(40))
