"""The two clients: the calls of _calls.py, run in the caller's thread or on its event loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from arlo.client import _calls
from arlo.client._calls import Calls
from arlo.client._waiting import Tasks, Threads, drain, now
from arlo.client.rows import Row
from arlo.client.tokenizer import Tokenizer
from arlo.client.transport import TLS, AsyncGrpcTransport, AsyncTransport, ChannelSettings, GrpcTransport, Transport

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient(Calls[AsyncTransport, Iterable[Row] | AsyncIterable[Row]]):
    """A connection to an Arlo gateway, or to any KServe v2 / Triton gRPC server, for one model.

    Belongs to the event loop of its first call; make one and share it between tasks. Use it with `async with`, or await
    close(). Nothing is sent before the first call; the model's description is asked for once, then kept. A cancelled
    task cancels its request on the server.
    """

    def _waits(self, settings: ChannelSettings, transport: AsyncTransport | None) -> Tasks:
        return Tasks(transport if transport is not None else AsyncGrpcTransport(settings))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Blocking(Calls[Transport, Iterable[Row]]):
    def _waits(self, settings: ChannelSettings, transport: Transport | None) -> Threads:
        return Threads(transport if transport is not None else GrpcTransport(settings))


def _blocking(call: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(call)
    def run(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return now(call(self._calls, *args, **kwargs))

    return run


def _draining(
    call: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    @functools.wraps(call)
    def run(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return drain(call(self._calls, *args, **kwargs))

    return run


class Client:
    """A connection to an Arlo gateway, or to any KServe v2 / Triton gRPC server, for one model.

    Safe for threads; make one and share it. Use it as a context manager, or call close(). Nothing is sent before the
    first call; the model's description is asked for once, then kept.
    """

    def __init__(
        self,
        endpoint: str = _calls.DEFAULT_ENDPOINT,
        *,
        model: str | None = None,
        tokenizer: str | Path | Tokenizer | None = None,
        timeout_s: float | None = _calls.DEFAULT_TIMEOUT_S,
        tls: TLS | None = None,
        token: str | None = None,
        max_message_bytes: int = _calls.DEFAULT_MAX_MESSAGE_BYTES,
        retries: int = _calls.DEFAULT_RETRIES,
        bulk: bool = False,
        transport: Transport | None = None,
    ) -> None:
        """`endpoint`: host:port. `model`: its name; None means the only one that the server has.
        `tokenizer`: a tokenizer.json, a folder that holds one, a hub id, or a Tokenizer; None: token ids only.
        `timeout_s`: of a whole call, retries included, sent as the gRPC deadline; None: no deadline.
        `token`: sent as bearer token (in the clear without `tls`). `max_message_bytes`: of one request or response.
        `retries`: further attempts after UNAVAILABLE and RESOURCE_EXHAUSTED. `bulk`: an Arlo gateway serves these
        requests with idle capacity; give them time. `transport`: instead of gRPC, for tests.

        Raises ConfigError, and EnvironmentProblem when the tokenizer is not found.
        """
        self._calls = _Blocking(
            endpoint,
            model=model,
            tokenizer=tokenizer,
            timeout_s=timeout_s,
            tls=tls,
            token=token,
            max_message_bytes=max_message_bytes,
            retries=retries,
            bulk=bulk,
            transport=transport,
        )

    infer = _blocking(_Blocking.infer)
    infer_batch = _blocking(_Blocking.infer_batch)
    embed = _blocking(_Blocking.embed)
    classify = _blocking(_Blocking.classify)
    stream = _draining(_Blocking.stream)
    classify_stream = _draining(_Blocking.classify_stream)
    model_info = _blocking(_Blocking.model_info)
    ready = _blocking(_Blocking.ready)
    close = _blocking(_Blocking.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
