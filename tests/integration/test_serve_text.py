"""Text over HTTP and gRPC, from a model that was compiled here: its vectors are those of the original."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import numpy as np
import pytest

from arlo.compile import CompileOptions, compile_model
from arlo.compile.quiet import known_noise_silenced
from arlo.workers.ports import free_port
from tests.fakes.odd_texts import odd_texts
from tests.fakes.serving import serving
from tests.fakes.tiny_model import write_tiny

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio]

SERVE = """
[model]
repository = "out"
slo_ms = 2000
[workers]
count = 1
run_dir = "run"
[deployment]
allocation = {{ 48 = 1 }}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
api_address = "127.0.0.1:{port}"
[control]
http_address = "127.0.0.1:0"
"""


async def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "tiny", pooling={"pooling_mode_mean_tokens": True})
    compile_model(CompileOptions(source=source, out=tmp_path / "out", lengths=(48,), cache=tmp_path / "cache"))
    with known_noise_silenced():
        from sentence_transformers import SentenceTransformer

        original = SentenceTransformer(str(source), device="cpu")
    original.max_seq_length = 48
    controls = "".join(map(chr, range(1, 32)))
    texts = [*odd_texts(995), "a word, 東京 🙂 " * 50_000, controls, "\x00", " ", "👩‍👩‍👧‍👦" * 30]
    wanted = original.encode(texts, normalize_embeddings=True)
    port = free_port("127.0.0.1")
    (tmp_path / "serve.toml").write_text(SERVE.format(port=port))
    async with serving(tmp_path), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        body = {"model": model["id"], "truncate": "END"}
        answers = await asyncio.gather(
            *(client.post("/v1/embeddings", json={**body, "input": texts[at : at + 10]}) for at in range(0, 1000, 10))
        )
        empty = await client.post("/v1/embeddings", json={**body, "input": ""})
    assert empty.status_code == 400
    assert [answer.status_code for answer in answers] == [200] * 100, answers[-1].text
    got = [each["embedding"] for answer in answers for each in answer.json()["data"]]
    np.testing.assert_allclose(got, wanted, atol=1e-4)
