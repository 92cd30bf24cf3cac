"""Drives a stream for `Client`: a thread reads the rows, another the answers, and the caller's own decides."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from arlo.client._window import Window
from arlo.client.errors import ClientError, UnavailableError
from arlo.client.result import Result
from arlo.client.rows import Row
from arlo.client.tensors import Reader
from arlo.client.transport import Transport
from arlo.clock import monotonic_s


@dataclasses.dataclass(frozen=True, slots=True)
class _Ended:
    """The rows are all read, or reading them raised."""

    error: BaseException | None


class _Wake:
    """There is a deadline to wait for where there was none."""


class _Link:
    """One ModelStreamInfer call. The transport reads `_sends` in a thread of its own."""

    def __init__(self, transport: Transport, events: queue.SimpleQueue[Any]) -> None:
        self._sends: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._events = events
        self._call = transport.stream(iter(self._sends.get, None))
        threading.Thread(target=self._read, name="arlo-stream-read", daemon=True).start()

    def send(self, request: Any) -> None:
        self._sends.put(request)

    def close(self) -> None:
        self._sends.put(None)
        self._call.cancel()

    def _read(self) -> None:
        try:
            for response in self._call:
                self._events.put((self, response))
        except ClientError as error:
            self._events.put((self, error))
        except BaseException as error:  # a transport that does not keep its word must not hang the caller
            self._events.put(_Ended(error))
        else:
            self._events.put((self, UnavailableError("the server ended the stream")))


class _Run:
    def __init__(self, transport: Transport, window: Window, reader: Reader, rows: Iterable[Row]) -> None:
        self._transport = transport
        self._window = window
        self._reader = reader
        self._rows = rows
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room = threading.Semaphore(window.size)
        self._stop = threading.Event()
        self._gate = threading.Lock()  # guards the window, _link and _paused
        self._link: _Link | None = None
        self._paused = False  # between two links: what is added goes out with the resend

    def items(self) -> Iterator[Result | ClientError]:
        ended = False
        threading.Thread(target=self._feed, name="arlo-stream-feed", daemon=True).start()
        try:
            while True:
                with self._gate:
                    if ended and not self._window:
                        return
                    wait_s = self._window.wait_s(monotonic_s())
                try:
                    event = self._events.get(timeout=wait_s)
                except queue.Empty:
                    with self._gate:
                        expired = self._window.expire(monotonic_s())
                    for error in expired:
                        self._room.release()
                        yield error
                    continue
                if isinstance(event, ClientError):  # of a row that could not be sent
                    self._room.release()
                    yield event
                elif isinstance(event, _Ended):
                    if event.error is not None:
                        raise event.error
                    ended = True
                elif not isinstance(event, _Wake):
                    item = self._received(*event)
                    if item is not None:
                        if isinstance(item, ClientError) or item.final:
                            self._room.release()
                        yield item
        finally:
            self._stop.set()
            self._room.release()
            with self._gate:
                if self._link is not None:
                    self._link.close()

    def _received(self, link: _Link, event: Any) -> Result | ClientError | None:
        with self._gate:
            if link is not self._link:
                return None
            if not isinstance(event, ClientError):
                return self._window.answer(event, monotonic_s())
            link.close()
            self._link = None
            if not self._window:
                return None  # opened again when there is something to send
            delay_s = self._window.broken(event)
            self._paused = True
        self._stop.wait(delay_s)
        with self._gate:
            self._paused = False
            for request in self._window.resend(monotonic_s()):
                self._send(request)
        return None

    def _send(self, request: Any) -> None:
        if self._link is None:
            self._link = _Link(self._transport, self._events)
        self._link.send(request)

    def _feed(self) -> None:
        try:
            rows = enumerate(self._rows)
            while True:
                self._room.acquire()
                position, row = next(rows, (-1, ""))
                if position < 0 or self._stop.is_set():
                    break
                entry = self._window.prepare(self._reader, position, row)
                if isinstance(entry, ClientError):
                    self._events.put(entry)
                    continue
                with self._gate:
                    if self._stop.is_set():
                        break
                    if not self._window:
                        self._events.put(_Wake())
                    self._window.add(entry, monotonic_s())
                    if not self._paused:
                        self._send(entry.request)
        except BaseException as error:  # belongs to the caller, who waits in items()
            self._events.put(_Ended(error))
        else:
            self._events.put(_Ended(None))


def run(transport: Transport, window: Window, reader: Reader, rows: Iterable[Row]) -> Iterator[Result | ClientError]:
    """See Client.stream. Closing the iterator ends the call and the threads; a feeder that waits for the caller's
    iterable ends with its next row.
    """
    return _Run(transport, window, reader, rows).items()
