"""The two clients: the calls of _calls.py, run on the caller's event loop or in its thread."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from arlo.client._calls import Calls
from arlo.client._waiting import Tasks, Threads, drain, now
from arlo.client.rows import Row
from arlo.client.transport import AsyncGrpcTransport, AsyncTransport, ChannelSettings, GrpcTransport, Transport

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


def _holding(made: Callable[P, _Blocking]) -> Callable[[Any], Callable[Concatenate[Client, P], None]]:
    @functools.wraps(_Blocking.__init__)
    def init(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._calls = made(*args, **kwargs)

    return lambda _: init


class Client:
    """A connection to an Arlo gateway, or to any KServe v2 / Triton gRPC server, for one model.

    Safe for threads; make one and share it. Use it as a context manager, or call close(). Nothing is sent before the
    first call; the model's description is asked for once, then kept.
    """

    _calls: _Blocking

    @_holding(_Blocking)
    def __init__(self) -> None:
        """See AsyncClient."""

    # The same calls, each returning what it would give its awaiter.
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
