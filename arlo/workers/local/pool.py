"""The local worker pool: real Triton processes on this machine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from arlo.errors import WorkerError
from arlo.workers.local.server import LocalSettings
from arlo.workers.local.worker import LocalWorker
from arlo.workers.numbered import NumberedPool
from arlo.workers.record import RecordFile, recorded_names
from arlo.workers.triton.server import TritonServer, core_count, environment, find_triton, prepare_backends


class LocalPool(NumberedPool[LocalWorker]):
    """`workers` Triton servers over one model repository, each with explicit model control; implements WorkerPool.

    Workers are called w0, w1, ..., an added one gets the next number. Each has its log `{run_dir}/{id}.log` and an
    endpoint on `address` that stays the same over restarts. A worker whose process ends is restarted with back-off and
    its runtimes are loaded again. All processes end with this one, however it ends. Use it from one event loop, also
    as `async with LocalPool(...)`.

    With `linger_s`, workers keep serving for that many seconds after this process is killed. A pool that starts in the
    same `run_dir` meanwhile takes over all workers started with its own settings, with their endpoints, keys and
    runtimes, and ends the others. `stop` always ends them at once. One pool at a time may use a `run_dir`.

    `threads` is each worker's share of the cores (default: an even share). `gpus` are CUDA device ids, given to the
    workers in turn; one worker per GPU, because loading on one disturbs the others of the same server. With
    `admin_key`, the workers require it on administration calls; it is not in the process list (preload.py).
    `hang_timeout_s`: a server that answers no health check for so long is killed and restarted.
    `env` is added to the workers' environment. `extra` are further arguments for tritonserver.
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
        linger_s: float = 0.0,
        env: Mapping[str, str] | None = None,
        extra: tuple[str, ...] = (),
        server: TritonServer | None = None,
    ) -> None:
        super().__init__(repository, workers)
        self._run_dir = run_dir
        self._gpus = tuple(gpus)
        self._server = server
        self._threads = threads or max(1, core_count() // workers)
        self._make_settings: Callable[[TritonServer], LocalSettings] = lambda found: LocalSettings(
            server=found,
            backends=prepare_backends(found),
            repository=repository.resolve(),
            environment={**environment(found, threads=self._threads), **(env or {})},
            address=address,
            metrics=metrics,
            admin_key=admin_key,
            start_timeout_s=start_timeout_s,
            exit_timeout_s=exit_timeout_s,
            hang_timeout_s=hang_timeout_s,
            backoff_first_s=backoff_first_s,
            linger_s=linger_s,
            extra=extra,
        )
        self._settings: LocalSettings | None = None

    async def start(self) -> None:
        """Start all workers and wait until each is live. On failure none is left behind."""
        if self._started:
            raise WorkerError("the pool is started already")
        self._settings = self._make_settings(self._server or find_triton())
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._started = True
        try:
            await self._adopt(self._settings)
            missing = [self._make(number) for number in self._missing()]
            self._in_order()
            async with asyncio.TaskGroup() as group:
                for worker in missing:
                    group.create_task(worker.start())
        except BaseExceptionGroup as problems:
            await self.stop()
            raise problems.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise

    def _bring_up(self, worker: LocalWorker) -> Coroutine[Any, Any, None]:
        return worker.start()

    def _end(self, worker: LocalWorker) -> Coroutine[Any, Any, None]:
        return worker.stop()

    async def restart(self, worker: str) -> None:
        """Stop a worker and start it again with no runtime loaded; its requests are answered first."""
        await self._worker(worker).restart()

    def kill_now(self) -> None:
        """Kill all workers without waiting: with a linger time they would outlive a process that just exits."""
        for worker in self._workers.values():
            worker.kill_now()

    async def _adopt(self, settings: LocalSettings) -> None:
        """Take over the workers that a dead owner left in the run folder; end those with other settings than ours."""
        workers = []
        for name in recorded_names(self._run_dir):
            if re.fullmatch(r"w\d+", name):
                record = RecordFile(self._run_dir, name).read()
                gpu = record.details.get("gpu") if record is not None else None
                known = gpu in self._gpus if self._gpus else gpu is None
                # One on a GPU that we do not use is ended, like any that differs.
                workers.append(LocalWorker(name, settings, self._run_dir, gpu=gpu if known else "none of ours"))
        self._workers = {worker.id: worker for worker in workers}  # from here on stop() sees to them
        async with asyncio.TaskGroup() as group:
            tasks = {worker.id: group.create_task(worker.adopt()) for worker in workers}
        for worker_id, task in tasks.items():
            if not task.result():
                await self._workers.pop(worker_id).stop()

    def _make(self, number: int) -> LocalWorker:
        assert self._settings is not None, "start() first"
        gpu = None
        if self._gpus:
            taken = [worker.gpu for worker in self._workers.values()]
            gpu = min(self._gpus, key=taken.count)  # the first of those with the fewest workers
        return self._made(LocalWorker(f"w{number}", self._settings, self._run_dir, gpu=gpu))
