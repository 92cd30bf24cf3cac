"""Models whose tokenizers are not WordPiece: helper processes make the token ids, and die without harm."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from arlo.compile import CompileOptions, compile_model
from arlo.compile.quiet import known_noise_silenced
from arlo.workers.ports import free_port
from tests.fakes.odd_texts import odd_texts
from tests.fakes.processes import marked
from tests.fakes.serving import Serving, serving
from tests.fakes.tiny_model import MAX_TOKENS, write_tiny

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.timeout(900),  # the set-up compiles three models
    pytest.mark.asyncio(loop_scope="module"),
]

KINDS = ("BPE", "Unigram")
POOLING = {"pooling_mode_mean_tokens": True}
SERVE = """
[[model]]
name = "BPE"
repository = "BPE.out"
slo_ms = 5000
[[model]]
name = "Unigram"
repository = "Unigram.out"
slo_ms = 5000
[[model]]
name = "reranker"
repository = "reranker.out"
slo_ms = 5000
[workers]
count = 1
run_dir = "run"
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
api_address = "127.0.0.1:{port}"
[control]
http_address = "127.0.0.1:0"
"""


class Cluster:
    """A running one, its folder with the models, and a client of its HTTP API."""

    def __init__(self, folder: Path, serving: Serving, client: httpx.AsyncClient) -> None:
        self.folder, self.serving, self.client = folder, serving, client

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    def helpers(self) -> list[int]:
        return [pid for pid, command in marked(self.serving.mark).items() if "arlo.front.helper" in command]

    def original(self, kind: str) -> Any:
        with known_noise_silenced():
            from sentence_transformers import SentenceTransformer

            model = SentenceTransformer(str(self.folder / kind), device="cpu")
        model.max_seq_length = MAX_TOKENS
        return model

    def tokenizer(self, kind: str) -> Any:
        import tokenizers

        return tokenizers.Tokenizer.from_file(str(self.folder / kind / "tokenizer.json"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("tokenizers")
    head = {"head": "ForSequenceClassification", "labels": 1, "tokenizer": "BPE"}
    for name in (*KINDS, "reranker"):
        how = head if name == "reranker" else {"tokenizer": name, "pooling": POOLING}
        source = write_tiny(folder / name, **how)  # type: ignore[arg-type]
        out = folder / f"{name}.out"
        compile_model(CompileOptions(source=source, out=out, lengths=(MAX_TOKENS,), cache=folder / "cache"))
    port = free_port("127.0.0.1")
    (folder / "serve.toml").write_text(SERVE.format(port=port))
    async with serving(folder) as one, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield Cluster(folder, one, client)


@pytest.mark.parametrize("kind", KINDS)
async def test_vectors_are_those_of_sentence_transformers(cluster: Cluster, kind: str) -> None:
    texts = [*odd_texts(100), "word " * 2000, "\x00\x01\x7f", " ", "\ufeff\u200b"]
    wanted = cluster.original(kind).encode(texts, normalize_embeddings=True)
    answers = await asyncio.gather(
        *(
            cluster.post("/v1/embeddings", model=kind, input=texts[at : at + 8], truncate="END")
            for at in range(0, len(texts), 8)
        )
    )
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    got = [each["embedding"] for answer in answers for each in answer.json()["data"]]
    np.testing.assert_allclose(got, wanted, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
async def test_tokens_and_texts_of_them(cluster: Cluster, kind: str) -> None:
    tokenizer, text = cluster.tokenizer(kind), "which sea, 🙂 and why"
    made = tokenizer.encode(text)
    (tokens,) = (await cluster.post("/tokenize", model=kind, inputs=text)).json()
    assert [(each["id"], each["text"], each["special"]) for each in tokens] == [
        (i, word, bool(special))
        for i, word, special in zip(made.ids, made.tokens, made.special_tokens_mask, strict=True)
    ]
    places = [place if place[1] != 0 else (None, None) for place in made.offsets]
    assert [(each["start"], each["stop"]) for each in tokens] == places
    bare = await cluster.post("/tokenize", model=kind, inputs=text, add_special_tokens=False)
    assert [each["id"] for each in bare.json()[0]] == tokenizer.encode(text, add_special_tokens=False).ids
    assert (await cluster.post("/decode", model=kind, ids=made.ids)).json() == [tokenizer.decode(made.ids)]


async def test_long_texts_are_refused_cut_or_taken_in_pieces(cluster: Cluster) -> None:
    text = "the sea and the land " * 30
    refused = await cluster.post("/embed", model="BPE", inputs=text)
    assert refused.status_code == 422
    assert f"{MAX_TOKENS} tokens" in refused.json()["error"]
    original, tokenizer = cluster.original("BPE"), cluster.tokenizer("BPE")
    ids = tokenizer.encode(text).ids
    from_start = await cluster.post("/embed", model="BPE", inputs=text, truncate=True, truncation_direction="left")
    same = await cluster.post("/embed", model="BPE", inputs=[[ids[0], *ids[-MAX_TOKENS + 1 :]]])
    np.testing.assert_allclose(from_start.json(), same.json(), atol=1e-5)
    pieces = await cluster.post("/embed", model="BPE", inputs=[text, "short"], truncate="CHUNK")
    counts = [int(each) for each in pieces.headers["x-pieces"].split(",")]
    assert counts[0] > 2
    assert counts[1] == 1
    np.testing.assert_allclose(pieces.json()[1], original.encode("short", normalize_embeddings=True), atol=1e-4)


async def test_a_helper_that_is_killed_costs_no_answer(cluster: Cluster) -> None:
    (first,) = (await cluster.post("/embed", model="BPE", inputs="here")).json()
    killed: set[int] = set()

    async def kill() -> None:
        while len(killed) < 4:
            for pid in cluster.helpers():
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            await asyncio.sleep(0.2)

    killing = asyncio.create_task(kill())
    answers = []
    while not killing.done():
        answers += await asyncio.gather(*(cluster.post("/embed", model="BPE", inputs="here") for _ in range(8)))
    await killing
    answers.append(await cluster.post("/embed", model="BPE", inputs="here"))
    assert answers[-1].status_code == 200, answers[-1].text
    # A job whose second helper dies too is an error that says so; each request is answered once, rightly.
    for answer in answers:
        if answer.status_code == 200:
            np.testing.assert_allclose(answer.json()[0], first, atol=1e-5)
        else:
            assert answer.status_code == 424
            assert "ended" in answer.json()["error"]
    assert sum(answer.status_code == 200 for answer in answers) > len(answers) / 2
    assert not killed & set(cluster.helpers())
