"""Workers that pass their checks and fail what they are sent are put aside; requests that fail everywhere fail."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from tests.fakes.gateway import ACTIVE, EJECTED, Gateway
from tests.fakes.odd_worker import Sick, fails_on, good
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, request_of
from tests.integration.gateway.odd_cluster import POISON, odd_cluster, poisoned

pytestmark = pytest.mark.integration


async def infer(gateway: Gateway, *lengths: int, seed: int = 0) -> None:
    sent = example(*(lengths or (8,)), seed=seed, outputs=("embedding",))
    check(await gateway.infer(request_of(sent), timeout=10), sent)


@pytest.mark.parametrize("policy", ["late", "eft"])
async def test_one_of_four_fails_at_once_and_no_request_does(workers: Workers, start: Any, policy: str) -> None:
    """It answers quicker than the others do, and must not be taken for quick."""
    sick, well = Sick(well=True, takes_s=0.04), [Sick(well=True, takes_s=0.04) for _ in range(3)]
    async with odd_cluster(workers, start, sick, *well, dispatch={"policy": policy}) as (gateway, _):
        calls: list[asyncio.Task[None]] = []

        async def load(count: int) -> None:
            for _ in range(count):
                calls.append(asyncio.create_task(infer(gateway, seed=len(calls))))
                await asyncio.sleep(0.01)

        await load(40)
        sick.well = False
        await load(120)
        stats = await gateway.stats()
        assert stats.instances[0].ejections >= 1  # it may just have come back for another try
        reason = gateway.logged("instance_ejected")[0]["reason"]
        assert "other instances answer what it fails" in reason
        assert "CUDA error" in reason
        await asyncio.gather(*calls)
        sick.well = True
        await gateway.stats_when(lambda stats: stats.instances[0].state == ACTIVE, "back")
        await load(20)
        await asyncio.gather(*calls)
        stats = await gateway.stats()
        assert (stats.outcomes.failed, stats.outcomes.rejected, stats.outcomes.expired) == (0, 0, 0)
        assert stats.instances[0].ejections == stats.ejections >= 1
        # A row comes every 10 ms, and until others have answered what it fails nobody can know that it is not the row.
        assert sick.failed <= 15 + stats.execute.max_us / 10_000
        assert sum(1 for i in stats.instances if i.state == ACTIVE) == 4


async def test_it_is_tried_again_after_longer_and_longer_pauses(workers: Workers, start: Any) -> None:
    sick = Sick()
    async with odd_cluster(workers, start, sick, good) as (gateway, _):
        async with asyncio.timeout(30):
            while (await gateway.stats()).instances[0].ejections < 3:
                await asyncio.gather(infer(gateway, seed=1), infer(gateway, seed=2))  # one for each of them
        assert (await gateway.stats()).outcomes.failed == 0
        # Three rows the first time, one each time that it has come back.
        assert 3 <= sick.failed <= 8


async def test_a_request_that_fails_everywhere_is_answered_and_no_instance_blamed(workers: Workers, start: Any) -> None:
    async with odd_cluster(workers, start, *(fails_on(POISON) for _ in range(3))) as (gateway, odd):
        for number in range(1, 9):
            before = sum(len(worker.requests) for worker in odd)
            with pytest.raises(grpc.aio.AioRpcError, match="cannot look at token 30666") as raised:
                await gateway.infer(poisoned(5), timeout=10)
            assert raised.value.code() == grpc.StatusCode.INTERNAL
            tries = sum(len(worker.requests) for worker in odd) - before
            assert 2 <= tries <= 3
            for seed in range(3):
                await infer(gateway, seed=seed)
            stats = await gateway.stats()
            assert (stats.outcomes.failed, stats.ejections) == (number, 0)
        assert all(instance.state == ACTIVE for instance in stats.instances)


async def test_when_all_fail_none_is_ejected(workers: Workers, start: Any) -> None:
    async with odd_cluster(workers, start, Sick(), Sick(), Sick()) as (gateway, _):
        for _ in range(12):
            with pytest.raises(grpc.aio.AioRpcError, match="CUDA error"):
                await gateway.infer(request_of(example(4, outputs=("embedding",))), timeout=10)
        stats = await gateway.stats()
        assert (stats.outcomes.failed, stats.ejections) == (12, 0)


@pytest.mark.sanitized
async def test_two_sick_of_four_are_both_put_aside(workers: Workers, start: Any) -> None:
    async with odd_cluster(workers, start, Sick(), good, Sick(), good) as (gateway, _):
        failed = 0
        for _ in range(15):
            results = await asyncio.gather(*(infer(gateway, seed=seed) for seed in range(6)), return_exceptions=True)
            failed += sum(result is not None for result in results)
        stats = await gateway.stats()
        assert [instance.ejections > 0 for instance in stats.instances] == [True, False, True, False]
        assert failed <= 6  # before anything was known of either: the first wave at most


async def test_an_answer_known_to_be_too_large_is_refused_before_it_is_computed(workers: Workers, start: Any) -> None:
    """`wide` answers 384 FP32 values a token: 512 of them are 786 kB."""
    deployment = workers.deployment("wide", [(0, 512)])
    async with start(deployment, max_message_bytes=1 << 20) as gateway:
        await gateway.infer(request_of(example(500), model="wide"))
        with pytest.raises(grpc.aio.AioRpcError, match="the answer is larger than max_message_bytes") as raised:
            await gateway.infer(request_of(example(500, 20), model="wide"))
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        stats = await gateway.stats()
        assert (stats.instances[0].started, stats.outcomes.rejected) == (1, 1)


async def test_rows_that_waited_already_get_the_grace_time_too(workers: Workers, start: Any) -> None:
    sick = Sick(well=True, takes_s=60)
    async with odd_cluster(workers, start, sick, unavailable_grace_ms=600) as (gateway, odd):
        calls = [asyncio.ensure_future(infer(gateway, seed=seed)) for seed in range(6)]
        await gateway.stats_when(lambda stats: (stats.in_flight, stats.queued) == (2, 4), "two run, four wait")
        odd[0].healthy = False
        await gateway.stats_when(lambda stats: stats.instances[0].state == EJECTED, "ejected")
        began_s = asyncio.get_running_loop().time()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert 0.4 <= asyncio.get_running_loop().time() - began_s < 5
        for result in results:
            assert isinstance(result, grpc.aio.AioRpcError)
            assert result.code() == grpc.StatusCode.UNAVAILABLE
            assert "no healthy instance takes a row of length 8" in (result.details() or "")
