"""The endpoints worker pool: Triton servers that run elsewhere, started by docker compose or a node agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from arlo.clock import monotonic_s
from arlo.errors import ConfigError, WorkerError
from arlo.workers.numbered import NumberedPool
from arlo.workers.pool import WorkerInfo, WorkerState
from arlo.workers.triton.admin import TritonAdmin, until_tick

POLL_S = 0.1  # while waiting for a server at the start
CHECK_S = 1.0  # between looks at a server


class EndpointWorker:
    """One server, checked every second between start() and stop(); `info()` is the last observation."""

    def __init__(self, worker_id: str, endpoint: str, metrics_url: str | None, admin_key: str | None) -> None:
        self.id, self.endpoint = worker_id, endpoint
        self._metrics_url, self._admin_key = metrics_url, admin_key
        self._admin: TritonAdmin | None = None
        self._monitor: asyncio.Task[None] | None = None
        self._sightings = 0  # an answer older than the newest change of ours is void
        self._locks: dict[str, asyncio.Lock] = {}
        self._see("stopped")

    async def start(self, timeout_s: float) -> bool:
        """Wait until the server is live; False when it is not in time."""
        self._admin = TritonAdmin(self.endpoint, admin_key=self._admin_key)
        deadline_s = monotonic_s() + timeout_s
        while not await self._admin.is_live():
            if monotonic_s() > deadline_s:
                return False
            await asyncio.sleep(POLL_S)
        await self._observe(self._admin)
        self._monitor = asyncio.create_task(self._watch(self._admin), name=f"monitor of worker {self.id}")
        return True

    async def stop(self) -> None:
        """Stop looking, and leave the server and its runtimes alone. Idempotent."""
        if self._monitor is not None:
            self._monitor.cancel()
            await asyncio.gather(self._monitor, return_exceptions=True)
        admin, self._admin, self._monitor = self._admin, None, None
        if admin is not None:
            await admin.close()
        self._see("stopped")

    def info(self) -> WorkerInfo:
        return self._info

    @property
    def admin(self) -> TritonAdmin:
        """The connection; WorkerError before start()."""
        if self._admin is None:
            raise WorkerError(f"worker {self.id} is not there: the pool is not started")
        return self._admin

    async def load(self, runtime: str, *, timeout_s: float) -> None:
        async with self._locks.setdefault(runtime, asyncio.Lock()):
            await self.admin.load(runtime, timeout_s=timeout_s)
            self._changed(lambda loaded: {*loaded, runtime})

    async def unload(self, runtime: str, *, timeout_s: float) -> None:
        async with self._locks.setdefault(runtime, asyncio.Lock()):
            await self.admin.unload(runtime, timeout_s=timeout_s)
            self._changed(lambda loaded: loaded - {runtime})

    async def _watch(self, admin: TritonAdmin) -> None:
        while True:
            await asyncio.sleep(until_tick(monotonic_s(), CHECK_S))
            await self._observe(admin)

    async def _observe(self, admin: TritonAdmin) -> None:
        before = self._sightings
        try:
            runtimes = await admin.check(timeout_s=2 * CHECK_S)
        except WorkerError as error:
            self._see("failed", error=str(error))
            return
        if runtimes is None:
            self._see("failed", error=f"no Triton server answers at {self.endpoint}")
        elif before == self._sightings:
            self._see("ready", runtimes)

    def _changed(self, change: Callable[[set[str]], set[str]]) -> None:
        self._sightings += 1
        self._see("ready", tuple(sorted(change(set(self._info.runtimes)))))

    def _see(self, state: WorkerState, runtimes: tuple[str, ...] = (), error: str | None = None) -> None:
        self._info = WorkerInfo(
            id=self.id,
            endpoint=self.endpoint,
            metrics_url=self._metrics_url,
            state=state,
            pid=None,
            restarts=0,  # restarts are up to the server's supervisor
            runtimes=runtimes,
            log=None,
            error=error,
        )


class EndpointsPool(NumberedPool[EndpointWorker]):
    """Workers at fixed endpoints (`host:port` of Triton's gRPC port); implements WorkerPool, starts no process.

    Workers are called w0, w1, ... in the order given. The servers must run with explicit model control over the same
    repository. Their operator restarts them: `workers()` then lists a restarted server without runtimes, and the
    caller loads them again. `metrics_urls` maps an endpoint to its Prometheus page.
    """

    resizable = False
    restartable = False

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        metrics_urls: Mapping[str, str] | None = None,
        admin_key: str | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(None, len(endpoints))
        for endpoint in endpoints:
            host, _, port = endpoint.rpartition(":")
            if not host or not port.isdigit():
                raise ConfigError(f"endpoint {endpoint!r} is not host:port")
        if len(set(endpoints)) != len(endpoints):
            raise ConfigError(f"an endpoint is listed twice: {', '.join(endpoints)}")
        self._start_timeout_s = start_timeout_s
        for index, endpoint in enumerate(endpoints):
            self._made(EndpointWorker(f"w{index}", endpoint, (metrics_urls or {}).get(endpoint), admin_key))

    async def start(self) -> None:
        """Wait until every endpoint is live; WorkerError names those that are not live in time."""
        if self._started:
            raise WorkerError("the pool is started already")
        self._started = True
        workers = list(self._workers.values())
        try:
            live = await asyncio.gather(*(worker.start(self._start_timeout_s) for worker in workers))
            if silent := [worker.endpoint for worker, is_live in zip(workers, live, strict=True) if not is_live]:
                raise WorkerError(
                    f"no live Triton server within {self._start_timeout_s:g} s at {', '.join(silent)}: "
                    "check that they run and can be reached from here"
                )
        except BaseException:
            await self.stop()
            raise

    async def add(self) -> WorkerInfo:
        """Raise a WorkerError: this pool cannot start servers."""
        raise WorkerError("a pool of fixed endpoints has no more workers: add the server to workers.endpoints")

    async def restart(self, worker: str) -> None:
        """Unload everything; this pool cannot restart the process."""
        for runtime in await self._worker(worker).admin.ready_runtimes():
            await self.unload(worker, runtime)

    async def stop(self) -> None:
        """Close the connections, and leave the servers and their runtimes alone. Idempotent."""
        self._started = False
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))

    def _make(self, number: int) -> EndpointWorker:
        raise AssertionError("no worker is added")

    def _bring_up(self, worker: EndpointWorker) -> Coroutine[Any, Any, None]:
        raise AssertionError("no worker is added")

    def _end(self, worker: EndpointWorker) -> Coroutine[Any, Any, None]:
        raise WorkerError(f"worker {worker.id} has a fixed endpoint: take it out of workers.endpoints to stop using it")
