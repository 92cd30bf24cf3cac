"""Drives a stream: one coroutine reads the rows, one the answers, and the caller's own decides. Threads or tasks."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any

from arlo.client._waiting import Waiting
from arlo.client._window import Window
from arlo.client.errors import ClientError, UnavailableError
from arlo.client.result import Result
from arlo.client.rows import Row, RowReader
from arlo.clock import monotonic_s

_NO_ROW: Any = object()


@dataclasses.dataclass(frozen=True, slots=True)
class _Ended:
    """The rows are all read, or reading them raised."""

    error: BaseException | None


class _Link:
    """One ModelStreamInfer call, whose answers and end are events."""

    def __init__(self, waiting: Waiting, events: Any) -> None:
        self._sends = waiting.queue()
        self._events = events
        self._waiting = waiting
        self._call: Any = waiting.stream(self._sends)
        self.end = waiting.spawn(self._read())

    def send(self, request: Any) -> None:
        self._sends.put_nowait(request)

    def cancel(self) -> None:
        self._sends.put_nowait(None)
        self._call.cancel()

    async def _read(self) -> None:
        try:
            async for response in self._waiting.each(self._call):
                self._events.put_nowait((self, response))
        except ClientError as error:
            self._events.put_nowait((self, error))
        except BaseException as error:  # a transport that breaks its contract must not hang the caller
            self._events.put_nowait(_Ended(error))
        else:
            self._events.put_nowait((self, UnavailableError("the server ended the stream")))


class _Run:
    def __init__(self, waiting: Waiting, window: Window, reader: RowReader, rows: Any) -> None:
        self._waiting = waiting
        self._window = window
        self._reader = reader
        self._rows = rows
        self._events = waiting.queue()  # None: look at the deadlines again
        self._room = waiting.queue()  # an item for each request that may still be sent
        self._stopped = False
        self._gate = threading.Lock()  # guards the window, _link and _paused; nothing is awaited under it
        self._link: _Link | None = None
        self._paused = False  # between two links: added requests go out with the resend

    async def items(self) -> AsyncGenerator[Result | ClientError, None]:
        ended = False
        for _ in range(self._window.size):
            self._release()
        end_feeding = self._waiting.spawn(self._feed())
        try:
            while True:
                with self._gate:
                    if ended and not self._window:
                        return
                    wait_s = self._window.wait_s(monotonic_s())
                event = await self._events.take(wait_s)
                if event is None:
                    with self._gate:
                        expired = self._window.expire(monotonic_s())
                    for error in expired:
                        self._release()
                        yield error
                elif isinstance(event, ClientError):  # of a row that could not be sent
                    self._release()
                    yield event
                elif isinstance(event, _Ended):
                    if event.error is not None:
                        raise event.error
                    ended = True
                else:
                    item = await self._received(*event)
                    if item is not None:
                        if isinstance(item, ClientError) or item.final:
                            self._release()
                        yield item
        finally:
            self._stopped = True
            self._release()
            with self._gate:
                if self._link is not None:
                    self._link.cancel()
            await end_feeding()
            if self._link is not None:
                await self._link.end()

    def _release(self) -> None:
        self._room.put_nowait(True)

    async def _received(self, link: _Link, event: Any) -> Result | ClientError | None:
        with self._gate:
            if link is not self._link:
                return None
            if not isinstance(event, ClientError):
                return self._window.answer(event, monotonic_s())
            link.cancel()
            self._link = None
            if not self._window:
                return None  # opened again when there is something to send
            delay_s = self._window.broken(event)
            self._paused = True
        await self._waiting.sleep(delay_s)
        with self._gate:
            self._paused = False
            for request in self._window.resend(monotonic_s()):
                self._send(request)
        return None

    def _send(self, request: Any) -> None:
        if self._link is None:
            self._link = _Link(self._waiting, self._events)
        self._link.send(request)

    async def _feed(self) -> None:
        try:
            rows = self._waiting.each(self._rows)
            for position in itertools.count():
                await self._room.take()
                row = await anext(rows, _NO_ROW)
                if row is _NO_ROW or self._stopped:
                    break
                entry = self._window.prepare(self._reader, position, row)
                if isinstance(entry, ClientError):
                    self._events.put_nowait(entry)
                    continue
                with self._gate:
                    if self._stopped:
                        break
                    if not self._window:
                        self._events.put_nowait(None)  # this is the first deadline to wait for
                    self._window.add(entry, monotonic_s())
                    if not self._paused:
                        self._send(entry.request)
        except BaseException as error:  # belongs to the caller, who waits in items()
            self._events.put_nowait(_Ended(error))
        else:
            self._events.put_nowait(_Ended(None))


def run(
    waiting: Waiting, window: Window, reader: RowReader, rows: Iterable[Row] | AsyncIterable[Row]
) -> AsyncGenerator[Result | ClientError, None]:
    """See Calls.stream. Closing the generator ends the call and the threads; a thread that waits for the caller's
    iterable ends with its next row.
    """
    return _Run(waiting, window, reader, rows).items()
