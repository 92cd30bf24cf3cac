"""A connection that says what it is told as fast as the other side takes it, and notes what becomes of it.

The bytes of HTTP/2 are made by `hyperframe` and `hpack`; nothing keeps them within the protocol. Only small imports
here: each attack is a process of its own.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Self

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, SettingsFrame, WindowUpdateFrame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
WINDOW = 65535  # of a stream and of a connection, where nobody says otherwise
ERRORS = (
    *("NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED"),
    *("FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM"),
    *("INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"),
)
REQUEST = {
    ":method": "POST",
    ":scheme": "http",
    ":path": INFER,
    ":authority": "arlo",
    "te": "trailers",
    "content-type": "application/grpc",
}


class Notes:
    """What an attack did and what it met. `ends`: of connections; `answers`: of calls."""

    def __init__(self) -> None:
        self.connections = 0
        self.refused_connections = 0
        self.sent_bytes = 0
        self.blocked_s = 0.0  # the other side took nothing
        self.ends: collections.Counter[str] = collections.Counter()
        self.answers: collections.Counter[str] = collections.Counter()
        self.good_asked = 0  # calls on the offender's connections that must be answered well
        self.good_answered = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "connections": self.connections,
            "refused_connections": self.refused_connections,
            "sent_mb": round(self.sent_bytes / 1e6, 3),
            "blocked_s": round(self.blocked_s, 2),
            "ends": dict(self.ends),
            "answers": dict(self.answers),
            "good_asked": self.good_asked,
            "good_answered": self.good_answered,
        }


def block_of(headers: Mapping[str, str] | None = None) -> bytes:
    """A header block that leaves no trace in the other side's table, so it can be sent any number of times."""
    fields = [NeverIndexedHeaderTuple(name, value) for name, value in {**REQUEST, **(headers or {})}.items()]
    return bytes(Encoder().encode(fields, huffman=False))


def message(body: bytes, *, compressed: bool = False, size: int | None = None) -> bytes:
    """A message in gRPC's frame. `size`: what it says of its length, where that is a lie."""
    return bytes((compressed,)) + struct.pack(">I", len(body) if size is None else size) + body


class Offender:
    """One connection; `until_s` is when it gives up sending. Use as a context manager.

    `reads`: takes what comes while it says something. `greets`: begins with the preface and `settings`.
    `opens_windows`: asks for more when it has read an answer.
    """

    def __init__(
        self,
        address: tuple[str, int],
        notes: Notes,
        until_s: float,
        *,
        settings: Mapping[int, int] | None = None,
        reads: bool = True,
        greets: bool = True,
        opens_windows: bool = True,
    ) -> None:
        self.over = ""  # how it ended
        self.finished: dict[int, str] = {}  # stream -> how it ended
        self.window = WINDOW
        self.windows: dict[int, int] = {}
        self.stream_window = WINDOW
        self._notes = notes
        self._until_s = until_s
        self._reads = reads
        self.opens_windows = opens_windows
        self._next = 1
        self._inbox = bytearray()
        self._decoder = Decoder()
        self._pongs = 0
        self._saying = False
        self.mute = False  # gives none of the answers that the protocol wants, which would end what is half said
        self._replies = bytearray()
        notes.connections += 1
        try:
            self._socket = socket.create_connection(address, timeout=2)
        except OSError:
            notes.refused_connections += 1
            self._socket = socket.socket()
            self._end("not accepted")
            return
        self._socket.setblocking(False)
        if greets:
            self.say(PREFACE + SettingsFrame(0, settings=dict(settings or {})).serialize())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def fileno(self) -> int:
        return self._socket.fileno()

    def leave(self, *, reset: bool = False) -> None:
        if not self.over:
            self.look(0)
            self._end("still open")
        if reset:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    # --- saying -------------------------------------------------------------------------------------------------------

    def say(self, data: bytes) -> bool:
        """False: the connection has ended, or the time is up. Answers that the protocol wants go in between."""
        if self._saying:  # from within look(): not into the middle of a frame
            self._replies += data
            return True
        self._saying = True
        try:
            told = self._push(data)
            while told and self._replies and not self.mute:
                replies, self._replies = bytes(self._replies), bytearray()
                told = self._push(replies)
            return told
        finally:
            self._saying = False

    def _push(self, data: bytes) -> bool:
        left = memoryview(data)
        while left and not self.over:
            try:
                count = self._socket.send(left)
            except BlockingIOError:
                if not self._wait():
                    return False
                continue
            except OSError:
                self.look(0)  # what it said before
                self._end("reset")
                return False
            self._notes.sent_bytes += count
            left = left[count:]
            if self._reads:
                self.look(0)
        return not self.over

    def half_close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _wait(self) -> bool:
        """Until there is room to send. False: not in time."""
        began_s = time.monotonic()
        reading = [self._socket] if self._reads else []
        readable, writable, _ = select.select(reading, [self._socket], [], 0.1)
        if not writable:
            self._notes.blocked_s += time.monotonic() - began_s
        if readable:
            self.look(0)
        return time.monotonic() < self._until_s

    def stream(self) -> int:
        """A number for a new one."""
        self._next += 2
        return self._next - 2

    def headers_of(self, stream: int, block: bytes, *, end: bool = False, whole: bool = True) -> bytes:
        frame = HeadersFrame(stream, data=block)
        frame.flags |= {"END_HEADERS"} if whole else set()
        frame.flags |= {"END_STREAM"} if end else set()
        return frame.serialize()

    def data_of(self, stream: int, data: bytes, *, end: bool = True, piece: int = 16384) -> bytes:
        pieces = [data[i : i + piece] for i in range(0, len(data), piece)] or [b""]
        frames = [DataFrame(stream, data=each) for each in pieces]
        if end:
            frames[-1].flags.add("END_STREAM")
        return b"".join(frame.serialize() for frame in frames)

    def call(self, body: bytes, headers: Mapping[str, str] | None = None) -> int:
        """A whole request, without a look at windows; its stream."""
        stream = self.stream()
        self.say(self.headers_of(stream, block_of(headers)) + self.data_of(stream, message(body)))
        return stream

    def feed(self, stream: int, data: bytes) -> int:
        """As much of a message as the windows allow now; how much that was."""
        room = min(self.window, self.windows.setdefault(stream, self.stream_window), len(data))
        if room <= 0 or not self.say(self.data_of(stream, data[:room], end=False)):
            return 0
        self.window -= room
        self.windows[stream] -= room
        return room

    # --- hearing ------------------------------------------------------------------------------------------------------

    def look(self, wait_s: float) -> bool:
        """Take what has come, waiting for it at most so long. False: nothing came."""
        if self.over:
            return False
        with contextlib.suppress(ValueError, OSError):
            if not select.select([self._socket], [], [], wait_s)[0]:
                return False
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            self._end("reset")
            return False
        self._inbox += data
        self._take_frames()
        if not data:
            self._end("closed")
        if self._replies and not self._saying and not self.mute:
            self.say(b"")
        return True

    def hear(self, wait_s: float) -> None:
        """Until it has ended, or for so long."""
        until_s = time.monotonic() + wait_s
        while not self.over and (left_s := until_s - time.monotonic()) > 0:
            self.look(left_s)

    def answered(self, stream: int, wait_s: float) -> str:
        """How the call ended; empty: not in time."""
        until_s = time.monotonic() + wait_s
        while stream not in self.finished and not self.over and (left_s := until_s - time.monotonic()) > 0:
            self.look(left_s)
        return self.finished.get(stream, "")

    def good(self, stream: int, wait_s: float = 10.0) -> None:
        """Note a call that must be answered well."""
        self._notes.good_asked += 1
        self._notes.good_answered += self.answered(stream, wait_s) == "grpc-status 0"

    def heard(self, wait_s: float) -> bool:
        """All that was said before has been read by the other side."""
        pongs = self._pongs
        self.say(PingFrame(0, opaque_data=b"heard it").serialize())
        until_s = time.monotonic() + wait_s
        while self._pongs == pongs and not self.over and (left_s := until_s - time.monotonic()) > 0:
            self.look(left_s)
        return self._pongs > pongs

    def _take_frames(self) -> None:
        at = 0
        while len(self._inbox) - at >= 9:
            size = int.from_bytes(self._inbox[at : at + 3], "big")
            if len(self._inbox) - at < 9 + size:
                break
            kind, flags = self._inbox[at + 3], self._inbox[at + 4]
            stream = int.from_bytes(self._inbox[at + 5 : at + 9], "big") & 0x7FFFFFFF
            self._take(kind, flags, stream, bytes(self._inbox[at + 9 : at + 9 + size]))
            at += 9 + size
        del self._inbox[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._take_headers(stream, payload, end=bool(flags & END_STREAM))
        elif kind == DATA and payload:
            if self.opens_windows:
                updates = [WindowUpdateFrame(number, window_increment=len(payload)) for number in (0, stream)]
                self._replies += b"".join(update.serialize() for update in updates)
        elif kind == RST_STREAM:
            # NO_ERROR after an answer only says that the rest of the request is not wanted.
            self._finish(stream, f"RST_STREAM {_error(payload)}")
        elif kind == SETTINGS and not flags & ACK:
            settings = dict(struct.iter_unpack(">HI", payload))
            wanted = settings.get(SettingsFrame.INITIAL_WINDOW_SIZE, self.stream_window)
            self.windows = {number: room + wanted - self.stream_window for number, room in self.windows.items()}
            self.stream_window = wanted
            self._replies += SettingsFrame(0, flags=["ACK"]).serialize()
        elif kind == PING and not flags & ACK:
            self._replies += PingFrame(0, opaque_data=payload, flags=["ACK"]).serialize()
        elif kind == PING:
            self._pongs += 1
        elif kind == GOAWAY and payload[4:8] != bytes(4):  # NO_ERROR: it ends what is open first
            self._end(f"GOAWAY {_error(payload[4:])}")
        elif kind == WINDOW_UPDATE and stream:
            self.windows[stream] = self.windows.get(stream, self.stream_window) + int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self.window += int.from_bytes(payload, "big")

    def _take_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        try:
            fields: dict[Any, Any] = dict(self._decoder.decode(block))
        except HPACKError:
            return
        if end:
            status = fields.get("grpc-status")
            self._finish(stream, f"grpc-status {status}" if status else f"http {fields.get(':status')}")

    def _finish(self, stream: int, how: str) -> None:
        if stream not in self.finished:
            self.finished[stream] = how
            self._notes.answers[how] += 1

    def _end(self, how: str) -> None:
        if not self.over:
            self.over = how
            self._notes.ends[how] += 1


def _error(payload: bytes) -> str:
    code = int.from_bytes(payload[:4], "big")
    return ERRORS[code] if code < len(ERRORS) else str(code)
