"""How a client waits: in threads, or as tasks of an event loop. Everything else is written once, as coroutines.

A coroutine that awaits only the methods of `Threads` never suspends, so `now` runs it without an event loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
)
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

if TYPE_CHECKING:
    from arlo.client.transport import AsyncStream, AsyncTransport, Stream, Transport

T = TypeVar("T")


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("the coroutine waits for an event loop")


def drain(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """The items of a generator that never suspends; closing the one closes the other."""
    try:
        while True:
            yield now(anext(items))
    except StopAsyncIteration:
        return
    finally:
        now(items.aclose())


class _Each(AsyncIterator[T]):
    # Not a generator: those that are left early are closed by tasks of the event loop.
    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        for item in self._items:
            return item
        raise StopAsyncIteration


class ThreadQueue(queue.SimpleQueue[Any]):
    """A queue between threads."""

    async def take(self, wait_s: float | None = None) -> Any:
        """The next item; None when there is none within `wait_s`."""
        try:
            return self.get(timeout=wait_s)
        except queue.Empty:
            return None


class TaskQueue(asyncio.Queue[Any]):
    """A queue between tasks."""

    async def take(self, wait_s: float | None = None) -> Any:
        """Get the next item; None if there is none within `wait_s`."""
        if wait_s is None or not self.empty():
            return await self.get()
        try:
            async with asyncio.timeout(wait_s):
                return await self.get()
        except TimeoutError:
            return None


class Threads:
    """Waiting for `Client`: it blocks the calling thread."""

    queue = ThreadQueue

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._closed = threading.Event()

    async def call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        """See Transport.call."""
        return self._transport.call(method, request, timeout_s=timeout_s)

    def stream(self, requests: Any) -> Stream:
        """An open ModelStreamInfer call, which sends the items of a queue until one is None."""
        return self._transport.stream(iter(requests.get, None))

    def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items of an iterable."""
        return _Each(items)

    async def sleep(self, delay_s: float) -> None:
        """Pause, at most until the client is closed."""
        self._closed.wait(delay_s)

    async def compute(self, work: Callable[[], T]) -> T:
        """The result of work that takes long."""
        return work()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> Callable[[], Awaitable[None]]:
        """Run this concurrently. Await the returned call in the end: it cancels tasks; threads end by themselves."""
        threading.Thread(target=now, args=(coroutine,), name="arlo-stream", daemon=True).start()
        return _nothing

    async def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        self._transport.close()


async def _nothing() -> None:
    pass


class Tasks:
    """Waiting for `AsyncClient`: like Threads, with tasks instead of threads."""

    queue = TaskQueue

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        """See Threads."""
        return await self._transport.call_async(method, request, timeout_s=timeout_s)

    def stream(self, requests: Any) -> AsyncStream:
        """See Threads."""
        return self._transport.stream_async(_until_none(requests))

    def each(self, items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
        """The items of either kind of iterable."""
        return aiter(items) if isinstance(items, AsyncIterable) else _Each(items)

    async def sleep(self, delay_s: float) -> None:
        """See Threads."""
        await asyncio.sleep(delay_s)

    async def compute(self, work: Callable[[], T]) -> T:
        """See Threads."""
        return await asyncio.to_thread(work)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> Callable[[], Awaitable[None]]:
        """See Threads."""
        task = asyncio.create_task(coroutine)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        return end

    async def close(self) -> None:
        """See Threads."""
        await self._transport.close_async()


async def _until_none(items: TaskQueue) -> AsyncIterator[Any]:
    while (item := await items.get()) is not None:
        yield item


Waiting: TypeAlias = Threads | Tasks
