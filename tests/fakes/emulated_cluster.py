"""A whole cluster in the test's own process: real gateway, real Triton workers with emulated engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from arlo import config as configuration
from arlo.catalog.manifest import LatencyPoint, Manifest
from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.control.http.status import ControlStatus, WorkerStatus
from arlo.control.plane import Cluster
from arlo.control.serve import running
from arlo.workers.emulated.repository import EmulatedRuntime, write_runtimes
from arlo.workers.local.pool import LocalPool
from arlo.workers.pool import WorkerPool
from tests.fakes.processes import until

CONFIG = """\
[model]
repository = "repository"
slo_ms = 500
default_timeout_ms = 20000
[workers]
linger_s = 0
hang_timeout_s = {hang_timeout_s}
load_timeout_s = {load_timeout_s}
[deployment]
allocation = {allocation}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[health]
interval_ms = 200
timeout_ms = 200
failures = 2
[control]
http_address = "127.0.0.1:0"
{control}
[scaling]
{scaling}
"""


def runtime(length: int, latency_ms: float, **options: Any) -> EmulatedRuntime:
    """emu_len{length}; `options` are fields of EmulatedRuntime."""
    point = LatencyPoint(length=length, batch=1, latency_us=round(latency_ms * 1000))
    return EmulatedRuntime(
        name=f"emu_len{length}", max_length=length, max_batch=1, dynamic=False, latency=(point,), **options
    )


def configure(
    folder: Path,
    *runtimes: EmulatedRuntime,
    allocation: str,
    control: str = "reallocate = false",
    scaling: str = "",
    hang_timeout_s: int = 30,
    load_timeout_s: int = 60,
) -> Config:
    """Write the repository; the configuration for it, its run folder beside it."""
    write_runtimes(folder / "repository", model="emu", runtimes=runtimes)
    text = CONFIG.format(
        allocation=allocation,
        control=control,
        scaling=scaling,
        hang_timeout_s=hang_timeout_s,
        load_timeout_s=load_timeout_s,
    )
    return configuration.parse(text, base=folder)


def local_pool(config: Config, env: Mapping[str, str] | None = None) -> LocalPool:
    """As make_pool() makes it, with more in the workers' environment."""
    return LocalPool(
        config.model.repository,
        workers=config.worker_count,
        run_dir=config.workers.run_dir,
        threads=1,
        metrics=False,
        hang_timeout_s=config.workers.hang_timeout_s,
        env=env,
    )


@contextlib.asynccontextmanager
async def cluster_of(config: Config, pool: WorkerPool | None = None) -> AsyncIterator[Cluster]:
    """The cluster, started and supervised."""
    cluster = Cluster(config, Manifest.load(config.model.repository), pool or local_pool(config))
    async with running(cluster, asyncio.Event()) as up:
        assert up
        yield cluster


def endpoint(cluster: Cluster) -> str:
    """Of the data port."""
    assert cluster.addresses is not None
    return cluster.addresses.grpc


def worker(cluster: Cluster, name: str) -> WorkerStatus:
    """What `/status` says of a worker."""
    return next(worker for worker in cluster.status().workers if worker.id == name)


def pid(cluster: Cluster, name: str) -> int:
    """Process id of a worker's Triton."""
    found = cluster.reconciler.infos[name].pid
    assert found is not None
    return found


def is_settled(status: ControlStatus) -> bool:
    """Whether each worker serves what it should, has that loaded and nothing else."""
    return status.state == "serving" and all(
        w.serving == w.desired and w.loaded == ([] if w.desired is None else [w.desired]) for w in status.workers
    )


async def settled(cluster: Cluster, *, timeout_s: float = 60) -> float:
    """Seconds until the cluster is settled, and the gateway sends to each instance."""
    began_s = monotonic_s()
    await until(lambda: is_settled(cluster.status()), "settled", timeout_s=timeout_s)
    active = list(cluster.reconciler.desired.items())
    await until(lambda: all(cluster.reconciler.active.has(*pair) for pair in active), "active", timeout_s=timeout_s)
    return monotonic_s() - began_s


async def seen(condition: Callable[[], Any], what: str) -> float:
    """Seconds until a condition holds."""
    began_s = monotonic_s()
    await until(condition, what, timeout_s=60)
    return monotonic_s() - began_s


R16, R32, R64 = "emu_len16", "emu_len32", "emu_len64"


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if record.__dict__.get("event") == name]
