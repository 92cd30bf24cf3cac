"""A client of the data port that does what no gRPC library does: shuts its window, floods, resets.

Just enough of HTTP/2 (RFC 9113) and gRPC's framing, on a plain socket; header fields are literals, never indexed.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Self

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4
MAX_FRAME = 16384  # bytes after its head, where nobody has said otherwise
INFER = "/inference.GRPCInferenceService/ModelInfer"


class RawHttp2:
    """One connection. `window`: how many bytes of each answer the server may send before it is allowed more."""

    def __init__(self, address: str, *, window: int = 65535, timeout_s: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self.settings: dict[int, int] = {}  # the server's
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._stream = 1
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.send(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window))
        while not self.settings:
            kind, flags, _, payload = self.frame()
            if kind == SETTINGS and not flags & ACK:
                self.settings = dict(struct.iter_unpack(">HI", payload))
        self.send(SETTINGS, ACK, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self._socket.sendall(_header(kind, flags, stream, len(payload)) + payload)

    def call(
        self,
        message: bytes,
        *,
        path: str = INFER,
        headers: dict[str, str] | None = None,
        compressed: bool = False,
        cut: int | None = None,
    ) -> int:
        """Send one request and return its stream's number; nothing is read.

        `compressed`: the message says so. `cut`: send only so many bytes of it and leave the call open.
        """
        stream = self._stream
        self._stream += 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "arlo",
            "te": "trailers",
            "content-type": "application/grpc",
        } | (headers or {})
        block = b"".join(_literal(name) for name in _fields(fields))
        body = bytes((compressed,)) + struct.pack(">I", len(message)) + message[:cut]
        frames = []
        for i in range(0, len(block), MAX_FRAME):
            piece = block[i : i + MAX_FRAME]
            last = END_HEADERS if i + MAX_FRAME >= len(block) else 0
            frames.append(_header(CONTINUATION if i else HEADERS, last, stream, len(piece)) + piece)
        pieces = [body[i : i + MAX_FRAME] for i in range(0, len(body), MAX_FRAME)]
        for i, piece in enumerate(pieces):
            last = END_STREAM if cut is None and i + 1 == len(pieces) else 0
            frames.append(_header(DATA, last, stream, len(piece)) + piece)
        self._socket.sendall(b"".join(frames))
        return stream

    def frame(self) -> tuple[int, int, int, bytes]:
        """The next frame: type, flags, stream, payload. EOFError when the server has closed."""
        head = self._exactly(9)
        size = int.from_bytes(head[:3], "big")
        return head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF, self._exactly(size)

    def pings_back(self) -> None:
        """Return when the server has handled all that was sent before."""
        self.send(PING, 0, 0, b"arlo-raw")
        while True:
            kind, flags, _, _ = self.frame()
            if kind == PING and flags & ACK:
                return

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            piece = self._socket.recv(size - len(out))
            if not piece:
                raise EOFError("the server closed the connection")
            out += piece
        return bytes(out)


def _header(kind: int, flags: int, stream: int, size: int) -> bytes:
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")


def _fields(fields: dict[str, str]) -> Iterator[tuple[bytes, bytes]]:
    for name, value in fields.items():
        yield name.encode(), value.encode()


def _literal(field: tuple[bytes, bytes]) -> bytes:
    """A literal header field without indexing (RFC 7541, 6.2.2)."""
    return b"\0" + b"".join(_length(len(part)) + part for part in field)


def _length(size: int) -> bytes:
    if size < 127:
        return bytes((size,))
    out, size = bytearray((127,)), size - 127
    while size >= 128:
        out.append(size % 128 | 128)
        size //= 128
    return bytes((*out, size))
