"""Deadlines and full queues: what nobody waits for any more is not started. Cancellation is in test_gateway_room.py.

`slow` and `queued` take 250 ms a request. With an in-flight limit of 1 what waits, waits in the gateway; with 8, in
Triton, which is told of no deadline and no cancellation and executes all that it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from arlo.clock import monotonic_s
from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, one_row, request_of

pytestmark = pytest.mark.integration

SERVICE_S = 0.25


class Slow:
    """A gateway in front of one slow instance, and what its worker has executed since."""

    def __init__(self, gateway: Gateway, workers: Workers, model: str, before: int) -> None:
        self.gateway = gateway
        self.model = model
        self._workers = workers
        self._before = before

    def send(self, *lengths: int, **options: Any) -> asyncio.Future[Any]:
        """One request, of one short row unless told otherwise."""
        timeout_us = options.pop("timeout_us", None)
        request = request_of(example(*(lengths or (5,))), model=self.model, timeout_us=timeout_us)
        return asyncio.ensure_future(self.gateway.infer(request, **options))

    async def send_first(self) -> asyncio.Future[Any]:
        """A request that has reached the worker, and so comes before all that follow."""
        call = self.send()
        await self.gateway.stats_when(lambda stats: stats.in_flight == 1, "it runs")
        return call

    async def idle(self) -> Any:
        """Statistics once nothing waits or runs."""
        return await self.gateway.stats_when(lambda stats: stats.queued + stats.in_flight == 0, "idle")

    async def executed(self) -> int:
        """Executions so far, those before a last request that comes after all others."""
        await self.send()
        return await count_executions(self._workers, self.model) - self._before - 1


async def count_executions(workers: Workers, model: str) -> int:
    """Of the first worker, settled: Triton counts a request just after it has answered it, and nothing tells when."""
    counts = [-1]

    async def settled() -> bool:
        counts.append(await workers.executions(0, f"{model}_len64"))
        return counts[-1] == counts[-2]

    await until(settled, "the same count twice", every_s=0.05)
    return counts[-1]


@contextlib.asynccontextmanager
async def slow_gateway(workers: Workers, path: Path, model: str = "slow", **options: Any) -> AsyncIterator[Slow]:
    deployment = workers.deployment(model, [(0, 64)], **options)
    async with gateway_of(path, deployment, dispatch={"max_queued": 6}) as gateway:
        # What an earlier test's cancelled request left running has ended once this one is answered.
        await gateway.infer(one_row(5, model=model))
        yield Slow(gateway, workers, model, await count_executions(workers, model))


@pytest_asyncio.fixture(loop_scope="session")
async def waits_in_gateway(workers: Workers, tmp_path: Path) -> AsyncIterator[Slow]:
    async with slow_gateway(workers, tmp_path, inflight_limit=1) as slow:
        yield slow


@pytest_asyncio.fixture(loop_scope="session")
async def waits_in_triton(workers: Workers, tmp_path: Path) -> AsyncIterator[Slow]:
    async with slow_gateway(workers, tmp_path, "queued", inflight_limit=8) as slow:
        yield slow


async def code_of(call: asyncio.Future[Any]) -> grpc.StatusCode:
    """How a call ended."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def codes_of(calls: list[asyncio.Future[Any]]) -> list[grpc.StatusCode]:
    return list(await asyncio.gather(*(code_of(call) for call in calls)))


OK, EXPIRED, FULL = grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED


TURNED_AWAY = {EXPIRED, FULL}  # by the deadline, or at once because it could not be met


async def test_what_cannot_be_answered_by_the_deadline_is_not_sent(waits_in_triton: Slow) -> None:
    """The first runs; three more would be answered 250 to 750 ms after that, and are wanted in 125."""
    slow = waits_in_triton
    first = await slow.send_first()
    began_s = monotonic_s()
    codes = await codes_of([slow.send(timeout=0.5 * SERVICE_S) for _ in range(3)])
    assert set(codes) <= TURNED_AWAY
    assert monotonic_s() - began_s < SERVICE_S
    assert await code_of(first) == OK
    outcomes = (await slow.idle()).outcomes
    assert outcomes.expired + outcomes.rejected == outcomes.overloaded == 3
    assert await slow.executed() == 1


async def test_a_refusal_tells_how_long_an_answer_would_take(waits_in_gateway: Slow) -> None:
    slow = waits_in_gateway
    calls = [await slow.send_first(), *(slow.send() for _ in range(3))]
    await slow.gateway.stats_when(lambda stats: stats.queued == 3, "three wait")
    with pytest.raises(
        grpc.aio.AioRpcError, match=r"an answer would take about \d+ ms, and the deadline is in"
    ) as raised:
        await slow.send(timeout=2 * SERVICE_S)
    assert raised.value.code() == FULL
    predicted_ms = int(dict(raised.value.trailing_metadata())["arlo-predicted-ms"])
    assert 3.5 * SERVICE_S * 1000 <= predicted_ms <= 6 * SERVICE_S * 1000
    stream = slow.gateway.stub.ModelStreamInfer()
    await stream.write(one_row(5, model="slow", timeout_us=round(2e6 * SERVICE_S)))
    answer = await stream.read()
    assert answer.error_message.startswith("[RESOURCE_EXHAUSTED] an answer would take")
    assert answer.infer_response.parameters["arlo-predicted-ms"].int64_param >= 3.5 * SERVICE_S * 1000
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF
    assert await codes_of(calls) == [OK] * 4


async def test_the_earlier_of_deadline_and_timeout_counts(waits_in_gateway: Slow) -> None:
    first = waits_in_gateway.send()
    sent_s = monotonic_s()
    assert await code_of(waits_in_gateway.send(timeout=0.1, timeout_us=10_000_000)) in TURNED_AWAY
    assert await code_of(waits_in_gateway.send(timeout=10, timeout_us=50_000)) in TURNED_AWAY
    assert monotonic_s() - sent_s < SERVICE_S
    assert await code_of(first) == OK


async def test_the_models_default_timeout(workers: Workers, tmp_path: Path) -> None:
    timeout_ms = round(1.5e3 * SERVICE_S)
    async with slow_gateway(workers, tmp_path, default_timeout_ms=timeout_ms, inflight_limit=1) as slow:
        calls = [slow.send() for _ in range(4)]
        codes = await codes_of(calls)
        assert codes.count(OK) == 1
        assert set(codes) <= {OK, *TURNED_AWAY}
        # A client that sets a longer deadline gets it.
        assert await codes_of([slow.send(timeout=20) for _ in range(3)]) == [OK] * 3


async def test_a_deadline_that_has_passed_already(waits_in_gateway: Slow) -> None:
    assert await code_of(waits_in_gateway.send(timeout_us=1)) == EXPIRED
    assert await waits_in_gateway.executed() == 0


@pytest.mark.sanitized
async def test_one_request_of_a_stream_may_expire(waits_in_gateway: Slow) -> None:
    slow = waits_in_gateway
    stream = slow.gateway.stub.ModelStreamInfer()
    patient, hasty = example(5, id="patient"), example(5, id="hasty")
    await stream.write(request_of(patient, model="slow"))
    await stream.write(request_of(hasty, model="slow", timeout_us=100_000))
    answer = await stream.read()
    assert answer.infer_response.id == "hasty"
    assert answer.error_message.startswith(("[DEADLINE_EXCEEDED] the request waited", "[RESOURCE_EXHAUSTED] an answer"))
    answer = await stream.read()
    check(answer.infer_response, patient, model="slow")
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF


async def test_a_full_queue_refuses_at_once(waits_in_gateway: Slow) -> None:
    slow = waits_in_gateway
    calls = [slow.send() for _ in range(7)]
    await slow.gateway.stats_when(lambda stats: (stats.in_flight, stats.queued) == (1, 6), "full")
    sent_s = monotonic_s()
    with pytest.raises(grpc.aio.AioRpcError, match=r"queue is full \(6 rows wait\): try again later") as raised:
        await slow.send()
    assert raised.value.code() == FULL
    assert monotonic_s() - sent_s < SERVICE_S / 2
    # Calls that have room again are taken.
    calls.pop().cancel()
    await slow.gateway.stats_when(lambda stats: stats.queued < 6, "room")
    calls.append(slow.send())
    assert await codes_of(calls) == [OK] * 7
    assert (await slow.idle()).outcomes.rejected == 1
    assert await slow.executed() == 7


async def test_tritons_full_queue_is_resource_exhausted_and_no_reason_to_eject(workers: Workers, start: Any) -> None:
    """`tight` lets one request wait in Triton, which says UNAVAILABLE to further ones, as it does when it stops."""
    async with start(workers.deployment("tight", [(0, 64)], inflight_limit=16)) as gateway:
        calls = [asyncio.ensure_future(gateway.infer(one_row(5, model="tight"))) for _ in range(12)]
        codes = await codes_of(calls)
        stats = await gateway.stats()
    assert set(codes) == {OK, FULL}
    assert codes.count(OK) >= 2
    assert stats.outcomes.rejected == codes.count(FULL)
    assert stats.outcomes.failed == 0
    assert stats.ejections == 0
    assert stats.retries > 0
