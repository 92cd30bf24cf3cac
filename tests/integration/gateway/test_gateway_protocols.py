"""What clients of each API read where a request does not become a call, and HTTP/1.1 as its standard has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.triton_workers import Workers

triton = pytest.importorskip("tritonclient.http")

from tritonclient.utils import InferenceServerException  # noqa: E402  # behind the check that it is there

pytestmark = pytest.mark.integration

NAME = "ORG/NAME"  # as the hub has names
TEXTS = ["a text", "quite another one", "and a third"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(workers: Workers, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    async with gateway_of(folder, aliases={NAME: "emu", "a/b/c": "emu"}) as gateway:
        for name, worker in (("emu", 0), ("ranker", 1)):
            deployment = workers.deployment(name, [(worker, 64)])
            deployment.model.tokenizer = tokenizer.read_bytes()
            await gateway.apply(deployment, beside=True)
        yield gateway


async def raw(gateway: Gateway, *parts: bytes) -> bytes:
    """All that comes back, of a client that says no more."""
    host, _, port = gateway.api.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await writer.drain()
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


# --- errors -----------------------------------------------------------------------------------------------------------

OTHERS: list[Callable[[Any], Any]] = [
    lambda client: client.get_trace_settings(),
    lambda client: client.get_trace_settings("emu"),
    lambda client: client.update_trace_settings(settings={"trace_level": ["OFF"]}),
    lambda client: client.get_log_settings(),
    lambda client: client.update_log_settings({"log_verbose_level": 1}),
    lambda client: client.get_system_shared_memory_status(),
    lambda client: client.get_cuda_shared_memory_status("region"),
    lambda client: client.register_system_shared_memory("region", "/key", 64),
    lambda client: client.unregister_system_shared_memory(),
    lambda client: client.unregister_cuda_shared_memory("region"),
    lambda client: client.load_model("emu"),
    lambda client: client.unload_model("emu"),
]


async def test_tritonclient_reads_why_a_call_is_not_served(served: Gateway) -> None:
    def ask_all() -> None:
        client = triton.InferenceServerClient(served.api)
        for call in OTHERS:
            with pytest.raises(InferenceServerException):
                call(client)
        client.close()

    await asyncio.to_thread(ask_all)


def form_of(answer: httpx.Response) -> str:
    """Whose errors look like this."""
    said = answer.json()
    if isinstance(said.get("error"), dict):
        return "openai" if said["error"]["message"] else ""
    if isinstance(said.get("error"), str):
        return "tei" if "error_type" in said else "kserve"
    return "cohere" if isinstance(said.get("message"), str) else ""


FORMS = {
    "kserve": ["/v2/", "/v2/nothing", "/v2/models", "/v2/models/emu/nothing", "/v2/models/emu/versions/1/generate",
               "/v2/models/emu/infer/", "/v2/repository/models/emu/load", "/v2/systemsharedmemory/region/a/register",
               "/v2/logging", "/v2/trace/setting", "/v2/health", "/v2/health/live"],
    "cohere": ["/v2/embed", "/v2/embed/", "/v2/embed/jobs", "/v2/rerank", "/v2/rerank/a", "/v1/rerank", "/v1/rerank/a",
               "/v1/embed", "/v2/chat", "/v1/tokenize", "/v1/chat"],
    "tei": ["/embed", "/embed/a", "/embed_all", "/predict", "/predict/a", "/info/a", "/tokenize", "/decode/a"],
    "openai": ["/v1", "/v1/nothing", "/nothing", "/v1/embeddings", "/v1/embeddings/a", "/v1/chat/completions",
               "/openai/v1/nothing", "/embedding", "/v2embed", "/v20/embed"],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
async def test_errors_before_a_call_are_in_the_words_of_the_path(
    served: Gateway, http: httpx.AsyncClient, form: str
) -> None:
    for path in FORMS[form]:
        for method in ("PUT", "DELETE", "PATCH"):
            answer = await http.request(method, path, content=b"x")
            assert answer.status_code in (404, 405), (method, path)
            assert form_of(answer) == form, (method, path, answer.text)
            assert ("allow" in answer.headers) == (answer.status_code == 405)
        for lines in (
            b"Content-Length: 99999999999",
            b"Transfer-Encoding: gzip",
            b"Content-Length: x",
            b"x: " + b"y" * 40_000,
        ):
            said = await raw(served, b"POST " + path.encode() + b" HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n\r\n")
            head, _, body = said.partition(b"\r\n\r\n")
            status = int(head.split(b" ")[1])
            assert status in (400, 413, 431, 501)
            assert form_of(httpx.Response(status, content=body)) == form, (path, lines[:30], said)


async def test_errors_before_a_call_of_triton_are_read(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v2/models/emu/infer")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert isinstance(answer.json()["error"], str)
    assert (await http.post("/v2/models/emu/nothing", json={})).status_code == 404
    for path in ("/v2/models/emu", "/v2/models/emu/ready", "/v2/models/ORG/NAME/versions/1/stats"):
        other = await http.post(path, json={})
        assert (other.status_code, other.headers["allow"]) == (405, "GET"), path


# --- names with slashes -----------------------------------------------------------------------------------------------


async def test_names_with_slashes_need_no_escape(http: httpx.AsyncClient) -> None:
    tensor = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [[1, 2, 3]]}
    for name in (NAME, "ORG%2FNAME", "a/b/c"):
        assert (await http.get(f"/v1/models/{name}")).json()["id"] == name.replace("%2F", "/")
        assert (await http.get(f"/openai/v1/models/{name}")).status_code == 200
        for version in ("", "/versions/1"):
            for rest in ("", "/ready", "/config", "/stats"):
                answer = await http.get(f"/v2/models/{name}{version}{rest}")
                assert answer.status_code == 200, answer.text
            answer = await http.post(f"/v2/models/{name}{version}/infer", json={"inputs": [tensor]})
            assert answer.status_code == 200, answer.text
    for path in ("/v1/models/ORG/OTHER", "/v2/models/ORG/OTHER", "/v2/models/ORG/OTHER/config"):
        answer = await http.get(path)
        assert answer.status_code == 404
        assert "unknown model 'ORG/OTHER'" in answer.text
    for path in ("/v1/models//a", "/v1/models/a//b", "/v2/models//infer"):
        assert (await http.get(path)).status_code == 404
    # As many slashes as a head has room for cost no time.
    assert (await http.get("/v2/models/" + "a/" * 3500 + "infer")).status_code in (404, 405)


# --- HTTP/1.1 ---------------------------------------------------------------------------------------------------------


async def test_targets_and_hosts_are_those_of_the_standard(served: Gateway) -> None:
    """All forms of both are in tests/cpp/gateway_http_test.cc."""
    for target, lines, status in (
        ("HTTP://a/v1/models?x=http://b", "Host: a\r\n", 200),
        ("/health", "", 400),
        ("ftp://a/health", "Host: a\r\n", 400),
        ("*", "Host: a\r\n", 404),
    ):
        said = await raw(served, f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode())
        assert int(said.split(b" ")[1]) == status, target
        assert (b"Connection: close" in said) == (status == 400)
        assert (b"Host" in said) == (not lines)


async def test_empty_lines_are_no_requests(served: Gateway) -> None:
    ask = b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n" + b'{"inputs":"a"}'
    body = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n\r\n"  # one too many, as some clients send behind a body
    assert (await raw(served, body, body, b"\r\n", ask.replace(b"/embed", b"/nothing"))).count(b"HTTP/1.1 ") == 3
    assert await raw(served, b"\r\n" * 20) == b""


async def test_only_http_1_1_is_told_to_go_on(served: Gateway) -> None:
    body = json.dumps({"model": "emu", "inputs": "a"}).encode()
    head = b"POST /embed HTTP/1.%d\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    host, _, port = served.api.rpartition(":")
    for minor, goes_on in ((1, True), (0, False)):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head % (minor, len(body)))
        if goes_on:
            assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)) == b"HTTP/1.1 200 OK\r\n"
        writer.close()


# --- further forms ----------------------------------------------------------------------------------------------------


async def test_cohere_takes_texts_as_content(http: httpx.AsyncClient) -> None:
    def content(*texts: str) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": text} for text in texts]}

    wanted = (await http.post("/v2/embed", json={"model": "emu", "texts": [*TEXTS[:2], "one\nand another"]})).json()
    inputs = [content(TEXTS[0]), content(TEXTS[1]), content("one", "and another")]
    answer = (await http.post("/v2/embed", json={"model": "emu", "inputs": inputs})).json()
    np.testing.assert_array_equal(answer["embeddings"]["float"], wanted["embeddings"]["float"])
    assert answer["texts"] == wanted["texts"]
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    for wrong, said in (
        ([], "inputs must be a list of texts, and not empty"),
        ("a", "inputs must be a list of objects"),
        (["a"], "content"),
        ([{"content": []}], "content"),
        ([{"content": [image]}], "type text is taken"),
        ([{"content": [{"type": "text"}]}], "type text is taken"),
    ):
        refused = await http.post("/v2/embed", json={"model": "emu", "inputs": wrong})
        assert (refused.status_code, said in refused.json()["message"]) == (400, True), refused.text
    both = await http.post("/v2/embed", json={"model": "emu", "inputs": inputs, "texts": ["a"]})
    assert both.status_code == 400


async def test_documents_with_fields(http: httpx.AsyncClient) -> None:
    documents = [{"title": "One", "text": "first", "year": 1}, {"text": "second", "title": None}, "a plain one"]
    joined = ["title: One\nyear: 1\ntext: first", "text: second", "a plain one"]
    ask = {"model": "ranker", "query": "a query", "return_documents": True}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        fields = ["title", "year", "text"]
        answer = (await http.post(path, json={**ask, "documents": documents, "rank_fields": fields})).json()
        wanted = (await http.post(path, json={**ask, "documents": joined})).json()
        for each, plain in zip(answer["results"], wanted["results"], strict=True):
            assert (each["index"], each["relevance_score"]) == (plain["index"], plain["relevance_score"])
            document = documents[each["index"]]
            assert each["document"] == (document if isinstance(document, dict) else {"text": document})
        assert answer["usage"] == wanted["usage"]
    no_text = {**ask, "documents": [{"title": "One"}]}
    of_title = (await http.post("/v1/rerank", json={**no_text, "rank_fields": ["title"]})).json()
    assert of_title["results"][0]["document"] == {"title": "One", "text": "title: One"}
    for wrong in (no_text, {**no_text, "rank_fields": ["other"]}, {**no_text, "rank_fields": ["title"] * 2}):
        assert (await http.post("/v1/rerank", json=wrong)).status_code == 400, wrong


async def test_infinitys_clients_that_look_like_vllms(http: httpx.AsyncClient) -> None:
    """litellm's `infinity/`: by its path, or by the key that it does not have."""
    ask = {"model": "ranker", "query": "a query", "documents": TEXTS, "return_documents": True}
    infinity = [
        await http.post("/infinity/rerank", json=ask),
        await http.post("/rerank", json=ask, headers={"authorization": "Bearer None"}),
    ]
    for answer in infinity:
        assert {each["index"]: each["document"] for each in answer.json()["results"]} == dict(enumerate(TEXTS))
    vllm = await http.post("/rerank", json=ask, headers={"authorization": "Bearer fake-api-key"})
    assert {each["index"]: each["document"]["text"] for each in vllm.json()["results"]} == dict(enumerate(TEXTS))
    embedded = await http.post("/infinity/embeddings", json={"model": "emu", "input": TEXTS})
    assert len(embedded.json()["data"]) == len(TEXTS)
