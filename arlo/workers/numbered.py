"""The common part of pools whose workers are called w0, w1, ...; no name is used twice."""

from __future__ import annotations

import abc
import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from arlo.errors import ConfigError, WorkerError
from arlo.workers.pool import WorkerInfo


class NumberedWorker(Protocol):
    """One worker of such a pool."""

    id: str

    def info(self) -> WorkerInfo: ...
    async def load(self, runtime: str, *, timeout_s: float) -> None: ...
    async def unload(self, runtime: str, *, timeout_s: float) -> None: ...


W = TypeVar("W", bound=NumberedWorker)


def number_of(worker: str) -> int:
    """The number in a worker's name."""
    return int(worker.removeprefix("w"))


class NumberedPool(abc.ABC, Generic[W]):
    """Base of a WorkerPool. One event loop; also `async with`."""

    resizable = True
    restartable = True

    def __init__(self, repository: Path | None, workers: int) -> None:
        """`repository`: None if only the workers have it."""
        if workers < 1:
            raise ConfigError(f"a pool needs at least one worker, not {workers}")
        if repository is not None and not repository.is_dir():
            raise ConfigError(f"model repository {repository} is not a folder: build it with `arlo compile`")
        self._count = workers
        self._workers: dict[str, W] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._next = 0  # number of the next worker
        self._started = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @abc.abstractmethod
    async def start(self) -> None:
        """Start all workers and wait until each is live."""

    async def add(self) -> WorkerInfo:
        """Start one more worker, under an id that this pool has not used yet, and wait until it is live."""
        if not self._started:
            raise WorkerError("no worker can be added: the pool is not started")
        worker = self._make(self._next)
        self._next += 1
        try:
            await self._bring_up(worker)
        except BaseException:
            await self._removed(worker)
            raise
        return worker.info()

    async def stop(self) -> None:
        """Stop all workers, gracefully first, then for sure. Idempotent."""
        await asyncio.gather(*self._removals.values(), return_exceptions=True)
        workers, self._workers = self._workers, {}
        self._started = False
        results = await asyncio.gather(*(self._end(worker) for worker in workers.values()), return_exceptions=True)
        await self._close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def workers(self) -> list[WorkerInfo]:
        """State of every worker as last seen, in the order in which they were made. No call is made."""
        return [worker.info() for worker in self._workers.values()]

    async def remove(self, worker: str) -> None:
        """Stop a worker for good; its queued and running requests are answered first.

        The worker is listed until it is gone. It also ends if the call is cancelled.
        """
        if worker not in self._removals:
            end = self._removed(self._worker(worker))
            self._removals[worker] = asyncio.create_task(end, name=f"remove {worker}")
        await asyncio.shield(self._removals[worker])

    async def load(self, worker: str, runtime: str, *, timeout_s: float = 120.0) -> None:
        """Load a runtime and wait until it is ready; WorkerError with Triton's reason."""
        await self._worker(worker).load(runtime, timeout_s=timeout_s)

    async def unload(self, worker: str, runtime: str, *, timeout_s: float = 60.0) -> None:
        """Unload a runtime and wait until Triton confirms it; queued and running requests are answered first."""
        await self._worker(worker).unload(runtime, timeout_s=timeout_s)

    async def _removed(self, worker: W) -> None:
        try:
            await self._end(worker)
            if self._workers.get(worker.id) is worker:
                del self._workers[worker.id]
        finally:
            self._removals.pop(worker.id, None)

    @abc.abstractmethod
    def _make(self, number: int) -> W:
        """A new worker, listed, not started."""

    @abc.abstractmethod
    def _bring_up(self, worker: W) -> Coroutine[Any, Any, None]:
        """Start a worker and wait until it is live."""

    @abc.abstractmethod
    def _end(self, worker: W) -> Coroutine[Any, Any, None]:
        """End a worker for good."""

    async def _close(self) -> None:  # most pools hold nothing else
        """Called by stop() when all workers have ended."""

    def _made(self, worker: W) -> W:
        """Add a worker to the list; returns it."""
        self._workers[worker.id] = worker
        return worker

    def _missing(self) -> list[int]:
        """The lowest unused numbers, one for each missing worker."""
        free = (number for number in itertools.count() if f"w{number}" not in self._workers)
        return list(itertools.islice(free, max(0, self._count - len(self._workers))))

    def _in_order(self) -> None:
        """Sort the workers by number; a later worker gets the next one."""
        self._workers = dict(sorted(self._workers.items(), key=lambda item: number_of(item[0])))
        self._next = 1 + max(map(number_of, self._workers))

    def _worker(self, worker: str) -> W:
        try:
            return self._workers[worker]
        except KeyError:
            known = ", ".join(self._workers) or "none, the pool is not started"
            raise WorkerError(f"no worker is called {worker!r}; there are: {known}") from None
