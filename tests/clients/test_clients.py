"""Clients that others wrote, unchanged, against a gateway in front of real workers: they get what transformers gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.compile.quiet import known_noise_silenced
from tests.clients.conftest import call

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]  # the set-up compiles three models

TEXTS = ("which river is the longest", "the Nile", "a city of bridges 🙂", "rain, and 雨 again")


@pytest.fixture(scope="session")
def vectors(folder: Path, served: str) -> Any:
    """Of TEXTS, by sentence-transformers."""
    assert served
    with known_noise_silenced():
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(folder / "embedder"), device="cpu").encode(TEXTS, normalize_embeddings=True)


@pytest.fixture(scope="session")
def logits(folder: Path, served: str) -> Callable[..., Any]:
    """Of a model, for texts, by transformers."""
    assert served

    def of(model: str, *texts: Any) -> Any:
        with known_noise_silenced():
            import torch
            import transformers

            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / model))
            network = transformers.AutoModelForSequenceClassification.from_pretrained(str(folder / model)).eval()
            with torch.no_grad():
                given = tokenizer(*texts, padding=True, truncation=False, return_tensors="pt")
                return network(**given).logits.numpy()

    return of


def scores(logits: Callable[..., Any]) -> Any:
    """Of TEXTS[1:], for the query TEXTS[0]."""
    raw = logits("reranker", [TEXTS[0]] * (len(TEXTS) - 1), list(TEXTS[1:]))[:, 0]
    return 1 / (1 + np.exp(-raw))


def close(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), wanted, atol=1e-4)


def test_openai(served: str, vectors: Any) -> None:
    said = call("openai", served, json.dumps(TEXTS))
    close(said["vectors"], vectors)
    close(said["floats"], vectors)
    close(said["short"], vectors[0][:8] / np.linalg.norm(vectors[0][:8]))
    assert said["tokens"] > 2 * len(TEXTS)
    assert said["models"] == ["classifier", "embedder", "indexer", "reranker"]
    assert said["model"] == "embedder"
    errors = said["errors"]
    assert errors["model"][:2] == ["NotFoundError", 404]
    assert errors["empty"][:2] == ["BadRequestError", 400]
    assert errors["long"][:2] == ["BadRequestError", 400]
    assert "48 tokens" in errors["long"][2]
    assert all(each[3] for each in errors.values())  # x-request-id


def test_openai_side_by_side(served: str, vectors: Any) -> None:
    said = call("openai_async", served, json.dumps(TEXTS))
    close(said["vectors"], np.tile(vectors, (8, 1)))


def test_cohere(served: str, vectors: Any, logits: Callable[..., Any]) -> None:
    said = call("cohere", served, json.dumps(TEXTS))
    wanted = scores(logits)
    order = np.argsort(-wanted)
    assert [index for index, _ in said["scores"]] == order.tolist()
    close([score for _, score in said["scores"]], wanted[order])
    assert said["best"] == [[int(i), TEXTS[1:][i]] for i in order[:2]]
    close(said["old"], vectors)
    close(said["vectors"], vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True))
    assert said["signs"] == np.packbits(vectors[:, :8] > 0, axis=1).tolist()
    assert said["tokens"] > 2 * len(TEXTS)


def test_hugging_face(served: str, vectors: Any, logits: Callable[..., Any]) -> None:
    models = {name: f"{served}/?model={name}" for name in ("embedder", "classifier")}
    said = call("hugging_face", json.dumps(models), json.dumps(TEXTS))
    close(said["vectors"], vectors)
    close(said["alike"], vectors[1:] @ vectors[0])
    assert np.linalg.norm(said["cut"]) == pytest.approx(1, abs=1e-4)
    raw = logits("classifier", TEXTS[0])[0]
    chances = np.exp(raw - raw.max()) / np.exp(raw - raw.max()).sum()
    assert said["label"][0] == f"LABEL_{chances.argmax()}"
    close(said["label"][1], chances.max())


def test_langchain(served: str, vectors: Any) -> None:
    said = call("langchain", served, json.dumps(TEXTS))
    close(said["vectors"], np.roll(vectors, -1, axis=0))


def test_haystack(served: str, vectors: Any, logits: Callable[..., Any]) -> None:
    models = {"embedder": f"{served}/?model=embedder", "reranker": served}
    said = call("haystack", served, json.dumps(TEXTS), json.dumps(models))
    close(said["tei"], np.roll(vectors, -1, axis=0))
    close(said["openai"], vectors[0])
    wanted = scores(logits)
    best = np.argsort(-wanted)[:2]
    assert [text for text, _ in said["best"]] == [TEXTS[1:][i] for i in best]
    close([score for _, score in said["best"]], wanted[best])


def test_triton_client(served: str, vectors: Any) -> None:
    said = call("triton", served, json.dumps(TEXTS))
    for way in said["vectors"]:
        made = np.asarray(way)
        close(made / np.linalg.norm(made, axis=1, keepdims=True), vectors)
    assert said["live"]
    assert "text" in said["inputs"]
    assert said["index"] == ["classifier", "embedder", "indexer", "reranker"]


def test_kserve(served: str, vectors: Any) -> None:
    said = call("kserve", served, json.dumps(TEXTS))
    made = np.asarray(said["vectors"])
    close(made / np.linalg.norm(made, axis=1, keepdims=True), vectors)
    assert said["live"]


def test_packages_that_index_are_answered_at_their_default_batches(served: str) -> None:
    said = call("indexing", served, "indexer")
    assert said == {"openai": 2048, "langchain": 1500, "llama_index": 1500, "haystack": 1500, "cohere": 1000}
