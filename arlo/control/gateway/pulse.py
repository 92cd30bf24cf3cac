"""Checks whether a gateway answers on its data port: one call, over a new connection.

A gateway can be deaf (it accepts no new connection) or hang while its HTTP port and its open connections still
work; only a new connection to the clients' port shows it. Any answer counts, even an error, so no token or client
certificate is needed. The call is written by hand because a gRPC channel shares connections and retries by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct

CALL = "/inference.GRPCInferenceService/ServerLive"

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _END_HEADERS = 1, 4


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def _text(value: str) -> bytes:
    data = value.encode()
    assert len(data) < 127, "one length byte"
    return bytes([len(data)]) + data


def _request(authority: str, *, tls: bool) -> bytes:
    """The complete call: its headers as HPACK literals that need no table, and an empty message."""
    headers = b"\x83" + (b"\x87" if tls else b"\x86")  # :method POST, :scheme, from the static table
    headers += b"\x04" + _text(CALL) + b"\x01" + _text(authority)
    headers += b"\x0f\x10" + _text("application/grpc") + b"\x00" + _text("te") + _text("trailers")
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, 1, headers)
        + _frame(_DATA, _END_STREAM, 1, bytes(5))
    )


async def answers(address: str, *, tls: bool, timeout_s: float) -> bool:
    """Whether the gateway at `address` (host:port) answers a call over a new connection within `timeout_s`.

    Where it requires a client certificate, a handshake that it ends for lack of one counts as an answer.
    """
    host, _, port = address.rpartition(":")
    context = None
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # checks that it is alive, not its identity
        context.set_alpn_protocols(["h2"])
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
            writer.write(_request(address[-100:], tls=tls))
            while True:
                head = await reader.readexactly(9)
                size, kind = int.from_bytes(head[:3]), head[3]
                if kind in (_HEADERS, _RST_STREAM, _GOAWAY):
                    return True
                await reader.readexactly(size)
    except TimeoutError:
        return False
    except (OSError, asyncio.IncompleteReadError):  # the connection was closed
        return tls and writer is not None
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()
