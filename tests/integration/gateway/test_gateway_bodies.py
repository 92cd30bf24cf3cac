"""Bodies of many megabytes, pages of other origins, and memory that goes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers

pytestmark = pytest.mark.integration

ORIGIN = "http://page.example"
LARGEST = 4 << 20


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(workers: Workers, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    deployment = workers.deployment("emu", [(0, 64), (1, 128), (2, 256), (3, 512)])
    deployment.model.tokenizer = tokenizer.read_bytes()
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("secret")
    async with gateway_of(
        tmp_path_factory.mktemp("gateway"),
        deployment,
        max_body_bytes=LARGEST,
        cors_origins=[ORIGIN, "https://other.example:8443"],
        bearer_token_file=str(token),
    ) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def http(served: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer secret"}
    async with httpx.AsyncClient(base_url=f"http://{served.api}", timeout=60, headers=headers) as client:
        yield client


def body_of(size: int) -> bytes:
    """JSON of so many bytes: texts of which four tokens are looked at."""
    frame = len(json.dumps({"model": "emu", "input": [""] * 60, "truncate_prompt_tokens": 4}))
    each, rest = divmod(size - frame, 60)
    texts = ["word " * 200_000] * 60
    texts = [text[: each + (1 if at < rest else 0)] for at, text in enumerate(texts)]
    return json.dumps({"model": "emu", "input": texts, "truncate_prompt_tokens": 4}).encode()


async def test_a_body_of_the_largest_size_is_read(http: httpx.AsyncClient) -> None:
    body = body_of(LARGEST)
    assert len(body) == LARGEST
    answer = await http.post("/v1/embeddings", content=body)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"]) == 60


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_larger_one_names_the_option(served: Gateway, *, chunked: bool) -> None:
    host, _, port = served.api.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    size = b"Transfer-Encoding: chunked\r\n\r\n400001\r\n" if chunked else b"Content-Length: %d\r\n\r\n" % (LARGEST + 1)
    writer.write(b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nOrigin: %b\r\n%b" % (ORIGIN.encode(), size))
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert b" 413 " in answer
    assert b"gateway.max_body_bytes" in answer
    assert b"Access-Control-Allow-Origin: " + ORIGIN.encode() in answer


async def test_memory_goes_back_when_it_is_not_used(served: Gateway, http: httpx.AsyncClient) -> None:
    body = body_of(LARGEST)
    await http.post("/v1/embeddings", json={"model": "emu", "input": "a"})
    before_mb = served.rss_mb()
    await asyncio.gather(*(http.post("/v1/embeddings", content=body) for _ in range(24)))
    await until(lambda: served.rss_mb() < before_mb + 48, f"memory is back: {before_mb:.0f} MB before", timeout_s=40)


PATHS = [
    ("POST", "/v1/embeddings", b'{"model":"emu","input":"a"}', 200),
    ("POST", "/embed", b'{"inputs":"a"}', 200),
    ("POST", "/v1/embeddings", b"{", 400),
    ("POST", "/v2/models/nothing/infer", b"{}", None),
    ("GET", "/v1/models", None, 200),
    ("GET", "/health", None, 200),
    ("GET", "/nothing", None, 404),
    ("GET", "/embed", None, 405),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), PATHS)
async def test_a_page_of_an_allowed_origin_may_ask(
    http: httpx.AsyncClient, method: str, path: str, body: bytes | None, status: int | None
) -> None:
    asks = {
        "origin": ORIGIN,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type",
    }
    async with httpx.AsyncClient(base_url=http.base_url) as without_token:
        preflight = await without_token.options(path, headers=asks)
        refused = await without_token.request(method, path, headers={"origin": ORIGIN})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    answer = await http.request(method, path, content=body, headers={"origin": ORIGIN})
    assert status is None or answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["vary"] == "Origin"
    assert refused.headers["access-control-allow-origin"] == ORIGIN


async def test_other_origins_may_not(http: httpx.AsyncClient) -> None:
    for origin in ("http://evil.example", "null", ORIGIN + ".evil.example"):
        answer = await http.get("/health", headers={"origin": origin})
        assert "access-control-allow-origin" not in answer.headers
        asks = {"origin": origin, "access-control-request-method": "POST"}
        assert "access-control-allow-origin" not in (await http.options("/embed", headers=asks)).headers
    assert "access-control-allow-origin" not in (await http.get("/health")).headers
