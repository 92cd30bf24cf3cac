"""The admin service: deployments, drain, statistics; and that the gateway does not need whoever gave it its orders."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from arlo import proto
from arlo.clock import monotonic_s, unix_s
from tests.fakes.gateway import ACTIVE, Gateway
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, one_row, request_of
from tests.integration.gateway.load import Load

pytestmark = pytest.mark.integration

State = proto.message("InstanceStats").State
DRAINING, DRAINED = State.Value("STATE_DRAINING"), State.Value("STATE_DRAINED")
PRECONDITION, INVALID = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def in_force(gateway: Gateway) -> Any:
    return (await gateway.call("GetDeployment")).deployment


def states(stats: Any) -> dict[str, int]:
    return {instance.id: instance.state for instance in stats.instances}


async def test_versions(workers: Workers, start: Any) -> None:
    async with start() as gateway:
        assert (await in_force(gateway)).version == 0
        second = workers.deployment("emu", [(0, 64), (1, 512)], version=2)
        reply = await gateway.apply(second)
        assert (reply.version, reply.changed) == (2, True)
        assert (list(reply.joining), list(reply.draining)) == (["w0.64", "w1.512"], [])
        assert await in_force(gateway) == second

        reply = await gateway.call("Apply", deployment=second)
        assert (reply.version, reply.changed, list(reply.joining)) == (2, False, [])

        older = workers.deployment("emu", [(0, 64)], version=1)
        error = await refused(gateway.call("Apply", deployment=older))
        assert error.code() == PRECONDITION
        assert "deployment version 1 is older than version 2" in (error.details() or "")

        other = workers.deployment("emu", [(0, 64)], version=2)
        error = await refused(gateway.call("Apply", deployment=other))
        assert error.code() == PRECONDITION
        assert "deployment version 2 is in force with other content: raise the version" in (error.details() or "")

        assert await in_force(gateway) == second
        assert states(await gateway.stats()) == {"w0.64": ACTIVE, "w1.512": ACTIVE}
        reply = await gateway.apply(workers.deployment("emu", [(1, 512), (2, 128)], version=9))
        assert (reply.version, list(reply.joining), list(reply.draining)) == (9, ["w2.128"], ["w0.64"])
        stats = await gateway.stats_when(lambda stats: len(stats.instances) == 2, "w0.64 is gone")
        assert stats.deployment_version == 9


async def test_a_bad_deployment_is_refused_by_the_name_of_its_field(workers: Workers, gateway: Gateway) -> None:
    """One of them: tests/cpp/gateway_model_test.cc has all."""
    before = await in_force(gateway)
    deployment = workers.deployment("emu", [(0, 64), (1, 512)], version=99)
    deployment.instances[0].runtime = "x"
    error = await refused(gateway.call("Apply", deployment=deployment))
    assert (error.code(), error.details()) == (INVALID, "instances: 'w0.64' names unknown runtime 'x'")
    assert await in_force(gateway) == before
    check(await gateway.infer(request_of(example(100))), example(100))


@pytest.mark.sanitized
async def test_instances_come_and_go_under_load_and_no_request_fails(workers: Workers, start: Any) -> None:
    placements = [
        [(0, 128), (1, 512)],
        [(0, 128), (1, 512), (2, 256), (3, 64)],
        [(1, 64), (2, 512), (3, 512)],  # w1 serves another runtime, w2 and w3 too; w0 is idle
        [(3, 512)],
        [(0, 512), (1, 512), (2, 64), (3, 128)],
        [(0, 128), (1, 512)],
    ]
    async with start(workers.deployment("emu", placements[0])) as gateway:
        async with Load(gateway) as load:
            for version, placement in enumerate(placements[1:], 2):
                await gateway.call("Apply", deployment=workers.deployment("emu", placement, version=version))
                wanted = {f"w{worker}.{length}": ACTIVE for worker, length in placement}
                await gateway.stats_when(lambda stats, wanted=wanted: states(stats) == wanted, f"version {version}")
                await load.more(100)
        stats = await gateway.stats()
        assert (stats.outcomes.failed, stats.outcomes.rejected, stats.ejections, stats.retries) == (0, 0, 0, 0)
        assert [level.max_length for level in stats.levels] == [64, 128, 256, 512]


@pytest.mark.sanitized
async def test_a_changed_instance_is_another_one(workers: Workers, start: Any) -> None:
    """With the same id, a new limit: the old one drains while the new one serves."""
    async with start(workers.deployment("slow", [(0, 64)], inflight_limit=1)) as gateway:
        running = [asyncio.ensure_future(gateway.infer(one_row(3, model="slow"))) for _ in range(2)]
        await gateway.stats_when(lambda stats: (stats.in_flight, stats.queued) == (1, 1), "one runs, one waits")
        await gateway.call("Apply", deployment=workers.deployment("slow", [(0, 64)], version=2, inflight_limit=4))
        await gateway.stats_when(lambda stats: [i.state for i in stats.instances] == [ACTIVE, DRAINING], "both")
        await asyncio.gather(*running)
        await gateway.stats_when(lambda stats: [i.state for i in stats.instances] == [ACTIVE], "the new one only")
        assert (await gateway.stats()).outcomes.failed == 0


@pytest.mark.sanitized
async def test_drain_under_load(workers: Workers, start: Any) -> None:
    placement = [(0, 512), (1, 512)]
    async with start(workers.deployment("emu", placement)) as gateway:
        async with Load(gateway) as load:
            await gateway.call("Drain", instance="w0.512", timeout_ms=10_000)
            drained = (await gateway.stats()).instances[0]
            assert (drained.state, drained.in_flight, drained.queued) == (DRAINED, 0, 0)
            await load.more(100)
            assert (await gateway.stats()).instances[0].started == drained.started
            reply = await gateway.apply(workers.deployment("emu", placement, version=2))
            assert list(reply.joining) == ["w0.512"]
            await load.more(100)
            assert (await gateway.stats()).instances[0].started > drained.started
        await gateway.call("Drain", instance="w1.512", timeout_ms=100)  # idle: at once
        await gateway.call("Drain", instance="w1.512", timeout_ms=100)  # and again


async def test_drain_that_takes_too_long(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("slow", [(0, 64), (1, 64)], inflight_limit=1)) as gateway:
        calls = [asyncio.ensure_future(gateway.infer(one_row(3, model="slow"))) for _ in range(2)]
        await gateway.stats_when(lambda stats: [i.in_flight for i in stats.instances] == [1, 1], "both run")
        sent_s = monotonic_s()
        error = await refused(gateway.call("Drain", instance="w0.64", timeout_ms=50))
        assert monotonic_s() - sent_s < 0.25
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.details() == "instance 'w0.64' still drains after 50 ms"
        assert (await gateway.stats()).instances[0].state == DRAINING
        await gateway.call("Drain", instance="w0.64", timeout_ms=5000)  # now it waits for the end
        assert (await gateway.stats()).instances[0].state == DRAINED
        await asyncio.gather(*calls)


async def test_drain_of_an_unknown_instance(gateway: Gateway) -> None:
    error = await refused(gateway.call("Drain", instance="w9", timeout_ms=50))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no instance 'w9' in the deployment")


@pytest.mark.sanitized
async def test_a_drain_whose_caller_has_gone(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("slow", [(0, 64), (1, 64)], inflight_limit=1)) as gateway:
        calls = [asyncio.ensure_future(gateway.infer(one_row(3, model="slow"))) for _ in range(2)]
        await gateway.stats_when(lambda stats: stats.in_flight == 2, "both run")
        error = await refused(gateway.call("Drain", instance="w0.64", timeout_ms=10_000, timeout=0.05))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.gather(*calls)
        await gateway.stats_when(lambda stats: stats.instances[0].state == DRAINED, "drained")


async def test_statistics(workers: Workers, start: Any) -> None:
    """Counts are exact; times are what the emulated engine takes."""
    began_ms = unix_s() * 1000
    deployment = workers.deployment("emu", [(0, 64), (1, 512)], slo_ms=10_000)
    async with start(deployment) as gateway:
        lengths = [1, 1, 5, 64, 65, 512]
        for length in lengths:
            await gateway.infer(one_row(length))
        await gateway.infer(request_of(example(1, 70)))
        await refused(gateway.infer(one_row(513)))
        stats = await gateway.stats()
    assert began_ms - 1000 <= stats.started_at_ms <= stats.at_ms <= unix_s() * 1000 + 1000
    assert (stats.deployment_version, stats.policy) == (1, "rs")
    arrivals = {length: count for length, count in enumerate(stats.arrivals_by_length) if count}
    assert arrivals == {1: 3, 5: 1, 64: 1, 65: 1, 70: 1, 512: 1}
    assert len(stats.arrivals_by_length) == 513
    assert (stats.outcomes.on_time, stats.outcomes.rejected) == (8, 1)
    assert stats.outcomes.late + stats.outcomes.expired + stats.outcomes.cancelled + stats.outcomes.failed == 0
    assert [
        (level.max_length, level.ideal, level.dispatched, level.demoted, level.instances) for level in stats.levels
    ] == [
        (64, 5, 5, 0, 1),
        (512, 3, 3, 0, 1),
    ]
    assert [(i.id, i.worker, i.runtime, i.started, i.failed) for i in stats.instances] == [
        ("w0.64", "w0", "emu_len64", 5, 0),
        ("w1.512", "w1", "emu_len512", 3, 0),
    ]
    assert stats.instances[0].busy_us >= 5 * 1000
    assert stats.instances[1].busy_us >= 3 * 3000
    assert stats.tokens == sum(lengths) + 71
    assert stats.computed_tokens == 5 * 64 + 3 * 512
    for percentiles in (stats.total, stats.queue, stats.execute):
        assert (percentiles.count, percentiles.window_s) == (8, 10)
        ordered = [percentiles.p50_us, percentiles.p90_us, percentiles.p98_us, percentiles.p99_us, percentiles.max_us]
        assert ordered == sorted(ordered)
        assert percentiles.mean_us <= percentiles.max_us
    assert stats.execute.p50_us >= 1000
    assert stats.execute.p90_us >= 3000
    assert stats.total.max_us < 5_000_000


async def test_outcomes_add_up(workers: Workers, start: Any) -> None:
    """Every row ends in exactly one outcome."""
    deployment = workers.deployment("slower", [(2, 64)], slo_ms=1500, inflight_limit=1)
    async with start(deployment, dispatch={"max_queued": 3}) as gateway:

        async def send(**options: Any) -> None:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await gateway.infer(one_row(3, model="slower"), **options)

        calls = [asyncio.ensure_future(send())]  # on time
        await gateway.stats_when(lambda stats: stats.in_flight == 1, "it runs")
        calls += [asyncio.ensure_future(send()) for _ in range(2)]  # late
        await gateway.stats_when(lambda stats: (stats.in_flight, stats.queued) == (1, 2), "under way")
        for _ in range(2):
            await send(timeout=0.1)  # rejected: no answer can come in time
        gone = asyncio.ensure_future(send())
        await gateway.stats_when(lambda stats: stats.queued == 3, "full")
        await send()  # rejected: the queue is full
        gone.cancel()
        await asyncio.gather(*calls)
        stats = await gateway.stats_when(lambda stats: stats.queued + stats.in_flight == 0, "idle")
    outcomes = stats.outcomes
    assert (outcomes.on_time, outcomes.late, outcomes.rejected, outcomes.overloaded) == (1, 2, 3, 3)
    assert (outcomes.expired, outcomes.cancelled, outcomes.failed) == (0, 1, 0)
    assert sum(stats.arrivals_by_length) == 7


@pytest.mark.sanitized
async def test_watching(gateway: Gateway) -> None:
    """The first message at once, then one every interval; several may watch."""
    watch, other = gateway.watch(interval_ms=100), gateway.watch(interval_ms=60_000)
    at = [(await watch.read()).at_ms for _ in range(4)]
    assert 250 <= at[-1] - at[0] <= 5000
    assert (await other.read()).at_ms <= at[-1] + 1000
    watch.cancel()
    other.cancel()
    for interval_ms in (0, 99, 60_001):
        with pytest.raises(grpc.aio.AioRpcError, match="interval_ms must be 100 to 60000"):
            await gateway.watch(interval_ms=interval_ms).read()
    assert len([stats async for stats in gateway.watch(once=True)]) == 1
