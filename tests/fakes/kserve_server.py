"""A KServe v2 gRPC server in this process, to test the client's side of the protocol against real gRPC."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, Self

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from arlo.client import ModelInfo, TensorInfo
from arlo.client.model import to_server

MODEL = ModelInfo(
    name="minilm",
    inputs=(
        TensorInfo(name="input_ids", datatype="INT64", shape=(-1, -1)),
        TensorInfo(name="attention_mask", datatype="INT64", shape=(-1, -1)),
        TensorInfo(name="token_type_ids", datatype="INT64", shape=(-1, -1), optional=True),
    ),
    outputs=(
        TensorInfo(name="last_hidden_state", datatype="FP32", shape=(-1, -1, 2)),
        TensorInfo(name="sentence_embedding", datatype="FP32", shape=(-1, 2)),
    ),
    max_length=512,
)

Infer = Callable[[Any, Any], Any]


def answer(request: Any) -> Any:
    """sentence_embedding: the sum of the ids and the number of tokens; last_hidden_state: each id, twice."""
    arrays = {
        t.name: np.frombuffer(raw, "<i8").reshape(tuple(t.shape))
        for t, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }
    ids, mask = arrays["input_ids"], arrays["attention_mask"]
    outputs = {
        "last_hidden_state": np.stack((ids * mask, ids * mask), axis=-1).astype("<f4"),
        "sentence_embedding": np.stack(((ids * mask).sum(1), mask.sum(1)), axis=1).astype("<f4"),
    }
    response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for name, value in {
        "level": 1,
        "demoted": 0,
        "queue_us": 20,
        "execute_us": 300,
        "total_us": 350,
        "batch_rows": 8,
    }.items():
        response.parameters[name].int64_param = value
    response.parameters["computed_tokens"].int64_param = 64 * len(ids)
    wanted = [t.name for t in request.outputs]
    for name, array in outputs.items():
        if not wanted or name in wanted:
            response.outputs.add(name=name, datatype="FP32", shape=array.shape)
            response.raw_output_contents.append(array.tobytes())
    return response


class KServeServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Serves `info` on a free port of 127.0.0.1. Plan `failures` (for the next calls), or replace `infer`."""

    def __init__(
        self,
        *,
        info: ModelInfo = MODEL,
        infer: Infer | None = None,
        credentials: Any = None,
        bind: str = "127.0.0.1:0",
        max_message_bytes: int = 64 << 20,
        models: tuple[str, ...] | None = None,
        has_config: bool = True,
    ) -> None:
        self.info = info
        self.infer: Infer = infer or (lambda request, context: answer(request))
        self.models = models if models is not None else (info.name,)
        self.failures: deque[tuple[grpc.StatusCode, str]] = deque()
        self.calls: Counter[str] = Counter()
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.time_left_s: list[float | None] = []
        self.stream_breaks: deque[tuple[int, grpc.StatusCode]] = deque()  # after so many answers, end the stream
        self.open_streams = 0
        self.changed = threading.Condition()
        self._has_config = has_config
        options = [("grpc.max_receive_message_length", max_message_bytes), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(futures.ThreadPoolExecutor(16), options=options)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        if credentials is None:
            port = self._server.add_insecure_port(bind)
        else:
            port = self._server.add_secure_port(bind, credentials)
        self.endpoint = f"127.0.0.1:{port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends calls under way and closes the port."""
        self._server.stop(0).wait()

    def _note(self, method: str, context: Any) -> None:
        with self.changed:
            self.calls[method] += 1
            self.metadata.append({k: v for k, v in context.invocation_metadata() if isinstance(v, str)})
            self.time_left_s.append(context.time_remaining())
            self.changed.notify_all()

    def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note("ServerReady", context)
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note("ModelReady", context)
        return service_pb2.ModelReadyResponse(ready=request.name == self.info.name)

    def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note("RepositoryIndex", context)
        index = service_pb2.RepositoryIndexResponse()
        for name in self.models:
            index.models.add(name=name, version="1", state="READY")
        return index

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note("ModelMetadata", context)
        if request.name != self.info.name:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model '{request.name}'")
        return service_pb2.ModelMetadataResponse(**to_server(self.info)[0])

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note("ModelConfig", context)
        if not self._has_config:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no model configuration here")
        return service_pb2.ModelConfigResponse(config=to_server(self.info)[1])

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note("ModelInfer", context)
        with self.changed:
            self.requests.append(request)
            failure = self.failures.popleft() if self.failures else None
        if failure is not None:
            context.abort(*failure)
        return self.infer(request, context)

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        self._note("ModelStreamInfer", context)
        with self.changed:
            self.open_streams += 1
        try:
            limit, code = self.stream_breaks.popleft() if self.stream_breaks else (-1, None)
            for count, request in enumerate(requests):
                with self.changed:
                    self.requests.append(request)
                    self.changed.notify_all()
                if count == limit:
                    if code is not None and code is not grpc.StatusCode.OK:
                        context.abort(code, "the stream is broken on purpose")
                    return
                response = self.infer(request, context)
                if isinstance(response, str):  # an error of this request only
                    failed = service_pb2.ModelStreamInferResponse(error_message=response)
                    failed.infer_response.id = request.id
                    yield failed
                elif response is not None:
                    yield service_pb2.ModelStreamInferResponse(infer_response=response)
        finally:
            with self.changed:
                self.open_streams -= 1
                self.changed.notify_all()
