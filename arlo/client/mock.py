"""A transport without a server, for the tests of programs that use the client.

The messages are the real ones: a mock's answers are encoded and decoded as with gRPC.
"""

from __future__ import annotations

import asyncio
import collections
import copy
import dataclasses
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.client.codec import datatype_of, from_raw, set_parameters, to_raw
from arlo.client.errors import (
    ClientError,
    ClosedError,
    DeadlineExceededError,
    NotFoundError,
    RequestCancelledError,
    UnimplementedError,
)
from arlo.client.model import ModelInfo, TensorInfo, to_server

STREAM = "ModelStreamInfer"

Outputs = Mapping[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MockRequest:
    """A request that a mock received: arrays as on the wire, rows first. `timeout_s` is the deadline of the attempt."""

    id: str
    model: str
    inputs: Mapping[str, NDArray[Any]]
    outputs: tuple[str, ...]
    timeout_s: float | None
    streamed: bool

    @property
    def rows(self) -> int:
        """Rows of the request."""
        return len(next(iter(self.inputs.values())))


def _default_info(name: str, outputs: tuple[TensorInfo, ...]) -> ModelInfo:
    inputs = tuple(TensorInfo(name=n, datatype="INT64", shape=(-1, -1)) for n in ("input_ids", "attention_mask"))
    return ModelInfo(
        name=name,
        inputs=inputs,
        outputs=outputs,
        max_length=512,
        token_level=frozenset(t.name for t in outputs if len(t.shape) > 2),
    )


def _to_every_row(array: NDArray[Any], request: MockRequest) -> NDArray[Any]:
    if array.ndim > 1:
        width = next(iter(request.inputs.values())).shape[1]
        fill = [(0, max(0, width - len(array)))] + [(0, 0)] * (array.ndim - 1)
        array = np.pad(array[:width], fill)
    return np.broadcast_to(array, (request.rows, *array.shape))


class MockTransport:
    """A transport for `Client(transport=...)` and `AsyncClient(transport=...)`; safe for threads.

    `answer` is either the arrays of one row, given to every row ({"sentence_embedding": np.zeros(384, "f4")}; one of
    two or more dimensions is token-level, [tokens, dims...], and cut or filled with zeros to the request's width), or a
    function from a MockRequest to arrays with rows first, which may raise a ClientError. A function needs `info` if the
    model should have outputs other than "sentence_embedding".
    `delay_s`: how long each answer takes; past the deadline it is a DeadlineExceededError, as with a server.
    `parameters`: of each response, for example {"level": 1, "queue_us": 120}.
    """

    def __init__(
        self,
        answer: Outputs | Callable[[MockRequest], Outputs],
        *,
        info: ModelInfo | None = None,
        delay_s: float = 0.0,
        parameters: Mapping[str, int | str | bool] | None = None,
    ) -> None:
        if isinstance(answer, Mapping):
            arrays = {name: np.asarray(array) for name, array in answer.items()}
            shapes = {n: (-1, *((-1, *a.shape[1:]) if a.ndim > 1 else a.shape)) for n, a in arrays.items()}
            outputs = tuple(TensorInfo(name=n, datatype=datatype_of(a), shape=shapes[n]) for n, a in arrays.items())
            self._answer: Callable[[MockRequest], Outputs] = lambda request: {
                name: _to_every_row(array, request) for name, array in arrays.items()
            }
        else:
            outputs = (TensorInfo(name="sentence_embedding", datatype="FP32", shape=(-1, -1)),)
            self._answer = answer
        self.info = info if info is not None else _default_info("mock", outputs)
        self.requests: list[MockRequest] = []
        """Every inference request received, in order, failed ones included."""
        self.calls: collections.Counter[str] = collections.Counter()
        """Calls by method name, for example "ModelMetadata"."""
        self.closed = False
        self._delay_s = delay_s
        self._parameters = dict(parameters or {})
        self._failures: collections.deque[tuple[str, ClientError]] = collections.deque()
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def fail(self, error: ClientError, *, times: int = 1, method: str = "ModelInfer") -> None:
        """The next `times` calls of `method` raise `error`. A stream ends with it: method "ModelStreamInfer"."""
        with self._lock:
            self._failures.extend([(method, error)] * times)

    # Transport -------------------------------------------------------------------------------------------------------

    def call(self, method: str, request: Any, *, timeout_s: float | None) -> Any:
        """See arlo.client.Transport."""
        wait_s, answer = self._asked(method, request, timeout_s)
        if wait_s and self._stopped.wait(wait_s):
            raise RequestCancelledError("the client was closed while a request was under way", code="CANCELLED")
        return answer()

    def stream(self, requests: Any) -> _MockStream:
        """See arlo.client.Transport, and AsyncTransport. Requests are answered one after the other, in order."""
        self._begin(STREAM)
        return _MockStream(self, requests)

    def close(self) -> None:
        """See arlo.client.Transport."""
        self.closed = True
        self._stopped.set()

    async def call_async(self, method: str, request: Any, *, timeout_s: float | None) -> Any:
        """See arlo.client.AsyncTransport."""
        wait_s, answer = self._asked(method, request, timeout_s)
        await asyncio.sleep(wait_s)
        return answer()

    stream_async = stream

    async def close_async(self) -> None:
        """See arlo.client.AsyncTransport."""
        self.close()

    # -----------------------------------------------------------------------------------------------------------------

    def _begin(self, method: str) -> None:
        if self.closed:
            raise ClosedError("the client is closed")
        with self._lock:
            self.calls[method] += 1
        if method not in ("ModelInfer", STREAM):
            self._fail_if_asked(method)

    def _fail_if_asked(self, method: str) -> None:
        with self._lock:
            for index, (wanted, error) in enumerate(self._failures):
                if wanted == method:
                    del self._failures[index]
                    # A new one each time, as a server's would be: the client notes id and attempts in it.
                    raise copy.copy(error)

    def _asked(self, method: str, request: Any, timeout_s: float | None) -> tuple[float, Callable[[], Any]]:
        """The delay of the answer, and the function that makes it."""
        self._begin(method)
        if method != "ModelInfer":
            return 0.0, functools.partial(self._describe, method, request)
        recorded = self._record(request, timeout_s, streamed=False)
        self._fail_if_asked(method)
        wait_s = self._delay_s if timeout_s is None else min(self._delay_s, timeout_s)
        return wait_s, functools.partial(self._respond, recorded, late=wait_s == timeout_s)

    def _record(self, request: Any, timeout_s: float | None, *, streamed: bool) -> MockRequest:
        tensors = zip(request.inputs, request.raw_input_contents, strict=True)
        recorded = MockRequest(
            id=request.id,
            model=request.model_name,
            inputs={t.name: from_raw(t, data) for t, data in tensors},
            outputs=tuple(t.name for t in request.outputs),
            timeout_s=timeout_s,
            streamed=streamed,
        )
        with self._lock:
            self.requests.append(recorded)
        return recorded

    def _respond(self, request: MockRequest, late: bool) -> Any:
        if late:
            raise DeadlineExceededError("Deadline Exceeded", code="DEADLINE_EXCEEDED")
        if request.model != self.info.name:
            raise NotFoundError(f"the mock serves {self.info.name}, not {request.model}", code="NOT_FOUND")
        response = service_pb2.ModelInferResponse(model_name=request.model, model_version="1", id=request.id)
        set_parameters(response, self._parameters)
        for name, given in self._answer(request).items():
            if request.outputs and name not in request.outputs:
                continue
            array = np.asarray(given)
            response.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
            response.raw_output_contents.append(to_raw(array))
        return response

    def _stream_response(self, request: MockRequest) -> Any:
        try:
            self._fail_if_asked("ModelInfer")
            return service_pb2.ModelStreamInferResponse(infer_response=self._respond(request, late=False))
        except ClientError as error:
            response = service_pb2.ModelStreamInferResponse(error_message=f"[{error.code or 'UNKNOWN'}] {error}")
            response.infer_response.id = request.id
            return response

    def _describe(self, method: str, request: Any) -> Any:
        fields, config = to_server(self.info)
        if method == "RepositoryIndex":
            index = service_pb2.RepositoryIndexResponse()
            index.models.add(name=self.info.name, version="1", state="READY")
            return index
        if method == "ServerReady":
            return service_pb2.ServerReadyResponse(ready=True)
        if method == "ModelReady":
            return service_pb2.ModelReadyResponse(ready=request.name == self.info.name)
        if request.name != self.info.name:
            raise NotFoundError(f"the mock serves {self.info.name}, not {request.name}", code="NOT_FOUND")
        if method == "ModelMetadata":
            return service_pb2.ModelMetadataResponse(**fields)
        if method == "ModelConfig":
            return service_pb2.ModelConfigResponse(config=config)
        raise UnimplementedError(f"the mock does not know {method}", code="UNIMPLEMENTED")


class _MockStream:
    def __init__(self, transport: MockTransport, requests: Any) -> None:
        self._transport = transport
        self._requests = requests
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        mock = self._transport
        for request in self._requests:
            recorded = mock._record(request, None, streamed=True)
            mock._fail_if_asked(STREAM)
            if self._cancelled.wait(mock._delay_s):
                return
            yield mock._stream_response(recorded)

    async def __aiter__(self) -> AsyncIterator[Any]:
        mock = self._transport
        async for request in self._requests:
            recorded = mock._record(request, None, streamed=True)
            mock._fail_if_asked(STREAM)
            await asyncio.sleep(mock._delay_s)
            yield mock._stream_response(recorded)

    def cancel(self) -> None:
        self._cancelled.set()
