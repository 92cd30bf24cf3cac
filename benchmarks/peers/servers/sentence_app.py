"""sentence-transformers behind FastAPI, as its users write it; OpenAI's route. uvicorn runs it, in its own environment.

As many encodings at a time as there are cores, each on one thread of torch: short texts gain nothing from more.
"""

from __future__ import annotations

import os
from typing import Any

import anyio
import torch
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

torch.set_num_threads(1)
app = FastAPI()
model = SentenceTransformer(os.environ["PEERS_MODEL"], device="cpu")
turns = anyio.CapacityLimiter(len(os.sched_getaffinity(0)))


class Asked(BaseModel):
    """Body of a request; `model` is ignored, as there is one."""

    input: str | list[str]
    model: str = ""


@app.post("/v1/embeddings")
async def embeddings(asked: Asked) -> dict[str, Any]:
    """Vectors FP32 of the texts, length 1."""
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    vectors = await anyio.to_thread.run_sync(lambda: model.encode(texts, show_progress_bar=False), limiter=turns)
    data = [{"object": "embedding", "index": k, "embedding": vector.tolist()} for k, vector in enumerate(vectors)]
    return {"object": "list", "model": asked.model, "data": data}
