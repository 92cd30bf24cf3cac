"""The HTTP API, as its clients and those who mean it harm speak to it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import Example, outputs_of, request_of

pytestmark = pytest.mark.integration

TEXTS = ["a text", "naïve Café 日本", "word " * 80]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(workers: Workers, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    deployment = workers.deployment("emu", [(0, 64), (1, 128), (2, 256), (3, 512)])
    deployment.model.tokenizer = tokenizer.read_bytes()
    limits = {"header_timeout_ms": 300, "body_timeout_ms": 600}
    async with gateway_of(tmp_path_factory.mktemp("gateway"), deployment, limits=limits) as gateway:
        yield gateway


async def embed(http: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await http.post("/v1/embeddings", json={"model": "emu", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def raw(gateway: Gateway, *parts: bytes) -> bytes:
    """All that comes back for bytes that are sent as they are, until the gateway closes."""
    host, _, port = gateway.api.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def test_embeddings_are_those_of_the_ids(served: Gateway, http: httpx.AsyncClient, known: Tokenizer) -> None:
    ids = [np.array(each.ids, np.int64) for each in known.encode_batch(TEXTS)]
    sent = Example(tuple(ids), max(map(len, ids)))
    wanted = outputs_of(await served.stub.ModelInfer(request_of(sent), timeout=20))["embedding"].astype(np.float64)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)

    answer = await embed(http, input=TEXTS, user="someone")
    assert answer["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    np.testing.assert_allclose([each["embedding"] for each in answer["data"]], wanted, atol=1e-6)
    packed = await embed(http, input=TEXTS, encoding_format="base64")
    vectors = [np.frombuffer(base64.b64decode(each["embedding"], validate=True), "<f4") for each in packed["data"]]
    np.testing.assert_allclose(vectors, wanted, atol=1e-6)
    verbatim = await embed(http, input=[row.tolist() for row in ids])
    np.testing.assert_allclose([each["embedding"] for each in verbatim["data"]], wanted, atol=1e-6)
    cut = np.array((await embed(http, input=TEXTS[0], dimensions=2))["data"][0]["embedding"])
    np.testing.assert_allclose(cut, wanted[0, :2] / np.linalg.norm(wanted[0, :2]), atol=1e-6)
    tei = await http.post("/embed", json={"inputs": TEXTS[0]})
    np.testing.assert_allclose(tei.json(), wanted[:1], atol=1e-6)
    only = await http.post("/v1/embeddings", json={"input": TEXTS[0]})  # one model is served, so none need be named
    assert only.json()["model"] == "emu"


async def test_a_path_that_is_not_there_names_no_model(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/nothing")
    assert answer.status_code == 404
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (None, None)


async def test_models_and_health(http: httpx.AsyncClient) -> None:
    assert [each["id"] for each in (await http.get("/v1/models")).json()["data"]] == ["emu"]
    assert (await http.get("/health")).status_code == 200
    given = await http.get("/health", headers={"x-request-id": "mine"})
    assert given.headers["x-request-id"] == "mine"
    assert (await http.get("/health")).headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b'{"model":"emu","input":"\xff"}', 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[" * 500_000 + b"]" * 500_000, 400, "nests too deep"),
        (b"[]", 400, "no JSON object"),
        (b'{"model":"emu"}', 400, "input is missing"),
        (b'{"model":"emu","input":""}', 400, "a text is empty"),
        (b'{"model":"emu","input":["a",1]}', 400, "one of them is none"),
        (b'{"model":"emu","input":[1,"a"]}', 400, "whole numbers"),
        (b'{"model":"emu","input":[[-1]]}', 400, "token id -1"),
        # As wide as the widest, these would be 10^11 ids.
        (json.dumps({"model": "emu", "input": [[1] * 400_000]}).encode(), 400, "400000 token ids"),
        (json.dumps({"model": "emu", "input": [[1]] * 200_000}).encode(), 400, "200000 rows"),
        (b'{"model":"emu","input":"a","dimensions":5}', 400, "dimensions"),
        (b'{"model":"other","input":"a"}', 404, "unknown model"),
        (json.dumps({"model": "emu", "input": "w " * 9000}).encode(), 400, "more than the 512 tokens"),
    ],
)
async def test_what_is_wrong_is_named(http: httpx.AsyncClient, body: bytes, status: int, said: str) -> None:
    answer = await http.post("/v1/embeddings", content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert said in error["message"]
    names = {"input is missing": "input", "a text is empty": "input", "unknown model": "model", "not JSON": None}
    if said in names:
        assert error["param"] == names[said]
    assert error["code"] == ("model_not_found" if status == 404 else None)
    tei = await http.post("/embed", json={"inputs": []})
    assert (tei.status_code, tei.json()["error_type"]) == (400, "Empty")


async def test_offenders_alone_pay(served: Gateway, http: httpx.AsyncClient) -> None:
    good = b'{"model":"emu","input":"a"}'
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n"
    assert b" 413 " in await raw(served, head % 10**9 + b"\r\n")
    assert b" 431 " in await raw(served, b"GET / HTTP/1.1\r\nx: " + b"y" * 40_000)
    chunked = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: %s\r\nConnection: close\r\n\r\n"
    assert b" 501 " in await raw(served, chunked % b"gzip")
    assert b" 400 " in await raw(served, chunked % b"chunked" + b"zz\r\n")
    assert b" 413 " in await raw(served, chunked % b"chunked" + b"ffffffffff\r\n")
    for path, word in ((b"/embed", b'"error_type":"Validation"'), (b"/v2/embed", b'{"id":"req-')):
        for said in (chunked % b"chunked" + b"zz\r\n", head % 10**9 + b"\r\n", head % 30 + b"\r\n{"):
            assert word in await raw(served, said.replace(b"/v1/embeddings", path)), (path, said)
    whole = chunked % b"chunked" + b"%x;x=y\r\n" % len(good) + good + b"\r\n0\r\nAfter: all\r\n\r\n"
    assert b" 200 " in await raw(served, whole)
    assert b" 400 " in await raw(served, head % 3 + b"Content-Length: 30\r\n\r\n" + good)
    assert b" 400 " in await raw(served, b"nothing\r\n\r\n")
    assert b" 408 " in await raw(served, b"GET / HT")
    assert b" 408 " in await raw(served, head % 30 + b"\r\n{")
    ahead = head % len(good) + b"\r\n" + good
    last = head % len(good) + b"Connection: close\r\n\r\n" + good
    answers = await raw(served, ahead * 3 + last)
    assert answers.count(b"HTTP/1.1 200 OK") == 4
    waits = await raw(served, head % len(good) + b"Expect: 100-continue\r\nConnection: close\r\n\r\n", good)
    assert b"HTTP/1.1 100 Continue" in waits or b"HTTP/1.1 200 OK" in waits
    await embed(http, input="still served")


async def test_texts_that_are_too_long_are_cut_where_the_configuration_says_so(
    workers: Workers, tokenizer: Path, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    long = "word " * 9000
    deployment = workers.deployment("emu", [(3, 512)])
    deployment.model.tokenizer = tokenizer.read_bytes()
    async with gateway_of(tmp_path, deployment, auto_truncate=True) as gateway:
        async with httpx.AsyncClient(base_url=f"http://{gateway.api}", timeout=20) as cutting:
            assert [(await each.get("/info")).json()["auto_truncate"] for each in (cutting, http)] == [True, False]
            cut = await embed(cutting, input=long)
            assert cut["usage"]["prompt_tokens"] == 512
            assert cut["data"] == (await embed(http, input=long, truncate="END"))["data"]
            for asked in ({"truncate": False}, {"truncate": "NONE"}):
                refused = await cutting.post("/embed", json={"inputs": long, **asked})
                assert (refused.status_code, "more than the 512 tokens" in refused.text) == (422, True)
            start = await cutting.post("/embed", json={"inputs": "first " + long, "truncate": "START"})
            assert start.json() == (await http.post("/embed", json={"inputs": long, "truncate": "START"})).json()


async def test_a_token_is_asked_for(workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    deployment = workers.deployment("emu", [(0, 64)])
    async with gateway_of(tmp_path, deployment, bearer_token_file=str(tmp_path / "token")) as gateway:
        async with httpx.AsyncClient(base_url=f"http://{gateway.api}", timeout=20) as client:
            body = {"model": "emu", "input": [[1, 2, 3]]}
            without = await client.post("/v1/embeddings", json=body)
            assert (without.status_code, without.json()["error"]["type"]) == (401, "authentication_error")
            assert without.json()["error"]["code"] == "invalid_api_key"
            assert without.headers["www-authenticate"] == 'Bearer realm="arlo"'
            assert (await client.get("/")).status_code == 200, "the page asks for the token itself"
            key = {"authorization": "Bearer secret"}
            assert (await client.post("/v1/embeddings", json=body, headers=key)).status_code == 200
            text = await client.post("/v1/embeddings", json={**body, "input": "text"}, headers=key)
            assert "compiled without a tokenizer" in text.json()["error"]["message"]
