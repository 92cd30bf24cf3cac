"""Warm-up and verification of a runtime on its worker, before the gateway may send to it.

A runtime's first requests are slow (memory is allocated, kernels are chosen), and an engine that loads may still be
broken. So a few requests of the longest length go straight to the worker, and the answers are checked.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from arlo.catalog.manifest import InputTensor, Manifest, OutputTensor, Runtime
from arlo.catalog.tasks import TASK
from arlo.errors import WorkerError


def request_for(manifest: Manifest, runtime: Runtime, rows: int) -> Any:
    """A ModelInferRequest of `rows` rows of max_length tokens: ids 1, mask 1, every other input its pad value;
    BYTES are empty. With several tasks it names the last one, so that an engine that lacks some is found."""
    request = service_pb2.ModelInferRequest(model_name=runtime.name)
    for tensor in manifest.inputs:
        dtype = triton_to_np_dtype(tensor.datatype)
        if tensor.role == "tensor":
            shape = [rows, *(runtime.max_length if dim < 0 else dim for dim in tensor.dims)]
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
            bytes_ = bytes(4 * rows) if tensor.datatype == "BYTES" else _filled(shape, tensor)
            if tensor.name == TASK and manifest.tasks:
                bytes_ = np.full(shape, len(manifest.tasks) - 1, np.int64).tobytes()
            request.raw_input_contents.append(bytes_)
            continue
        value = tensor.pad_value if tensor.role == "other" else 1
        data = np.full((rows, runtime.max_length), value, dtype=dtype)
        request.inputs.add(name=tensor.name, datatype=np_to_triton_dtype(dtype), shape=data.shape)
        request.raw_input_contents.append(data.tobytes())
    return request


def _filled(shape: list[int], tensor: InputTensor) -> bytes:
    size = 2 if tensor.datatype == "BF16" else np.dtype(triton_to_np_dtype(tensor.datatype)).itemsize
    count = math.prod(shape)
    return bytes([tensor.pad_value]) * count if size == 1 else bytes(count * size)


def check_answer(manifest: Manifest, runtime: Runtime, rows: int, answer: Any) -> None:
    """WorkerError unless the answer has every output of the manifest, in its shape and type, with finite numbers."""
    raw = dict(zip((output.name for output in answer.outputs), answer.raw_output_contents, strict=False))
    found = {output.name: output for output in answer.outputs}
    for wanted in manifest.outputs:
        output = found.get(wanted.name)
        if output is None:
            raise WorkerError(f"{runtime.name} answers without the output {wanted.name}: {_again()}")
        if wanted.of_children:
            continue  # any number of them
        if output.datatype != wanted.datatype or not _fits(wanted, runtime, rows, list(output.shape)):
            raise WorkerError(
                f"{runtime.name} answers {wanted.name} as {output.datatype} {list(output.shape)}, the manifest says "
                f"{wanted.datatype} {_shape(wanted, runtime, rows)}: {_again()}"
            )
        dtype = triton_to_np_dtype(wanted.datatype)
        if dtype is not None and np.issubdtype(dtype, np.floating):
            data = raw.get(wanted.name, b"")
            if len(data) != math.prod(output.shape) * np.dtype(dtype).itemsize:
                raise WorkerError(
                    f"{runtime.name} answers {wanted.name} with {len(data)} bytes for {list(output.shape)}: {_again()}"
                )
            values = np.frombuffer(data, dtype=dtype)
            if not np.isfinite(values).all():
                raise WorkerError(f"{runtime.name} answers {wanted.name} with values that are not finite: {_again()}")


# A live server was seen to refuse a connection, twice in some hundred starts; a dead one refuses again.
CONNECT_AGAIN_S = (0.1, 0.2, 0.4)


async def warm_up(endpoint: str, manifest: Manifest, runtime: Runtime, *, requests: int, timeout_s: float) -> None:
    """Send `requests` requests of one row and one of max_batch rows, one after the other, and check each answer.

    WorkerError when one fails, is wrong, or takes longer than `timeout_s`.
    """
    async with grpc.aio.insecure_channel(
        endpoint,
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    ) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for rows in [1] * requests + ([runtime.max_batch] if runtime.max_batch > 1 else []):
            answer = await _infer(stub, request_for(manifest, runtime, rows), endpoint, timeout_s)
            check_answer(manifest, runtime, rows, answer)


async def _infer(stub: Any, request: Any, endpoint: str, timeout_s: float) -> Any:
    for pause_s in (*CONNECT_AGAIN_S, None):
        try:
            return await stub.ModelInfer(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE or pause_s is None:
                raise WorkerError(
                    f"{request.model_name} does not answer on {endpoint}: {error.details()} ({error.code().name})"
                ) from None
        await asyncio.sleep(pause_s)
    raise AssertionError


def _shape(output: OutputTensor, runtime: Runtime, rows: int) -> list[int]:
    return [rows, *([runtime.max_length] if output.token_level else []), *output.dims]


def _fits(output: OutputTensor, runtime: Runtime, rows: int, shape: list[int]) -> bool:
    wanted = _shape(output, runtime, rows)
    return len(shape) == len(wanted) and all(w in (-1, s) for w, s in zip(wanted, shape, strict=True))


def _again() -> str:
    return "compile the repository again"
