"""The local worker pool: real Triton processes on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from arlo.errors import ConfigError, WorkerError
from arlo.workers.local_worker import LocalSettings, LocalWorker
from arlo.workers.pool import WorkerInfo
from arlo.workers.triton import TritonServer, core_count, environment, find_triton, prepare_backends


class LocalPool:
    """`workers` Triton servers over one model repository, each with explicit model control; implements WorkerPool.

    Workers are called w0, w1, ...; each has its log `{run_dir}/{id}.log` and an endpoint on `address` that stays the
    same over restarts. A worker whose process ends is restarted with back-off and its runtimes are loaded again. All
    processes end with this one, however it ends. Use it from one event loop, also as `async with LocalPool(...)`.

    `threads` is each worker's share of the cores (default: an even share). `gpus` are CUDA device ids, given to the
    workers in turn; one worker per GPU, because loading on one disturbs the others of the same server. `admin_key`,
    when given, is wanted by the workers on administration calls (other users of this machine can read it in the
    process list). `hang_timeout_s`: a server that answers no health check for so long is killed and restarted.
    `extra` are further arguments for tritonserver.
    """

    def __init__(
        self,
        repository: Path,
        *,
        workers: int,
        run_dir: Path,
        threads: int | None = None,
        gpus: Sequence[str] = (),
        address: str = "127.0.0.1",
        metrics: bool = True,
        admin_key: str | None = None,
        start_timeout_s: float = 60.0,
        exit_timeout_s: int = 10,
        hang_timeout_s: float = 30.0,
        backoff_first_s: float = 0.2,
        extra: tuple[str, ...] = (),
        server: TritonServer | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"a pool needs at least one worker, not {workers}")
        if not repository.is_dir():
            raise ConfigError(f"model repository {repository} is not a folder: build it with `arlo compile`")
        self._count = workers
        self._run_dir = run_dir
        self._gpus = tuple(gpus)
        self._server = server
        self._threads = threads or max(1, core_count() // workers)
        self._make_settings: Callable[[TritonServer], LocalSettings] = lambda found: LocalSettings(
            server=found,
            backends=prepare_backends(found),
            repository=repository.resolve(),
            environment=environment(found, threads=self._threads),
            address=address,
            metrics=metrics,
            admin_key=admin_key,
            start_timeout_s=start_timeout_s,
            exit_timeout_s=exit_timeout_s,
            hang_timeout_s=hang_timeout_s,
            backoff_first_s=backoff_first_s,
            extra=extra,
        )
        self._workers: dict[str, LocalWorker] = {}

    async def __aenter__(self) -> LocalPool:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start all workers and wait until each is live. On failure none is left behind."""
        if self._workers:
            raise WorkerError("the pool is started already")
        settings = self._make_settings(self._server or find_triton())
        self._run_dir.mkdir(parents=True, exist_ok=True)
        for index in range(self._count):
            worker_id = f"w{index}"
            gpu = self._gpus[index % len(self._gpus)] if self._gpus else None
            self._workers[worker_id] = LocalWorker(worker_id, settings, self._run_dir / f"{worker_id}.log", gpu=gpu)
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self._workers.values():
                    group.create_task(worker.start())
        except BaseExceptionGroup as problems:
            await self.stop()
            raise problems.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise

    async def workers(self) -> list[WorkerInfo]:
        """Observed state of every worker, in the order w0, w1, ..."""
        return list(await asyncio.gather(*(worker.info() for worker in self._workers.values())))

    async def load(self, worker: str, runtime: str, *, timeout_s: float = 120.0) -> None:
        """Load a runtime and wait until it is ready; WorkerError with Triton's reason."""
        await self._worker(worker).load(runtime, timeout_s=timeout_s)

    async def unload(self, worker: str, runtime: str, *, timeout_s: float = 60.0) -> None:
        """Unload a runtime and wait until Triton says so: its queued and running requests are answered first."""
        await self._worker(worker).unload(runtime, timeout_s=timeout_s)

    async def stop(self) -> None:
        """Stop all workers, gracefully first (SIGTERM), then for sure. Idempotent."""
        workers, self._workers = self._workers, {}
        results = await asyncio.gather(*(worker.stop() for worker in workers.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _worker(self, worker: str) -> LocalWorker:
        try:
            return self._workers[worker]
        except KeyError:
            known = ", ".join(self._workers) or "none, the pool is not started"
            raise WorkerError(f"no worker is called {worker!r}; there are: {known}") from None
