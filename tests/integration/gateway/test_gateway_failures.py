"""Workers that die, hang, lose their runtime or answer nonsense: requests go elsewhere, instances come back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from arlo.clock import monotonic_s
from arlo.workers.ports import free_port
from tests.fakes.gateway import ACTIVE, EJECTED, Gateway
from tests.fakes.odd_worker import Behaviour, OddWorker, dies_of, embedding
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, one_row, request_of
from tests.integration.gateway.load import Load
from tests.integration.gateway.odd_cluster import POISON, poisoned

pytestmark = pytest.mark.integration

PLACEMENT = [(0, 128), (1, 128), (2, 512), (3, 512)]


async def all_active(gateway: Gateway) -> None:
    await gateway.stats_when(lambda stats: all(i.state == ACTIVE for i in stats.instances), "all active")


async def ejected(gateway: Gateway, index: int) -> Any:
    return await gateway.stats_when(lambda stats: stats.instances[index].state == EJECTED, f"instance {index} ejected")


async def refused(gateway: Gateway, request: Any, **options: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.infer(request, **options)
    return raised.value


async def test_workers_killed_under_load_and_no_request_fails(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("emu", PLACEMENT), threads=4) as gateway:
        async with Load(gateway) as load:
            for ejections, victim in enumerate((1, 3), 1):
                os.kill(await workers.pid(victim), signal.SIGKILL)
                stats = await gateway.stats_when(lambda stats, n=ejections: stats.ejections >= n, "ejected")
                assert stats.instances[victim].state == EJECTED
                await load.more(200)
                await workers.whole()
                await all_active(gateway)
                await load.more(100)
        stats = await gateway.stats()
        assert stats.outcomes.failed == 0
        assert stats.ejections == 2
        for victim in (1, 3):
            assert stats.instances[victim].failed >= 1  # it was killed with requests running
        assert stats.retries >= 2
        assert [line["instance"] for line in gateway.logged("instance_ejected")] == ["w1.128", "w3.512"]
        assert len(gateway.logged("instance_joined")) == 6


async def test_a_hanging_worker_is_ejected_and_its_requests_are_answered_elsewhere(
    workers: Workers, start: Any
) -> None:
    pid = await workers.pid(2)
    async with start(workers.deployment("emu", PLACEMENT)) as gateway:
        try:
            async with Load(gateway) as load:
                os.kill(pid, signal.SIGSTOP)
                stats = await ejected(gateway, 2)
                assert stats.outcomes.failed == 0
                await load.more(200)
                assert (await gateway.stats()).instances[2].in_flight == 0
                os.kill(pid, signal.SIGCONT)
                await all_active(gateway)
                before = (await gateway.stats()).instances[2].started
                await load.more(200)
                assert (await gateway.stats()).instances[2].started > before
        finally:
            os.kill(pid, signal.SIGCONT)
        stats = await gateway.stats()
        assert (stats.outcomes.failed, stats.outcomes.expired) == (0, 0)
        assert (stats.ejections, stats.retries > 0) == (1, True)
        assert "health check" in gateway.logged("instance_ejected")[0]["reason"]


async def test_a_runtime_unloaded_behind_the_gateways_back(workers: Workers, start: Any) -> None:
    """Triton says NOT_FOUND: the worker is well, but that instance is not there."""
    async with start(workers.deployment("emu", PLACEMENT)) as gateway:
        async with Load(gateway) as load:
            await workers.pool.unload("w2", "emu_len512")
            await ejected(gateway, 2)
            await load.more(100)
            await workers.pool.load("w2", "emu_len512")
            await all_active(gateway)
            await load.more(100)
        assert (await gateway.stats()).outcomes.failed == 0


async def test_no_instance_that_fits_is_unavailable_within_the_grace_time(workers: Workers, start: Any) -> None:
    endpoints = [workers.endpoints[0], f"127.0.0.1:{free_port('127.0.0.1')}"]
    deployment = workers.deployment("emu", [(0, 64), (1, 512)], endpoints=endpoints)
    async with start(unavailable_grace_ms=500) as gateway:
        await gateway.call("Apply", deployment=deployment)
        await gateway.stats_when(lambda stats: stats.instances[0].state == ACTIVE, "the short one is active")
        check(await gateway.infer(request_of(example(64))), example(64))
        sent_s = monotonic_s()
        error = await refused(gateway, one_row(65), timeout=10)
        assert 0.45 <= monotonic_s() - sent_s < 3
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        wanted = "no healthy instance takes a row of length 65 (1 of 2 instances are active); last error: "
        assert (error.details() or "").startswith(wanted)
        # With a deadline shorter than the grace time the answer comes before the deadline.
        error = await refused(gateway, one_row(65), timeout=0.4)
        assert error.code() == grpc.StatusCode.UNAVAILABLE  # late, it would be DEADLINE_EXCEEDED
        # A batch is refused as a whole, and what fits is still served.
        error = await refused(gateway, request_of(example(3, 65)), timeout=10)
        assert (error.details() or "").startswith("row 1: no healthy instance takes a row of length 65")
        check(await gateway.infer(request_of(example(64))), example(64))
        stats = await gateway.stats()
        assert (stats.queued, stats.parked, stats.in_flight) == (0, 0, 0)


async def test_before_the_first_deployment(start: Any) -> None:
    async with start() as gateway:
        error = await refused(gateway, one_row(3))
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the gateway has no deployment yet")


async def test_a_request_waits_for_an_instance_that_comes_in_time(workers: Workers, start: Any) -> None:
    await workers.pool.unload("w3", "slow_len128")
    try:
        async with start(unavailable_grace_ms=10_000) as gateway:
            await gateway.call("Apply", deployment=workers.deployment("slow", [(3, 128)]))
            sent = [example(100, seed=seed) for seed in range(3)]
            calls = [asyncio.ensure_future(gateway.infer(request_of(each, model="slow"))) for each in sent]
            await gateway.stats_when(lambda stats: stats.parked == 3, "they wait")
            await workers.pool.load("w3", "slow_len128")
            for call, each in zip(calls, sent, strict=True):
                check(await call, each, model="slow")
            assert (await gateway.stats()).parked == 0
    finally:
        await workers.pool.load("w3", "slow_len128")


@contextlib.asynccontextmanager
async def odd(behave: Behaviour, count: int) -> AsyncIterator[list[OddWorker]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(OddWorker(behave)) for _ in range(count)]


def deployment_on(workers: Workers, odd_workers: list[OddWorker]) -> Any:
    placement = [(index, 64) for index in range(len(odd_workers))]
    return workers.deployment("emu", placement, endpoints=[worker.endpoint for worker in odd_workers])


def embedding_of(length: int, seed: int = 0) -> Any:
    return request_of(example(length, seed=seed, outputs=("embedding",)))


@pytest.mark.sanitized
async def test_a_request_that_kills_workers_kills_no_more_than_max_attempts(workers: Workers, start: Any) -> None:
    async with odd(dies_of(POISON), 5) as five:
        async with start(deployment_on(workers, five), max_attempts=2) as gateway:
            error = await refused(gateway, poisoned(4), timeout=10)
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert sum(worker.dead for worker in five) == 2
            stats = await gateway.stats()
            assert (stats.outcomes.failed, stats.retries, stats.ejections) == (1, 1, 2)
            for seed in range(20):
                sent = example(30, seed=seed, outputs=("embedding",))
                check(await gateway.infer(request_of(sent)), sent)


def changed(change: Callable[[Any], Any]) -> Behaviour:
    """Answers of the emulated engine, changed."""

    async def behave(worker: OddWorker, request: Any) -> bytes:
        response = embedding(request)
        return change(response) or bytes(response.SerializeToString())

    return behave


# Every way is in tests/cpp/gateway_response_test.cc.
NONSENSE: dict[str, tuple[Behaviour, str]] = {
    "no protobuf": (changed(lambda r: b"\xff\xff\xff"), "it does not parse"),
    "too few bytes": (
        changed(lambda r: r.raw_output_contents.__setitem__(0, bytes(12))),
        "carries 12 bytes; its shape needs 16",
    ),
}


@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.sanitized
async def test_nonsense_from_a_worker_is_an_error_of_that_request(workers: Workers, start: Any, kind: str) -> None:
    behave, why = NONSENSE[kind]
    async with odd(behave, 1) as one, start(deployment_on(workers, one)) as gateway:
        error = await refused(gateway, embedding_of(4))
        assert error.code() == grpc.StatusCode.INTERNAL
        assert (error.details() or "").startswith("the worker's answer is unusable: ")
        assert why in (error.details() or "")
        assert (await gateway.stats()).outcomes.failed == 1


async def test_an_error_of_the_model_is_passed_on_and_is_no_reason_to_eject(workers: Workers, start: Any) -> None:
    async def fail(worker: OddWorker, request: Any) -> bytes:
        raise RuntimeError("bad luck")

    async with odd(fail, 2) as two, start(deployment_on(workers, two)) as gateway:
        error = await refused(gateway, embedding_of(4))
        assert error.code() == grpc.StatusCode.UNKNOWN
        assert "worker 'w" in (error.details() or "")
        assert "bad luck" in (error.details() or "")
        stats = await gateway.stats()
        assert (stats.outcomes.failed, stats.ejections, stats.retries) == (1, 0, 1)
