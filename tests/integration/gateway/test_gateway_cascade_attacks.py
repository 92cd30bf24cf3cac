"""A cascade under clients and workers that mean it no good: every row is answered once, and the gateway serves on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fakes.odd_worker import OddWorker
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.replayed import (
    BATCHES,
    REASONS,
    RECORDS,
    STAGES,
    Plan,
    arrays_of,
    cascade_deployment,
    expected,
    recorded,
    request_of,
    said_otherwise,
)

pytestmark = pytest.mark.integration

EVERYWHERE = {"small": (0, 1), "middle": (2,), "large": (2, 3)}
OWN = {"shadow_share": 1.0, "shadow_max_busy": 1.0, "drift_epsilon": 0.1}


async def still_right(gateway: Any, timeout_s: float = 20) -> None:
    """What the rules say, of a client with a wish."""
    outputs = arrays_of(await gateway.infer(request_of(range(16), cascade="usual"), timeout=timeout_s))
    assert outputs["cascade_stage"].tolist() == expected(range(16)).stage.tolist()
    np.testing.assert_array_equal(outputs["logits"], expected(range(16)).logits)


async def test_parameters_by_chance(workers: Workers, start: Any) -> None:
    """Of any type and value: an answer, or INVALID_ARGUMENT that names the parameter."""
    random = np.random.default_rng(5)
    names = ("", "_min_confidence", "_max_stage", "_seed", "_partial", "_depth", "_")
    values: list[tuple[str, Any]] = [
        *(("string_param", text) for text in ("", "usual", "first", "last", "LAST", "\0", "x" * 3000, "ä", "0.5")),
        *(("int64_param", number) for number in (0, 1, 2, 3, -1, 2**62, -(2**63), 2**63 - 1)),
        *(
            ("double_param", number)
            for number in (0.0, 1.0, -0.0, 0.5, 1e-320, -1e308, 1.1, float("inf"), float("nan"))
        ),
        *(("bool_param", flag) for flag in (True, False)),
        *(("uint64_param", number) for number in (0, 1, 2**64 - 1)),
    ]
    codes: Counter[str] = Counter()
    async with start(cascade_deployment(workers, EVERYWHERE, **OWN), dispatch=BATCHES) as gateway:
        for _ in range(300):
            request = request_of(random.integers(0, RECORDS, 2).tolist())
            wished = []
            for _ in range(random.integers(1, 4)):
                name = f"cascade{names[random.integers(len(names))]}"
                kind, value = values[random.integers(len(values))]
                setattr(request.parameters[name], kind, value)
                wished.append(name)
            try:
                outputs = arrays_of(await gateway.infer(request, timeout=20))
            except grpc.aio.AioRpcError as error:
                code, said = error.code().name, str(error.details())
            else:
                assert len(outputs["cascade_stage"]) == 2
                code, said = "OK", wished[0]
            codes[code] += 1
            assert any(name in said for name in wished), said
        assert set(codes) == {"OK", "INVALID_ARGUMENT"}
        await still_right(gateway)


def no_numbers(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """NaN and infinity among those of most rows."""
    logits[::3, 1], logits[1::3, 2] = np.nan, np.inf
    return logits


@pytest.mark.parametrize("stage", STAGES)
async def test_logits_that_are_no_numbers(workers: Workers, start: Any, stage: str) -> None:
    """From a stage that answers in time: its rows go on, or end with what it says; none is lost, none of it is in the
    sample."""
    deployment = cascade_deployment(workers, EVERYWHERE, **OWN)
    async with OddWorker(said_otherwise(no_numbers)) as odd:
        for place in deployment.instances:
            if place.id.endswith(f".{stage}"):
                place.worker, place.endpoint = "odd", odd.endpoint
        async with start(deployment, dispatch=BATCHES) as gateway:
            for at in range(0, 160, 4):
                outputs = arrays_of(await gateway.infer(request_of(range(at, at + 4)), timeout=20))
                assert set(outputs["cascade_stage"].tolist()) <= {0, 1, 2}
                assert np.isfinite(outputs["cascade_confidence"]).all()
            for row in (await gateway.call("GetSample", model="kinds")).rows:
                assert all(np.isfinite(said.logits).all() for said in row.said)
            stats = await gateway.stats("kinds")
            assert stats.outcomes.on_time + stats.outcomes.late == 160 == sum(sum(s.exits) for s in stats.stages)


async def test_clients_leave_at_each_stage(workers: Workers, start: Any) -> None:
    """The workers of a stage hang with rows; their clients go. The room is free when the workers go on."""
    deployment = cascade_deployment(workers, {"small": (0, 1), "middle": (2,), "large": (3,)}, **OWN)
    async with start(deployment, dispatch=BATCHES, health={"timeout_ms": 20_000, "silence_ms": 60_000}) as gateway:
        await still_right(gateway)
        for stage, held in (("small", (0, 1)), ("middle", (2,)), ("large", (3,))):
            pids = [await workers.pid(worker) for worker in held]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                calls = [
                    asyncio.ensure_future(gateway.infer(request_of(range(at, at + 8)), timeout=20))
                    for at in range(0, 64, 8)
                ]
                await gateway.stats_when(lambda s: s.in_flight > 0, "rows at the stage", model=stage)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
                await gateway.stats_when(lambda s: s.queued == 0, "none waits", model=stage)
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
            for each in STAGES:
                await gateway.stats_when(lambda s: s.in_flight == s.queued == 0, "rest", model=each)
        await still_right(gateway)


async def test_a_stream_that_nobody_reads(workers: Workers, start: Any) -> None:
    """Partial answers pile up for a client that takes none; others are served, and its going frees all."""
    async with start(cascade_deployment(workers, EVERYWHERE, **OWN), dispatch=BATCHES) as gateway:
        stream = gateway.stub.ModelStreamInfer()

        async def write() -> None:
            for at in range(2000):
                request = request_of([(at + i) % RECORDS for i in range(4)])
                request.parameters["cascade_partial"].bool_param = True
                await stream.write(request)

        writing = asyncio.create_task(write())
        for _ in range(5):
            await still_right(gateway, timeout_s=200)  # thousands of rows wait, and workers may be slow: no deadline
        writing.cancel()
        stream.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        for stage in STAGES:
            await gateway.stats_when(lambda s: s.in_flight == s.queued == 0, "rest", model=stage)
        await still_right(gateway)


@pytest.mark.parametrize("load", [1.2, 2.0])
async def test_more_rows_than_the_last_stage_takes(workers: Workers, start: Any, load: float) -> None:
    """Open loop at so many times what the last stage carries, its worker killed meanwhile, every tenth request with a
    deadline of a millisecond and every tenth client gone at once: each row has one end, a degraded one says why, and
    what is refused says so."""
    plans = {"usual": Plan(((1.0001, 1.0001),))}
    where = {"small": (0, 1), "middle": (), "large": (3,)}
    deployment = cascade_deployment(workers, where, plans, slo_ms=300, default_timeout_ms=600)
    rows_of_request, carried = 16, 500  # 64 tokens, batches of eight rows in 16 ms
    requests = round(load * carried * 2 / rows_of_request)  # in two seconds
    reasons: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    words: set[str] = set()
    random = np.random.default_rng(11)
    at = np.cumsum(random.exponential(rows_of_request / (load * carried), requests))
    async with start(deployment, dispatch=BATCHES) as gateway:

        async def one(number: int, begun: float) -> None:
            await asyncio.sleep(max(0.0, begun + at[number] - asyncio.get_running_loop().time()))
            records = random.integers(0, RECORDS, rows_of_request).tolist()
            request = request_of(records, [64] * rows_of_request)
            if number % 10 == 1:
                request.parameters["timeout"].int64_param = 1000  # microseconds
            call = gateway.infer(request, timeout=20)
            try:
                if number % 10 == 2:
                    async with asyncio.timeout(0.002):
                        answer = await call
                else:
                    answer = await call
            except grpc.aio.AioRpcError as error:
                refused[error.code().name] += rows_of_request
                words.add(str(error.details()))
                return
            except TimeoutError:
                refused["left"] += rows_of_request
                return
            outputs = arrays_of(answer)
            late = 0
            for record, stage, reason, logits in zip(
                records, outputs["cascade_stage"], outputs["cascade_reason"], outputs["logits"], strict=True
            ):
                np.testing.assert_array_equal(logits, recorded(STAGES[stage])[0][record])
                reasons[REASONS[reason]] += 1
                late += reason >= REASONS.index("deadline")
                assert (stage == 2) == (REASONS[reason] == "final")
            assert answer.parameters["degraded"].int64_param == late

        begun = asyncio.get_running_loop().time()
        calls = [asyncio.create_task(one(number, begun)) for number in range(requests)]
        await gateway.stats_when(
            lambda s: s.outcomes.on_time + s.outcomes.late > 100, "rows are answered", model="kinds"
        )
        os.kill(await workers.pid(3), signal.SIGKILL)
        await asyncio.gather(*calls)
        await workers.whole()
        await gateway.stats_when(lambda s: all(i.state == 2 for i in s.instances), "back", model="kinds")
        assert sum(reasons.values()) + sum(refused.values()) == requests * rows_of_request
        assert set(reasons) <= {"final", "deadline", "stage_absent", "stage_failed"}
        assert reasons["stage_absent"] + reasons["deadline"] + reasons["stage_failed"] > 0
        assert set(refused) <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "left"}, refused
        assert "" not in words
        for stage in STAGES:
            await gateway.stats_when(lambda s: s.in_flight == s.queued == 0, "rest", model=stage)
        outcomes = (await gateway.stats("kinds")).outcomes
        assert outcomes.failed == 0
        assert outcomes.on_time + outcomes.late >= sum(reasons.values())
