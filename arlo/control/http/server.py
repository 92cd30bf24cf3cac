"""The control plane's HTTP port: /status (JSON), /metrics (Prometheus), /livez.

The event loop only accepts; a request is read, rendered and written in a separate thread, which asks the loop for the
status. So a slow client blocks nothing, an idle port costs nothing (no polling thread), and the status is made on the
loop, between two of its steps. /livez also asks the loop: it returns 503 when the loop is stuck.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import socket
import socketserver
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from arlo.control.events import emit
from arlo.control.http.metrics import make_registry
from arlo.control.http.status import ControlStatus
from arlo.errors import ConfigError

log = logging.getLogger("arlo.control")

LOOP_TIMEOUT_S = 5.0
CLIENT_TIMEOUT_S = 10.0
PATHS = ("/status", "/metrics", "/livez")
T = TypeVar("T")


class LoopStuckError(Exception):
    """The event loop did not answer in time, or has ended."""


class ControlHttp:
    """Serves the result of `status`. `status` is called on the event loop, once per request for /status and /metrics;
    it must not block, and its result must be new each time or never change again.

    Life: start() on the loop, stop() on the same loop. `address` is host:port; port 0 picks a free one.
    """

    def __init__(self, address: str, status: Callable[[], ControlStatus]) -> None:
        self._address = address
        self._status = status
        self._server: _Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._metrics = make_wsgi_app(make_registry(lambda: self._on_loop(self._status)))

    async def start(self) -> str:
        """Bind and serve; returns the bound host:port. ConfigError when the address cannot be bound."""
        assert self._server is None, "started already"
        host, _, port = self._address.rpartition(":")
        self._loop = asyncio.get_running_loop()
        try:
            found = await self._loop.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            server = _Server(found[0], self._app)
        except OSError as error:
            raise ConfigError(
                f"control.http_address: cannot listen on {self._address} ({error.strerror}): does another `arlo serve` "
                "run here? Give another port, or port 0 for a free one"
            ) from None
        self._server = server
        self._loop.add_reader(server.fileno(), server.handle_request)
        return f"{host}:{server.server_port}"

    async def stop(self) -> None:
        """Close the port; requests in progress end by themselves. Idempotent."""
        server, self._server = self._server, None
        if server is not None and self._loop is not None:
            self._loop.remove_reader(server.fileno())
            server.server_close()

    # --- in a request's thread ---

    def _on_loop(self, call: Callable[[], T]) -> T:
        assert self._loop is not None
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(call())
            except Exception as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
            return answer.result(LOOP_TIMEOUT_S)
        except (RuntimeError, TimeoutError) as error:
            if answer.done() and not answer.cancelled():
                raise  # an error of the call itself
            answer.cancel()
            raise LoopStuckError(f"the control plane did not answer within {LOOP_TIMEOUT_S:g} s") from error

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        try:
            if path not in PATHS:
                return _plain(start_response, "404 Not Found", f"there are {', '.join(PATHS)}")
            if environ["REQUEST_METHOD"] != "GET":
                return _plain(start_response, "405 Method Not Allowed", "GET only", ("Allow", "GET"))
            if path == "/metrics":
                result: Iterable[bytes] = self._metrics(environ, start_response)
                return result
            if path == "/livez":
                self._on_loop(lambda: None)
                return _plain(start_response, "200 OK", "live")
            body = json.dumps(self._on_loop(self._status).to_json(), separators=(",", ":")).encode()
        except LoopStuckError as error:
            return _plain(start_response, "503 Service Unavailable", str(error))
        except Exception as error:
            emit(log, "http_failed", level=logging.ERROR, path=path, error=repr(error))
            return _plain(start_response, "500 Internal Server Error", repr(error))
        return _answer(start_response, "200 OK", "application/json", body)


def _plain(start_response: Any, status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
    return _answer(start_response, status, "text/plain; charset=utf-8", f"{text}\n".encode(), *headers)


def _answer(start_response: Any, status: str, kind: str, body: bytes, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *headers])
    return [body]


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT_S  # for one read or write, so that a stalled client keeps no thread

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    timeout = 0  # handle_request() takes a pending connection and does not wait

    def __init__(self, found: tuple[Any, ...], app: Any) -> None:
        self.address_family = found[0]
        super().__init__(found[4], _Handler)
        self.socket.setblocking(False)  # a connection closed before it is accepted must not block the loop
        self.set_app(app)

    def server_bind(self) -> None:
        # HTTPServer's version asks the name service for our name, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(Exception):
            emit(log, "http_connection_failed", level=logging.DEBUG, error=repr(sys.exception()))
