"""Several models on the same instances: one deployment, one scheduler, each with its own name, SLO, books and share."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2

from tests.fakes.gateway import Gateway
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, request_of

pytestmark = pytest.mark.integration

LATE = {"policy": "late"}


async def infer(gateway: Gateway, model: str, *lengths: int, **options: Any) -> Any:
    sent = example(*lengths, outputs=("embedding",))
    answer = await gateway.infer(request_of(sent, model=model), timeout=20, **options)
    check(answer, sent, model=model)
    return answer


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


def shared(workers: Workers, models: dict[str, tuple[int, ...]], on: tuple[int, ...] = (0, 1), **options: Any) -> Any:
    """Every one of the workers `on` holds these lengths of all models; `options` as of Workers.deployment."""
    shares = options.pop("shares", {})
    whole, *others = [
        workers.deployment(model, [(worker, length) for worker in on for length in lengths], **options)
        for model, lengths in models.items()
    ]
    for deployment in (whole, *others):
        deployment.model.share = shares.get(deployment.model.name, 0)
        for runtime in deployment.runtimes:
            runtime.model = deployment.model.name
    for other in others:
        whole.more_models.append(other.model)
        whole.runtimes.extend(other.runtimes)
    whole.bundles.add(name="all", runtimes=[runtime.name for runtime in whole.runtimes])
    first = {instance.worker: instance for instance in reversed(whole.instances)}
    del whole.instances[:]
    for worker, instance in sorted(first.items()):
        instance.id, instance.runtime = worker, "all"
        whole.instances.append(instance)
    return whole


async def test_each_model_is_answered_by_the_same_instances(workers: Workers, start: Any) -> None:
    both = shared(workers, {"emu": (64, 512), "wide": (512,)}, version=3)
    async with start(both, dispatch=LATE) as gateway:
        for length in (1, 64, 65, 512):
            await infer(gateway, "emu", length)
            await infer(gateway, "wide", length, length)
        for name, rows, levels in (("emu", 4, [64, 512]), ("wide", 8, [512])):
            stats = await gateway.stats(name)
            assert (stats.model, stats.outcomes.on_time, stats.outcomes.rejected) == (name, rows, 0)
            assert [level.max_length for level in stats.levels] == levels
            assert [level.instances for level in stats.levels] == [2] * len(levels)
            assert sum(level.dispatched for level in stats.levels) == rows
            assert sum(stats.arrivals_by_length) == rows
            ready = await gateway.stub.ModelReady(service_pb2.ModelReadyRequest(name=name))
            assert ready.ready
            assert (await gateway.call("GetDeployment", model=name)).deployment == both
        assert (await refused(infer(gateway, "dyn", 8))).details() == (
            "unknown model 'dyn'; this gateway serves 'emu', 'wide'"
        )
        page = await asyncio.to_thread(
            lambda: urllib.request.urlopen(f"http://{gateway.http}/metrics", timeout=10).read().decode()
        )
        samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
        up = [s.labels["instance"] for s in samples if s.name == "arlo_instance_up"]
        assert up == ["w0", "w1"]  # once, whatever they hold
        answered = [s for s in samples if s.name == "arlo_rows_total" and s.labels["outcome"] == "on_time"]
        assert {s.labels["model"]: s.value for s in answered} == {"emu": 4, "wide": 8}

        # The same content under the same version changes nothing; without one of them it is gone, and the rest goes on.
        assert not (await gateway.call("Apply", deployment=both)).changed
        await gateway.apply(shared(workers, {"emu": (64, 512)}, version=4))
        await infer(gateway, "emu", 100)
        assert (await refused(infer(gateway, "wide", 8))).code() == grpc.StatusCode.NOT_FOUND
        assert (await gateway.stats("emu")).outcomes.on_time == 5
        # It comes back, and goes on counting.
        await gateway.apply(shared(workers, {"emu": (64, 512), "wide": (512,)}, version=5))
        await infer(gateway, "wide", 100)
        assert (await gateway.stats("wide")).outcomes.on_time == 9


async def test_a_model_of_another_deployment_is_refused(workers: Workers, start: Any) -> None:
    """What makes no shared deployment by itself is in tests/cpp/gateway_model_test.cc."""
    async with start(workers.deployment("wide", [(2, 512)]), dispatch=LATE) as gateway:
        await gateway.apply(workers.deployment("emu", [(3, 64)]), beside=True)
        both = shared(workers, {"emu": (64,), "wide": (512,)})
        error = await refused(gateway.call("Apply", deployment=both, beside=True))
        assert error.details() == "model 'wide' is served by another deployment"
