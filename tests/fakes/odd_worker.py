"""Workers that a real Triton server cannot be made to be: they die of a request, answer nonsense, or echo their input.

In this process, on real gRPC; each serves any runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

Behaviour = Callable[["OddWorker", Any], Awaitable[bytes]]


class WorkerError(Exception):
    """Raised by a behaviour: the worker answers with this code and text."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class OddWorker:
    """`behave(worker, request)` makes each answer: the bytes of a ModelInferResponse, or of anything else.

    `requests` holds what came, parsed, `metadata` what came with each; `cancelled` counts those whose caller gave up.
    Use as an async context manager.
    """

    def __init__(self, behave: Behaviour) -> None:
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.endpoint = ""
        self.cancelled = 0
        self.dead = False
        self.healthy = True
        self._behave = behave
        self._server: Any = None
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        methods = {
            "ModelReady": grpc.unary_unary_rpc_method_handler(self._ready),
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._infer),
        }
        handler = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods)
        self._server.add_generic_rpc_handlers((handler,))
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def die(self) -> None:
        """Drop every connection and listen no more."""
        self.dead = True
        if self._ending is None:
            self._ending = asyncio.create_task(self._server.stop(None))
        await asyncio.shield(self._ending)  # a handler that calls this is itself cancelled by the end of the server

    async def _ready(self, request: bytes, context: Any) -> bytes:
        return bytes(service_pb2.ModelReadyResponse(ready=self.healthy).SerializeToString())

    async def _infer(self, body: bytes, context: Any) -> bytes:
        request = service_pb2.ModelInferRequest.FromString(body)
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            return await self._behave(self, request)
        except WorkerError as error:
            await context.abort(error.code, str(error))
            raise
        except asyncio.CancelledError:
            self.cancelled += not self.dead
            raise


def tensors_of(request: Any) -> dict[str, NDArray[np.int64]]:
    """The INT64 tensors of a request with raw contents."""
    return {
        tensor.name: np.frombuffer(raw, "<i8").reshape(tuple(tensor.shape))
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def embedding(request: Any) -> Any:
    """What the emulated engine answers when asked for `embedding`: the sum of the ids whose mask is 1, four times."""
    tensors = tensors_of(request)
    totals = (tensors["input_ids"] * tensors["attention_mask"]).sum(1, keepdims=True)
    response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    response.outputs.add(name="embedding", datatype="FP32", shape=[len(totals), 4])
    response.raw_output_contents.append(np.repeat(totals, 4, axis=1).astype("<f4").tobytes())
    return response


async def good(worker: OddWorker, request: Any) -> bytes:
    """Answers as the emulated engine does, with `embedding` only."""
    return bytes(embedding(request).SerializeToString())


def dies_of(token: int) -> Behaviour:
    """Answers well, until a request holds the token: then the worker is gone."""

    async def behave(worker: OddWorker, request: Any) -> bytes:
        if token in tensors_of(request)["input_ids"]:
            await worker.die()
        return await good(worker, request)

    return behave


def holds(gate: asyncio.Event) -> Behaviour:
    """Answers well, once the gate is open."""

    async def behave(worker: OddWorker, request: Any) -> bytes:
        await gate.wait()
        return await good(worker, request)

    return behave


def fails_on(token: int) -> Behaviour:
    """INTERNAL for a request that holds the token; answers others well."""

    async def behave(worker: OddWorker, request: Any) -> bytes:
        if token in tensors_of(request)["input_ids"]:
            raise WorkerError(grpc.StatusCode.INTERNAL, f"cannot look at token {token}")
        return await good(worker, request)

    return behave


class Sick:
    """A behaviour: answers well while `well`, and INTERNAL at once while not."""

    def __init__(self, *, well: bool = False, takes_s: float = 0.0) -> None:
        self.well = well
        self.takes_s = takes_s
        self.failed = 0

    async def __call__(self, worker: OddWorker, request: Any) -> bytes:
        if not self.well:
            self.failed += 1
            raise WorkerError(grpc.StatusCode.INTERNAL, "CUDA error: an illegal memory access was encountered")
        await asyncio.sleep(self.takes_s)
        return await good(worker, request)


async def echo(worker: OddWorker, request: Any) -> bytes:
    """Gives every input back as it came, padding included, as an output `seen_<input>` of shape [1, tokens]."""
    response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1")
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        response.outputs.add(name=f"seen_{tensor.name}", datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(raw)
    return bytes(response.SerializeToString())
