"""The HTTP API's port: its description, TLS, clients that say no more, read slowly or send much."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from tests.fakes.certificates import Authority
from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.odd_worker import OddWorker, holds
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import example, request_of

pytestmark = pytest.mark.integration

BODY = {"model": "emu", "input": "a text"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(workers: Workers, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    deployments = [workers.deployment("emu", [(0, 64), (3, 512)]), workers.deployment("wide", [(1, 512)])]
    async with gateway_of(tmp_path_factory.mktemp("gateway")) as gateway:
        for deployment in deployments:
            deployment.model.tokenizer = tokenizer.read_bytes()
            await gateway.apply(deployment, beside=True)
        yield gateway


def request_bytes(body: dict[str, Any], *lines: str, path: str = "/v1/embeddings") -> bytes:
    content = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(content)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content


async def test_the_description_is_of_what_is_served(http: httpx.AsyncClient) -> None:
    """Valid, and each of its paths has a route; that each route is in it, tests/unit/layout compares."""
    validator = pytest.importorskip("openapi_spec_validator")
    answer = await http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    validator.validate(document)
    for path, methods in document["paths"].items():
        for method in methods:
            real = path.replace("{model}", "emu").replace("{version}", "1")
            got = await http.request(method, real, content=b"{}" if method == "post" else None)
            assert got.status_code not in (404, 405), (method, path, got.text)
    other = await http.request("PUT", "/")
    assert (other.status_code, other.headers["allow"]) == (405, "GET, POST")


async def test_tls_with_and_without_client_certificates(workers: Workers, tokenizer: Path, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    certificate, key = ours.issue("server")
    own = ours.issue("client")
    deployment = workers.deployment("emu", [(0, 64)])
    deployment.model.tokenizer = tokenizer.read_bytes()
    for mutual in (False, True):
        files = {"certificate_file": str(certificate), "key_file": str(key)}
        tls = files | {"client_ca_file": str(ours.ca) if mutual else ""}
        async with gateway_of(tmp_path / f"gateway-{mutual}", tls=tls) as gateway:
            context = ssl.create_default_context(cafile=str(ours.ca))
            context.set_alpn_protocols(["http/1.1"])
            if mutual:
                context.load_cert_chain(*own)
            async with httpx.AsyncClient(base_url=f"https://{gateway.api}", verify=context, timeout=20) as client:
                assert (await client.get("/v1/health/live")).status_code == 200
                large = {"inputs": ["word " * 40] * 64, "pad": "x" * 300_000}
                for _ in range(2):
                    answer = await client.post("/embed", json=large)
                    assert answer.status_code == 503, "no deployment yet"
            strangers = [ssl.create_default_context(cafile=str(theirs.ca))]
            if mutual:
                strangers.append(ssl.create_default_context(cafile=str(ours.ca)))
            for stranger in strangers:
                with pytest.raises((httpx.HTTPError, ssl.SSLError)):  # the latter where the alert is read first
                    async with httpx.AsyncClient(verify=stranger, timeout=20) as client:
                        await client.get(f"https://{gateway.api}/v1/health/live")
            with pytest.raises(httpx.HTTPError):
                async with httpx.AsyncClient(timeout=20) as client:
                    await client.get(f"http://{gateway.api}/v1/health/live")
            only_h2 = ssl.create_default_context(cafile=str(ours.ca))
            only_h2.set_alpn_protocols(["h2"])
            host, _, port = gateway.api.rpartition(":")
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(host, int(port), ssl=only_h2)


async def test_a_client_that_says_no_more_is_answered_and_one_that_is_gone_is_not(
    workers: Workers, tokenizer: Path, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    async with OddWorker(holds(gate)) as worker:
        deployment = workers.deployment("emu", [(0, 64)], endpoints=[worker.endpoint], inflight_limit=1)
        deployment.model.tokenizer = tokenizer.read_bytes()
        async with gateway_of(tmp_path, deployment) as gateway:
            host, _, port = gateway.api.rpartition(":")
            ask = request_bytes({**BODY, "dimensions": 2})
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(ask + ask)
            writer.write_eof()
            await until(lambda: worker.requests, "the request at the worker")
            _, gone = await asyncio.open_connection(host, int(port))
            gone.write(ask)
            await gateway.stats_when(lambda stats: stats.queued == 1, "the other one waits")
            gone.close()
            await gateway.stats_when(lambda stats: stats.queued == 0, "it is cancelled")
            gate.set()
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            assert answer.count(b"HTTP/1.1 200 OK") == 2
            assert answer.count(b'"embedding":[') == 2
            statistics = await gateway.stats()
            assert statistics.outcomes.cancelled == 1
            assert statistics.outcomes.on_time + statistics.outcomes.late == 2


async def test_a_large_answer_is_packed_where_it_is_asked_for(http: httpx.AsyncClient) -> None:
    tokens = {"model": "wide", "inputs": ["word " * 100] * 8}
    packed = await http.post("/embed_all", json=tokens)
    assert packed.headers["content-encoding"] == "gzip"
    plain = await http.post("/embed_all", json=tokens, headers={"accept-encoding": "gzip;q=0, br"})
    assert "content-encoding" not in plain.headers
    assert packed.json() == plain.json()
    assert len(packed.json()) == 8
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
    short = await http.post("/embed", json={"model": "emu", "inputs": "a"})
    assert "content-encoding" not in short.headers


async def test_an_answer_that_is_too_large_is_no_overload(workers: Workers, tokenizer: Path, tmp_path: Path) -> None:
    deployment = workers.deployment("wide", [(1, 512)])
    deployment.model.tokenizer = tokenizer.read_bytes()
    async with gateway_of(tmp_path, deployment, max_message_bytes=200_000) as gateway:
        async with httpx.AsyncClient(base_url=f"http://{gateway.api}", timeout=20) as client:
            answer = await client.post("/embed_all", json={"inputs": ["word " * 100] * 8})
            assert answer.status_code == 422, answer.text
            assert "max_message_bytes" in answer.json()["error"]
            assert "retry-after-ms" not in answer.headers


async def test_others_are_served_while_much_is_read(served: Gateway, http: httpx.AsyncClient) -> None:
    """The lane answers while its helper reads 2 MiB of JSON and of words; all are answered."""
    much = {"model": "emu", "inputs": ["a" * 99 + " "] * 60, "x": [[1, [2]]] * 190_000}
    done: list[str] = []

    async def large() -> None:
        answer = await http.post("/embed", json=much)
        assert answer.status_code == 200, answer.text
        done.append("large")

    async def small() -> None:
        for _ in range(20):
            assert (await http.post("/v1/embeddings", json=BODY)).status_code == 200
            done.append("small")

    await asyncio.gather(large(), large(), large(), small())
    assert done.count("large") == 3
    assert done.count("small") == 20


async def test_a_reader_that_takes_some_is_not_ended_and_one_that_takes_nothing_is(
    workers: Workers, tokenizer: Path, tmp_path: Path
) -> None:
    """An answer of 8 MiB, more than sockets hold, has 600 ms, and as long again for a client that takes parts of it."""
    deployment = workers.deployment("wide", [(1, 512)])
    deployment.model.tokenizer = tokenizer.read_bytes()
    body = {"inputs": ["word " * 500] * 20, "model": "wide", "truncate": True}
    ask = request_bytes(body, "Connection: close", path="/embed_all")
    limits = {"body_timeout_ms": 600}
    async with gateway_of(tmp_path, deployment, limits=limits) as gateway, contextlib.AsyncExitStack() as stack:
        host, _, port = gateway.api.rpartition(":")

        def connected() -> socket.socket:
            made = socket.socket()
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
            made.connect((host, int(port)))
            made.sendall(ask)
            return made

        stack.enter_context(connected())  # takes nothing
        slow = stack.enter_context(connected())
        slow.settimeout(10)
        loop = asyncio.get_running_loop()
        taken = 0
        head = b""
        while piece := await loop.run_in_executor(None, slow.recv, 256 << 10):
            head = head or piece
            taken += len(piece)
            if taken < 2 << 20:
                await asyncio.sleep(0.02)  # it is the client that is slow
        assert head.startswith(b"HTTP/1.1 200")
        size = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
        assert taken == size + head.index(b"\r\n\r\n") + 4
        metrics = f"http://{gateway.http}/metrics"
        async with httpx.AsyncClient(timeout=20) as client:

            async def ended() -> bool:
                text = (await client.get(metrics)).text
                return 'arlo_client_over_limit_total{limit="time for an answer"} 1' in text

            await until(ended, "the silent one is ended")
        np.testing.assert_array_less(0, (await gateway.infer(request_of(example(3), model="wide"))).outputs[0].shape)
