"""A row's room at a worker is free when the worker is through, not when a client gave up; it hears of neither."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest

from arlo.clock import monotonic_s
from tests.fakes.gateway import EJECTED, Gateway
from tests.fakes.odd_worker import Behaviour, OddWorker, good, holds
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, request_of

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def held(workers: Workers, start: Any, **changes: Any) -> AsyncIterator[tuple[Gateway, OddWorker, asyncio.Event]]:
    """A gateway with room for one row at one worker, which answers when the gate is open."""
    gate = asyncio.Event()
    async with OddWorker(holds(gate)) as worker:
        deployment = workers.deployment("emu", [(0, 64)], endpoints=[worker.endpoint], inflight_limit=1)
        async with start(deployment, **changes) as gateway:
            try:
                yield gateway, worker, gate
            finally:
                gate.set()


def send(gateway: Gateway, *, seed: int = 0, timeout_us: int | None = None, **options: Any) -> asyncio.Future[Any]:
    sent = example(4, seed=seed, outputs=("embedding",))
    return asyncio.ensure_future(gateway.infer(request_of(sent, timeout_us=timeout_us), **options))


async def code_of(call: asyncio.Future[Any]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.sanitized
async def test_a_cancelled_request_is_let_go_and_keeps_its_room(workers: Workers, start: Any) -> None:
    async with held(workers, start) as (gateway, worker, gate):
        first = send(gateway)
        await until(lambda: len(worker.requests) == 1, "it is with the worker")
        first.cancel()
        stats = await gateway.stats_when(lambda stats: stats.outcomes.cancelled == 1, "cancelled")
        assert (stats.in_flight, stats.instances[0].in_flight) == (1, 1)
        second = send(gateway, seed=2)
        await gateway.stats_when(lambda stats: stats.queued == 1, "the next one waits")
        assert (len(worker.requests), worker.cancelled) == (1, 0)
        gate.set()
        check(await second, example(4, seed=2, outputs=("embedding",)))
        stats = await gateway.stats_when(lambda stats: stats.in_flight == 0, "all done")
        outcomes = stats.outcomes
        assert (outcomes.cancelled, outcomes.on_time + outcomes.late, outcomes.failed) == (1, 1, 0)
        assert (stats.ejections, worker.cancelled) == (0, 0)


@pytest.mark.parametrize("how", ["parameter", "grpc"])
@pytest.mark.sanitized
async def test_a_deadline_is_kept_here_and_not_passed_on(workers: Workers, start: Any, how: str) -> None:
    async with held(workers, start) as (gateway, worker, gate):
        began_s = monotonic_s()
        call = send(gateway, timeout_us=200_000) if how == "parameter" else send(gateway, timeout=0.2)
        assert await code_of(call) == grpc.StatusCode.DEADLINE_EXCEEDED
        assert 0.19 <= monotonic_s() - began_s < 2

        def ended(stats: Any) -> bool:
            # gRPC ends a call at the client, too, whose clock may come first: then it is a cancelled one here.
            return bool(stats.outcomes.expired + (how == "grpc") * stats.outcomes.cancelled == 1)

        stats = await gateway.stats_when(ended, "expired")
        assert stats.in_flight == 1
        assert worker.cancelled == 0
        gate.set()
        await gateway.stats_when(lambda stats: stats.in_flight == 0, "the worker is through")
        assert await code_of(send(gateway)) == grpc.StatusCode.OK
        assert ended(await gateway.stats())
        assert worker.cancelled == 0


@pytest.mark.sanitized
async def test_a_cancelled_batch_and_a_cancelled_stream_end_at_once(workers: Workers, start: Any) -> None:
    async with held(workers, start) as (gateway, worker, gate):
        batch = asyncio.ensure_future(gateway.infer(request_of(example(1, 2, 3, outputs=("embedding",)))))
        await gateway.stats_when(lambda stats: (stats.in_flight, stats.queued) == (1, 2), "one runs, two wait")
        batch.cancel()
        await gateway.stats_when(lambda stats: (stats.outcomes.cancelled, stats.queued) == (3, 0), "cancelled")
        stream = gateway.stub.ModelStreamInfer()
        for seed in range(2):
            await stream.write(request_of(example(4, seed=seed, outputs=("embedding",))))
        await gateway.stats_when(lambda stats: stats.queued == 2, "both wait")
        stream.cancel()
        stats = await gateway.stats_when(lambda stats: (stats.outcomes.cancelled, stats.queued) == (5, 0), "cancelled")
        assert stats.in_flight == 1
        gate.set()
        await gateway.stats_when(lambda stats: stats.in_flight == 0, "the worker is through")
        assert (len(worker.requests), worker.cancelled) == (1, 0)


@pytest.mark.sanitized
async def test_a_batch_that_is_refused_is_refused_at_once_and_starts_nothing(workers: Workers, start: Any) -> None:
    """Also when its first row found room: that start is taken back."""
    async with held(workers, start, dispatch={"max_queued": 2}) as (gateway, worker, gate):
        began_s = monotonic_s()
        with pytest.raises(grpc.aio.AioRpcError, match=r"row 3: the gateway's queue is full") as raised:
            await gateway.infer(request_of(example(1, 2, 3, 4, 5, outputs=("embedding",))))
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert monotonic_s() - began_s < 2
        stats = await gateway.stats()
        assert (stats.in_flight, stats.queued, stats.instances[0].started, stats.computed_tokens) == (0, 0, 0, 0)
        assert (stats.outcomes.rejected, stats.outcomes.overloaded) == (5, 5)
        assert worker.requests == []
        gate.set()
        check(await send(gateway), example(4, outputs=("embedding",)))


@pytest.mark.sanitized
async def test_drain_waits_for_rows_whose_clients_have_gone(workers: Workers, start: Any) -> None:
    """What is drained may be unloaded: the worker must be through with everything."""
    async with held(workers, start) as (gateway, worker, gate):
        assert await code_of(send(gateway, timeout_us=100_000)) == grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await gateway.call("Drain", instance="w0.64", timeout_ms=200)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        drained = asyncio.ensure_future(gateway.call("Drain", instance="w0.64", timeout_ms=10_000))
        gate.set()
        await drained
        assert len(worker.requests) == 1


@pytest.mark.sanitized
async def test_a_silent_worker_is_ejected_and_its_rows_run_elsewhere(workers: Workers, start: Any) -> None:
    """Its checks pass, but it answers no row: an engine that hangs. It is back when it is through with what it has."""
    gate = asyncio.Event()
    async with OddWorker(holds(gate)) as silent, OddWorker(good) as well:
        deployment = workers.deployment(
            "emu", [(0, 64), (1, 64)], endpoints=[silent.endpoint, well.endpoint], inflight_limit=1
        )
        async with start(deployment, health={"silence_ms": 400}) as gateway:
            calls = [send(gateway, seed=seed) for seed in range(6)]
            answers = await asyncio.gather(*calls)
            for seed, answer in enumerate(answers):
                check(answer, example(4, seed=seed, outputs=("embedding",)))
            stats = await gateway.stats_when(lambda stats: stats.instances[0].state == EJECTED, "ejected")
            assert "it has answered no row for" in stats.instances[0].last_error
            assert (stats.instances[0].ejections, stats.retries, stats.outcomes.failed) == (1, 1, 0)
            assert (len(silent.requests), silent.cancelled) == (1, 0)
            await asyncio.sleep(0.3)  # checks pass, but the row of before would take the room of a new one
            assert (await gateway.stats()).instances[0].state == EJECTED
            gate.set()
            await gateway.stats_when(lambda stats: stats.instances[0].state != EJECTED, "back")
            for seed in range(4):
                check(await send(gateway, seed=seed), example(4, seed=seed, outputs=("embedding",)))


@pytest.mark.sanitized
async def test_cancels_close_to_the_answer_end_every_request_once(workers: Workers, start: Any) -> None:
    """Answers, cancellations and deadlines cross; the books add up, and no row stays behind."""

    async def soon(worker: OddWorker, request: Any) -> bytes:
        await asyncio.sleep(0.004 + 0.002 * (len(worker.requests) % 3))
        return await good(worker, request)

    behave: Behaviour = soon
    async with OddWorker(behave) as one, OddWorker(behave) as two:
        deployment = workers.deployment("emu", [(0, 64), (1, 64)], endpoints=[one.endpoint, two.endpoint])
        async with start(deployment, threads=4) as gateway:
            calls = []
            for number in range(600):
                timeout_us = 3000 + 10 * number if number % 3 == 0 else None
                calls.append(send(gateway, seed=number % 7, timeout_us=timeout_us))
                await asyncio.sleep(0.001)
                if number % 3 == 1:
                    calls[max(0, number - number % 8)].cancel()
            codes = []
            for call in calls:
                with contextlib.suppress(asyncio.CancelledError):
                    codes.append(await code_of(call))
            assert set(codes) <= {
                grpc.StatusCode.OK,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            }
            stats = await gateway.stats_when(lambda stats: stats.queued + stats.in_flight == 0, "idle")
            outcomes = stats.outcomes
            ended = outcomes.on_time + outcomes.late + outcomes.rejected + outcomes.expired + outcomes.cancelled
            assert outcomes.failed == 0
            assert len(codes) <= ended <= len(calls)  # one that is cancelled before it was sent never arrives
            assert sum(len(worker.requests) for worker in (one, two)) == sum(i.started for i in stats.instances)
            assert (one.cancelled, two.cancelled) == (0, 0)


async def test_deadlines_that_cross_answers_leave_triton_well(workers: Workers, start: Any) -> None:
    """A cancellation that meets the answer kills Triton 2.51 once in some thousand times, or leaks the request, so that
    its runtime never unloads."""
    pid = await workers.pid(3)
    deployment = workers.deployment("emu", [(3, 64)], inflight_limit=2)
    async with start(deployment) as gateway:
        codes: Counter[grpc.StatusCode] = Counter()

        async def client(number: int) -> None:
            random = np.random.default_rng(number)
            for seed in range(150):
                call = send(gateway, seed=seed % 9, timeout_us=int(random.integers(1500, 9000)))
                if seed % 3 == 0:
                    await asyncio.sleep(random.uniform(0.001, 0.006))
                    call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    codes[await code_of(call)] += 1

        await asyncio.gather(*(client(number) for number in range(16)))
        assert codes[grpc.StatusCode.OK] > 0
        assert codes[grpc.StatusCode.DEADLINE_EXCEEDED] + codes[grpc.StatusCode.RESOURCE_EXHAUSTED] > 0
        stats = await gateway.stats_when(lambda stats: stats.queued + stats.in_flight == 0, "idle")
        assert (stats.ejections, stats.outcomes.failed, stats.retries) == (0, 0, 0)
        await gateway.call("Drain", instance="w3.64", timeout_ms=5000)
    try:
        async with asyncio.timeout(10):
            await workers.pool.unload("w3", "emu_len64")
    finally:
        await workers.pool.load("w3", "emu_len64")
    assert await workers.pid(3) == pid
