"""Bad input: each has a clear error, none hurts the gateway; the table reads as the list of what is refused."""

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

Change = Callable[[Any], Any]


def put(field: Any, **values: Any) -> None:
    """Set fields of a message."""
    for name, value in values.items():
        if isinstance(value, list):
            del getattr(field, name)[:]
            getattr(field, name).extend(value)
        else:
            setattr(field, name, value)


def shape(index: int, *dims: int) -> Change:
    return lambda r: put(r.inputs[index], shape=list(dims))


def parameter(key: str, **value: Any) -> Change:
    return lambda r: put(r.parameters[key], **value)


def output(**of: Any) -> Change:
    """Asks for an output; `parameters` as of an InferParameter."""

    def change(request: Any) -> None:
        parameters = of.get("parameters", {})
        tensor = request.outputs.add(name=of["name"])
        for key, value in parameters.items():
            put(tensor.parameters[key], **value)

    return change


def rows(count: int) -> Change:
    def change(request: Any) -> None:
        for tensor in request.inputs:
            put(tensor, shape=[count, 4])
        put(request, raw_input_contents=[bytes(count * 32), np.ones(count * 4, "<i8").tobytes()])

    return change


def length(tokens: int) -> Change:
    def change(request: Any) -> None:
        for tensor in request.inputs:
            put(tensor, shape=[1, tokens])
        put(request, raw_input_contents=[bytes(tokens * 8), np.ones(tokens, "<i8").tobytes()])

    return change


def no_mask(request: Any) -> None:
    del request.inputs[1]
    del request.raw_input_contents[1]


def typed(**contents: Any) -> Change:
    """Ids as typed contents, no mask."""

    def change(request: Any) -> None:
        no_mask(request)
        del request.raw_input_contents[:]
        put(request.inputs[0].contents, **contents)

    return change


def twice(index: int) -> Change:
    def change(request: Any) -> None:
        request.inputs.add().CopyFrom(request.inputs[index])
        request.raw_input_contents.append(request.raw_input_contents[index])

    return change


# One row of four tokens with a mask, changed.
BAD: dict[str, tuple[Change, grpc.StatusCode, str]] = {
    "length 0, by shape": (length(0), INVALID, "row 0 has length 0; model 'emu' takes 1 to 512 tokens"),
    "length 0, by mask": (
        lambda r: r.raw_input_contents.__setitem__(1, bytes(32)),
        INVALID,
        "row 0 has length 0; model 'emu' takes 1 to 512 tokens",
    ),
    "too long": (
        length(513),
        INVALID,
        "row 0 has length 513; model 'emu' takes 1 to 512 tokens (truncate on the client if that is what you want)",
    ),
    "far too long": (length(200_000), INVALID, "row 0 has length 200000; model 'emu' takes 1 to 512 tokens"),
    "no rows": (rows(0), INVALID, "input 'input_ids' has 0 rows; at least 1 is needed"),
    "too many rows": (rows(65), INVALID, "input 'input_ids' has 65 rows; at most 64 are taken in one request"),
    "negative rows": (shape(0, -1, 4), INVALID, "input 'input_ids' has -1 rows; at least 1 is needed"),
    "negative width": (shape(0, 1, -4), INVALID, "input 'input_ids' has an impossible width of -4 tokens"),
    "huge width": (shape(0, 1, 1 << 62), INVALID, "has an impossible width of 4611686018427387904 tokens"),
    "huge rows": (shape(0, 1 << 62, 4), INVALID, "input 'input_ids' has 4611686018427387904 rows; at most 64"),
    "width that is not there": (
        shape(0, 1, 1 << 30),
        INVALID,
        "carries 32 bytes; its shape and datatype need 8589934592",
    ),
    "rank 1": (shape(0, 4), INVALID, "input 'input_ids' has 1 dimensions; 2 are needed: [rows, tokens]"),
    "rank 3": (shape(0, 1, 1, 4), INVALID, "input 'input_ids' has 3 dimensions; 2 are needed: [rows, tokens]"),
    "no shape": (shape(0), INVALID, "input 'input_ids' has 0 dimensions; 2 are needed: [rows, tokens]"),
    "mask of another shape": (
        shape(1, 4, 1),
        INVALID,
        "input 'attention_mask' has shape [4, 1]; [1, 4] is needed, as of 'input_ids'",
    ),
    "mask of another rank": (
        shape(1, 1, 4, 1),
        INVALID,
        "input 'attention_mask' has shape [1, 4, 1]; [1, 4] is needed",
    ),
    "wrong datatype": (
        lambda r: put(r.inputs[0], datatype="INT32"),
        INVALID,
        "input 'input_ids' has datatype 'INT32'; INT64 is needed",
    ),
    "wrong datatype of the mask": (
        lambda r: put(r.inputs[1], datatype="FP32"),
        INVALID,
        "input 'attention_mask' has datatype 'FP32'; INT64 is needed",
    ),
    "no datatype": (lambda r: put(r.inputs[0], datatype=""), INVALID, "has datatype ''; INT64 is needed"),
    "one raw entry for two inputs": (
        lambda r: r.raw_input_contents.pop(),
        INVALID,
        "raw_input_contents has 1 entries for 2 inputs; one each is needed",
    ),
    "three raw entries for two inputs": (
        lambda r: r.raw_input_contents.append(b""),
        INVALID,
        "raw_input_contents has 3 entries for 2 inputs; one each is needed",
    ),
    "too few bytes": (
        lambda r: r.raw_input_contents.__setitem__(0, bytes(31)),
        INVALID,
        "input 'input_ids' carries 31 bytes; its shape and datatype need 32",
    ),
    "too many bytes": (
        lambda r: r.raw_input_contents.__setitem__(1, bytes(40)),
        INVALID,
        "input 'attention_mask' carries 40 bytes; its shape and datatype need 32",
    ),
    "raw and typed": (
        lambda r: r.inputs[0].contents.int64_contents.extend([1, 2, 3, 4]),
        INVALID,
        "raw_input_contents and typed contents are mixed: use one of them",
    ),
    "no contents at all": (lambda r: r.ClearField("raw_input_contents"), INVALID, "carries fewer elements than the 4"),
    "too few typed elements": (typed(int64_contents=[1]), INVALID, "carries fewer elements than the 4"),
    "too few typed elements of many bytes": (
        typed(int64_contents=[1 << 40, 2, 3]),
        INVALID,
        "input 'input_ids' carries 3 elements; its shape needs 4",
    ),
    "too many typed elements": (
        typed(int64_contents=[1, 2, 3, 4, 5]),
        INVALID,
        "input 'input_ids' carries 5 elements; its shape needs 4",
    ),
    "typed contents of another type": (
        typed(int_contents=[1, 2, 3, 4]),
        INVALID,
        "input 'input_ids' of datatype INT64 must use int64_contents",
    ),
    "unknown model": (
        lambda r: put(r, model_name="bert"),
        NOT_FOUND,
        "unknown model 'bert'; this gateway serves 'emu'",
    ),
    "no model": (lambda r: put(r, model_name=""), NOT_FOUND, "unknown model ''; this gateway serves 'emu'"),
    "unknown version": (
        lambda r: put(r, model_version="2"),
        NOT_FOUND,
        "model 'emu' has no version '2'; it has version '1'",
    ),
    "unknown input": (
        lambda r: put(r.inputs[1], name="mask"),
        INVALID,
        "unknown input 'mask' of model 'emu'",
    ),
    "missing ids": (
        lambda r: (r.inputs.pop(0), r.raw_input_contents.pop(0)),
        INVALID,
        "input 'input_ids' of model 'emu' is missing",
    ),
    "nothing": (
        lambda r: r.CopyFrom(service_pb2.ModelInferRequest(model_name="emu")),
        INVALID,
        "input 'input_ids' of model 'emu' is missing",
    ),
    "ids twice": (twice(0), INVALID, "input 'input_ids' is given twice"),
    "mask twice": (twice(1), INVALID, "input 'attention_mask' is given twice"),
    "unknown output": (output(name="logits"), INVALID, "unknown output 'logits' of model 'emu'"),
    "output twice": (
        lambda r: (output(name="embedding")(r), output(name="embedding")(r)),
        INVALID,
        "output 'embedding' is asked for twice",
    ),
    "sequence": (
        parameter("sequence_id", int64_param=3),
        INVALID,
        "sequence_id is set: rows go to different instances",
    ),
    "named sequence": (parameter("sequence_id", string_param="s"), INVALID, "sequence_id is set"),
    "reserved parameter": (
        parameter("triton_mine", int64_param=3),
        INVALID,
        "parameter 'triton_mine': names that start with triton_ are reserved by Triton",
    ),
    "timeout as text": (
        parameter("timeout", string_param="1"),
        INVALID,
        "parameter timeout must be an int64_param of microseconds, 0 or more",
    ),
    "negative timeout": (parameter("timeout", int64_param=-1), INVALID, "parameter timeout must be an int64_param"),
    "ids in shared memory": (
        lambda r: put(r.inputs[0].parameters["shared_memory_region"], string_param="r"),
        UNIMPLEMENTED,
        "input 'input_ids' uses shared memory, which the gateway cannot reach: send the tensor in the request",
    ),
    "output to shared memory": (
        output(name="embedding", parameters={"shared_memory_region": {"string_param": "r"}}),
        UNIMPLEMENTED,
        "output 'embedding' asks for shared memory, which the gateway cannot reach",
    ),
    "classification": (
        output(name="embedding", parameters={"classification": {"int64_param": 3}}),
        UNIMPLEMENTED,
        "output 'embedding' asks for classification, which the gateway does not do: take the tensor",
    ),
    "long id": (lambda r: put(r, id="x" * 4097), INVALID, "id has 4097 bytes; at most 4096 are taken"),
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


async def test_what_looks_bad_and_is_not(gateway: Gateway) -> None:
    """Parameters without effect, an empty classification, a zero sequence, an unknown field of a later protocol."""
    sent = example(4)
    changes: list[Change] = [
        parameter("sequence_id", int64_param=0),
        parameter("sequence_start", bool_param=True),
        parameter("priority", uint64_param=7),
        parameter("timeout", int64_param=0),
        parameter("timeout", int64_param=(1 << 63) - 1),
        parameter("binary_data_output", bool_param=True),
        output_and_more,
        no_mask,
        lambda r: r.MergeFromString(b"\xfa\x06\x03abc"),
    ]
    for change in changes:
        request = request_of(sent)
        change(request)
        check(await gateway.infer(request), sent)


def output_and_more(request: Any) -> None:
    for name in ("embedding", "last_hidden_state"):
        output(name=name, parameters={"classification": {"int64_param": 0}})(request)


async def infer_bytes(gateway: Gateway, body: bytes) -> bytes:
    return bytes(await gateway.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(body, timeout=10))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\xff", "the message"),
        (b"\x0a", "the message"),
        (b"\x0a\x05emu", "the message"),
        (b"\x08\x01", "a field"),
        (b"\x0b\x0c", "the message"),  # a group
        (b"\x00\x00", "the message"),  # field 0
        (b"\x0a\x03emu\x2a\x02\x0a\x05", "an input"),
        (b"\x0a\x03emu\x2a\x04\x1a\x02\xff\xff", "an input's shape"),
        (b"\x0a\x03emu\x32\x02\x0a\x05", "an output"),
        (b"\x0a\x03emu\x22\x02\x0a\x05", "a parameter"),
    ],
)
async def test_malformed_protobuf(gateway: Gateway, body: bytes, what: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await infer_bytes(gateway, body)
    assert raised.value.code() == INVALID
    assert (raised.value.details() or "").startswith(f"malformed ModelInferRequest: {what} does not parse")


async def test_an_empty_message(gateway: Gateway) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="unknown model ''"):
        await infer_bytes(gateway, b"")


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
