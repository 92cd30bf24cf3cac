"""A gateway for the tests of the HTTP API: an embedder with a prompt, a classifier, a reranker and a slow model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.replayed import LABELS

NAMES = [f"label {number}" for number in range(LABELS)]
PROMPT = "query: "
TEXTS = ["a text", "naïve Café", "this is another one, and it has more words"]


@contextlib.asynccontextmanager
async def api_of_models(workers: Workers, tokenizer: Path, folder: Path) -> AsyncIterator[Gateway]:
    """Models emu (vectors, of tokens too), small (labels NAMES), ranker, slow."""
    file = json.loads(tokenizer.read_text())
    file["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    deployments = {
        "emu": workers.deployment("emu", [(0, 64), (1, 128), (2, 256), (3, 512)]),
        "small": workers.deployment("small", [(0, 64)]),
        "ranker": workers.deployment("ranker", [(1, 64)]),
        "slow": workers.deployment("slow", [(2, 64)], inflight_limit=1),
    }
    deployments["small"].model.labels.extend(NAMES)
    deployments["emu"].model.prompts.add(name="query", text=PROMPT)
    async with gateway_of(folder) as gateway:
        for deployment in deployments.values():
            deployment.model.tokenizer = json.dumps(file).encode()
            await gateway.apply(deployment, beside=True)
        yield gateway


async def post(http: httpx.AsyncClient, path: str, model: str = "emu", **fields: Any) -> Any:
    """What a good request is answered with."""
    answer = await http.post(path, json={"model": model, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()
