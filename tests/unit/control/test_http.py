"""The control plane's HTTP port over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from arlo.control.http.server import ControlHttp
from arlo.control.http.status import ControlStatus
from arlo.errors import ConfigError
from tests.fakes.control_status import control_status


def ask(address: str, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, content type, body."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


async def get(address: str, path: str, method: str = "GET") -> tuple[int, str, str]:
    return await asyncio.to_thread(ask, address, path, method)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = ControlHttp("127.0.0.1:0", control_status)
    yield await server.start()
    await server.stop()


async def test_status_is_the_document(address: str) -> None:
    status, kind, body = await get(address, "/status")
    assert (status, kind) == (200, "application/json")
    assert ControlStatus.from_json(json.loads(body)) == control_status()


async def test_metrics_are_prometheus_text(address: str) -> None:
    status, kind, body = await get(address, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=")
    assert 'arlo_control_desired_instances{max_length="64",model="minilm",runtime="minilm_64"} 2.0\n' in body
    assert "# TYPE process_cpu_seconds_total counter" in body


async def test_other_paths_and_methods(address: str) -> None:
    assert await get(address, "/livez") == (200, "text/plain; charset=utf-8", "live\n")
    assert await get(address, "/") == (404, "text/plain; charset=utf-8", "there are /status, /metrics, /livez\n")
    assert (await get(address, "/status", "POST"))[0] == 405
    assert (await get(address, "/metrics?name[]=arlo_control_slo_seconds"))[2].count("# TYPE") == 1


async def test_an_error_in_the_status_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> ControlStatus:
        raise RuntimeError("no such thing")

    server = ControlHttp("127.0.0.1:0", broken)
    address = await server.start()
    with caplog.at_level(logging.ERROR, "arlo.control"):
        for path in ("/status", "/metrics"):
            status, _, body = await get(address, path)
            assert status == 500
            assert "no such thing" in body
    assert [record.getMessage() for record in caplog.records] == ["http_failed", "http_failed"]
    assert (await get(address, "/livez"))[0] == 200
    await server.stop()


async def test_a_client_that_stalls_holds_up_nobody() -> None:
    server = ControlHttp("127.0.0.1:0", control_status)
    address = await server.start()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as stalled:
        stalled.sendall(b"GET /sta")
        assert (await get(address, "/status"))[0] == 200
        async with asyncio.timeout(2):
            await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await get(address, "/status")


async def test_a_port_in_use_says_what_to_do_and_the_port_is_free_after_stop() -> None:
    first = ControlHttp("127.0.0.1:0", control_status)
    address = await first.start()
    second = ControlHttp(address, control_status)
    with pytest.raises(ConfigError, match=r"control\.http_address: cannot listen on .* Give another port, or port 0"):
        await second.start()
    await second.stop()
    await first.stop()
    await first.stop()
    assert await second.start() == address
    assert (await get(address, "/livez"))[0] == 200
    await second.stop()


async def test_ipv6() -> None:
    server = ControlHttp("[::1]:0", control_status)
    try:
        address = await server.start()
    except ConfigError:
        pytest.skip("no IPv6 loopback here")
    assert address.startswith("[::1]:")
    assert (await get(address, "/livez"))[0] == 200
    await server.stop()
