"""What goes wrong with a worker, and that it is said, bounded and mended: memory, loads, hangs, crashes, slowness."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from arlo.clock import monotonic_s
from arlo.errors import WorkerError
from arlo.workers import LocalPool, WorkerInfo
from arlo.workers.emulated.repository import write_emulated_repository

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

Eventually = Callable[..., Awaitable[None]]
IDS = np.arange(32, dtype=np.int64)[None]


@pytest.fixture(scope="module")
def slow_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slow")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(slow_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalPool]:
    path = tmp_path_factory.mktemp("repository")
    write_emulated_repository(path, model="m", max_lengths=[32, 64], latency_ms=[4, 4], memory_mb=600)
    write_emulated_repository(path, model="late", max_lengths=[32], latency_ms=[0], load_delay_ms=1500)
    async with LocalPool(
        path,
        workers=1,
        run_dir=tmp_path_factory.mktemp("run"),
        metrics=False,
        hang_timeout_s=1.0,
        backoff_first_s=0.05,
        env={"ARLO_EMULATED_MEMORY_MB": "1000", "ARLO_EMULATED_SLOW_DIR": str(slow_dir)},
    ) as pool:
        yield pool


async def info(pool: LocalPool) -> WorkerInfo:
    return (await pool.workers())[0]


async def restarted(pool: LocalPool, before: WorkerInfo, eventually: Eventually) -> WorkerInfo:
    async def ready() -> bool:
        now = await info(pool)
        return now.restarts > before.restarts and now.state == "ready"

    await eventually(ready, "the worker is back")
    return await info(pool)


async def test_out_of_memory(pool: LocalPool, caller: Any) -> None:
    """The second runtime is refused with Triton's reason, and the first one serves on; unloading makes room."""
    endpoint = (await info(pool)).endpoint
    await pool.load("w0", "m_len32")
    with pytest.raises(WorkerError, match="out of memory: 600 MB wanted, 400 of 1000 MB are free"):
        await pool.load("w0", "m_len64")
    now = await info(pool)
    assert (now.state, now.error, now.runtimes) == ("ready", None, ("m_len32",))
    await caller.infer(endpoint, "m_len32", IDS)
    await pool.unload("w0", "m_len32")
    await pool.load("w0", "m_len64")
    await pool.unload("w0", "m_len64")


async def test_a_crash_during_a_load(pool: LocalPool, eventually: Eventually, caller: Any) -> None:
    """The load fails at once, the worker comes back with what it had, and the load works then."""
    await pool.load("w0", "m_len32")
    before = await info(pool)
    assert before.pid is not None
    load = asyncio.create_task(pool.load("w0", "late_len32", timeout_s=30.0))
    client = caller.client(before.endpoint)
    while "LOADING" not in str(await client.get_model_repository_index()):
        await asyncio.sleep(0.01)
    os.kill(before.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="could not load late_len32"):
        await load
    after = await restarted(pool, before, eventually)
    assert after.runtimes == ("m_len32",)
    await pool.load("w0", "late_len32", timeout_s=30.0)
    await pool.unload("w0", "late_len32")


async def test_the_back_off_grows_and_starts_over(
    pool: LocalPool, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arlo.workers.local.worker import LocalWorker

    waits: list[int] = []
    wait_before = LocalWorker._wait_before

    async def spy(self: LocalWorker, attempt: int) -> None:
        waits.append(attempt)
        await wait_before(self, attempt)

    monkeypatch.setattr(LocalWorker, "_wait_before", spy)
    await pool.restart("w0")  # a restart that was asked for does not count as a failure
    for _ in range(3):
        before = await info(pool)
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)
        await restarted(pool, before, eventually)
    assert waits[1] == waits[0] + 1
    assert waits[2] == waits[1] + 1
    later_s = monotonic_s() + 31.0
    before = await info(pool)
    assert before.pid is not None
    monkeypatch.setattr("arlo.workers.local.worker.monotonic_s", lambda: later_s)
    os.kill(before.pid, signal.SIGKILL)
    await restarted(pool, before, eventually)
    assert waits[3] == 0
