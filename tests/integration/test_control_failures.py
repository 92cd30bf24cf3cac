"""Workers that die, hang, do not load or run out of memory, under load: found, bounded, mended, and told of."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

from arlo.config import gateway
from arlo.control.plane import Cluster
from arlo.control.reconcile import moves
from arlo.planning.placement.assignment import assign
from tests.fakes.emulated_cluster import (
    R16,
    R32,
    R64,
    cluster_of,
    configure,
    endpoint,
    events,
    local_pool,
    pid,
    runtime,
    seen,
    settled,
    worker,
)
from tests.fakes.steady_load import steady_load

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="arlo")


def move(cluster: Cluster, **wanted: int) -> None:
    """Want this allocation from now on, keywords `len16` and so on."""
    allocation = {f"emu_{name}": count for name, count in wanted.items() if count}
    cluster.reconciler.want(assign(allocation, cluster.reconciler.views()))


async def test_workers_killed_and_hanging(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(
        tmp_path,
        runtime(16, 2, load_delay_ms=500),
        runtime(64, 4, load_delay_ms=500),
        allocation="{16 = 2, 64 = 1}",
        hang_timeout_s=6,
    )
    # All three die at once: a row that meets each of them on its way has been sent three times then.
    monkeypatch.setitem(gateway.DISPATCH, "max_attempts", 4)
    async with cluster_of(config) as cluster:
        async with steady_load(endpoint(cluster)) as load:
            await settled(cluster)
            for victims in (["w0"], ["w2"], ["w0", "w1", "w2"]):  # w2 alone serves the longest
                before = [pid(cluster, name) for name in victims]
                for number in before:
                    os.kill(number, signal.SIGKILL)
                await seen(
                    lambda victims=victims, before=before: all(  # type: ignore[misc]
                        cluster.reconciler.infos[name].pid not in (None, number)
                        for name, number in zip(victims, before, strict=True)
                    ),
                    "restarted",
                )
                await settled(cluster)
                await load.more(50)
            assert cluster.status().counters["worker_restarts"] == 5
            assert len(events(caplog, "worker_restarted")) == 5

            stopped = {victim: pid(cluster, victim) for victim in ("w0", "w2")}
            for number in stopped.values():
                os.kill(number, signal.SIGSTOP)
            await seen(lambda: all(worker(cluster, victim).error for victim in stopped), "the trouble said")
            await seen(lambda: cluster.reconciler.active.has("w1", R64), "the longest covered")
            await seen(
                lambda: all(cluster.reconciler.infos[w].pid not in (None, number) for w, number in stopped.items()),
                "killed and restarted",
            )
            await settled(cluster)
            # What waited for the workers yields to what can be on time, and is answered after it.
            await seen(lambda: cluster.scheduler.feed.first.queued == 0, "nothing waits any more")
            await load.more(50)
        load.check()
        assert "no health check for 6 s" in str(events(caplog, "worker_state"))
        assert cluster.status().counters["covers"] >= 1
        assert events(caplog, "worker_unwell")


def in_flight(cluster: Cluster, name: str) -> int:
    """Requests that the gateway waits for from a worker."""
    return sum(item.in_flight for item in cluster.scheduler.feed.first.instances if item.worker == name)


async def test_a_worker_that_hangs_while_it_is_let_go(tmp_path: Path) -> None:
    config = configure(tmp_path, runtime(16, 4), runtime(64, 4), allocation="{16 = 1, 64 = 2}", hang_timeout_s=4)
    async with cluster_of(config) as cluster:
        async with steady_load(endpoint(cluster)) as load:
            os.kill(pid(cluster, "w2"), signal.SIGSTOP)
            before = cluster.scheduler.feed.first
            await seen(lambda: cluster.scheduler.feed.first is not before and in_flight(cluster, "w2"), "requests hang")
            cluster.reconciler.let_go("w2")
            await seen(lambda: len(cluster.status().workers) == 2, "gone")
            await settled(cluster)
            await load.more(50)
        load.check()
        assert cluster.status().counters["workers_removed"] == 1
        assert cluster.status().observed == {R16: 1, R64: 1}
        # By the gateway's own checks, not when the pool killed it.
        assert '"reason":"health check' in (config.workers.run_dir / "gateway.log").read_text()


@pytest.mark.parametrize("overlap", [True, False])
async def test_a_runtime_that_does_not_load(tmp_path: Path, caplog: pytest.LogCaptureFixture, overlap: bool) -> None:
    config = configure(
        tmp_path,
        runtime(16, 2),
        runtime(32, 3, fail_load="no such kernel"),
        runtime(64, 4),
        allocation="{16 = 3, 64 = 1}",
        control=f"reallocate = false\nmake_before_break = {str(overlap).lower()}",
    )
    async with cluster_of(config) as cluster:
        async with steady_load(endpoint(cluster)) as load:
            move(cluster, len32=2, len64=2)  # two of the three short ones are to get the broken one
            await seen(lambda: len(events(caplog, "worker_not_moved")) >= 3, "tried three times")
            await seen(lambda: cluster.status().observed == {R16: 2, R64: 2}, "the rest of the plan is done")
            assert cluster.status().state in ("degraded", "replacing")
            stuck = [each for each in cluster.status().workers if each.desired == R32]
            assert all(each.serving == R16 for each in stuck)
            assert any("no such kernel" in (each.error or "") for each in stuck)
            counters = cluster.status().counters
            assert counters["load_failures"] >= 3
            assert counters["replacement_failures"] >= 3
            waits = [event["again_in_s"] for event in events(caplog, "worker_not_moved")]
            assert max(waits) >= 2
            move(cluster, len16=2, len64=2)
            await settled(cluster)
        load.check()


async def test_loads_that_take_too_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configure(
        tmp_path,
        runtime(16, 2),
        runtime(32, 3, load_delay_ms=2500),
        runtime(64, 4),
        allocation="{16 = 2, 64 = 1}",
        load_timeout_s=1,
    )
    async with cluster_of(config) as cluster:
        async with steady_load(endpoint(cluster)) as load:
            move(cluster, len16=1, len32=1, len64=1)
            await seen(lambda: events(caplog, "worker_not_moved"), "given up")
            assert cluster.status().observed == {R16: 2, R64: 1}
            assert cluster.status().counters["load_failures"] >= 1
            # Triton goes on loading. Whatever it ends with, what is not wanted is unloaded again.
            move(cluster, len16=2, len64=1)
            await seen(lambda: cluster.reconciler.infos["w0"].state == "ready", "answers again")
            await settled(cluster)
        load.check()


async def test_an_unload_that_does_not_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "UNLOAD_TIMEOUT_S", 2.0)
    config = configure(
        tmp_path,
        runtime(16, 2),
        runtime(32, 3, unload_delay_ms=600_000),
        runtime(64, 4),
        allocation="{16 = 1, 32 = 1, 64 = 1}",
        control="reallocate = false\nmake_before_break = false",
    )
    async with cluster_of(config) as cluster:
        async with steady_load(endpoint(cluster)) as load:
            before = pid(cluster, "w1")
            assert worker(cluster, "w1").serving == R32
            move(cluster, len16=2, len64=1)
            await seen(lambda: cluster.reconciler.infos["w1"].pid not in (None, before), "restarted")
            await seen(lambda: sum(cluster.status().observed.values()) == 3, "it serves again")
            assert cluster.status().counters["worker_restarts"] == 1
            await load.more(50)
        load.check()
    assert "did not unload emu_len32 within 2 s" in str(events(caplog, "worker_not_moved"))


async def test_memory_for_one_engine_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configure(
        tmp_path,
        runtime(16, 2, memory_mb=600, load_delay_ms=200),
        runtime(64, 4, memory_mb=900, load_delay_ms=200),
        allocation="{16 = 3, 64 = 1}",
        hang_timeout_s=6,
    )
    pool = local_pool(config, {"ARLO_EMULATED_MEMORY_MB": "1000"})
    async with cluster_of(config, pool) as cluster:
        async with steady_load(endpoint(cluster)) as load:
            move(cluster, len16=2, len64=2)
            await settled(cluster)
            assert len(events(caplog, "no_room_for_two")) == 1
            assert "out of memory" in events(caplog, "no_room_for_two")[0]["error"]
            move(cluster, len16=3, len64=1)
            await settled(cluster)
            assert len(events(caplog, "no_room_for_two")) == 1, "remembered"
            moved = events(caplog, "worker_moved")
            assert [event["out_of_service_s"] > 0 for event in moved] == [True, True]
            # The only one with the longest runtime hangs: there is no room beside, so another is moved for the time.
            (last,) = [each.id for each in cluster.status().workers if each.serving == R64]
            number = pid(cluster, last)
            os.kill(number, signal.SIGSTOP)
            await seen(lambda: events(caplog, "cover_started"), "covered")
            await seen(lambda: cluster.reconciler.infos[last].pid not in (None, number), "restarted")
            await settled(cluster)
        load.check()


async def test_the_gateway_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests in flight then, and until it is back, fail; nothing else does, and a move under way goes on."""
    config = configure(
        tmp_path, runtime(16, 2, load_delay_ms=600), runtime(64, 4, load_delay_ms=600), allocation="{16 = 2, 64 = 1}"
    )
    async with cluster_of(config) as cluster:
        before = cluster.addresses
        async with steady_load(endpoint(cluster)) as load:
            for wanted in ({"len16": 1, "len64": 2}, {"len16": 2, "len64": 1}):
                move(cluster, **wanted)
                await seen(lambda: any(w.step == "loading" for w in cluster.status().workers), "it loads")
                assert cluster.gateway_pid is not None
                os.kill(cluster.gateway_pid, signal.SIGKILL)
                count = len(events(caplog, "gateway_restarted"))
                await seen(lambda count=count: len(events(caplog, "gateway_restarted")) > count, "back")  # type: ignore[misc]
                await settled(cluster)
                await load.more(450)
        assert cluster.addresses == before
        # Two bursts, each over when the clients have connected again (gRPC's first wait is a second).
        bursts: list[list[float]] = []
        for at_s in load.failed_at_s:
            if not bursts or at_s - bursts[-1][-1] > 1:
                bursts.append([])
            bursts[-1].append(at_s)
        assert len(bursts) == 2
        assert all(burst[-1] - burst[0] < 5 for burst in bursts)
        assert all("14: " in failure for failure in load.failures)  # UNAVAILABLE, which clients try again
        assert cluster.status().counters["gateway_restarts"] == 2
        assert cluster.status().counters["worker_restarts"] == 0
