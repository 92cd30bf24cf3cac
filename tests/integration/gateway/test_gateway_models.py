"""One gateway for several models: each has its own lines, versions and books, and none waits for another."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2

from tests.fakes.gateway import Gateway
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, request_of
from tests.integration.gateway.load import Load

pytestmark = pytest.mark.integration

NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def infer(gateway: Gateway, model: str, *lengths: int, **options: Any) -> None:
    sent = example(*lengths, outputs=("embedding",))
    check(await gateway.infer(request_of(sent, model=model), timeout=20, **options), sent, model=model)


async def ready(gateway: Gateway, model: str = "") -> bool:
    if not model:
        return bool((await gateway.stub.ServerReady(service_pb2.ServerReadyRequest())).ready)
    return bool((await gateway.stub.ModelReady(service_pb2.ModelReadyRequest(name=model))).ready)


async def test_each_model_is_served_by_its_own_name(workers: Workers, start: Any) -> None:
    emu = workers.deployment("emu", [(0, 64), (1, 512)], version=7)
    dyn = workers.deployment("dyn", [(2, 512)], version=1)
    async with start() as gateway:
        # The first needs no neighbours: `beside` is no condition.
        await gateway.apply(emu, beside=True)
        assert [await ready(gateway, name) for name in ("emu", "dyn", "")] == [True, False, True]
        await gateway.apply(dyn, beside=True)
        assert [await ready(gateway, name) for name in ("emu", "dyn", "")] == [True, True, True]
        for length in (1, 40, 64, 65, 512):
            await infer(gateway, "emu", length)
            await infer(gateway, "dyn", length, length)
        error = await refused(infer(gateway, "other", 8))
        assert (error.code(), error.details()) == (
            NOT_FOUND, "unknown model 'other'; this gateway serves 'dyn', 'emu'",
        )  # fmt: skip
        rows = {name: (await gateway.stats(name)).outcomes.on_time for name in ("emu", "dyn")}
        assert rows == {"emu": 5, "dyn": 10}
        assert [(await gateway.stats(name)).model for name in ("emu", "dyn")] == ["emu", "dyn"]

        index = await gateway.stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())
        assert [(model.name, model.state) for model in index.models] == [("dyn", "READY"), ("emu", "READY")]
        everything = await gateway.stub.ModelStatistics(service_pb2.ModelStatisticsRequest())
        assert [(each.name, each.inference_count) for each in everything.model_stats] == [("dyn", 10), ("emu", 5)]
        metadata = await gateway.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="dyn"))
        assert metadata.name == "dyn"

        page = await asyncio.to_thread(
            lambda: urllib.request.urlopen(f"http://{gateway.http}/metrics", timeout=10).read().decode()
        )
        counted = {
            (sample.labels["model"], sample.labels["outcome"]): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "arlo_rows_total"
        }
        assert (counted["emu", "on_time"], counted["dyn", "on_time"]) == (5, 10)

        # Versions and drains are those of a model.
        for name, wanted in (("emu", emu), ("dyn", dyn)):
            assert (await gateway.call("GetDeployment", model=name)).deployment == wanted
        await gateway.call("Drain", instance="w2.512", model="dyn", timeout_ms=5000)
        assert [await ready(gateway, name) for name in ("emu", "dyn", "")] == [True, False, False]
        await infer(gateway, "emu", 30)


async def test_what_names_no_model_of_several_is_refused(workers: Workers, start: Any) -> None:
    async with start() as gateway:
        await gateway.apply(workers.deployment("emu", [(0, 64)]))
        # One that is applied alone takes the place of the only one.
        await gateway.apply(workers.deployment("slow", [(0, 64)], version=2))
        assert (await refused(infer(gateway, "emu", 8))).code() == NOT_FOUND
        await gateway.apply(workers.deployment("dyn", [(1, 64)]), beside=True)

        error = await refused(gateway.call("Apply", deployment=workers.deployment("emu", [(0, 64)])))
        assert error.code() == PRECONDITION
        assert "this gateway serves 'dyn', 'slow': a deployment has to be applied beside" in (error.details() or "")
        for call in (
            gateway.call("GetDeployment"),
            gateway.call("Drain", instance="w1.64", timeout_ms=1),
            gateway.stats(),
        ):
            error = await refused(call)
            assert (error.code(), error.details()) == (INVALID, "name a model: this gateway serves 'dyn', 'slow'")
        for call in (gateway.call("GetDeployment", model="emu"), gateway.stats("emu")):
            error = await refused(call)
            assert (error.code(), error.details()) == (NOT_FOUND, "unknown model 'emu'; there is 'dyn', 'slow'")
        # A deployment that is refused leaves no model behind.
        bad = workers.deployment("emu", [(0, 64)])
        bad.instances[0].runtime = "nobody"
        assert (await refused(gateway.call("Apply", deployment=bad, beside=True))).code() == INVALID
        far = workers.deployment("emu", [(0, 64)], version=1 << 60)
        assert (await refused(gateway.call("Apply", deployment=far, beside=True))).code() == PRECONDITION
        assert (await refused(infer(gateway, "emu", 8))).details() == (
            "unknown model 'emu'; this gateway serves 'dyn', 'slow'"
        )


@pytest.mark.sanitized
async def test_models_come_while_others_are_served_and_the_end_answers_all(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("emu", [(0, 64), (1, 512)])) as gateway:
        async with Load(gateway):
            for index, name in enumerate(("dyn", "wide", "batched")):
                longest = {"dyn": 512, "wide": 512, "batched": 64}[name]
                await gateway.apply(workers.deployment(name, [(index, longest)]), beside=True)
                await infer(gateway, name, 9)
        at_end = [asyncio.create_task(infer(gateway, name, 9)) for name in ("emu", "dyn", "wide", "batched") * 5]
        await asyncio.gather(*at_end)


@pytest.mark.sanitized
async def test_models_that_come_while_the_gateway_stops(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("emu", [(0, 64)]), drain_delay_ms=200) as gateway:
        late = workers.deployment("dyn", [(1, 512)])
        os.kill(gateway.pid, signal.SIGTERM)
        refusals: set[str] = set()
        for number in range(10_000):
            late.model.name = f"late{number % 40}"
            late.version = number + 1
            try:
                await gateway.call("Apply", deployment=late, beside=True, timeout=5)
            except grpc.aio.AioRpcError as error:
                refusals.add(error.code().name)
            if gateway.process.returncode is not None:
                break
        assert await gateway.process.wait() == 0
        assert refusals <= {"UNAVAILABLE", "CANCELLED"}
