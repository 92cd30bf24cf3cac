"""Bad input: each has a clear error, none hurts the gateway. Every single refusal of a request and its words are in
tests/cpp/gateway_faults_test.cc; here one of each place that refuses."""

from __future__ import annotations

import asyncio
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
