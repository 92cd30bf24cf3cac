"""Moves one worker from one runtime to another without losing a request.

    drain in the gateway -> unload -> wait until Triton says unloaded -> load -> warm up -> verify -> join

With make_before_break the new runtime is loaded, warmed up and joined first, and the old one drained after that: no
capacity is lost. Where the worker's memory does not hold two engines that load fails, and the caller uses the order
above for a while (overlap.py).

Each function may be cancelled, or its process killed, between any two steps: that leaves an instance too many or too
few on this worker, which the reconciler sees and repairs. Every function raises ArloError when a step fails.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from arlo.catalog.manifest import Manifest
from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.control.events import emit
from arlo.control.http.status import WorkerStep
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.overlap import Overlap, is_out_of_memory
from arlo.control.reconcile.probe import warm_up
from arlo.control.reconcile.restarts import Restarts
from arlo.errors import WorkerError
from arlo.workers.pool import WorkerInfo, WorkerPool

log = logging.getLogger("arlo.control")

Probe = Callable[..., Awaitable[None]]  # same signature as warm_up

WARMUP_REQUESTS = 3  # requests that a runtime answers before it joins; its answers are checked
UNLOAD_TIMEOUT_S = 30.0  # its last request has been answered by then; an unload that takes longer never ends


class NoRoomError(WorkerError):
    """A worker's memory does not hold two engines."""


class Mover:
    """See the module. `set_step` is called with each worker's step."""

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        pool: WorkerPool,
        deployments: Deployments,
        counters: Counter[str],
        *,
        restarts: Restarts,
        overlap: Overlap,
        set_step: Callable[[str, WorkerStep], None],
        probe: Probe = warm_up,
    ) -> None:
        self._config = config
        self._manifest = manifest
        self._runtimes = {runtime.name: runtime for runtime in manifest.runtimes}
        self._pool = pool
        self._deployments = deployments
        self._counters = counters
        self._restarts = restarts
        self._overlap = overlap
        self._set_step = set_step
        self._probe = probe

    async def prepare(self, worker: str, name: str) -> None:
        """Load, warm up and verify a runtime: after this the gateway may send to it.

        On a worker that serves nothing, other loaded runtimes are unloaded first: there may be no room for both.
        """
        began_s = monotonic_s()
        info = await self._info(worker)
        others = [other for other in info.runtimes if other in self._runtimes and other != name]
        if others and not self._deployments.instances.get(worker):
            await self._unload(worker, others)
        if name not in info.runtimes:
            self._set_step(worker, "loading")
            try:
                await self._pool.load(worker, name, timeout_s=self._config.workers.load_timeout_s)
            except WorkerError as error:
                self._counters["load_failures"] += 1
                beside = bool(self._deployments.instances.get(worker))
                if not (beside and is_out_of_memory(str(error))):
                    self._restarts.load_failed(worker, name)
                raise
            self._counters["loads"] += 1
        endpoint = (await self._info(worker)).endpoint
        if endpoint != self._deployments.endpoints.get(worker):
            raise WorkerError(f"worker {worker} went to {endpoint} while {name} was being loaded on it")
        self._set_step(worker, "warming")
        try:
            for part in self._runtimes[name].parts:
                await self._probe(
                    endpoint,
                    self._manifest.of(part),
                    part,
                    requests=WARMUP_REQUESTS,
                    timeout_s=self._config.workers.load_timeout_s,
                )
        except WorkerError:
            self._restarts.load_failed(worker, name)
            raise
        self._restarts.loaded(worker, name)
        emit(log, "runtime_loaded", worker=worker, runtime=name, seconds=round(monotonic_s() - began_s, 3))

    async def join(self, worker: str, name: str) -> None:
        """Prepare a runtime on a worker that serves nothing (or has lost it), and let the gateway send to it."""
        await self.prepare(worker, name)
        await self._enter(worker, name)
        self._set_step(worker, "steady")

    async def take_down(self, worker: str, names: list[str], *, interrupts: bool = False) -> None:
        """Drain instances, take them out of the deployment, and free their memory."""
        await self._leave(worker, names, interrupts=interrupts)
        await self._unload(worker, names)
        self._set_step(worker, "steady" if self._deployments.instances.get(worker) else "waiting")

    async def tidy(self, worker: str, names: list[str]) -> None:
        """Unload runtimes that serve nothing."""
        await self._unload(worker, names)

    async def stand_by(self, worker: str, name: str) -> None:
        """Let a worker serve an additional runtime. NoRoomError when its memory does not hold both."""
        await self._prepare_beside(worker, name)
        await self._enter(worker, name)
        self._set_step(worker, "steady")

    async def finish(self, worker: str, name: str, others: list[str]) -> None:
        """Finish an interrupted make-before-break: `name` serves, and every other runtime is taken down."""
        await self._enter(worker, name)
        await self.take_down(worker, others)

    async def replace(self, worker: str, name: str | None, *, overlap: bool, interrupts: bool = False) -> None:
        """Move a serving worker to another runtime, or to none.

        `interrupts`: the last instance of the longest runtime may be taken out of service, as there is no other way.
        NoRoomError, with the old runtime still serving, when `overlap` needs more memory than there is.
        """
        before = [old for old in self._deployments.instances.get(worker, []) if old != name]
        began_s = monotonic_s()
        emit(log, "replacement_started", worker=worker, before=before, after=name)
        gap_s = 0.0
        if name is None:
            await self.take_down(worker, before, interrupts=interrupts)
        elif overlap:
            await self._prepare_beside(worker, name)
            await self._enter(worker, name)
            await self.take_down(worker, before, interrupts=interrupts)
        else:
            gap_s = await self._break_before_make(worker, before, name, interrupts=interrupts)
        self._counters["replacements"] += 1
        self._set_step(worker, "steady" if name is not None else "waiting")
        emit(
            log,
            "worker_moved",
            worker=worker,
            before=before,
            after=name,
            seconds=round(monotonic_s() - began_s, 3),
            out_of_service_s=round(gap_s, 3),
        )

    async def recycle(self, worker: str, *, interrupts: bool = False) -> None:
        """Restart a worker's process and let it serve its runtimes again."""
        names = list(self._deployments.instances.get(worker, []))
        began_s = monotonic_s()
        await self._leave(worker, names, interrupts=interrupts)
        self._set_step(worker, "recycling")
        await self._pool.restart(worker)
        self._counters["workers_recycled"] += 1
        for name in names:
            await self.join(worker, name)
        emit(log, "worker_recycled", worker=worker, runtimes=names, seconds=round(monotonic_s() - began_s, 3))

    # --- parts ---

    async def _prepare_beside(self, worker: str, name: str) -> None:
        try:
            await self.prepare(worker, name)
            self._overlap.worked()
        except WorkerError as error:
            if is_out_of_memory(str(error)):
                raise NoRoomError(str(error)) from None
            raise

    async def _break_before_make(self, worker: str, before: list[str], name: str, *, interrupts: bool) -> float:
        """Returns the seconds from drain to join. If the new runtime does not come up, the old one is restored."""
        began_s = monotonic_s()
        await self._leave(worker, before, interrupts=interrupts)
        await self._unload(worker, before)
        try:
            await self.prepare(worker, name)
        except WorkerError as error:
            for old in before:
                emit(log, "put_back", level=logging.WARNING, worker=worker, runtime=old, error=str(error))
                await self.join(worker, old)
            raise
        await self._enter(worker, name)
        return monotonic_s() - began_s

    async def _enter(self, worker: str, name: str) -> None:
        self._set_step(worker, "joining")
        names = self._deployments.instances.setdefault(worker, [])
        if name not in names:
            names.append(name)
        await self._deployments.ensure()
        await self._deployments.until_active([(worker, name)])

    async def _leave(self, worker: str, names: list[str], *, interrupts: bool) -> None:
        self._set_step(worker, "draining")
        if not interrupts and await self._deployments.is_last(worker, names):
            raise WorkerError(f"worker {worker} stays: by now no other one serves the longest requests")
        left = [name for name in self._deployments.instances.get(worker, []) if name not in names]
        if left:
            self._deployments.instances[worker] = left
        else:
            self._deployments.instances.pop(worker, None)
        await self._deployments.ensure()
        await self._emptied(worker, names)

    async def _emptied(self, worker: str, names: list[str]) -> None:
        # No request outlives its deadline by much, so neither does the wait.
        timeout_s = max(model.timeout_ms for model in self._config.models) / 1000 + 5
        await self._deployments.until_gone([(worker, name) for name in names], timeout_s=timeout_s)

    async def _unload(self, worker: str, names: list[str]) -> None:
        await self._emptied(worker, names)  # (an earlier control plane may have been killed while they drained)
        self._set_step(worker, "unloading")
        for name in names:
            await self._pool.unload(worker, name, timeout_s=UNLOAD_TIMEOUT_S)

    async def _info(self, worker: str) -> WorkerInfo:
        for info in await self._pool.workers():
            if info.id == worker:
                return info
        raise WorkerError(f"worker {worker} is gone")
