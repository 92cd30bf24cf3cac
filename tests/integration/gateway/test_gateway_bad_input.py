"""Bad input: each has a clear error, none hurts the gateway. Every single refusal of a request and its words are in
tests/cpp/gateway_faults_test.cc; here one of each place that refuses, and what is no request at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.fakes.gateway import Gateway
from tests.integration.gateway.examples import check, example, one_row, request_of

pytestmark = pytest.mark.integration

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


def classified(request: Any) -> None:
    request.outputs.add(name="embedding").parameters["classification"].int64_param = 3


# One row of four tokens with a mask, changed.
BAD: dict[str, tuple[Callable[[Any], Any], grpc.StatusCode, str]] = {
    "too long": (
        lambda r: r.CopyFrom(one_row(513)),
        INVALID,
        "row 0 has length 513; model 'emu' takes 1 to 512 tokens (truncate on the client if that is what you want)",
    ),
    "too many rows": (
        lambda r: r.CopyFrom(request_of(example(*[4] * 65))),
        INVALID,
        "input 'input_ids' has 65 rows; at most 64 are taken in one request",
    ),
    "too few bytes": (
        lambda r: r.raw_input_contents.__setitem__(0, bytes(31)),
        INVALID,
        "input 'input_ids' carries 31 bytes; its shape and datatype need 32",
    ),
    "an id that no vocabulary has": (
        lambda r: r.raw_input_contents.__setitem__(0, np.array([1, 2, -3, 4], "<i8").tobytes()),
        INVALID,
        "row 0 has the token id -3; model 'emu' takes ids of 0 to ",
    ),
    "unknown model": (
        lambda r: setattr(r, "model_name", "bert"),
        NOT_FOUND,
        "unknown model 'bert'; this gateway serves 'emu'",
    ),
    "nothing": (lambda r: r.Clear(), NOT_FOUND, "unknown model ''; this gateway serves 'emu'"),
    "unknown version": (
        lambda r: setattr(r, "model_version", "2"),
        NOT_FOUND,
        "model 'emu' has no version '2'; it has version '1'",
    ),
    "classification": (
        classified,
        UNIMPLEMENTED,
        "output 'embedding' asks for classification, which the gateway does not do: take the tensor",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_requests(gateway: Gateway, case: str) -> None:
    """By itself and on a stream, which goes on."""
    change, code, message = BAD[case]
    request = one_row(4)
    change(request)
    before = (await gateway.stats()).outcomes.rejected
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.infer(request)
    assert (raised.value.code(), message in (raised.value.details() or "")) == (code, True), raised.value.details()

    stream = gateway.stub.ModelStreamInfer()
    await stream.write(request)
    answer = await stream.read()
    assert answer.error_message == f"[{code.name}] {raised.value.details()}"
    assert answer.infer_response.id == request.id
    good = example(4, id="good")
    await stream.write(request_of(good))
    check((await stream.read()).infer_response, good)
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF
    assert (await gateway.stats()).outcomes.rejected == before + 2


@pytest.mark.parametrize("timeout_us", [0, (1 << 63) - 1])
async def test_timeouts_that_are_none(gateway: Gateway, timeout_us: int) -> None:
    check(await gateway.infer(request_of(example(4), timeout_us=timeout_us)), example(4))


async def test_malformed_protobuf_to_the_other_methods(gateway: Gateway) -> None:
    """gRPC parses these; the calls fail, and the methods go on."""
    methods = ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex", "LogSettings"]
    for method in methods:
        call = gateway.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        for body in (b"\xff\xff\xff", b"\x0a\x05x", b"\x0b"):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(body, timeout=10)
    assert (await gateway.stub.ModelReady(service_pb2.ModelReadyRequest(name="emu"))).ready
    assert (await gateway.stub.ModelConfig(service_pb2.ModelConfigRequest(name="emu"))).config.name == "emu"


async def test_unknown_methods(gateway: Gateway) -> None:
    for path in ("/inference.GRPCInferenceService/Nothing", "/a.b.C/D", "/x"):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await gateway.channel.unary_unary(path)(b"", timeout=10)
        assert raised.value.code() == UNIMPLEMENTED


async def test_text_that_is_not_utf8_or_long_leaves_a_stream_readable(gateway: Gateway) -> None:
    """Error messages quote the client; what it sent may not be text, or be cut in the middle of a character."""
    call = gateway.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()

    def field(number: int, value: bytes) -> bytes:
        tag = bytes([number << 3 | 2])
        return tag + bytes([len(value) & 0x7F | 0x80, len(value) >> 7]) + value

    names = [b"\xff\xfe", b"a" * 199 + "é".encode(), b"\xed\xa0\x80", "ö".encode() * 300]
    bodies = [field(1, name) for name in names]
    bodies += [field(1, b"emu") + field(2, name) for name in names]
    bodies += [field(1, b"emu") + field(3, name) for name in names]
    bodies += [field(1, b"emu") + field(5, field(1, name)) for name in names]
    bodies += [field(1, b"emu") + field(6, field(1, name)) for name in names]
    bodies += [field(1, b"emu") + field(4, field(1, b"triton_" + name)) for name in names]
    for body in bodies:
        await call.write(body)
        answer = service_pb2.ModelStreamInferResponse.FromString(await asyncio.wait_for(call.read(), 10))
        assert answer.error_message.startswith(("[INVALID_ARGUMENT] ", "[NOT_FOUND] "))
    call.cancel()


# --- not gRPC at all --------------------------------------------------------------------------------------------------


def talk(address: str, data: bytes) -> bytes:
    """Send bytes on a connection of its own, and read until the other side has enough; at most a second."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=1) as connection:
        received = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                received += chunk
        except OSError:
            pass  # it may well hang up on us
    return received


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def test_bytes_that_are_not_grpc(gateway: Gateway) -> None:
    random = np.random.default_rng(0)
    garbage = [random.bytes(int(size)) for size in random.integers(1, 20_000, 30)]
    other = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.bytes(500),  # TLS
        PREFACE,
        PREFACE + random.bytes(5000),
        PREFACE + SETTINGS + random.bytes(5000),
        PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + random.bytes(100),  # a frame of 16 MB
        PREFACE + SETTINGS + b"\x00\x00\x04\x01\x05\x00\x00\x00\x01" + b"\xff\xff\xff\xff",  # headers that do not parse
        PREFACE + SETTINGS * 2000,
        PREFACE + SETTINGS + b"\x00\x00\x08\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" * 500,  # pings
    ]
    for port in (gateway.grpc, gateway.admin, gateway.http):
        await asyncio.gather(*(asyncio.to_thread(talk, port, data) for data in garbage + other))
    check(await gateway.infer(request_of(example(100))), example(100))
    assert (await gateway.stats()).deployment_version == 1


async def test_connections_that_say_nothing(gateway: Gateway) -> None:
    """Half-open and idle connections take nothing from others."""
    host, port = gateway.grpc.rsplit(":", 1)
    silent = [socket.create_connection((host, int(port))) for _ in range(200)]
    try:
        for number, connection in enumerate(silent):
            if number % 2:
                connection.sendall(PREFACE[: number % len(PREFACE)])
        for seed in range(5):
            check(await gateway.infer(request_of(example(100, seed=seed)), timeout=5), example(100, seed=seed))
    finally:
        for connection in silent:
            connection.close()
    check(await gateway.infer(request_of(example(100))), example(100))
