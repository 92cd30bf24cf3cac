"""One worker on this machine, for measurements, and calls to it in threads."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from arlo.profiler.wire import WorkerClient
from arlo.workers import LocalPool, WorkerPool

T = TypeVar("T")


def end_on_sigterm() -> None:
    """SIGTERM cancels the current task, as Ctrl-C does by itself."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def local_pool(repository: Path, run_dir: str, *, threads: int | None, start_timeout_s: float = 60.0) -> LocalPool:
    """A pool of one worker, away from a running `arlo serve`."""
    return LocalPool(
        repository,
        workers=1,
        run_dir=Path(run_dir),
        threads=threads,
        metrics=False,
        start_timeout_s=start_timeout_s,
        exit_timeout_s=2,  # only an abandoned request can be left
    )


@contextlib.asynccontextmanager
async def one_worker(repository: Path, *, threads: int) -> AsyncIterator[tuple[WorkerPool, str, WorkerClient]]:
    """A started pool, the id of its only worker, and a client of that."""
    with tempfile.TemporaryDirectory(prefix="arlo-fit-") as run_dir:
        pool = local_pool(repository, run_dir, threads=threads)
        try:
            await pool.start()
            worker = (await pool.workers())[0]
            with contextlib.closing(WorkerClient(worker.endpoint, timeout_s=120.0)) as client:
                yield pool, worker.id, client
        finally:
            await pool.stop()


async def in_thread(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """The result of work in a thread, so that the pool's own checks go on; cancelled, `stop` ends the work first."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()
        await asyncio.gather(task, return_exceptions=True)
        raise
