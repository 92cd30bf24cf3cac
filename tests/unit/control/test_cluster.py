"""The cluster's loop with a worker pool in memory and a gateway process that has an admin port only."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from arlo import config as configuration
from arlo.config import Config
from arlo.control.gateway.process import GatewayProcess
from arlo.control.plane import Cluster
from arlo.control.serve import running
from arlo.errors import ConfigError, EnvironmentProblem, GatewayError, WorkerError
from arlo.workers.pool import WorkerInfo
from tests.fakes.admin_server import AdminServer
from tests.fakes.placements import MANIFEST
from tests.fakes.processes import until

ROOT = Path(__file__).parents[3]
CONFIG = """\
[model]
repository = "repository"
slo_ms = 150
[deployment]
allocation = {64 = 1, 512 = 1}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
drain_timeout_ms = 1000
[control]
http_address = "127.0.0.1:0"
"""


class MemoryPool:
    """A WorkerPool without processes. `fail_loads` makes the next loads fail; `restart` empties a worker."""

    def __init__(self, count: int) -> None:
        self.infos = {
            f"w{i}": WorkerInfo(
                id=f"w{i}",
                endpoint=f"127.0.0.1:{9000 + i}",
                metrics_url=None,
                state="stopped",
                pid=None,
                restarts=0,
                runtimes=(),
                log=None,
            )
            for i in range(count)
        }
        self.resizable = True
        self.restartable = True
        self.fail_loads = 0
        self.fail_load_of: dict[tuple[str, str], str] = {}  # (worker, runtime) -> why
        self.unloads: list[tuple[str, str]] = []
        self.loads: list[tuple[str, str]] = []
        self.changed = asyncio.Condition()

    async def start(self) -> None:
        self.infos = {k: dataclasses.replace(v, state="ready") for k, v in self.infos.items()}

    async def workers(self) -> list[WorkerInfo]:
        return list(self.infos.values())

    async def load(self, worker: str, runtime: str, *, timeout_s: float = 120.0) -> None:
        async with self.changed:
            self.loads.append((worker, runtime))
            self.changed.notify_all()
        if self.fail_loads:
            self.fail_loads -= 1
            raise WorkerError(f"{worker} did not load {runtime}")
        if why := self.fail_load_of.get((worker, runtime)):
            raise WorkerError(why)
        info = self.infos[worker]
        self.infos[worker] = dataclasses.replace(info, runtimes=(*info.runtimes, runtime))

    async def unload(self, worker: str, runtime: str, *, timeout_s: float = 60.0) -> None:
        self.unloads.append((worker, runtime))
        info = self.infos[worker]
        self.infos[worker] = dataclasses.replace(info, runtimes=tuple(r for r in info.runtimes if r != runtime))

    async def add(self) -> WorkerInfo:
        new = f"w{len(self.infos)}"
        self.infos[new] = dataclasses.replace(
            self.infos["w0"], id=new, endpoint=f"127.0.0.1:{9000 + len(self.infos)}", runtimes=()
        )
        return self.infos[new]

    async def remove(self, worker: str) -> None:
        del self.infos[worker]

    async def restart(self, worker: str) -> None:
        info = self.infos[worker]
        self.infos[worker] = dataclasses.replace(info, runtimes=(), restarts=info.restarts + 1)

    async def stop(self) -> None:
        self.infos = {k: dataclasses.replace(v, state="stopped", runtimes=()) for k, v in self.infos.items()}

    async def loaded(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.loads) >= count)


async def no_probe(*_: object, **__: object) -> None:
    """Instead of the warm-up: there is no worker to ask."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    program = tmp_path / "arlo-gateway"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fakes.gateway_program "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("ARLO_GATEWAY", str(program))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return configuration.parse(CONFIG, base=tmp_path)


@pytest.fixture
async def up(config: Config) -> AsyncIterator[tuple[Cluster, MemoryPool]]:
    pool = MemoryPool(2)
    cluster = Cluster(config, MANIFEST, pool, probe=no_probe)
    async with running(cluster, asyncio.Event()) as started:
        assert started
        yield cluster, pool
    assert cluster.gateway_pid is None or not Path(f"/proc/{cluster.gateway_pid}").exists()


async def test_start_loads_and_applies(up: tuple[Cluster, MemoryPool]) -> None:
    cluster, pool = up
    assert sorted(pool.loads) == [("w0", "m_64"), ("w1", "m_512")]
    deployment = await cluster.admin.get_deployment()
    assert deployment.version == 1
    assert [(i.id, i.endpoint) for i in deployment.instances] == [
        ("w0.m_64", "127.0.0.1:9000"),
        ("w1.m_512", "127.0.0.1:9001"),
    ]
    assert cluster.addresses is not None
    assert not cluster.addresses.admin.endswith(":0")


async def test_a_gateway_that_was_killed_comes_back_on_its_ports_with_the_deployment(
    up: tuple[Cluster, MemoryPool],
) -> None:
    cluster, _ = up
    before, pid = cluster.addresses, cluster.gateway_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: cluster.gateway_pid not in (None, pid) and cluster.addresses == before, "restarted")

    async def version() -> int:
        try:
            return int((await cluster.admin.get_deployment()).version)
        except GatewayError:
            return 0

    async with asyncio.timeout(20):
        while await version() != 1:
            await asyncio.sleep(0.01)
    assert [i.id for i in (await cluster.admin.get_deployment()).instances] == ["w0.m_64", "w1.m_512"]


async def test_gateway_that_ends_at_once_says_why(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARLO_FAKE_GATEWAY", "exit")
    pool = MemoryPool(2)
    with pytest.raises(GatewayError, match=r"exit code 3; .*gateway.log says:\n.*cannot bind"):
        await Cluster(config, MANIFEST, pool, probe=no_probe).start()
    assert {info.state for info in pool.infos.values()} == {"stopped"}


async def test_gateway_that_is_never_ready_is_ended(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARLO_FAKE_GATEWAY", "mute")
    config.workers.run_dir.mkdir()
    gateway = GatewayProcess(config)
    with pytest.raises(GatewayError, match=r"not ready after 0.5 s; .*gateway.log is empty"):
        await gateway.start(timeout_s=0.5)
    assert not Path(f"/proc/{gateway.pid}").exists()


async def test_gateway_that_is_not_there(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARLO_GATEWAY", "/nowhere/arlo-gateway")
    with pytest.raises(EnvironmentProblem, match="ARLO_GATEWAY=/nowhere/arlo-gateway is not a program"):
        await Cluster(config, MANIFEST, MemoryPool(2), probe=no_probe).start()


async def test_a_load_that_fails_stops_everything(config: Config) -> None:
    pool = MemoryPool(2)
    pool.fail_loads = 1
    cluster = Cluster(config, MANIFEST, pool, probe=no_probe)
    with pytest.raises(WorkerError, match="did not load"):
        await cluster.start()
    assert {info.state for info in pool.infos.values()} == {"stopped"}
    assert not Path(f"/proc/{cluster.gateway_pid}").exists()


async def test_stop_before_the_start_is_done(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARLO_FAKE_GATEWAY", "mute")
    stop = asyncio.Event()
    cluster = Cluster(config, MANIFEST, MemoryPool(2), probe=no_probe)
    asyncio.get_running_loop().call_later(0.2, stop.set)
    async with running(cluster, stop) as started:
        assert not started
    assert not Path(f"/proc/{cluster.gateway_pid}").exists()


async def test_run_folder_serves_one_at_a_time(up: tuple[Cluster, MemoryPool], config: Config) -> None:
    with pytest.raises(ConfigError, match="another `arlo serve` uses"):
        await Cluster(config, MANIFEST, MemoryPool(2), probe=no_probe).start()


async def test_external_gateway_gets_the_deployment_and_gets_it_again(config: Config) -> None:
    async with AdminServer() as server:
        external = dataclasses.replace(config.gateway, managed=False, admin_address=server.address)
        cluster = Cluster(dataclasses.replace(config, gateway=external), MANIFEST, MemoryPool(2), probe=no_probe)
        async with running(cluster, asyncio.Event()) as started:
            assert started
            assert server.deployment.version == 1
            server.deployment.Clear()  # as after a restart
            await until(lambda: server.deployment.version == 1, "applied again")
        # At its end it says that nobody keeps it any more; what is served stays.
        assert server.applied == 3
        assert server.deployment.owner == ""
        served = list(server.deployment.instances)
        assert len(served) == 2
        # A second control process finds what it wants in force and changes nothing but the owner.
        again = Cluster(dataclasses.replace(config, gateway=external), MANIFEST, MemoryPool(2), probe=no_probe)
        async with running(again, asyncio.Event()):
            assert server.applied == 4
            assert server.deployment.owner != ""
            assert list(server.deployment.instances) == served


async def test_external_gateway_that_is_not_there(config: Config) -> None:
    external = dataclasses.replace(config.gateway, managed=False, admin_address="127.0.0.1:1")
    with pytest.raises(GatewayError, match=r"no gateway answers at the admin address 127\.0\.0\.1:1"):
        await Cluster(dataclasses.replace(config, gateway=external), MANIFEST, MemoryPool(2), probe=no_probe).start()


async def test_a_loop_that_fails_is_started_again_and_the_others_go_on(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = MemoryPool(2)
    cluster = Cluster(config, MANIFEST, pool, probe=no_probe)
    calls = 0
    kept = cluster.scheduler.run

    async def broken() -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise RuntimeError("nobody thought of this")
        await kept()

    monkeypatch.setattr(cluster.scheduler, "run", broken)
    async with running(cluster, asyncio.Event()) as started:
        assert started
        await until(lambda: calls == 3, "started again")
        assert cluster.counters["loop_failures"] == 2
        pool.infos["w1"] = dataclasses.replace(pool.infos["w1"], runtimes=(), restarts=1)
        await until(lambda: pool.infos["w1"].runtimes == ("m_512",), "the reconciler works")
