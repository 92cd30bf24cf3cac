"""The control plane's HTTP port: /status (JSON), /metrics (Prometheus), /livez.

It is served by the event loop itself: a slow client blocks nothing, the status is made between two of the loop's steps,
and no request is answered when the loop is stuck.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from urllib.parse import parse_qs

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from arlo.control.events import emit
from arlo.control.http.metrics import make_registry
from arlo.control.http.status import ControlStatus
from arlo.errors import ConfigError

log = logging.getLogger("arlo.control")

CLIENT_TIMEOUT_S = 10.0  # for a whole request, so that a stalled client is let go
PATHS = ("/status", "/metrics", "/livez")
TEXT = "text/plain; charset=utf-8"


class ControlHttp:
    """Serves the result of `status`. `status` is called on the event loop, once per request for /status and /metrics;
    it must not block.

    Life: start() on the loop, stop() on the same loop. `address` is host:port; port 0 picks a free one.
    """

    def __init__(self, address: str, status: Callable[[], ControlStatus]) -> None:
        self._address = address
        self._status = status
        self._registry = make_registry(status)
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Bind and serve; returns the bound host:port. ConfigError when the address cannot be bound."""
        assert self._server is None, "started already"
        host, _, port = self._address.rpartition(":")
        try:
            self._server = await asyncio.start_server(self._serve, host.strip("[]"), int(port))
        except OSError as error:
            raise ConfigError(
                f"control.http_address: cannot listen on {self._address} ({error.strerror}): does another `arlo serve` "
                "run here? Give another port, or port 0 for a free one"
            ) from None
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close the port; requests in progress end by themselves. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.decode("latin-1").partition(" ")
                status, kind, body = self._answer(method, rest.partition(" ")[0])
                allow = "Allow: GET\r\n" if status.startswith("405") else ""
                fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n{allow}Connection: close\r\n\r\n"
                writer.write(f"HTTP/1.1 {status}\r\n{fields}".encode() + body)
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            emit(log, "http_connection_failed", level=logging.DEBUG, error=repr(error))
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    def _answer(self, method: str, target: str) -> tuple[str, str, bytes]:
        """Status, content type, body."""
        path, _, query = target.partition("?")
        try:
            if path not in PATHS:
                return "404 Not Found", TEXT, f"there are {', '.join(PATHS)}\n".encode()
            if method != "GET":
                return "405 Method Not Allowed", TEXT, b"GET only\n"
            if path == "/livez":
                return "200 OK", TEXT, b"live\n"
            if path == "/metrics":
                names = parse_qs(query).get("name[]")
                registry = self._registry.restricted_registry(names) if names else self._registry
                return "200 OK", CONTENT_TYPE_LATEST, generate_latest(registry)
            return "200 OK", "application/json", json.dumps(self._status().to_json(), separators=(",", ":")).encode()
        except Exception as error:
            emit(log, "http_failed", level=logging.ERROR, path=path, error=repr(error))
            return "500 Internal Server Error", TEXT, f"{error!r}\n".encode()
