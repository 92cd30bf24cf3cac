"""Drives a stream for `AsyncClient`: as _stream.py, with tasks for threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from typing import Any

from arlo.client._stream import _Ended, _Wake
from arlo.client._window import Window
from arlo.client.errors import ClientError, UnavailableError
from arlo.client.result import Result
from arlo.client.rows import Row
from arlo.client.tensors import Reader
from arlo.client.transport import AsyncTransport
from arlo.clock import monotonic_s


class _Link:
    """One ModelStreamInfer call."""

    def __init__(self, transport: AsyncTransport, events: asyncio.Queue[Any]) -> None:
        self._sends: asyncio.Queue[Any] = asyncio.Queue()
        self._events = events
        self._call = transport.stream_async(self._requests())
        self._task = asyncio.create_task(self._read())

    def send(self, request: Any) -> None:
        self._sends.put_nowait(request)

    async def close(self) -> None:
        self._sends.put_nowait(None)
        self._call.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self._sends.get()) is not None:
            yield request

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._events.put_nowait((self, response))
        except ClientError as error:
            self._events.put_nowait((self, error))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a transport that does not keep its word must not hang the caller
            self._events.put_nowait(_Ended(error))
        else:
            self._events.put_nowait((self, UnavailableError("the server ended the stream")))


class _Run:
    def __init__(
        self, transport: AsyncTransport, window: Window, reader: Reader, rows: Iterable[Row] | AsyncIterable[Row]
    ) -> None:
        self._transport = transport
        self._window = window
        self._reader = reader
        self._rows = rows
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._room = asyncio.Semaphore(window.size)
        self._link: _Link | None = None
        self._paused = False

    async def items(self) -> AsyncGenerator[Result | ClientError, None]:
        ended = False
        timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        feeder = asyncio.create_task(self._feed())
        try:
            while not (ended and not self._window):
                wait_s = self._window.wait_s(monotonic_s())
                if wait_s is not None and timer is None:
                    timer = loop.call_later(wait_s, self._events.put_nowait, _Wake())
                event = await self._events.get()
                if isinstance(event, _Wake):
                    timer = None
                    for error in self._window.expire(monotonic_s()):
                        self._room.release()
                        yield error
                elif isinstance(event, ClientError):
                    self._room.release()
                    yield event
                elif isinstance(event, _Ended):
                    if event.error is not None:
                        raise event.error
                    ended = True
                elif event is not None:
                    item = await self._received(*event)
                    if item is not None:
                        if isinstance(item, ClientError) or item.final:
                            self._room.release()
                        yield item
        finally:
            if timer is not None:
                timer.cancel()
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)
            if self._link is not None:
                await self._link.close()

    async def _received(self, link: _Link, event: Any) -> Result | ClientError | None:
        if link is not self._link:
            return None
        if not isinstance(event, ClientError):
            return self._window.answer(event, monotonic_s())
        self._link = None
        await link.close()
        if not self._window:
            return None
        delay_s = self._window.broken(event)
        self._paused = True
        await asyncio.sleep(delay_s)
        self._paused = False
        for request in self._window.resend(monotonic_s()):
            self._send(request)
        return None

    def _send(self, request: Any) -> None:
        if self._link is None:
            self._link = _Link(self._transport, self._events)
        self._link.send(request)

    async def _feed(self) -> None:
        try:
            position = 0
            async for row in _each(self._rows, self._room):
                entry = self._window.prepare(self._reader, position, row)
                position += 1
                if isinstance(entry, ClientError):
                    self._events.put_nowait(entry)
                    continue
                if not self._window:
                    self._events.put_nowait(None)  # there is a deadline to wait for where there was none
                self._window.add(entry, monotonic_s())
                if not self._paused:
                    self._send(entry.request)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # belongs to the caller, who waits in items()
            self._events.put_nowait(_Ended(error))
        else:
            self._events.put_nowait(_Ended(None))


async def _each(rows: Iterable[Row] | AsyncIterable[Row], room: asyncio.Semaphore) -> AsyncIterator[Row]:
    """Each row, read only once there is room for its request."""
    await room.acquire()
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
            await room.acquire()
    else:
        for row in rows:
            yield row
            await room.acquire()


def run(
    transport: AsyncTransport, window: Window, reader: Reader, rows: Iterable[Row] | AsyncIterable[Row]
) -> AsyncGenerator[Result | ClientError, None]:
    """See AsyncClient.stream. Close the iterator (contextlib.aclosing) when leaving it early."""
    return _Run(transport, window, reader, rows).items()
