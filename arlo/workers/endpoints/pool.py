"""The endpoints worker pool: Triton servers that run elsewhere, started by docker compose or a node agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from arlo.clock import monotonic_s
from arlo.errors import ConfigError, WorkerError
from arlo.workers.pool import WorkerInfo
from arlo.workers.triton.admin import TritonAdmin, until_tick

POLL_S = 0.1  # while waiting for a server at the start
CHECK_S = 1.0  # between looks at a server


class EndpointsPool:
    """Workers at fixed endpoints (`host:port` of Triton's gRPC port); implements WorkerPool, starts no process.

    Workers are called w0, w1, ... in the order given. The servers must run with explicit model control over the same
    repository. Their operator restarts them: `workers()` then lists a restarted server without runtimes, and the
    caller loads them again. The pool checks each server every second; `workers()` returns the last observation.
    `stop` closes connections and leaves the servers and their runtimes alone. `metrics_urls` maps an endpoint to its
    Prometheus page.
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
        if not endpoints:
            raise ConfigError("a pool needs at least one endpoint")
        for endpoint in endpoints:
            host, _, port = endpoint.rpartition(":")
            if not host or not port.isdigit():
                raise ConfigError(f"endpoint {endpoint!r} is not host:port")
        if len(set(endpoints)) != len(endpoints):
            raise ConfigError(f"an endpoint is listed twice: {', '.join(endpoints)}")
        self._endpoints = {f"w{index}": endpoint for index, endpoint in enumerate(endpoints)}
        self._metrics_urls = dict(metrics_urls or {})
        self._admin_key = admin_key
        self._start_timeout_s = start_timeout_s
        self._admins: dict[str, TritonAdmin] = {}
        self._seen: dict[str, WorkerInfo] = {}
        self._sightings: dict[str, int] = {}  # an answer older than the newest change of ours is void
        self._monitors: list[asyncio.Task[None]] = []
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    async def __aenter__(self) -> EndpointsPool:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Wait until every endpoint is live; WorkerError names those that are not live in time."""
        if self._admins:
            raise WorkerError("the pool is started already")
        for worker, endpoint in self._endpoints.items():
            self._admins[worker] = TritonAdmin(endpoint, admin_key=self._admin_key)
        try:
            live = await asyncio.gather(*(self._wait_live(admin) for admin in self._admins.values()))
        except BaseException:
            await self.stop()
            raise
        silent = [endpoint for endpoint, is_live in zip(self._endpoints.values(), live, strict=True) if not is_live]
        if silent:
            await self.stop()
            raise WorkerError(
                f"no live Triton server within {self._start_timeout_s:g} s at {', '.join(silent)}: "
                "check that they run and can be reached from here"
            )
        await asyncio.gather(*(self._observe(worker) for worker in self._endpoints))
        self._monitors = [
            asyncio.create_task(self._watch(worker), name=f"monitor of worker {worker}") for worker in self._endpoints
        ]

    async def workers(self) -> list[WorkerInfo]:
        """The last observed state of every worker: ready when its server answers, else failed, with the reason."""
        return [self._seen.get(worker) or self._info(worker, "stopped") for worker in self._endpoints]

    async def add(self) -> WorkerInfo:
        """Raise a WorkerError: this pool cannot start servers."""
        raise WorkerError("a pool of fixed endpoints has no more workers: add the server to workers.endpoints")

    async def remove(self, worker: str) -> None:
        """Raise a WorkerError: this pool cannot stop servers."""
        raise WorkerError(f"worker {worker} has a fixed endpoint: take it out of workers.endpoints to stop using it")

    async def restart(self, worker: str) -> None:
        """Unload everything; this pool cannot restart the process."""
        admin = self._admin(worker)
        for runtime in await admin.ready_runtimes():
            await self.unload(worker, runtime)

    async def load(self, worker: str, runtime: str, *, timeout_s: float = 120.0) -> None:
        """Load a runtime and wait until it is ready; WorkerError with Triton's reason."""
        async with self._lock(worker, runtime):
            await self._admin(worker).load(runtime, timeout_s=timeout_s)
            self._changed(worker, lambda loaded: {*loaded, runtime})

    async def unload(self, worker: str, runtime: str, *, timeout_s: float = 60.0) -> None:
        """Unload a runtime and wait until Triton confirms it; queued and running requests are answered first."""
        async with self._lock(worker, runtime):
            await self._admin(worker).unload(runtime, timeout_s=timeout_s)
            self._changed(worker, lambda loaded: loaded - {runtime})

    async def stop(self) -> None:
        """Close the connections. Idempotent."""
        monitors, self._monitors = self._monitors, []
        for monitor in monitors:
            monitor.cancel()
        await asyncio.gather(*monitors, return_exceptions=True)
        admins, self._admins = self._admins, {}
        self._seen.clear()
        await asyncio.gather(*(admin.close() for admin in admins.values()))

    async def _wait_live(self, admin: TritonAdmin) -> bool:
        deadline_s = monotonic_s() + self._start_timeout_s
        while not await admin.is_live():
            if monotonic_s() > deadline_s:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _watch(self, worker: str) -> None:
        while True:
            await asyncio.sleep(until_tick(monotonic_s(), CHECK_S))
            await self._observe(worker)

    async def _observe(self, worker: str) -> None:
        before = self._sightings.get(worker, 0)
        try:
            runtimes = await self._admin(worker).check(timeout_s=2 * CHECK_S)
        except WorkerError as error:
            self._seen[worker] = self._info(worker, "failed", error=str(error))
            return
        if runtimes is None:
            silent = f"no Triton server answers at {self._endpoints[worker]}"
            self._seen[worker] = self._info(worker, "failed", error=silent)
        elif before == self._sightings.get(worker, 0):
            self._seen[worker] = self._info(worker, "ready", runtimes=runtimes)

    def _changed(self, worker: str, change: Callable[[set[str]], set[str]]) -> None:
        self._sightings[worker] = self._sightings.get(worker, 0) + 1
        seen = self._seen.get(worker)
        if seen is not None:
            runtimes = tuple(sorted(change(set(seen.runtimes))))
            self._seen[worker] = self._info(worker, "ready", runtimes=runtimes)

    def _info(
        self,
        worker: str,
        state: Literal["ready", "failed", "stopped"],
        *,
        runtimes: tuple[str, ...] = (),
        error: str | None = None,
    ) -> WorkerInfo:
        endpoint = self._endpoints[worker]
        return WorkerInfo(
            id=worker,
            endpoint=endpoint,
            metrics_url=self._metrics_urls.get(endpoint),
            state=state,
            pid=None,
            restarts=0,  # restarts are up to the server's supervisor
            runtimes=runtimes,
            log=None,
            error=error,
        )

    def _lock(self, worker: str, runtime: str) -> asyncio.Lock:
        return self._locks.setdefault((worker, runtime), asyncio.Lock())

    def _admin(self, worker: str) -> TritonAdmin:
        try:
            return self._admins[worker]
        except KeyError:
            known = ", ".join(self._admins) or "none, the pool is not started"
            raise WorkerError(f"no worker is called {worker!r}; there are: {known}") from None
