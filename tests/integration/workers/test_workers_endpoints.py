"""EndpointsPool over servers that somebody else runs (here: a local pool)."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from arlo.errors import WorkerError
from arlo.workers import EndpointsPool, LocalPool
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.ports import ReservedPort

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalPool]:
    repository = tmp_path_factory.mktemp("repository")
    write_emulated_repository(repository, model="m", max_lengths=[32], latency_ms=[0])
    run_dir = tmp_path_factory.mktemp("run")
    async with LocalPool(repository, workers=2, run_dir=run_dir, admin_key="secret", backoff_first_s=0.05) as pool:
        yield pool


async def test_the_same_interface(servers: LocalPool, eventually: Callable[..., Awaitable[None]]) -> None:
    endpoints = [worker.endpoint for worker in await servers.workers()]
    pages = {endpoints[1]: "http://127.0.0.1:1/metrics"}
    pool = EndpointsPool(endpoints, metrics_urls=pages, admin_key="secret")
    assert {worker.state for worker in await pool.workers()} == {"stopped"}
    async with pool:
        with pytest.raises(WorkerError, match="started already"):
            await pool.start()
        await pool.load("w1", "m_len32")
        first, second = await pool.workers()
        assert [first.endpoint, second.endpoint] == endpoints
        assert (first.state, first.runtimes, first.metrics_url) == ("ready", (), None)
        assert (second.state, second.runtimes, second.metrics_url) == ("ready", ("m_len32",), pages[endpoints[1]])
        assert (second.pid, second.log, second.restarts) == (None, None, 0)
        with pytest.raises(WorkerError, match="could not load nowhere"):
            await pool.load("w0", "nowhere")
        with pytest.raises(WorkerError, match="no worker is called 'x'"):
            await pool.unload("x", "m_len32")

        pid = (await servers.workers())[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        async def restarted() -> bool:
            theirs, ours = (await servers.workers())[1], (await pool.workers())[1]
            # Its owner knows nothing of what we loaded: we load again.
            return theirs.restarts == 1 and theirs.state == ours.state == "ready" and ours.runtimes == ()

        await eventually(restarted, "its owner has restarted it")
        await pool.load("w1", "m_len32")
        assert (await pool.workers())[1].runtimes == ("m_len32",)
        await pool.unload("w1", "m_len32")
        assert (await pool.workers())[1].runtimes == ()
        await pool.load("w1", "m_len32")
    # Stopping the pool leaves the servers and what they have loaded alone.
    await pool.stop()

    async def kept() -> bool:
        return (await servers.workers())[1].runtimes == ("m_len32",)

    await eventually(kept, "the owner sees what was loaded")


async def test_the_size_is_fixed(servers: LocalPool) -> None:
    endpoints = [worker.endpoint for worker in await servers.workers()]
    async with EndpointsPool(endpoints, admin_key="secret") as pool:
        assert not pool.resizable
        with pytest.raises(WorkerError, match=r"add the server to workers\.endpoints"):
            await pool.add()
        with pytest.raises(WorkerError, match=r"take it out of workers\.endpoints"):
            await pool.remove("w0")
        await pool.load("w0", "m_len32")
        await pool.restart("w0")
        assert (await pool.workers())[0].runtimes == ()


async def test_what_others_do_is_seen(servers: LocalPool, eventually: Callable[..., Awaitable[None]]) -> None:
    endpoints = [worker.endpoint for worker in await servers.workers()]
    async with EndpointsPool(endpoints, admin_key="secret") as pool:
        await servers.load("w0", "m_len32")

        async def seen(runtimes: tuple[str, ...]) -> bool:
            return (await pool.workers())[0].runtimes == runtimes

        await eventually(lambda: seen(("m_len32",)), "the load is seen")
        await servers.unload("w0", "m_len32")
        await eventually(lambda: seen(()), "the unload is seen")


async def test_a_server_without_our_key_refuses(servers: LocalPool) -> None:
    endpoints = [worker.endpoint for worker in await servers.workers()]
    async with EndpointsPool(endpoints) as pool:
        with pytest.raises(WorkerError, match="restricted"):
            await pool.load("w0", "m_len32")


async def test_an_endpoint_where_nobody_answers(servers: LocalPool, tmp_path: Path) -> None:
    alive = (await servers.workers())[0].endpoint
    silent = ReservedPort("127.0.0.1")
    pool = EndpointsPool([alive, f"127.0.0.1:{silent.port}"], start_timeout_s=0.3)
    with pytest.raises(WorkerError, match=rf"within 0\.3 s at 127\.0\.0\.1:{silent.port}: check"):
        await pool.start()
    silent.release()
    assert {worker.state for worker in await pool.workers()} == {"stopped"}
