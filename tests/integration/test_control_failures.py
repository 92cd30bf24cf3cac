"""Workers that die, hang, do not load or run out of memory, under load: found, bounded, mended, and told of."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

from arlo.config import gateway
from arlo.control.plane import Cluster
from arlo.planning.placement.assignment import assign
from tests.fakes.emulated_cluster import (
    R64,
    cluster_of,
    configure,
    endpoint,
    events,
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


async def test_the_gateway_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests in flight then, and until it is back, fail; nothing else does, and a move under way goes on."""
    config = configure(
        tmp_path, runtime(16, 2, load_delay_ms=600), runtime(64, 4, load_delay_ms=600), allocation="{16 = 2, 64 = 1}"
    )
    async with cluster_of(config) as cluster:
        before = cluster.addresses
        async with steady_load(endpoint(cluster)) as load:
            for count, wanted in enumerate(({"len16": 1, "len64": 2}, {"len16": 2, "len64": 1})):
                move(cluster, **wanted)
                await seen(lambda: any(w.step == "loading" for w in cluster.status().workers), "it loads")
                assert cluster.gateway_pid is not None
                os.kill(cluster.gateway_pid, signal.SIGKILL)
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
        assert [burst[-1] - burst[0] < 5 for burst in bursts] == [True, True]
        assert all("14: " in failure for failure in load.failures)  # UNAVAILABLE, which clients try again
        assert cluster.status().counters["gateway_restarts"] == 2
        # A gateway that dies cancels what it has sent, and Triton 2.51 may crash when a cancellation meets its answer.
        for event in events(caplog, "worker_restarted"):
            assert "Signal (" in Path(cluster.reconciler.infos[event["worker"]].log or "").read_text()
