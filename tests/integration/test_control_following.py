"""What follows the load and the state of workers by itself: scaling, recycling, planning."""

from __future__ import annotations

import asyncio
import functools
import logging
from pathlib import Path

import pytest

from arlo.control.watch import recycler
from arlo.planning.health.creep import CreepDetector
from tests.fakes.emulated_cluster import (
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
