"""A worker pool that treats a bundle like any other runtime: it is loaded when all its parts are."""

from __future__ import annotations

import dataclasses

from arlo.catalog.manifest import Manifest
from arlo.workers.pool import WorkerInfo, WorkerPool


class BundledPool:
    """Wraps a pool so that its workers hold the bundles of a manifest; the rest is unchanged. See WorkerPool."""

    def __init__(self, pool: WorkerPool, manifest: Manifest) -> None:
        self._pool = pool
        self._parts = {runtime.name: [part.name for part in runtime.parts] for runtime in manifest.runtimes}
        self.resizable = pool.resizable
        self.restartable = pool.restartable

    async def start(self) -> None:
        await self._pool.start()

    async def workers(self) -> list[WorkerInfo]:
        return [self._seen(info) for info in await self._pool.workers()]

    async def add(self) -> WorkerInfo:
        return self._seen(await self._pool.add())

    async def remove(self, worker: str) -> None:
        await self._pool.remove(worker)

    async def restart(self, worker: str) -> None:
        """Where its process cannot be restarted, our runtimes are unloaded; what else it serves stays."""
        if self._pool.restartable:
            return await self._pool.restart(worker)
        there = {info.id: info.runtimes for info in await self._pool.workers()}.get(worker, ())
        for part in {part for parts in self._parts.values() for part in parts}.intersection(there):
            await self._pool.unload(worker, part)

    async def load(self, worker: str, runtime: str, *, timeout_s: float = 120.0) -> None:
        """Its parts that are not there yet, one after the other; `timeout_s` for each."""
        parts = self._parts.get(runtime, [runtime])
        there = {info.id: info.runtimes for info in await self._pool.workers()}.get(worker, ())
        for part in parts:
            if part in there and len(parts) > 1:
                continue
            await self._pool.load(worker, part, timeout_s=timeout_s)

    async def unload(self, worker: str, runtime: str, *, timeout_s: float = 60.0) -> None:
        for part in self._parts.get(runtime, [runtime]):
            await self._pool.unload(worker, part, timeout_s=timeout_s)

    async def stop(self) -> None:
        await self._pool.stop()

    def _seen(self, info: WorkerInfo) -> WorkerInfo:
        loaded = set(info.runtimes)
        whole = {name for name, parts in self._parts.items() if loaded.issuperset(parts)}
        return dataclasses.replace(info, runtimes=tuple(sorted(whole | loaded)))
