"""Requests to a worker over Triton's gRPC protocol, with as little Python around the call as possible."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from arlo.catalog.manifest import Manifest, Runtime
from arlo.clock import monotonic_s
from arlo.errors import ConfigError, WorkerError

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_POLL_S = 0.005
_TYPES = {"INT64": np.int64, "INT32": np.int32}


def token_request(
    manifest: Manifest,
    name: str,
    length: int,
    ids: NDArray[np.int64],
    types: NDArray[np.int64] | None = None,
    *,
    outputs: tuple[str, ...],
    batch: int = 1,
) -> bytes:
    """A serialised ModelInferRequest of `batch` rows of these ids, padded to `length`, for a model of this name. Other
    inputs, including optional ones, hold their pad value: the gateway always sends them, and Triton's own back-ends
    need them."""
    request: Any = service_pb2.ModelInferRequest(model_name=name)
    for tensor in manifest.inputs:
        row = np.full(length, tensor.pad_value if tensor.role != "mask" else 0, dtype=_TYPES[tensor.datatype])
        if tensor.role == "ids":
            row[: len(ids)] = ids
        elif tensor.role == "mask":
            row[: len(ids)] = 1
        elif types is not None and "type" in tensor.name:
            row[: len(ids)] = types
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=(batch, length))
        request.raw_input_contents.append(np.tile(row, batch).tobytes())
    for output in outputs:
        request.outputs.add(name=output)
    return bytes(request.SerializeToString())


def infer_request(
    manifest: Manifest, runtime: Runtime, *, length: int, batch: int, outputs: tuple[str, ...], real: int | None = None
) -> bytes:
    """The request of `batch` rows of `length` tokens, of which the first `real` are not padding. The ids are small
    numbers that differ from the pad value."""
    if any(tensor.role == "tensor" for tensor in manifest.inputs):
        raise ConfigError(
            f"{manifest.model} takes tensors, whose content decides how long they take: measure it on yours"
        )
    pad = next((tensor.pad_value for tensor in manifest.inputs if tensor.role == "ids"), 0)
    ids = pad + 1 + np.arange(length if real is None else real) % 7
    return token_request(manifest, runtime.name, length, ids, outputs=outputs, batch=batch)


@dataclasses.dataclass(frozen=True, slots=True)
class ComputeTimes:
    """Triton's own sums for one runtime, over all requests since it was loaded."""

    count: int
    compute_us: float
    queue_us: float


class WorkerClient:
    """Blocking calls to one worker. `close` may come from another thread; it ends the call under way."""

    def __init__(self, endpoint: str, *, timeout_s: float) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(
            endpoint,
            options=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # Bytes in, bytes out: this measures the worker and the wire, not Python's protobuf.
        self._infer = self._channel.unary_unary(_INFER, request_serializer=None, response_deserializer=None)

    def close(self) -> None:
        """End the connection and the call under way. Idempotent."""
        self._channel.close()

    def server_version(self) -> str:
        """Triton's version."""
        answer = self._call(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest(), "tell its version")
        return str(answer.version)

    def caller(self, runtime: str, request: bytes) -> Callable[[], None]:
        """A function that sends the request and waits for the answer; WorkerError with Triton's reason."""

        def call() -> None:
            self._call(self._infer, request, f"answer a request to {runtime}")

        return call

    def infer(self, runtime: str, request: bytes) -> bytes:
        """The serialised answer to a serialised request; WorkerError with Triton's reason."""
        return bytes(self._call(self._infer, request, f"answer a request to {runtime}"))

    def check(self, runtime: str, request: bytes, *, batch: int, outputs: tuple[str, ...]) -> None:
        """Send the request once and check the answer; WorkerError when it lacks the expected outputs and rows."""
        raw = self._call(self._infer, request, f"answer a request to {runtime}")
        answer: Any = service_pb2.ModelInferResponse.FromString(raw)
        rows = {output.name: output.shape[0] if output.shape else 0 for output in answer.outputs}
        if rows != dict.fromkeys(outputs, batch):
            raise WorkerError(
                f"{runtime} on worker {self.endpoint} answered {batch} row(s) with {rows}, not with {batch} of each of "
                f"{', '.join(outputs)}: is the repository the one that the worker serves?"
            )

    def compute_times(self, runtime: str) -> ComputeTimes | None:
        """Triton's statistics of a runtime; None if it gives none."""
        request = service_pb2.ModelStatisticsRequest(name=runtime)
        try:
            answer = self._stub.ModelStatistics(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE):
                return None
            raise self._error(error, f"give its statistics of {runtime}") from None
        times = [model.inference_stats for model in answer.model_stats]
        return ComputeTimes(
            count=sum(stats.success.count for stats in times),
            compute_us=sum(stats.compute_infer.ns for stats in times) / 1000,
            queue_us=sum(stats.queue.ns for stats in times) / 1000,
        )

    def _call(self, method: Any, request: Any, what: str) -> Any:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._error(error, what) from None
        except ValueError as error:  # the channel was closed
            raise WorkerError(f"worker {self.endpoint} could not {what}: {error}") from None

    def _error(self, error: Any, what: str) -> WorkerError:
        return WorkerError(f"worker {self.endpoint} could not {what}: {error.details()} ({error.code().name})")


def counted(client: WorkerClient, runtime: str, requests: int, *, wait_s: float = 1.0) -> ComputeTimes | None:
    """Triton's sums once they count that many requests, or as they are after `wait_s`; None where it gives none.

    Triton counts a request a moment after it answered it.
    """
    deadline_s = monotonic_s() + wait_s
    while True:
        times = client.compute_times(runtime)
        if times is None or times.count >= requests or monotonic_s() > deadline_s:
            return times
        time.sleep(_POLL_S)


def mean_between(before: ComputeTimes | None, after: ComputeTimes | None) -> tuple[float | None, float | None]:
    """Mean compute and queue time of the requests between two readings, in microseconds; None where there is none."""
    if before is None or after is None or after.count <= before.count:
        return None, None
    count = after.count - before.count
    return (after.compute_us - before.compute_us) / count, (after.queue_us - before.queue_us) / count
