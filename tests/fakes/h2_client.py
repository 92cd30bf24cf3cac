"""A gRPC client on `h2`, over a socket: what it sends is legal HTTP/2, and can be cut and mixed as one likes."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import h2.config
import h2.connection
import h2.events
import h2.settings

INFER = "/inference.GRPCInferenceService/ModelInfer"


def request_headers(path: str = INFER, **others: str) -> list[tuple[str, str]]:
    """Those of a gRPC call; `others` replace or add, with _ for -."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "arlo"}
    fields |= {"te": "trailers", "content-type": "application/grpc"}
    return list((fields | {name.replace("_", "-"): value for name, value in others.items()}).items())


def plain(fields: list[Any]) -> dict[str, str]:
    """Header fields as h2 gives them, by name."""
    return dict(fields)


def framed(body: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(body)) + body


@dataclasses.dataclass
class Answer:
    """What came on a stream."""

    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    data: bytearray = dataclasses.field(default_factory=bytearray)
    trailers: dict[str, str] = dataclasses.field(default_factory=dict)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> str:
        """gRPC's, of trailers or of headers alone."""
        return self.trailers.get("grpc-status", self.headers.get("grpc-status", ""))

    @property
    def body(self) -> bytes:
        """The message of an answer that has one."""
        assert self.status == "0", self
        assert len(self.data) == 5 + int.from_bytes(self.data[1:5], "big")
        return bytes(self.data[5:])


class H2Client:
    """One connection. `cut(bytes)`: the pieces in which they go out; `opens_windows`: what was read is asked anew."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        cut: Callable[[bytes], Sequence[bytes]] = lambda data: [data],
        settings: dict[h2.settings.SettingCodes, int] | None = None,
        opens_windows: bool = True,
    ) -> None:
        connection.settimeout(10)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What is sent is often wrong on purpose, or made elsewhere.
        config = h2.config.H2Configuration(
            client_side=True, header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.h2 = h2.connection.H2Connection(config)
        self.answers: dict[int, Answer] = {}
        self.events: list[Any] = []
        self.over = False
        self.frame_sizes: list[int] = []
        self._socket = connection
        self._cut = cut
        self._opens_windows = opens_windows
        if settings:
            self.h2.local_settings = h2.settings.Settings(client=True, initial_values=settings)
            self.h2.decoder.max_allowed_table_size = self.h2.local_settings.header_table_size
        self.h2.initiate_connection()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def flush(self) -> None:
        for piece in self._cut(self.h2.data_to_send()):
            self._socket.sendall(piece)

    def raw(self, data: bytes) -> None:
        """Behind what h2 has to send, and unknown to it."""
        self.flush()
        self._socket.sendall(data)

    def begin(self, headers: Sequence[tuple[str, str]] | None = None, **how: Any) -> int:
        stream = int(self.h2.get_next_available_stream_id())
        self.h2.send_headers(stream, headers or request_headers(), **how)
        return stream

    def call(self, body: bytes, headers: Sequence[tuple[str, str]] | None = None) -> int:
        """A whole request; it goes out with the next flush()."""
        stream = self.begin(headers)
        self.h2.send_data(stream, framed(body), end_stream=True)
        return stream

    def infer(self, body: bytes, headers: Sequence[tuple[str, str]] | None = None) -> Answer:
        return self.answer(self.call(body, headers))

    def answer(self, stream: int, timeout_s: float = 10.0) -> Answer:
        """The answer once it has ended, or the connection has."""
        self.until(lambda: self.answers.get(stream, Answer()).ended, timeout_s)
        return self.answers.get(stream, Answer())

    def until(self, condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
        """Send and read until it holds or the connection has ended."""
        self.flush()
        until_s = time.monotonic() + timeout_s
        while not condition() and not self.over:
            assert time.monotonic() < until_s, "nothing more came in time"
            self.read()

    def read(self) -> None:
        """What comes next."""
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.over = True
            return
        for event in self.h2.receive_data(data):
            self.events.append(event)
            self._take(event)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.flush()

    def _take(self, event: Any) -> None:
        stream = getattr(event, "stream_id", None)
        if not stream:
            return
        answer = self.answers.setdefault(stream, Answer())
        if isinstance(event, h2.events.ResponseReceived):
            answer.headers = plain(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            answer.data += event.data
            self.frame_sizes.append(len(event.data))
            if self._opens_windows and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
        elif isinstance(event, h2.events.TrailersReceived):
            answer.trailers = plain(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            answer.ended = True
        elif isinstance(event, h2.events.StreamReset):
            answer.ended, answer.reset = True, event.error_code


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=10)
