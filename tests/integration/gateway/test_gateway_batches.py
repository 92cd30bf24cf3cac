"""Rows of many clients go to a worker as one request; each gets its own answer, whatever happens to the others."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import numpy as np
import pytest

from tests.fakes.gateway import Gateway, split_of
from tests.fakes.odd_worker import (
    Behaviour,
    OddWorker,
    WorkerError,
    dies_of,
    fails_on,
    good,
    holds,
    tensors_of,
)
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, request_of
from tests.integration.gateway.odd_cluster import POISON, odd_cluster, poisoned

pytestmark = pytest.mark.integration

MODEL = "batched"  # up to 8 rows


def cluster(
    workers: Workers, start: Any, *behaviours: Behaviour, **changes: Any
) -> AbstractAsyncContextManager[tuple[Gateway, list[OddWorker]]]:
    """One batch at a time for each worker."""
    return odd_cluster(workers, start, *behaviours, model=MODEL, inflight_limit=1, **changes)


async def infer(gateway: Gateway, *lengths: int, seed: int = 0, **parameters: str) -> Any:
    sent = example(*(lengths or (8,)), seed=seed, outputs=("embedding",))
    request = request_of(sent, model=MODEL)
    for key, value in parameters.items():
        request.parameters[key].string_param = value
    response = await gateway.infer(request, timeout=10)
    check(response, sent, model=MODEL)
    return response


def rows_of(worker: OddWorker) -> list[int]:
    """The rows of each request that the worker has got."""
    return [request.inputs[0].shape[0] for request in worker.requests]


@contextlib.asynccontextmanager
async def line(
    workers: Workers, start: Any, *, behave: Behaviour = good, **changes: Any
) -> AsyncIterator[tuple[Gateway, list[OddWorker], asyncio.Event]]:
    """One worker, held at one row, so that what comes next waits together until the gate opens."""
    gate = asyncio.Event()

    async def held(worker: OddWorker, request: Any) -> bytes:
        await gate.wait()
        return await behave(worker, request)

    async with cluster(workers, start, held, **changes) as (gateway, odd):
        first = asyncio.create_task(infer(gateway, 5, seed=99))
        try:
            await until(lambda: len(odd[0].requests) == 1, "the first row is with the worker")
            yield gateway, odd, gate
        finally:
            gate.set()
            await asyncio.gather(first, return_exceptions=True)


async def waiting(gateway: Gateway, rows: int) -> None:
    await gateway.stats_when(lambda stats: stats.queued == rows, f"{rows} rows wait")


@pytest.mark.sanitized
async def test_rows_of_many_clients_go_as_one_request(workers: Workers, start: Any) -> None:
    async with line(workers, start) as (gateway, odd, gate):
        calls = [asyncio.create_task(infer(gateway, 1 + seed * 7, seed=seed)) for seed in range(8)]
        await waiting(gateway, 8)
        gate.set()
        answers = await asyncio.gather(*calls)
        assert rows_of(odd[0]) == [1, 8]
        assert [split_of(answer).batch_rows for answer in answers] == [8] * 8
        stats = await gateway.stats()
        assert (stats.batches, stats.outcomes.on_time) == (2, 9)


async def test_the_rows_of_one_request_go_together(workers: Workers, start: Any) -> None:
    """The worker is idle, and the first row does not start without the others."""
    async with cluster(workers, start, good) as (gateway, odd):
        answer = await infer(gateway, 3, 60, 4, 5, 6)
        assert rows_of(odd[0]) == [5]
        assert split_of(answer).batch_rows == 5
        await infer(gateway, *range(1, 20))
        assert rows_of(odd[0]) == [5, 8, 8, 3]


async def test_with_batching_one_each_row_goes_alone(workers: Workers, start: Any) -> None:
    async with cluster(workers, start, good, dispatch={"batching": "one"}) as (gateway, odd):
        answer = await infer(gateway, 3, 60, 4)
        assert rows_of(odd[0]) == [1, 1, 1]
        assert split_of(answer).batch_rows == 1


async def test_outputs_are_those_that_each_asked_for(workers: Workers, start: Any) -> None:
    """On a real worker: one client takes all outputs, others one or the other, and their rows are one batch."""
    async with start(workers.deployment(MODEL, [(0, 64)], inflight_limit=1)) as gateway:
        wanted: list[tuple[str, ...]] = [(), ("embedding",), ("last_hidden_state",), ("last_hidden_state", "embedding")]
        sent = [example(3 + i, 64 - i, seed=i, outputs=wanted[i % 4], id=f"n{i}") for i in range(24)]
        most = 0
        while most < 8:  # on a busy machine a client may be slower than the worker
            calls = [gateway.infer(request_of(each, model=MODEL), timeout=10) for each in sent]
            answers = await asyncio.gather(*calls)
            for answer, each in zip(answers, sent, strict=True):
                check(answer, each, model=MODEL)
            most = max(split_of(answer).batch_rows for answer in answers)


async def test_parameters_of_a_client_stay_with_its_rows(workers: Workers, start: Any) -> None:
    async with line(workers, start) as (gateway, odd, gate):
        colours = ("", "red", "", "blue", "red", "")
        calls = [
            asyncio.create_task(infer(gateway, 9, seed=seed, **({"colour": colour} if colour else {})))
            for seed, colour in enumerate(colours)
        ]
        await waiting(gateway, len(colours))
        gate.set()
        await asyncio.gather(*calls)
        seen = {
            request.parameters["colour"].string_param: request.inputs[0].shape[0] for request in odd[0].requests[1:]
        }
        assert seen == {"": 3, "red": 2, "blue": 1}


@pytest.mark.sanitized
async def test_a_client_that_goes_leaves_its_batch_unharmed(workers: Workers, start: Any) -> None:
    gate = asyncio.Event()
    async with cluster(workers, start, holds(gate)) as (gateway, odd):
        gone = asyncio.create_task(infer(gateway, 5, 6, 7))
        await until(lambda: len(odd[0].requests) == 1, "they are with the worker")
        calls = [asyncio.create_task(infer(gateway, 8, seed=seed)) for seed in range(6)]
        await waiting(gateway, 6)
        calls[3].cancel()  # it waits
        await waiting(gateway, 5)
        gone.cancel()  # it runs
        await gateway.stats_when(lambda stats: stats.outcomes.cancelled == 4, "cancelled")
        assert (await gateway.stats()).in_flight == 3
        gate.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [i == 3 for i in range(6)]
        assert rows_of(odd[0]) == [3, 5]
        stats = await gateway.stats_when(lambda stats: stats.in_flight == 0, "idle")
        assert (stats.outcomes.failed, stats.ejections) == (0, 0)


@pytest.mark.sanitized
async def test_of_a_batch_that_fails_the_bad_row_is_found(workers: Workers, start: Any) -> None:
    async with line(workers, start, behave=fails_on(POISON)) as (gateway, odd, gate):
        bad = asyncio.create_task(gateway.infer(poisoned(5, 6, 7, model=MODEL), timeout=10))
        await waiting(gateway, 3)
        calls = [asyncio.create_task(infer(gateway, 8, seed=seed)) for seed in range(5)]
        await waiting(gateway, 8)
        gate.set()
        await asyncio.gather(*calls)
        with pytest.raises(grpc.aio.AioRpcError, match=r"row 2: .*cannot look at token 30666") as raised:
            await bad
        assert raised.value.code() == grpc.StatusCode.INTERNAL
        stats = await gateway.stats_when(lambda stats: stats.in_flight == 0, "idle")
        assert (stats.outcomes.on_time, stats.outcomes.failed, stats.ejections) == (6, 3, 0)
        assert rows_of(odd[0])[:2] == [1, 8]
        assert len(odd[0].requests) <= 2 + 2 * 3  # halves of halves


@pytest.mark.sanitized
async def test_a_worker_that_dies_of_a_row_takes_no_other_along(workers: Workers, start: Any) -> None:
    """Three workers at most die of it, as max_attempts says; by the third it is alone."""
    async with cluster(workers, start, *[dies_of(POISON)] * 4) as (gateway, odd):
        bad = asyncio.create_task(gateway.infer(poisoned(5, model=MODEL), timeout=10))
        await asyncio.gather(*(infer(gateway, 4, 5, seed=seed) for seed in range(20)), return_exceptions=False)
        with pytest.raises(grpc.aio.AioRpcError):
            await bad
        assert sum(worker.dead for worker in odd) <= 3
        assert (await gateway.stats()).outcomes.on_time == 40


class Moody:
    """A behaviour: takes a moment, fails what it is told to, and now and then anything, or answers nonsense."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    async def __call__(self, worker: OddWorker, request: Any) -> bytes:
        await asyncio.sleep(self._random.uniform(0, 0.004))
        mood = self._random.random()
        if mood < 0.01:
            raise WorkerError(grpc.StatusCode.INTERNAL, "a moment of weakness")
        if mood < 0.015:
            return b"nonsense"
        if POISON in tensors_of(request)["input_ids"]:
            raise WorkerError(grpc.StatusCode.INTERNAL, f"cannot look at token {POISON}")
        return await good(worker, request)


@pytest.mark.sanitized
async def test_whatever_happens_every_request_is_answered_once_and_rightly(workers: Workers, start: Any) -> None:
    """Random requests of several clients, some bad, some cancelled, some hurried; workers that fail now and then.

    ARLO_ROWS=100000 sends so many rows.
    """
    total = int(os.environ.get("ARLO_ROWS", "4000"))
    ends: Counter[str] = Counter()
    rows_sent = 0

    async def client(number: int, gateway: Gateway) -> None:
        nonlocal rows_sent
        random = np.random.default_rng(number)
        while rows_sent < total:
            lengths = random.integers(1, 65, random.choice([1, 1, 1, 2, 5, 20])).tolist()
            rows_sent += len(lengths)
            kind = random.choice(["well", "bad", "cancelled", "hurried"], p=[0.8, 0.02, 0.08, 0.1])
            sent = example(*lengths, seed=int(random.integers(1 << 30)), outputs=("embedding",))
            request = poisoned(*lengths, model=MODEL) if kind == "bad" else request_of(sent, model=MODEL)
            timeout_s = random.uniform(0.001, 0.02) if kind == "hurried" else 20
            call = asyncio.ensure_future(gateway.infer(request, timeout=timeout_s))
            if kind == "cancelled":
                await asyncio.sleep(random.uniform(0, 0.01))
                call.cancel()
            try:
                check(await call, sent, model=MODEL)
                ends[f"{kind}: answered"] += 1
            except asyncio.CancelledError:
                ends[f"{kind}: cancelled"] += 1
            except grpc.aio.AioRpcError as error:
                ends[f"{kind}: {error.code().name}"] += 1
                words = ["weakness", "unusable"] + ["cannot look at token"] * (kind == "bad")
                if kind in ("well", "bad") and not any(word in (error.details() or "") for word in words):
                    raise

    moods = [Moody(seed) for seed in range(3)]
    async with cluster(workers, start, *moods, max_attempts=6, log_level="error") as (gateway, odd):
        await asyncio.gather(*(client(number, gateway) for number in range(24)))
        stats = await gateway.stats_when(lambda stats: stats.queued + stats.in_flight == 0, "idle")
        ended = [field.name for field in stats.outcomes.DESCRIPTOR.fields if field.name != "overloaded"]
        # Some were cancelled before they came.
        assert sum(getattr(stats.outcomes, name) for name in ended) == sum(stats.arrivals_by_length) <= rows_sent
        assert {end.split(":")[0] for end in ends} == {"well", "bad", "cancelled", "hurried"}
        assert {end for end in ends if end.startswith("bad")} == {"bad: INTERNAL"}
        assert ends["well: INTERNAL"] <= 3 + total / 2000  # alone, and on two workers
        assert max(max(rows_of(worker)) for worker in odd) == 8


@pytest.mark.sanitized
async def test_bulk_fills_what_others_leave(workers: Workers, start: Any) -> None:
    """A worker that is busy with bulk work answers interactive requests as soon as the batch under way is done."""
    gate = asyncio.Event()
    async with cluster(workers, start, holds(gate)) as (gateway, odd):
        lots = [asyncio.create_task(infer(gateway, 9, seed=seed, arlo_class="bulk")) for seed in range(40)]
        await gateway.stats_when(lambda stats: stats.queued + stats.in_flight == 40, "all are there")
        asked = asyncio.create_task(infer(gateway, 5, seed=77))
        await gateway.stats_when(lambda stats: stats.queued + stats.in_flight == 41, "and one that is in a hurry")
        gate.set()
        await asked
        turn = [tensors_of(request)["attention_mask"].sum() for request in odd[0].requests].index(5)
        assert sum(rows_of(odd[0])[:turn]) <= 2
        await asyncio.gather(*lots)
        stats = await gateway.stats()
        assert (stats.bulk, stats.outcomes.on_time, stats.total.count) == (40, 41, 1)
        assert max(rows_of(odd[0])) > 1
