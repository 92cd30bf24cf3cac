"""The managed gateway outlives a killed owner: taken over with its ports and deployment, or drained and replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.client import AsyncClient
from arlo.config import Config, load
from arlo.control.gateway.admin import AdminClient
from arlo.control.gateway.process import Addresses, GatewayProcess
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import write_emulated_repository

pytestmark = [pytest.mark.integration, pytest.mark.long]

Eventually = Callable[..., Awaitable[None]]
Alive = Callable[[int], bool]
IDS = np.arange(1, 20, dtype=np.int64)

CONFIG = """\
[model]
repository = "repository"
slo_ms = 1000
[workers]
linger_s = {linger_s}
[deployment]
allocation = {{32 = 1}}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
drain_timeout_ms = 5000
log_level = "{log_level}"
"""

# Starts a worker and a gateway, gives it a deployment, prints where they are, and waits for its end.
OWNER = """\
import asyncio, dataclasses, json, sys
from pathlib import Path
from arlo.config import load
from arlo.control.gateway.admin import AdminClient
from arlo.control.gateway.process import GatewayProcess
from arlo.control.mode import mode_of
from arlo.control.reconcile.placement import deployment_message
from arlo.catalog.manifest import Manifest
from arlo.workers import LocalPool

async def main():
    config = load(Path(sys.argv[1]))
    run_dir, repository = config.workers.run_dir, config.model.repository
    pool = LocalPool(repository, workers=1, run_dir=run_dir, linger_s=config.workers.linger_s)
    await pool.start()
    await pool.load("w0", "m_len32")
    endpoints = {worker.id: worker.endpoint for worker in await pool.workers()}
    gateway = GatewayProcess(config)
    addresses = await gateway.start()
    async with AdminClient(addresses.admin) as admin:
        instances = [("w0", "m_len32")]
        mode = mode_of(config, Manifest.load(repository))
        await admin.apply(deployment_message(mode, instances, endpoints, version=7))
    told = {"pid": gateway.pid, "adopted": gateway.adopted, "addresses": dataclasses.asdict(addresses)}
    print(json.dumps(told), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def write_config(folder: Path, *, linger_s: int = 20, log_level: str = "info") -> Path:
    path = folder / "serve.toml"
    path.write_text(CONFIG.format(linger_s=linger_s, log_level=log_level))
    return path


def read_config(folder: Path, **changes: Any) -> Config:
    return load(write_config(folder, **changes))


@contextlib.contextmanager
def owner(folder: Path, **changes: Any) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    write_emulated_repository(folder / "repository", model="m", max_lengths=[32], latency_ms=[2])
    command = [sys.executable, "-c", OWNER, str(write_config(folder, **changes))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
        process.kill()


async def test_adoption_under_load(tmp_path: Path, alive: Alive) -> None:
    with owner(tmp_path) as (process, told):
        assert told["adopted"] is False
        answered = 0
        async with AsyncClient(told["addresses"]["grpc"], model="m") as client:

            async def send(count: int) -> None:
                nonlocal answered
                for _ in range(count):
                    assert (await client.infer(IDS))["embedding"][0] == IDS.sum()
                    answered += 1

            await send(20)
            running = asyncio.create_task(send(400))
            process.kill()
            process.wait()
            config = read_config(tmp_path)
            pool = LocalPool(config.model.repository, workers=1, run_dir=config.workers.run_dir, linger_s=20)
            gateway = GatewayProcess(config)
            addresses, _ = await asyncio.gather(gateway.start(), pool.start())
            assert not running.done()
            assert gateway.adopted
            assert gateway.pid == told["pid"]
            assert addresses == Addresses(**told["addresses"])
            async with AdminClient(addresses.admin) as admin:
                assert (await admin.get_deployment()).version == 7
            await running
            await send(20)
            assert answered == 440
        assert await gateway.stop() == 0
        assert not alive(told["pid"])
        await pool.stop()
    left = {path.name for path in config.workers.run_dir.iterdir()}
    assert left == {"gateway.json", "gateway.log", "gateway.ready.json", "w0.log"}


async def test_another_configuration_replaces_it(tmp_path: Path, alive: Alive) -> None:
    with owner(tmp_path) as (process, told):
        process.kill()
        process.wait()
        gateway = GatewayProcess(read_config(tmp_path, log_level="debug"))
        await gateway.start()
        try:
            assert not gateway.adopted
            assert gateway.pid != told["pid"]
            assert not alive(told["pid"])
        finally:
            await gateway.stop()


async def test_without_lingering_it_ends_with_its_owner(tmp_path: Path, alive: Alive, eventually: Eventually) -> None:
    with owner(tmp_path, linger_s=0) as (process, told):
        assert not list(tmp_path.rglob("*.sock"))
        process.kill()
        process.wait()
        await eventually(lambda: not alive(told["pid"]), "the gateway is gone", 5.0)


async def test_ports_of_a_pinned_configuration_are_the_same(tmp_path: Path) -> None:
    """A gateway that was restarted on the ports drawn before fits a configuration that says any port."""
    with owner(tmp_path) as (process, told):
        process.kill()
        process.wait()
        text = (tmp_path / "serve.toml").read_text()
        for key, bound in told["addresses"].items():
            text = text.replace(f'{key}_address = "127.0.0.1:0"', f'{key}_address = "{bound}"')
        (tmp_path / "pinned.toml").write_text(text)
        gateway = GatewayProcess(load(tmp_path / "pinned.toml"))
        assert await gateway.start() == Addresses(**told["addresses"])
        assert gateway.adopted
        await gateway.kill()
