"""What follows the load and the state of workers by itself: scaling, recycling, planning, servers run by others."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import signal
from pathlib import Path

import pytest

from arlo.control.pool import make_pool
from arlo.control.watch import recycler
from arlo.planning import by_length
from arlo.planning.allocation.problem import Allocation, AllocationProblem, SolverError
from arlo.planning.health.creep import CreepDetector
from tests.fakes.emulated_cluster import (
    R16,
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
)
from tests.fakes.steady_load import steady_load

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="arlo")


async def test_scales_out_and_in(tmp_path: Path) -> None:
    """Both policies, each with a cluster of its own, side by side to save time."""
    await asyncio.gather(*(scales_out_and_in(tmp_path / policy, policy) for policy in ("target", "headroom")))


async def scales_out_and_in(folder: Path, policy: str) -> None:
    folder.mkdir()
    config = configure(
        folder,
        runtime(16, 8),
        runtime(64, 8),
        allocation="{64 = 1}",
        control="period_s = 5",
        scaling=f'policy = "{policy}"\nmin_workers = 1\nmax_workers = 2\ncooldown_s = 1\nscale_in_period_s = 2',
    )
    counts = []
    async with cluster_of(config) as cluster:
        async with steady_load(endpoint(cluster), rate=150) as heavy:  # 1.2 workers' worth, and what Triton takes
            await seen(lambda: len(cluster.status().workers) == 2, "a worker added")
            await settled(cluster)
            await heavy.more(400)
            await heavy.caught_up()
            counts.append(len(cluster.status().workers))
        heavy.check()
        async with steady_load(endpoint(cluster), rate=20) as light:
            await seen(lambda: len(cluster.status().workers) == 1, "a worker removed")
            await settled(cluster)
            await light.more(20)
            counts.append(len(cluster.status().workers))
        light.check()
        status = cluster.status()
        assert counts == [2, 1]
        assert (status.counters["workers_added"], status.counters["workers_removed"]) == (1, 1)
        assert status.observed == {R64: 1}
        assert status.scaling.last_reason


async def test_a_worker_that_becomes_slow_is_recycled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recycler, "INTERVAL_S", 1.5)
    # The gateway sends little to a worker that it has found slow.
    monkeypatch.setattr(recycler, "CreepDetector", functools.partial(CreepDetector, min_rows=4))
    config = configure(
        tmp_path,
        runtime(48, 4),
        runtime(64, 4),
        allocation="{48 = 2, 64 = 1}",
        control="reallocate = false\nrecycle_factor = 3",
    )
    async with cluster_of(config, local_pool(config, {"ARLO_EMULATED_SLOW_DIR": str(tmp_path)})) as cluster:
        async with steady_load(endpoint(cluster), rate=150) as load:
            before = {name: pid(cluster, name) for name in ("w0", "w1", "w2")}
            for victim in ("w0", "w2"):  # w2 alone serves the longest
                (tmp_path / f"slow.{before[victim]}").write_text("5")
                await seen(lambda victim=victim: victim in str(events(caplog, "worker_recycled")), "recycled")  # type: ignore[misc]
                await settled(cluster)
                assert pid(cluster, victim) != before[victim]
            await load.more(50)
        load.check()
        assert pid(cluster, "w1") == before["w1"]
        assert [event["worker"] for event in events(caplog, "worker_crept")] == ["w0", "w2"]
        assert [event["restarting"] for event in events(caplog, "cover_started")] == [["w2"]]
        assert cluster.status().counters["workers_recycled"] == 2


class Broken:
    """A solver that never solves."""

    name = "broken"
    error: Exception = SolverError("no licence")

    def solve(self, problem: AllocationProblem, *, time_limit_s: float) -> Allocation:
        raise self.error


@pytest.mark.parametrize("error", [SolverError("no licence"), RuntimeError("a fault of the solver")])
async def test_a_solver_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Broken, "error", error)
    monkeypatch.setattr(by_length, "make_solver", lambda *_, **__: Broken())
    config = configure(tmp_path, runtime(16, 2), runtime(64, 8), allocation="{16 = 1, 64 = 2}", control="period_s = 1")
    async with cluster_of(config) as cluster:
        async with steady_load(endpoint(cluster), lengths=(1, 20)) as load:
            await seen(lambda: cluster.status().counters["plan_fallbacks"] >= 2, "fallen back twice")
            await load.more(50)
        load.check()
        assert str(error) in events(caplog, "plan_fallback")[0]["error"]
        assert str(error) in cluster.status().plans[-1].note
        assert sum(cluster.status().desired.values()) == 3


async def test_servers_that_somebody_else_restarts(tmp_path: Path) -> None:
    config = configure(tmp_path, runtime(16, 2), runtime(64, 4), allocation="{16 = 2, 64 = 1}")
    theirs = local_pool(config)
    theirs._run_dir = tmp_path / "theirs"
    async with theirs:
        endpoints = tuple(info.endpoint for info in await theirs.workers())
        workers = dataclasses.replace(config.workers, kind="endpoints", endpoints=endpoints)
        config = dataclasses.replace(config, workers=workers)
        async with cluster_of(config, make_pool(config)) as cluster:
            async with steady_load(endpoint(cluster)) as load:
                for victim in ("w0", "w2"):
                    number = next(info.pid for info in await theirs.workers() if info.id == victim)
                    assert number is not None
                    loads = cluster.status().counters["loads"]
                    os.kill(number, signal.SIGKILL)
                    async with asyncio.timeout(60):
                        while not all(
                            info.state == "ready" and info.pid not in (None, number) for info in await theirs.workers()
                        ):
                            await asyncio.sleep(0.05)
                    await seen(lambda loads=loads: cluster.status().counters["loads"] > loads, "loaded again")  # type: ignore[misc]
                    await settled(cluster)
                    await load.more(50)
                # What waited for the server yields to what can be on time, and is answered after it.
                await seen(lambda: cluster.scheduler.feed.first.queued == 0, "nothing waits any more")
            load.check()
            assert cluster.status().observed == {R16: 2, R64: 1}
