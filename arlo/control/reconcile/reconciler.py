"""Brings the observed state to the desired one: each worker's runtime, in small steps, without losing a request.

Desired: worker -> runtime, and workers that are to go. Observed: the runtimes in each worker's memory (Triton's
repository index) and the instances that the gateway sends to (situation.py). Every pass compares the two and starts the
missing steps, so it does not matter at which step an earlier control plane was killed.

A worker is moved by one task (moves.py), which a pass starts (steps.py). One event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arlo.clock import monotonic_s
from arlo.control.events import emit
from arlo.control.http.status import WorkerStep
from arlo.control.mode import ServingMode
from arlo.control.reconcile import steps
from arlo.control.reconcile.active import ActiveInstances
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.fleet import Fleet
from arlo.control.reconcile.jobs import Jobs
from arlo.control.reconcile.moves import Mover, NoRoomError, Probe
from arlo.control.reconcile.overlap import Overlap
from arlo.control.reconcile.probe import warm_up
from arlo.control.reconcile.restarts import Restarts
from arlo.control.reconcile.situation import Desired, Situation
from arlo.errors import ArloError, WorkerError
from arlo.planning.view import WorkerView
from arlo.workers.pool import StuckError, WorkerInfo, WorkerPool

log = logging.getLogger("arlo.control")

PASS_S = 0.5


class Reconciler:
    """See the module. Life: observe(), bring_up() or resume(), then run() until it is cancelled, then stop()."""

    def __init__(
        self,
        mode: ServingMode,
        pool: WorkerPool,
        deployments: Deployments,
        counters: Counter[str],
        *,
        probe: Probe = warm_up,
    ) -> None:
        config, manifest = mode.config, mode.manifest
        self._pool = pool
        self._deployments = deployments
        self._counters = counters
        self._wake = asyncio.Event()
        self.active = ActiveInstances()  # the instances that the gateway sends to
        self.stats: Callable[[], Any] = lambda: None  # the newest arlo.v1.Stats that was read elsewhere
        runtimes = {runtime.name: runtime for runtime in manifest.runtimes}
        self._wanted = Desired(runtimes, by_model=mode.dedicated)
        self._overlap = Overlap(wanted=config.control.make_before_break)
        self._restarts = Restarts()
        self._fleet = Fleet(pool, deployments, counters, runtimes=runtimes)
        self._jobs = Jobs(deployments, counters, failed_with=self._failed_with, ended=self._wake.set)
        self._mover = Mover(
            config,
            manifest,
            pool,
            deployments,
            counters,
            restarts=self._restarts,
            overlap=self._overlap,
            set_step=self._jobs.set_step,
            probe=probe,
        )
        self._now = Situation(
            config=config,
            pool=pool,
            desired=self._wanted,
            fleet=self._fleet,
            deployments=deployments,
            active=self.active,
            restarts=self._restarts,
            overlap=self._overlap,
            jobs=self._jobs,
            mover=self._mover,
            counters=counters,
            wake=self._wake.set,
        )

    # --- queries and orders ---

    def want(self, placement: Mapping[str, str], demand: Sequence[float] = (), *, urgent: bool = False) -> None:
        """Set the desired placement, worker -> runtime; workers left out are emptied. `demand`: see Desired.

        `urgent`: the current placement is so unfit that all workers may move at once, as long as each keeps serving.
        """
        self._wanted.placement = dict(placement)
        self._wanted.urgent = urgent
        if demand:
            self._wanted.demand = tuple(demand)
        self._deployments.always = self._wanted.longest()
        self._wake.set()

    def let_go(self, worker: str) -> None:
        """Drain, empty and stop a worker for good."""
        self._wanted.leaving.add(worker)
        self._wanted.placement.pop(worker, None)
        self._wake.set()

    def recycle(self, worker: str) -> None:
        """Drain a worker, restart its process, and let it serve again."""
        self._restarts.ask(worker)
        self._wake.set()

    def restart_unfit(self, worker: str, reason: str) -> None:
        """Restart a worker that nothing else helps, in any state, but not again for a while; see recycle()."""
        if not self._pool.restartable:
            emit(log, "worker_unfit", level=logging.ERROR, worker=worker, restarted=False, error=reason)
        elif self._restarts.ask_unfit(worker, monotonic_s()):
            emit(log, "worker_unfit", level=logging.WARNING, worker=worker, restarted=True, error=reason)
            self._wake.set()

    def wake(self) -> None:
        """Run another pass now."""
        self._wake.set()

    @property
    def desired(self) -> Mapping[str, str]:
        """The desired placement, worker -> runtime."""
        return self._wanted.placement

    @property
    def kept(self) -> frozenset[str]:
        """Runtimes that must always be served."""
        return frozenset(self._wanted.longest())

    @property
    def infos(self) -> Mapping[str, WorkerInfo]:
        """The workers, as last observed."""
        return self._fleet.infos

    @property
    def busy(self) -> bool:
        """Whether a worker is being moved, or has not reached its target yet."""
        return bool(self._jobs.tasks) or any(
            self._deployments.instances.get(worker) != [name] for worker, name in self.desired.items()
        )

    @property
    def leaving(self) -> frozenset[str]:
        """Workers that are being let go."""
        return frozenset(self._wanted.leaving)

    def step(self, worker: str) -> tuple[WorkerStep, int]:
        """The step that a worker is at, and since when (Unix milliseconds)."""
        return self._jobs.step(worker)

    def error(self, worker: str) -> str | None:
        """The reason why a worker has not reached its target."""
        info, trouble = self._fleet.infos.get(worker), self._jobs.troubles.get(worker)
        return (trouble.error if trouble else None) or (info.error if info else None)

    def usable(self, worker: str, *, grace_s: float = 0.0) -> bool:
        """Whether a plan may give a worker an instance: see Fleet.usable."""
        return worker not in self._wanted.leaving and self._fleet.usable(worker, grace_s=grace_s)

    def views(self, *, grace_s: float = 0.0, busy: Mapping[str, float] | None = None) -> list[WorkerView]:
        """All workers except leaving ones, as planning sees them."""
        return self._fleet.views(grace_s=grace_s, busy=busy or {}, without=self._wanted.leaving)

    # --- life ---

    async def observe(self) -> None:
        """Poll the pool and note changes. WorkerError when the pool fails."""
        for worker in await self._fleet.observe():
            self._jobs.forget(worker)
            self._wanted.leaving.discard(worker)
            self._restarts.gone(worker)

    async def resume(self) -> bool:
        """Take over the runtimes that the gateway serves already; False when there are none."""
        found = await self._deployments.adopt()
        for worker, names in found.items():
            loaded = [name for name in names if name in self._fleet.loaded(worker)]
            if loaded:
                self._deployments.instances[worker] = loaded
                self._jobs.set_step(worker, "steady")
        return bool(self._deployments.instances)

    async def bring_up(self) -> None:
        """Start all workers at once for the first time. The first error of a worker is raised unchanged.

        If some wanted runtime is loaded already (the gateway ended with an earlier control plane, the workers did not),
        the runtimes that come up serve, and run() keeps retrying the rest; an error is raised when none does.
        """
        wanted = list(self.desired.items())
        again = any(name in self._fleet.loaded(worker) for worker, name in wanted)
        jobs = [asyncio.create_task(self._mover.prepare(worker, name)) for worker, name in wanted]
        try:
            results = await asyncio.gather(*jobs, return_exceptions=again)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        ready = [pair for pair, result in zip(wanted, results, strict=True) if result is None]
        for (worker, name), result in zip(wanted, results, strict=True):
            if isinstance(result, ArloError) and ready:
                self._jobs.failed(worker, name, str(result))
            elif isinstance(result, BaseException):
                raise result
        self._deployments.instances = {worker: [name] for worker, name in ready}
        await self._deployments.ensure()
        await self._deployments.until_active(ready)
        for worker in self._fleet.infos.keys() - self._jobs.troubles.keys():
            self._jobs.set_step(worker, "steady" if worker in self.desired else "waiting")

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PASS_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.observe()
            except WorkerError as error:
                emit(log, "workers_unknown", level=logging.ERROR, error=str(error))
                continue
            self._start_tasks()

    async def stop(self) -> None:
        """Cancel all running steps. Idempotent."""
        await self._jobs.stop()

    def _start_tasks(self) -> None:
        """Run one pass: start the missing steps."""
        now_s = monotonic_s()
        self.active.see(self.stats(), now_s)
        held = {worker for worker in self._fleet.infos if not steps.repair(self._now, worker, now_s)}
        steps.cover(self._now, held | self._jobs.tasks.keys(), now_s)
        if not self._jobs.replacing:
            steps.replace(self._now, held | self._jobs.tasks.keys(), now_s)

    # --- errors ---

    def _failed_with(self, worker: str, target: str | None, error: Exception) -> bool:
        """Handle an error; True if nothing else has to."""
        now_s = monotonic_s()
        if self._now.cover.worker == worker:  # the runtime did not come up on it
            self._now.cover.worker = None
        if isinstance(error, NoRoomError):
            pause_s = self._overlap.no_room(now_s)
            self._counters["no_room_for_two"] += 1
            emit(
                log,
                "no_room_for_two",
                level=logging.WARNING,
                worker=worker,
                runtime=target,
                again_in_s=pause_s,
                error=str(error),
            )
            self._jobs.set_step(worker, "steady")
            return True
        elsewhere = {name for other in self._fleet.infos if other != worker for name in self._fleet.loaded(other)}
        serves = bool(self._deployments.instances.get(worker))
        stuck = isinstance(error, StuckError)
        if stuck or self._restarts.cannot_load(worker, elsewhere=elsewhere, serves=serves):
            self.restart_unfit(worker, str(error))
        return False
