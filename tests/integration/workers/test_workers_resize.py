"""LocalPool: workers added, removed and restarted while others serve; what workers() costs."""

from __future__ import annotations

import asyncio
import itertools
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
from arlo.workers.triton.admin import TritonAdmin

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

Eventually = Callable[..., Awaitable[None]]
Alive = Callable[[int], bool]
IDS = np.arange(32, dtype=np.int64)[None]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalPool]:
    path = tmp_path_factory.mktemp("repository")
    write_emulated_repository(path, model="fast", max_lengths=[32], latency_ms=[0])
    write_emulated_repository(path, model="busy", max_lengths=[32], latency_ms=[300])
    run_dir = tmp_path_factory.mktemp("run")
    async with LocalPool(path, workers=1, run_dir=run_dir, metrics=False, gpus=["0", "1"]) as pool:
        yield pool


async def info(pool: LocalPool, worker: str) -> WorkerInfo:
    return next(each for each in await pool.workers() if each.id == worker)


def visible_gpu(pid: int | None) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(v.decode().partition("=")[2] for v in variables if v.startswith(b"CUDA_VISIBLE_DEVICES="))


async def running(caller: Any, worker: WorkerInfo) -> list[asyncio.Task[Any]]:
    """Two requests of 300 ms at a worker that has busy_len32, the first of them being executed."""
    tasks = [asyncio.create_task(caller.infer(worker.endpoint, "busy_len32", IDS)) for _ in range(2)]
    while (await caller.statistics(worker.endpoint, "busy_len32")).inference_stats.success.count < 1:
        await asyncio.sleep(0.01)
    return tasks


async def test_add_and_remove(pool: LocalPool, caller: Any, alive: Alive) -> None:
    assert pool.resizable
    added = await pool.add()
    assert (added.id, added.state, added.runtimes) == ("w1", "ready", ())
    assert [worker.id for worker in await pool.workers()] == ["w0", "w1"]
    assert (visible_gpu((await info(pool, "w0")).pid), visible_gpu(added.pid)) == ("0", "1")
    await pool.load("w1", "busy_len32")
    requests = await running(caller, added)
    await asyncio.gather(pool.remove("w1"), pool.remove("w1"))
    assert len(await asyncio.gather(*requests)) == 2
    assert added.pid is not None
    assert not alive(added.pid)
    assert [worker.id for worker in await pool.workers()] == ["w0"]
    with pytest.raises(WorkerError, match="no worker is called 'w1'; there are: w0"):
        await pool.remove("w1")
    again = await pool.add()
    assert again.id == "w2"  # an id is not used twice
    assert visible_gpu(again.pid) == "1"
    await pool.remove("w2")


async def test_a_removal_goes_on_when_the_call_is_cancelled(
    pool: LocalPool, eventually: Eventually, alive: Alive
) -> None:
    added = await pool.add()
    assert added.pid is not None
    call = asyncio.create_task(pool.remove(added.id))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def gone() -> bool:
        return added.id not in [worker.id for worker in await pool.workers()]

    await eventually(gone, "it is gone")
    assert not alive(added.pid)


async def test_a_worker_that_can_not_be_added_leaves_nothing(pool: LocalPool, monkeypatch: Any) -> None:
    before = await pool.workers()

    async def refuse(self: TritonAdmin, *, timeout_s: float = 1.0) -> bool:
        raise WorkerError("says the test")

    with monkeypatch.context() as patch:
        patch.setattr(TritonAdmin, "is_live", refuse)
        with pytest.raises(WorkerError, match="says the test"):
            await pool.add()
    assert [worker.id for worker in await pool.workers()] == [worker.id for worker in before]


async def test_restart(pool: LocalPool, caller: Any, alive: Alive) -> None:
    await pool.load("w0", "busy_len32")
    before = await info(pool, "w0")
    assert before.pid is not None
    requests = await running(caller, before)
    await asyncio.gather(pool.restart("w0"), pool.restart("w0"))  # both wait for one restart
    assert len(await asyncio.gather(*requests)) == 2
    after = await info(pool, "w0")
    assert (after.state, after.runtimes, after.error) == ("ready", (), None)
    assert (after.restarts, after.endpoint) == (before.restarts + 1, before.endpoint)
    assert after.pid != before.pid
    assert not alive(before.pid)
    await pool.load("w0", "fast_len32")
    await caller.infer(after.endpoint, "fast_len32", IDS)
    # What was loaded before is forgotten for good: a crash brings back the rest alone.
    assert after.pid is not None
    os.kill(after.pid, signal.SIGKILL)
    while (await info(pool, "w0")).restarts == after.restarts or (await info(pool, "w0")).state != "ready":
        await asyncio.sleep(0.01)
    assert (await info(pool, "w0")).runtimes == ("fast_len32",)


async def test_a_restart_that_fails_is_said_and_tried_again(
    pool: LocalPool, eventually: Eventually, monkeypatch: Any
) -> None:
    async def refuse(self: TritonAdmin, *, timeout_s: float = 1.0) -> bool:
        raise WorkerError("says the test")

    with monkeypatch.context() as patch:
        patch.setattr(TritonAdmin, "is_live", refuse)
        with pytest.raises(WorkerError, match="says the test"):
            await pool.restart("w0")
        assert (await info(pool, "w0")).state in ("failed", "starting")

    async def ready() -> bool:
        return (await info(pool, "w0")).state == "ready"

    await eventually(ready, "it is up again")


async def test_workers_asks_nobody(pool: LocalPool, monkeypatch: Any) -> None:
    """A load is seen at once, a crash within the time that the kernel needs to tell."""

    async def forbidden(*_: object, **__: object) -> Any:
        raise AssertionError("a call")

    await pool.load("w0", "fast_len32")
    with monkeypatch.context() as patch:
        patch.setattr(TritonAdmin, "_invoke", forbidden)
        assert (await info(pool, "w0")).runtimes == ("fast_len32",)
    await pool.unload("w0", "fast_len32")
    assert (await info(pool, "w0")).runtimes == ()


async def test_one_call_a_second(pool: LocalPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign of life and loaded runtimes come in one; asking the pool costs no call."""
    calls: list[float] = []
    invoke = TritonAdmin._invoke

    async def counted(self: TritonAdmin, *arguments: Any) -> Any:
        calls.append(monotonic_s())
        return await invoke(self, *arguments)

    monkeypatch.setattr(TritonAdmin, "_invoke", counted)
    while len(calls) < 4:
        await pool.workers()
        await asyncio.sleep(0.02)
    assert len(await pool.workers()) == 1
    gaps = [after - before for before, after in itertools.pairwise(calls)]
    assert min(gaps) > 0.5
    assert sum(gaps) > 2.5
