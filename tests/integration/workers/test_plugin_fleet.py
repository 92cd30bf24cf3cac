"""From one server with the plugin to a fleet: the gateway in front of two, one as `arlo serve triton` starts it and one
as deploy/plugin/docker-compose.yml does, on the repository that each of them serves by itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
import yaml

from arlo import config as configuration
from arlo.catalog.logical import write_logical_model
from arlo.control.plane import Cluster
from arlo.control.pool import make_pool
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.paths import plugin_library
from arlo.workers.ports import free_port
from arlo.workers.process import GuardedProcess
from arlo.workers.triton.admin import TritonAdmin
from arlo.workers.triton.alone import LoneTriton
from arlo.workers.triton.server import environment, find_triton, prepare_backends
from tests.fakes.emulated_cluster import cluster_of, endpoint, worker
from tests.fakes.processes import until
from tests.fakes.steady_load import steady_load

pytestmark = [pytest.mark.integration, pytest.mark.long]

COMPOSE = Path(__file__).resolve().parents[3] / "deploy" / "plugin" / "docker-compose.yml"
LENGTHS = (16, 64, 128)
MODELS = {"m", *(f"m_len{length}" for length in LENGTHS)}
CONFIG = """\
[model]
repository = "repository"
slo_ms = 500
default_timeout_ms = 20000
[workers]
kind = "endpoints"
endpoints = ["127.0.0.1:{first}", "127.0.0.1:{second}"]
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
"""


@contextlib.asynccontextmanager
async def plain_triton(repository: Path, port: int) -> AsyncIterator[GuardedProcess]:
    """As a container of the compose file runs: every model loaded at the start, no model control."""
    server = find_triton()
    _, *flags = yaml.safe_load(COMPOSE.read_text())["services"]["triton"]["command"]
    assert "--model-repository=/models" in flags
    command = [str(server.executable), *(flag.replace("=/models", f"={repository}") for flag in flags)]
    command += [f"--backend-directory={prepare_backends(server)}", f"--grpc-port={port}", "--grpc-address=127.0.0.1"]
    command += ["--allow-http=false", "--allow-metrics=false"]
    process = GuardedProcess.start(
        command, env=environment(server, threads=1), log=repository.parent / "plain.log", shm_prefix=f"arlo_{port}_"
    )
    try:
        await until(lambda: loaded(f"127.0.0.1:{port}"), "a server with all models", timeout_s=60)
        yield process
    finally:
        await process.stop(timeout_s=40)


async def loaded(server: str) -> bool:
    """Whether it has all that it had when it was started."""
    admin = TritonAdmin(server)
    try:
        return set(await admin.check(timeout_s=2.0) or ()) >= MODELS
    finally:
        await admin.close()


async def ask(server: str, length: int) -> None:
    """As a client of the plugin, past the gateway."""
    ids = triton.InferInput("input_ids", [1, length], "INT64")
    ids.set_data_from_numpy(np.full((1, length), 7, np.int64))
    async with triton.InferenceServerClient(server) as client:
        answer = await client.infer("m", [ids])
    assert answer.as_numpy("embedding")[0, 0] == 7 * length


async def rows_of(server: str, model: str) -> int:
    async with triton.InferenceServerClient(server) as client:
        return int((await client.get_inference_statistics(model)).model_stats[0].inference_count)


def serves(cluster: Cluster, name: str) -> bool:
    return worker(cluster, name).serving == "m_bundle"


async def test_two_servers_with_the_plugin_are_one_fleet(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    manifest = write_emulated_repository(
        repository, model="m", max_lengths=LENGTHS, latency_ms=[2, 4, 8], max_batch=8, batch_growth=0.1
    )
    write_logical_model(repository, manifest, library=plugin_library(), slo_ms=500)
    first, second = free_port("127.0.0.1"), free_port("127.0.0.1")
    config = configuration.parse(CONFIG.format(first=first, second=second), base=tmp_path)
    alone, other = f"127.0.0.1:{first}", f"127.0.0.1:{second}"
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(
            LoneTriton(repository, grpc_port=first, http_port=None, log=tmp_path / "alone.log", threads=1)
        )
        async with plain_triton(repository, second) as plain:
            cluster = await stack.enter_async_context(cluster_of(config, make_pool(config)))
            assert "the plugin" in cluster.mode.choice.text
            load = await stack.enter_async_context(steady_load(endpoint(cluster), rate=150, lengths=(1, 128)))
            await load.more(200)
            await ask(alone, 100)
            await ask(other, 10)
            assert await rows_of(other, "m_len128") > 20  # the gateway asks the engines, not the logical model
            assert await rows_of(other, "m") == 1
            plain.kill()
            await load.more(300)
        async with plain_triton(repository, second):
            await until(lambda: serves(cluster, "w1"), "the second server back in service", timeout_s=60)
            await until(lambda: rows_of(other, "m_len128"), "rows for it")
            cluster.reconciler.recycle("w0")  # its engines are loaded anew; the logical model is not ours to unload
            await until(lambda: cluster.counters["workers_recycled"], "the first server's engines anew", timeout_s=60)
            await until(lambda: serves(cluster, "w0"), "the first server back in service", timeout_s=60)
            cluster.reconciler.recycle("w1")  # which it cannot be, without model control: it is said, and it serves on
            await until(lambda: "unload" in (cluster.reconciler.error("w1") or ""), "a refusal to unload")
            await until(lambda: serves(cluster, "w1"), "the second server in service again", timeout_s=60)
            await load.more(200)
            await ask(alone, 100)
            assert await loaded(alone)
            assert await loaded(other)
            await stack.aclose()
    load.check()
