"""Requests of many rows: answered whatever they take, refused at once where they cannot be, and never in the way.

A row of `slow` takes 250 ms; the SLO here is 500 ms and the default deadline 1 s, so eight rows have time for neither.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, request_of

pytestmark = pytest.mark.integration

LATE = {"policy": "late", "batching": "deadline", "max_queued": 40}  # bulk may take half
ROWS = 8
MODEL = "slow"


@pytest_asyncio.fixture(loop_scope="session")
async def busy(workers: Workers, tokenizer: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    deployment = workers.deployment(MODEL, [(0, 64)], slo_ms=500, default_timeout_ms=1000, inflight_limit=1)
    deployment.model.tokenizer = tokenizer.read_bytes()
    async with gateway_of(tmp_path, deployment, dispatch=LATE) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="session")
async def http(busy: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{busy.api}", timeout=60) as client:
        yield client


def rows(count: int = ROWS) -> Any:
    return example(*[5] * count)


def texts(count: int = ROWS) -> dict[str, Any]:
    return {"model": MODEL, "input": ["a text"] * count}


async def dispatched(gateway: Gateway) -> int:
    return sum(level.dispatched for level in (await gateway.stats()).levels)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/v2/embed", "/v2/models/slow/infer"])
async def test_many_texts_are_answered_on_every_path(http: httpx.AsyncClient, path: str) -> None:
    inputs = texts()["input"]
    body: dict[str, Any] = {
        "/v1/embeddings": texts(),
        "/embed": {"inputs": inputs},
        "/v2/embed": {"model": MODEL, "texts": inputs, "input_type": "search_document", "embedding_types": ["float"]},
        "/v2/models/slow/infer": {
            "inputs": [{"name": "text", "shape": [ROWS], "datatype": "BYTES", "data": inputs}],
        },
    }[path]
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text


async def test_many_rows_are_answered_over_grpc_and_on_streams(busy: Gateway) -> None:
    sent = rows()
    check(await busy.stub.ModelInfer(request_of(sent, model=MODEL)), sent, model=MODEL)

    async def asked() -> AsyncIterator[Any]:
        yield request_of(sent, model=MODEL)

    async for answer in busy.stub.ModelStreamInfer(asked()):
        assert not answer.error_message
        check(answer.infer_response, sent, model=MODEL)
    stats = await busy.stats()
    assert stats.bulk == 2 * ROWS
    assert stats.outcomes.on_time == 2 * ROWS


async def test_a_deadline_that_cannot_be_met_is_refused_before_anything_runs(
    busy: Gateway, http: httpx.AsyncClient
) -> None:
    for answer in (
        await http.post("/v1/embeddings", json=texts(), headers={"x-request-timeout-ms": "1500"}),
        await http.post("/embed", json={"inputs": ["a text"] * ROWS}, headers={"x-request-timeout-ms": "1500"}),
    ):
        assert answer.status_code == 429
        assert "x-request-timeout-ms (HTTP) or model.default_timeout_ms" in answer.text
        assert 1.9 <= int(answer.headers["retry-after-ms"]) / 1000 <= 4
        assert int(answer.headers["retry-after"]) >= 2
    with pytest.raises(grpc.aio.AioRpcError, match="set a longer deadline") as refused:
        await busy.infer(request_of(rows(), model=MODEL), timeout=1.5)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.aio.AioRpcError, match="set a longer deadline"):
        await busy.infer(request_of(rows(), model=MODEL, timeout_us=1_500_000), timeout=60)
    assert await dispatched(busy) == 0


async def test_requests_of_many_rows_are_served_one_after_the_other(busy: Gateway) -> None:
    """So that what the first was promised holds: its deadline leaves no time for the rows of a second."""
    first = asyncio.ensure_future(busy.infer(request_of(rows(), model=MODEL), timeout=3.5))
    await busy.stats_when(lambda stats: stats.in_flight > 0, "it runs")
    async with httpx.AsyncClient(base_url=f"http://{busy.api}", timeout=60) as other:
        second = asyncio.ensure_future(other.post("/v1/embeddings", json=texts()))
        await first
        assert (await second).status_code == 200


async def test_what_forecasts_are_worth_is_learned(busy: Gateway) -> None:
    """Eight rows take 2 s: before any was seen 2.7 s are not taken to be enough, afterwards they are."""
    with pytest.raises(grpc.aio.AioRpcError, match="set a longer deadline"):
        await busy.infer(request_of(rows(), model=MODEL), timeout=2.7)
    async with asyncio.timeout(60):
        while True:
            await busy.infer(request_of(rows(), model=MODEL))
            with contextlib.suppress(grpc.aio.AioRpcError):  # on a busy machine they take longer
                await busy.infer(request_of(rows(), model=MODEL), timeout=2.7)
                return


async def test_what_has_no_room_is_told_when_to_come_back(busy: Gateway, http: httpx.AsyncClient) -> None:
    running = [asyncio.ensure_future(http.post("/v1/embeddings", json=texts())) for _ in range(2)]
    await busy.stats_when(lambda stats: stats.queued == 2 * ROWS - 1, "two are there")
    before = await dispatched(busy)
    answer = await http.post("/v1/embeddings", json=texts())
    assert answer.status_code == 429
    assert "dispatch.max_queued" in answer.text
    assert await dispatched(busy) <= before + 1, "nothing of it ran"
    await asyncio.sleep(int(answer.headers["retry-after"]))
    assert (await http.post("/v1/embeddings", json=texts())).status_code == 200
    assert [(await each).status_code for each in running] == [200, 200]
