"""What else the HTTP API answers: TEI's and Cohere's routes, and what all routes have in common."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from scipy.special import expit, softmax
from tokenizers import Tokenizer

from tests.fakes.gateway import Gateway
from tests.integration.gateway.api_models import NAMES, TEXTS, post
from tests.integration.gateway.replayed import recorded

pytestmark = pytest.mark.integration


async def test_vectors_of_tokens_are_as_many_as_tokens(http: httpx.AsyncClient, known: Tokenizer) -> None:
    answer = await post(http, "/embed_all", inputs=TEXTS)
    assert [[token[0] for token in row] for row in answer] == [known.encode(text).ids for text in TEXTS]
    cut = await post(http, "/embed_all", inputs="word " * 600, truncate=True, truncation_direction="Left")
    assert len(cut[0]) == 512


async def test_similarity_is_the_cosine(http: httpx.AsyncClient) -> None:
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS}
    alike = await post(http, "/similarity", inputs=inputs, parameters={"truncate": True})
    np.testing.assert_allclose(alike, [1, 1, 1], atol=1e-6)  # all of an emulated vector's numbers are the same


async def test_labels_of_a_classifier(http: httpx.AsyncClient, known: Tokenizer) -> None:
    logits = recorded("small")[0][[known.encode(text).ids[1] for text in TEXTS]]
    for raw, wanted in ((True, logits), (False, softmax(logits.astype(float), axis=1))):
        answer = await post(http, "/predict", "small", inputs=[[text] for text in TEXTS], raw_scores=raw)
        for row, scores in zip(answer, wanted, strict=True):
            assert [each["score"] for each in row] == sorted((each["score"] for each in row), reverse=True)
            by_label = {each["label"]: each["score"] for each in row}
            np.testing.assert_allclose([by_label[name] for name in NAMES], scores, atol=1e-6)
    single = await post(http, "/predict", "small", inputs=TEXTS[0])
    assert single == answer[0]
    pair = await post(http, "/predict", "small", inputs=[TEXTS[0], TEXTS[1]])
    of_pair = softmax(recorded("small")[0][known.encode(TEXTS[0], TEXTS[1]).ids[1]].astype(float))
    np.testing.assert_allclose([each["score"] for each in pair], sorted(of_pair, reverse=True), atol=1e-6)


async def test_documents_are_ranked(http: httpx.AsyncClient, known: Tokenizer) -> None:
    sums = np.array([sum(known.encode("one query", text).ids) for text in TEXTS], float)
    best = list(np.argsort(-sums))
    tei = await post(http, "/rerank", "ranker", query="one query", texts=TEXTS, raw_scores=True, return_text=True)
    assert tei == [{"index": i, "score": sums[i], "text": TEXTS[i]} for i in best]
    documents = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        answer = await post(http, path, "ranker", query="one query", documents=documents, top_n=2)
        assert [each["index"] for each in answer["results"]] == best[:2]
        scores = [each["relevance_score"] for each in answer["results"]]
        np.testing.assert_allclose(scores, expit(sums[best[:2]]), atol=1e-6)
        assert answer["usage"]["total_tokens"] == sum(len(known.encode("one query", text).ids) for text in TEXTS)
        assert answer["meta"]["api_version"]["version"] == (path[2] if path[1] == "v" else "1")
        assert answer["id"]
        assert answer["model"] == "ranker"
    full = await post(http, "/v1/rerank", "ranker", query="one query", documents=documents, return_documents=True)
    assert [each["document"]["text"] for each in full["results"]] == [TEXTS[i] for i in best]


async def test_tokens_and_back(http: httpx.AsyncClient, known: Tokenizer) -> None:
    texts = [*TEXTS, "one [SEP] two", "\U0001f98a [UNK] fox"]  # these are of the text, and not special
    answer = await post(http, "/tokenize", inputs=texts)
    for row, text in zip(answer, texts, strict=True):
        wanted = known.encode(text)
        assert [token["id"] for token in row] == wanted.ids
        assert [token["text"] for token in row] == wanted.tokens
        assert [token["special"] for token in row] == [mask == 1 for mask in wanted.special_tokens_mask]
    plain = await post(http, "/tokenize", inputs=TEXTS[0], add_special_tokens=False)
    assert [token["id"] for token in plain[0]] == known.encode(TEXTS[0], add_special_tokens=False).ids
    odd = "Don't do not stop ! I'm , 'so' said . we've and they're it's ?"
    ids = [known.encode(text).ids for text in (*TEXTS, odd)]
    for skip in (True, False):
        texts = await post(http, "/decode", ids=ids, skip_special_tokens=skip)
        assert texts == [known.decode(row, skip_special_tokens=skip) for row in ids]
    assert await post(http, "/decode", ids=ids[0]) == [known.decode(ids[0])]


async def test_info_says_what_a_model_is_for(http: httpx.AsyncClient) -> None:
    refused = await http.get("/info")
    assert refused.status_code == 422
    assert "name a model" in refused.json()["error"]
    assert (await http.get("/info", params={"model": "emu"})).json()["max_input_length"] == 512
    small = (await http.get("/info", params={"model": "small"})).json()
    assert small["model_type"]["classifier"]["id2label"]["0"] == NAMES[0]
    assert "reranker" in (await http.get("/info", params={"model": "ranker"})).json()["model_type"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/predict", {"model": "emu", "inputs": "a"}, 424, "no classifier"),
        ("/rerank", {"model": "emu", "query": "a", "texts": ["b"]}, 424, "no reranker"),
        ("/v2/rerank", {"model": "small", "query": "a", "documents": ["b"]}, 400, "4 labels"),
        ("/v1/rerank", {"model": "ranker", "query": "a", "documents": []}, 400, "documents must be a list"),
        ("/embed", {"model": "small", "inputs": "a"}, 424, "no embedding of a text"),
        ("/embed_all", {"model": "small", "inputs": "a"}, 424, "no embedding of a token"),
        ("/embed_sparse", {"model": "emu", "inputs": "a"}, 424, "no sparse embedding"),
        ("/embed", {"model": "emu", "inputs": "a", "prompt_name": "passage"}, 422, "it has 'query'"),
        ("/predict", {"model": "small", "inputs": [["a"], ["b", "c"]]}, 422, "requests of their own"),
        ("/embed", {"model": "emu", "inputs": "a", "priority": "high"}, 422, "priority must be"),
        ("/embed", {"model": "emu", "inputs": "a", "truncation_direction": "up"}, 422, "left or right"),
        ("/embed", {"model": "emu", "inputs": []}, 400, "inputs is empty"),
        ("/rerank", {"model": "ranker", "query": "a", "texts": []}, 400, "not empty"),
        ("/predict", {"model": "small", "inputs": []}, 400, "inputs is empty"),
        ("/decode", {"model": "emu", "ids": []}, 400, "ids is empty"),
        ("/v1/embeddings", {"model": "emu", "input": "w " * 60_000, "truncate": "chunk"}, 400, "more than the 64 rows"),
        ("/tokenize", {"model": "emu", "inputs": 3}, 422, "list of texts"),
        ("/decode", {"model": "emu", "ids": [-1]}, 422, "whole numbers"),
    ],
)
async def test_what_cannot_be_done_is_named(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, said: str
) -> None:
    answer = await http.post(path, json=body)
    assert answer.status_code == status, answer.text
    document = answer.json()
    if path.startswith("/v1/emb"):
        document = document["error"]
    assert said in (document["message"] if "message" in document else document["error"])


async def test_long_texts_in_pieces(http: httpx.AsyncClient, known: Tokenizer) -> None:
    cls, sep = known.encode("").ids

    async def ask(words: int, longest: int, framing: list[int], **wishes: Any) -> None:
        long = " ".join(f"word{number}" for number in range(words))
        ids = known.encode(long, add_special_tokens=False).ids
        room = longest - len(framing)
        step = room - max(1, room // 8)
        starts = range(0, len(ids), step)
        pieces = [ids[at : at + room] for at in starts if at == 0 or at + room - step < len(ids)]
        weights = np.array([len(piece) + len(framing) for piece in pieces], float)
        sums = np.array([sum(piece) + sum(framing) for piece in pieces], float)
        body = {"model": "emu", "truncate": "chunk", "normalize": False, **wishes}
        answer = await http.post("/embed", json={**body, "inputs": [long, "a"]})
        assert answer.headers["x-pieces"] == f"{len(pieces)},1", answer.text
        np.testing.assert_allclose(answer.json()[0], [np.average(sums, weights=weights)] * 4, rtol=1e-6)
        short = known.encode("a", add_special_tokens=False).ids
        assert answer.json()[1] == [sum(short) + sum(framing)] * 4
        openai = await post(http, "/v1/embeddings", **{**body, "input": long})
        assert openai["data"][0]["pieces"] == len(pieces)
        assert openai["usage"]["total_tokens"] == sum(weights)

    await ask(900, 512, [cls, sep])
    await ask(900, 512, [], add_special_tokens=False)
    bare = {"model": "emu", "texts": [" ".join(["word"] * 9)], "truncate": "CHUNK", "max_tokens": 5}
    pieces = await http.post("/v2/embed", json={**bare, "normalize": False})
    ids = known.encode(bare["texts"][0], add_special_tokens=False).ids
    windows = [ids[at : at + 3] for at in range(0, len(ids) - 1, 2)]
    sums = [cls + sum(each) + sep for each in windows]
    wanted = np.average(sums, weights=[len(each) + 2 for each in windows])
    np.testing.assert_allclose(pieces.json()["embeddings"]["float"], [[wanted] * 4], rtol=1e-6)
    tei = {"model": "emu", "inputs": bare["texts"], "truncate": "CHUNK", "truncate_prompt_tokens": 5}
    np.testing.assert_allclose(await post(http, "/embed", **tei, normalize=False), [[wanted] * 4], rtol=1e-6)
    refused = await http.post("/v2/embed", json={**bare, "max_tokens": 3})
    assert (refused.status_code, "no room for a piece" in refused.text) == (400, True)


async def test_bodies_may_be_packed_and_chunked(http: httpx.AsyncClient) -> None:
    body = json.dumps({"model": "emu", "inputs": TEXTS}).encode()
    wanted = await post(http, "/embed", inputs=TEXTS)
    for name, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        answer = await http.post("/embed", content=packed, headers={"content-encoding": name})
        assert answer.json() == wanted

    async def pieces(content: bytes, size: int) -> AsyncIterator[bytes]:
        for at in range(0, len(content), size):
            yield content[at : at + size]

    for size in (1, 7, 1000):
        assert (await http.post("/embed", content=pieces(body, size))).json() == wanted
    bomb = gzip.compress(b" " * (33 << 20))
    refused = await http.post("/embed", content=bomb, headers={"content-encoding": "gzip"})
    assert refused.status_code == 413
    twice = gzip.compress(body[:9]) + gzip.compress(body[9:])
    assert (await http.post("/embed", content=twice, headers={"content-encoding": "GZIP"})).json() == wanted
    assert (await http.post("/embed", content=body, headers={"content-encoding": "gzip"})).status_code == 422
    assert (await http.post("/embed", content=body, headers={"content-encoding": "br"})).status_code == 415
    large = await http.post("/embed", content=pieces(b" " * (33 << 20), 1 << 16))
    assert large.status_code == 413


async def test_overload_and_deadlines(http: httpx.AsyncClient) -> None:
    """A worker that takes 250 ms for a row, and 40 clients at once that wait for 600 ms: each is answered once."""
    body = {"model": "slow", "input": "a"}
    headers = {"x-request-timeout-ms": "600"}

    async def one(number: int) -> httpx.Response:
        return await http.post("/v1/embeddings", json=body, headers={**headers, "x-request-id": f"mine-{number}"})

    answers = await asyncio.gather(*(one(number) for number in range(40)))
    assert [answer.headers["x-request-id"] for answer in answers] == [f"mine-{number}" for number in range(40)]
    assert {answer.status_code for answer in answers} <= {200, 429, 504}
    good = [answer for answer in answers if answer.status_code == 200]
    assert 1 <= len(good) <= 4
    for answer in answers:
        if answer.status_code == 504:
            assert answer.headers["x-should-retry"] == "false"
        if answer.status_code == 429:
            assert int(answer.headers["retry-after-ms"]) >= 100
    wrong = await http.post("/v1/embeddings", json=body, headers={"x-request-timeout-ms": "soon"})
    assert wrong.status_code == 400


async def test_a_list_is_taken_whole_or_not_at_all(served: Gateway, http: httpx.AsyncClient) -> None:
    before = (await served.stats("slow")).outcomes
    answer = await http.post(
        "/embed", json={"model": "slow", "inputs": ["a"] * 64}, headers={"x-request-timeout-ms": "500"}
    )
    assert answer.status_code in (429, 504), answer.text
    assert answer.json()["error_type"] in ("Overloaded", "Backend")
    after = (await served.stats("slow")).outcomes
    assert after.on_time + after.late == before.on_time + before.late


async def test_where_the_time_went(http: httpx.AsyncClient, known: Tokenizer) -> None:
    answer = await http.post("/embed", json={"model": "emu", "inputs": TEXTS, "priority": "bulk"})
    timing = dict(each.split(";dur=") for each in answer.headers["server-timing"].split(", "))
    assert list(timing) == ["tokenise", "queue", "execute", "total"]
    assert float(timing["total"]) >= float(timing["execute"]) > 0
    names = {"tokenise": "tokenization", "queue": "queue", "execute": "inference", "total": "total"}
    for stage, ms in timing.items():  # TEI's are whole ms
        assert answer.headers[f"x-{names[stage]}-time"] == str(int(float(ms)))
    assert answer.headers["x-compute-time"] == answer.headers["x-total-time"]
    assert int(answer.headers["x-compute-tokens"]) == sum(len(known.encode(text).ids) for text in TEXTS)


@pytest.mark.parametrize(
    ("path", "body", "characters"),
    [
        ("/embed", {"model": "emu", "inputs": TEXTS}, sum(map(len, TEXTS))),
        ("/embed", {"model": "emu", "inputs": ["\N{SNOWMAN}\N{PILE OF POO}a", ""]}, 3),
        ("/embed", {"model": "emu", "inputs": "a", "prompt_name": "query"}, 1),
        ("/embed", {"model": "emu", "inputs": [[101, 7592, 102], [101, 102]]}, 5),
        ("/embed", {"model": "emu", "inputs": "w " * 900, "truncate": "CHUNK"}, 1800),
        ("/embed_all", {"model": "emu", "inputs": TEXTS}, sum(map(len, TEXTS))),
        ("/similarity", {"model": "emu", "inputs": {"source_sentence": "ab", "sentences": ["c", "d"]}}, 4),
        ("/predict", {"model": "small", "inputs": [["ab", "c"], ["d", "e"]]}, 5),
        ("/rerank", {"model": "ranker", "query": "query", "texts": ["a", "bc"]}, 13),
        ("/", {"model": "emu", "inputs": "abc"}, 3),
        ("/vertex", {"model": "emu", "instances": [{"inputs": "abc"}, {"inputs": ["d", "e"]}]}, 5),
        ("/score", {"model": "ranker", "text_1": "ab", "text_2": ["c", "d"]}, 6),
        ("/classify", {"model": "small", "input": TEXTS}, sum(map(len, TEXTS))),
    ],
)
async def test_characters_are_counted_as_tei_does(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], characters: int
) -> None:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["x-compute-characters"]) == characters
