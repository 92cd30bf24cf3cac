"""LocalPool on real Triton servers: start, load, answer, unload, crash, restart, stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from arlo.errors import ConfigError, WorkerError
from arlo.workers import LocalPool, WorkerInfo
from arlo.workers.emulated.repository import write_emulated_repository

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

Eventually = Callable[..., Awaitable[None]]
Alive = Callable[[int], bool]
IDS = np.arange(32, dtype=np.int64)[None]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    write_emulated_repository(path, model="fast", max_lengths=[32, 64], latency_ms=[0, 0])
    write_emulated_repository(path, model="busy", max_lengths=[32], latency_ms=[300])
    write_emulated_repository(path, model="slow", max_lengths=[32], latency_ms=[0], load_delay_ms=600)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalPool]:
    run_dir = tmp_path_factory.mktemp("run")
    async with LocalPool(repository, workers=2, run_dir=run_dir, backoff_first_s=0.05) as pool:
        yield pool


async def info(pool: LocalPool, worker: str) -> WorkerInfo:
    return next(each for each in await pool.workers() if each.id == worker)


async def test_load_answer_unload(pool: LocalPool, caller: Any) -> None:
    worker = await info(pool, "w0")
    await pool.load("w0", "fast_len32")
    assert (await info(pool, "w0")).runtimes == ("fast_len32",)
    assert (await info(pool, "w1")).runtimes == ()
    answer = await caller.infer(worker.endpoint, "fast_len32", IDS)
    np.testing.assert_array_equal(answer["embedding"], np.full((1, 4), IDS.sum(), np.float32))
    await pool.load("w0", "fast_len32")  # loading what is loaded is allowed
    await pool.unload("w0", "fast_len32")
    assert (await info(pool, "w0")).runtimes == ()
    await pool.unload("w0", "fast_len32")  # and so is unloading what is not


async def test_an_unknown_runtime_or_worker(pool: LocalPool) -> None:
    with pytest.raises(WorkerError, match="could not load nowhere"):
        await pool.load("w0", "nowhere")
    with pytest.raises(WorkerError, match="no worker is called 'w9'; there are: w0, w1"):
        await pool.load("w9", "fast_len32")


async def test_a_slow_load(pool: LocalPool, caller: Any) -> None:
    """While it loads, the worker is ready and its other runtimes answer."""
    worker = await info(pool, "w1")
    await pool.load("w1", "fast_len32")
    loading = asyncio.create_task(pool.load("w1", "slow_len32"))
    while "LOADING" not in str(await caller.client(worker.endpoint).get_model_repository_index()):
        await asyncio.sleep(0.01)
    await caller.infer(worker.endpoint, "fast_len32", IDS)
    assert (await info(pool, "w1")).runtimes == ("fast_len32",)
    await loading
    assert (await info(pool, "w1")).runtimes == ("fast_len32", "slow_len32")
    await pool.unload("w1", "slow_len32")
    await pool.unload("w1", "fast_len32")


async def test_a_load_given_up_on_is_taken_back(pool: LocalPool, eventually: Eventually, caller: Any) -> None:
    with pytest.raises(WorkerError, match=r"no answer within 0\.1"):
        await pool.load("w1", "slow_len32", timeout_s=0.1)
    client = caller.client((await info(pool, "w1")).endpoint)

    async def unloaded() -> bool:
        index = await client.get_model_repository_index()
        return next(m for m in index.models if m.name == "slow_len32").state == "UNAVAILABLE"

    await eventually(unloaded, "the load is over and taken back")

    async def seen() -> bool:
        return (await info(pool, "w1")).runtimes == ()

    await eventually(seen, "the pool's next check sees it")


async def test_a_worker_that_can_not_start_says_why(repository: Path, tmp_path: Path) -> None:
    pool = LocalPool(repository, workers=2, run_dir=tmp_path, extra=("--no-such-argument",))
    with pytest.raises(WorkerError, match=r"(?s)did not start.*no-such-argument"):
        await pool.start()
    assert await pool.workers() == []
    await pool.stop()


async def test_stop_answers_what_is_running(repository: Path, tmp_path: Path, alive: Alive, caller: Any) -> None:
    pool = LocalPool(repository, workers=1, run_dir=tmp_path, metrics=False)
    await pool.start()
    with pytest.raises(WorkerError, match="started already"):
        await pool.start()
    await pool.load("w0", "busy_len32")
    worker = await info(pool, "w0")
    assert worker.metrics_url is None
    assert worker.pid is not None
    running = asyncio.create_task(caller.infer(worker.endpoint, "busy_len32", IDS))
    while (await caller.statistics(worker.endpoint, "busy_len32")).inference_stats.queue.count < 1:
        if running.done():
            break
        await asyncio.sleep(0.01)
    await pool.stop()
    assert (await running)["embedding"].shape == (1, 4)
    assert not alive(worker.pid)
    await pool.stop()


async def test_an_admin_key_keeps_others_from_loading(repository: Path, tmp_path: Path, caller: Any) -> None:
    async with LocalPool(repository, workers=1, run_dir=tmp_path, metrics=False, admin_key="secret") as pool:
        await pool.load("w0", "fast_len32")
        worker = await info(pool, "w0")
        assert worker.runtimes == ("fast_len32",)
        await caller.infer(worker.endpoint, "fast_len32", IDS)
        with pytest.raises(Exception, match="restricted"):
            await caller.client(worker.endpoint).unload_model("fast_len32")
        assert worker.log is not None
        assert "secret" not in Path(worker.log).read_text()
        # Other users of the machine can read the command line of each process, and the environment of none.
        assert worker.pid is not None
        family = [worker.pid, int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])]
        for pid in family:
            assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert Path(f"/proc/{pid}/environ").stat().st_mode & 0o077 == 0


async def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one worker"):
        LocalPool(tmp_path, workers=0, run_dir=tmp_path)
    with pytest.raises(ConfigError, match="not a folder"):
        LocalPool(tmp_path / "nowhere", workers=1, run_dir=tmp_path)
