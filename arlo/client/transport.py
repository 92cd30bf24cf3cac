"""The connection to the server: the transport interface and the gRPC ones. `arlo.client.mock` has one for tests."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import grpc
from tritonclient.grpc import service_pb2_grpc

from arlo.client._waiting import now
from arlo.client.errors import ClientError, ClosedError, RequestCancelledError, from_status
from arlo.errors import ConfigError

_WRITE_FAILED = "Internal error from Core"
_STATUS_WAIT_S = 1.0  # for the server's status after a failed write; it is there or on its way
_LOOPBACK = ("127.", "localhost:", "[::1]:", "unix:")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """TLS to the server. All files are PEM.

    `ca`: the authorities that may sign the server's certificate; None: the system's. `cert` and `key`: this client's,
    for servers that ask for one (mTLS). `server_name`: the name in the server's certificate if it is not the
    endpoint's.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def credentials(self) -> Any:
        """grpc.ChannelCredentials. ConfigError when a file is missing or only one of cert and key is given."""
        if (self.cert is None) != (self.key is None):
            raise ConfigError("tls: cert and key go together: give both, or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=_pem(self.ca), private_key=_pem(self.key), certificate_chain=_pem(self.cert)
        )


def _pem(path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: {path} cannot be read: {error.strerror}") from None


class Stream(Protocol):
    """An open ModelStreamInfer call: iterate for ModelStreamInferResponses. Errors are ClientErrors."""

    def __iter__(self) -> Iterator[Any]: ...

    def cancel(self) -> None:
        """End the call now; the iteration stops or raises. Idempotent, from any thread."""


class AsyncStream(Protocol):
    """An open ModelStreamInfer call, like Stream, on one event loop."""

    def __aiter__(self) -> AsyncIterator[Any]: ...

    def cancel(self) -> None: ...


class Transport(Protocol):
    """The transport that `Client` needs. Safe for threads. Every method raises ClientError for transport failures."""

    def call(self, method: str, request: Any, *, timeout_s: float | None) -> Any:
        """One unary call of the KServe v2 service: `method` such as "ModelInfer", messages of its protocol."""

    def stream(self, requests: Iterator[Any]) -> Stream:
        """Open ModelStreamInfer. `requests` is read in another thread and may block."""

    def close(self) -> None:
        """Close the connection; calls under way are cancelled. Idempotent."""


class AsyncTransport(Protocol):
    """The transport that `AsyncClient` needs; one event loop."""

    async def call_async(self, method: str, request: Any, *, timeout_s: float | None) -> Any:
        """See Transport.call."""

    def stream_async(self, requests: AsyncIterator[Any]) -> AsyncStream:
        """See Transport.stream."""

    async def close_async(self) -> None:
        """See Transport.close."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSettings:
    """How to reach the server. ConfigError when the endpoint is not host:port."""

    endpoint: str
    tls: TLS | None
    token: str | None
    max_message_bytes: int

    def __post_init__(self) -> None:
        if "://" in self.endpoint or ":" not in self.endpoint:
            raise ConfigError(f"endpoint must be host:port (for TLS pass tls=TLS()), not {self.endpoint!r}")
        if not 0 < self.max_message_bytes < 2**31:
            raise ConfigError(f"max_message_bytes must be from 1 to 2147483647, not {self.max_message_bytes}")

    def channel(self, module: Any) -> Any:
        """A channel of `module`: grpc or grpc.aio."""
        options: list[tuple[str, Any]] = [
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.primary_user_agent", "arlo-client"),
            ("grpc.use_local_subchannel_pool", 1),  # a client is a connection, shared with no other client
            ("grpc.initial_reconnect_backoff_ms", 100),  # a restarted server is found again soon
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        if self.endpoint.startswith(_LOOPBACK):
            options.append(("grpc.enable_http_proxy", 0))
        if self.tls is None:
            return module.insecure_channel(self.endpoint, options=options)
        if self.tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return module.secure_channel(self.endpoint, self.tls.credentials(), options=options)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """The metadata sent with every call."""
        return None if self.token is None else (("authorization", f"Bearer {self.token}"),)


def _error(error: Any) -> ClientError:
    return from_status(error.code().name, error.details() or "")


def _cancelled() -> BaseException:
    """The cause of a CancelledError: grpc.aio raises it for a cancelled task of the caller and for a closed channel."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return RequestCancelledError("the client was closed while a request was under way", code="CANCELLED")


class GrpcTransport:
    """One channel, opened at the first call. Owned by its client; safe for threads; not usable after a fork."""

    def __init__(self, settings: ChannelSettings) -> None:
        self._channel = settings.channel(grpc)
        self._metadata = settings.metadata
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def call(self, method: str, request: Any, *, timeout_s: float | None) -> Any:
        """See Transport."""
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _error(error) from None
        except ValueError as error:  # raised by grpc on a closed channel
            raise ClosedError(f"the client is closed ({error})") from None

    def stream(self, requests: Iterator[Any]) -> Stream:
        """See Transport."""
        return _GrpcStream(self._stub.ModelStreamInfer(requests, metadata=self._metadata))

    def close(self) -> None:
        """See Transport."""
        self._channel.close()


class _GrpcStream:
    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise _error(error) from None

    def cancel(self) -> None:
        self._call.cancel()


class AsyncGrpcTransport:
    """One channel, opened at the first call on the event loop of that call; only usable there."""

    def __init__(self, settings: ChannelSettings) -> None:
        self._settings = settings
        self._metadata = settings.metadata
        if settings.tls is not None:
            settings.tls.credentials()  # a missing file is reported now, not at the first call
        self._channel: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stub: Any = None

    def _open(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._channel = self._settings.channel(grpc.aio)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        elif self._loop is not loop:
            raise ClosedError("this AsyncClient was used on another event loop before: make one client per loop")

    async def call_async(self, method: str, request: Any, *, timeout_s: float | None) -> Any:
        """See Transport."""
        self._open()
        try:
            return await getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _error(error) from None
        except grpc.aio.UsageError as error:  # raised by grpc.aio on a closed channel
            raise ClosedError(f"the client is closed ({error})") from None
        except asyncio.CancelledError:
            raise _cancelled() from None

    def stream_async(self, requests: AsyncIterator[Any]) -> AsyncStream:
        """See Transport."""
        self._open()
        return _AsyncGrpcStream(self._stub.ModelStreamInfer(requests, metadata=self._metadata))

    async def close_async(self) -> None:
        """See Transport."""
        if self._channel is not None:
            await self._channel.close()


class _AsyncGrpcStream:
    """grpc.aio turns a write that fails because the call has ended into INTERNAL, over the status that the server sent
    (grpc/grpc#36066). So every status is recorded as it is set, and the server's is reported.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._status: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._note)

    def _note(self, call: Any) -> None:
        code, details = now(call.code()), now(call.details()) or ""
        if details != _WRITE_FAILED and not self._status.done():
            self._status.set_result((code.name, details))

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            async for response in self._call:
                yield response
        except grpc.RpcError as error:
            if error.details() != _WRITE_FAILED:
                raise _error(error) from None
            try:
                code, details = await asyncio.wait_for(self._status, _STATUS_WAIT_S)
            except TimeoutError:
                code, details = "UNAVAILABLE", "the stream broke while a request was being sent"
            if code != "OK":
                raise from_status(code, details) from None
        except asyncio.CancelledError:
            raise _cancelled() from None

    def cancel(self) -> None:
        self._call.cancel()
