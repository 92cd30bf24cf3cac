"""Makes what is observed what is desired: each worker's runtime, one small step after the other, no request lost.

Desired: worker -> runtime, and workers that are to go. Observed: what each worker has in memory (Triton's own
repository index) and what the gateway sends to it. Every pass compares the two anew and starts what is missing, so it
does not matter at which step an earlier control plane was killed.

A worker is moved by one task (moves.py). Repairs, which take no capacity away, start at once; replacements start in the
small batches of arlo.planning.placement.replacement, the next batch when the last one is done. One event loop.

The longest runtime is looked after more than the others, as some requests fit no other. While the gateway finds none of
its instances well, or the last one is to be restarted, another worker serves it beside its own runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arlo.catalog.manifest import Manifest
from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.control.events import emit
from arlo.control.http.status import WorkerStep
from arlo.control.reconcile.cover import ActiveInstances, Cover
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.fleet import Fleet
from arlo.control.reconcile.jobs import REPLACE_BACKOFF_S, Jobs, Trouble
from arlo.control.reconcile.moves import Mover, NoRoomError, Probe
from arlo.control.reconcile.overlap import Overlap
from arlo.control.reconcile.probe import warm_up
from arlo.control.reconcile.restarts import Restarts
from arlo.errors import ArloError, WorkerError
from arlo.planning.allocation.curves import capacity
from arlo.planning.placement.replacement import COVER_AFTER, Step, at_a_time, next_step
from arlo.planning.view import RuntimeView, WorkerView
from arlo.workers.pool import StuckError, WorkerInfo, WorkerPool

log = logging.getLogger("arlo.control")

PASS_S = 0.5


class Reconciler:
    """See the module. Life: observe(), bring_up() or resume(), then run() until it is cancelled, then stop()."""

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        pool: WorkerPool,
        deployments: Deployments,
        counters: Counter[str],
        *,
        probe: Probe = warm_up,
    ) -> None:
        self._config = config
        self._pool = pool
        self._deployments = deployments
        self._counters = counters
        self._runtimes = {runtime.name: runtime for runtime in manifest.runtimes}
        self._urgent = False
        self._leaving: set[str] = set()
        self._wake = asyncio.Event()
        self.active = ActiveInstances()  # what the gateway sends to
        self._cover = Cover(manifest.runtimes)
        self._overlap = Overlap(wanted=config.control.make_before_break)
        self._restarts = Restarts()
        self._fleet = Fleet(pool, deployments, counters, runtimes=self._runtimes, grace_s=config.control.worker_grace_s)
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
        self.stats: Callable[[], Any] = lambda: None  # the newest arlo.v1.Stats that was read elsewhere
        self.desired: dict[str, str] = {}
        self.demand: Sequence[float] = ()  # of the last plan, by ascending max_length of all runtimes; orders the steps

    # --- what others ask and tell ---

    def want(self, placement: Mapping[str, str], demand: Sequence[float] = (), *, urgent: bool = False) -> None:
        """From now on this is desired: worker -> runtime; workers left out are emptied. `demand`: see the field.

        `urgent`: what serves now is so unfit that all workers may be moved at a time, as long as each serves on.
        """
        self.desired = dict(placement)
        self._urgent = urgent
        if demand:
            self.demand = tuple(demand)
        self._deployments.always = self._longest()
        self._wake.set()

    def let_go(self, worker: str) -> None:
        """Drain, empty and stop a worker for good."""
        self._leaving.add(worker)
        self.desired.pop(worker, None)
        self._wake.set()

    def recycle(self, worker: str) -> None:
        """Drain a worker, restart its process, and let it serve again."""
        self._restarts.ask(worker)
        self._wake.set()

    def restart_unfit(self, worker: str, reason: str) -> None:
        """As recycle(), for a worker that only a restart can help: wherever it is, and not again for a while."""
        if not self._pool.restartable:
            emit(log, "worker_unfit", level=logging.ERROR, worker=worker, restarted=False, error=reason)
        elif self._restarts.ask_unfit(worker, monotonic_s()):
            emit(log, "worker_unfit", level=logging.WARNING, worker=worker, restarted=True, error=reason)
            self._wake.set()

    def wake(self) -> None:
        """Look again now."""
        self._wake.set()

    @property
    def infos(self) -> Mapping[str, WorkerInfo]:
        """The workers, as last seen."""
        return self._fleet.infos

    @property
    def busy(self) -> bool:
        """Whether a worker is being moved, or is not yet where it should be."""
        return bool(self._jobs.tasks) or any(
            self._deployments.instances.get(worker) != [name] for worker, name in self.desired.items()
        )

    @property
    def leaving(self) -> frozenset[str]:
        """Workers that are being let go."""
        return frozenset(self._leaving)

    def step(self, worker: str) -> tuple[WorkerStep, int]:
        """Where a worker is, and since when (Unix milliseconds)."""
        return self._jobs.step(worker)

    def error(self, worker: str) -> str | None:
        """Why a worker is not where it should be."""
        info, trouble = self._fleet.infos.get(worker), self._jobs.troubles.get(worker)
        return (trouble.error if trouble else None) or (info.error if info else None)

    def usable(self, worker: str, *, grace_s: float = 0.0) -> bool:
        """Whether a plan may give a worker an instance: see Fleet.usable."""
        return worker not in self._leaving and self._fleet.usable(worker, grace_s=grace_s)

    def views(self, *, grace_s: float = 0.0, busy: Mapping[str, float] | None = None) -> list[WorkerView]:
        """All workers but those that are leaving, as planning sees them."""
        return self._fleet.views(grace_s=grace_s, busy=busy or {}, without=self._leaving)

    # --- life ---

    async def observe(self) -> None:
        """Ask the pool; note what changed. WorkerError when it cannot say."""
        for worker in await self._fleet.observe():
            self._jobs.forget(worker)
            self._leaving.discard(worker)
            self._restarts.gone(worker)

    async def resume(self) -> bool:
        """Take over what the gateway serves already; False when that is nothing."""
        found = await self._deployments.adopt()
        for worker, names in found.items():
            loaded = [name for name in names if name in self._fleet.loaded(worker)]
            if loaded:
                self._deployments.instances[worker] = loaded
                self._jobs.set_step(worker, "steady")
        return bool(self._deployments.instances)

    async def bring_up(self) -> None:
        """First start: all workers at once. The first error of a worker is raised, as it is.

        Where something that is wanted is loaded already (the gateway went with an earlier control plane, the workers
        did not), what comes up serves, and run() goes on trying with the rest; an error is raised when nothing does.
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
        """Give up on what is under way. Idempotent."""
        await self._jobs.stop()

    # --- one pass ---

    def _start_tasks(self) -> None:
        now_s = monotonic_s()
        self.active.see(self.stats(), now_s)
        held = {worker for worker in self._fleet.infos if not self._repair(worker, now_s)}
        self._look_after_longest(held | self._jobs.tasks.keys(), now_s)
        if not self._jobs.replacing:
            self._start_replacements(held | self._jobs.tasks.keys(), now_s)

    def _repair(self, worker: str, now_s: float) -> bool:
        """Start what takes no capacity away. False for a worker that cannot be moved now."""
        jobs, ready = self._jobs, self._fleet.ready(worker)
        target = self.desired.get(worker)
        trouble = jobs.trouble(worker, target)
        if worker in jobs.tasks:
            return False
        leaving = worker in self._leaving
        if not ready and not leaving:
            jobs.set_step(worker, "failed")
        if (trouble is not None and now_s < trouble.again_s) or (not ready and not leaving):
            return False
        serving = self._deployments.instances.get(worker, [])
        loaded = self._fleet.loaded(worker)
        restarts = worker in self._restarts.pending
        if leaving:
            if not serving or not ready:
                jobs.start(worker, self._remove(worker), None)
        elif worker == self._cover.worker:
            return False
        elif target is None and self._fleet.left_out(worker):
            return False  # what it has loaded serves, until it is known whether it stays
        elif restarts and self._restarts.unfit(worker) and not (set(serving) & set(loaded) and self._serves(worker)):
            self._restarts.done(worker)
            jobs.start(worker, self._mover.recycle(worker), target, settles=False)
        elif not serving and target is not None:
            self._fill(worker, target, trouble)
        elif target in serving and target not in loaded:
            # It came back without what it had, or a load was lost: nothing is taken away by loading it again.
            jobs.start(worker, self._mover.join(worker, target), target)
        elif target in serving and len(serving) > 1:
            others = [name for name in serving if name != target]
            jobs.start(worker, self._mover.finish(worker, target, others), target)
        elif serving in ([], [target]) and set(loaded) - {target} and not restarts:
            jobs.start(worker, self._mover.tidy(worker, [n for n in loaded if n != target]), target)
        elif serving in ([], [target]) and not restarts:
            jobs.set_step(worker, "steady" if serving else "waiting")
        return True

    def _fill(self, worker: str, target: str, trouble: Trouble | None) -> None:
        """Give a worker that serves nothing its runtime; where that does not come up, the longest one meanwhile."""
        longest = next(iter(self._longest()), target)
        if trouble is not None and trouble.attempts > 1 and longest != target:
            emit(log, "stand_in", level=logging.WARNING, worker=worker, runtime=longest, error=trouble.error)
            trouble.again_s = monotonic_s() + REPLACE_BACKOFF_S[0]
            self._jobs.start(worker, self._mover.join(worker, longest), target, settles=False)
        else:
            self._jobs.start(worker, self._mover.join(worker, target), target)

    def _look_after_longest(self, held: set[str], now_s: float) -> None:
        """Begin or end the cover of the longest runtime, see the module."""
        longest = next(iter(self._longest()), None)
        if longest is None:
            return
        missing_s = self.active.missing_s(longest, now_s)
        pending, covering = self._restarts.pending, self._cover.worker
        if covering is not None:
            others = any(
                name == longest
                and worker != covering
                and worker not in self._jobs.tasks
                and worker not in pending
                and self.active.has(worker, longest)
                for worker, name in self.desired.items()
            )
            if not self._fleet.ready(covering) or others or self.desired.get(covering) == longest:
                self._cover.end(longest)
                self._wake.set()
            return
        last = any(worker not in held and self._irreplaceable(worker) for worker in pending)
        grace_s = self._config.dispatch.unavailable_grace_ms / 1000
        if last or missing_s > COVER_AFTER * grace_s:
            self._begin_cover(longest, held, missing_s, now_s)

    def _begin_cover(self, longest: str, held: set[str], missing_s: float, now_s: float) -> None:
        serving = {
            worker: names[0]
            for worker, names in self._deployments.instances.items()
            if worker not in held | self._leaving | self._restarts.pending
            and longest not in names
            and self.active.has(worker, names[0])
        }
        worker = self._cover.choose(longest, serving, lambda worker: longest in self._fleet.loaded(worker))
        if worker is None:
            return
        self._cover.begin(worker, longest, missing_s=missing_s, restarting=sorted(self._restarts.pending))
        self._counters["covers"] += 1
        if self._overlap.allowed(now_s):
            self._jobs.start(worker, self._mover.stand_by(worker, longest), longest)
        else:
            self._jobs.start(worker, self._mover.replace(worker, longest, overlap=False), longest)

    def _start_replacements(self, held: set[str], now_s: float) -> None:
        instances, overlap = self._deployments.instances, self._overlap.allowed(now_s)
        # A worker that is down, or that the gateway gets no answer of, carries nothing. (Of the latter, those that are
        # where they should be are left out; the others are moved, which takes nothing away.)
        up = [
            worker
            for worker in self._fleet.infos
            if self._fleet.ready(worker)
            and (worker not in instances or self.desired.get(worker) not in instances[worker] or self._serves(worker))
        ]
        current = {worker: instances[worker][0] if self._serves(worker) else None for worker in up}
        if self._start_restart(current, held):
            return
        if not overlap:  # one worker at a time finds out whether a runtime that did not come up does now
            failing = {trouble.target for trouble in self._jobs.troubles.values() if now_s < trouble.again_s}
            held = held | {worker for worker in up if self.desired.get(worker) in failing - {current[worker]}}
        desired = {worker: current[worker] if worker in held else self.desired.get(worker) for worker in up}
        # A worker that is held back, or away, may be the one that is to take over the longest runtime: wait for it.
        heirs = {worker for worker, name in self.desired.items() if name in self._longest()}
        step = self._next_step(current, desired, heirs=bool(heirs & held or heirs - set(up)), overlap=overlap)
        if step is None:
            return
        for change in step.changes:
            if change.worker in held or not instances.get(change.worker):
                continue  # gaining a first runtime takes nothing away: it was started above
            job = self._mover.replace(change.worker, change.after, overlap=overlap, interrupts=step.interrupts)
            self._jobs.start(change.worker, job, self.desired.get(change.worker), replaces=True)

    def _start_restart(self, current: Mapping[str, str | None], held: set[str]) -> bool:
        """Restart one worker that serves; True when there is one."""
        for worker in sorted(self._restarts.pending - held):
            name = current.get(worker)
            there = name is not None and (self.desired.get(worker) == name or self._restarts.unfit(worker))
            if there and not self._irreplaceable(worker):
                self._restarts.done(worker)
                job = self._mover.recycle(worker, interrupts=len(self._fleet.infos) == 1)
                self._jobs.start(worker, job, self.desired.get(worker), replaces=True)
                return True
        return False

    def _next_step(
        self, current: Mapping[str, str | None], desired: Mapping[str, str | None], *, heirs: bool, overlap: bool
    ) -> Step | None:
        control = self._config.control
        runtimes = self._runtime_views()
        return next_step(
            current,
            {worker: name for worker, name in desired.items() if name is not None},
            heirs=heirs,
            runtimes=runtimes,
            demand=self.demand or [0.0] * len(runtimes),
            max_parallel=at_a_time(
                len(self._fleet.infos),
                overlap=overlap,
                urgent=self._urgent,
                max_moving=control.max_moving,
                max_unavailable=control.max_unavailable,
            ),
            overlap=overlap,
        )

    def _runtime_views(self) -> list[RuntimeView]:
        """All runtimes, by ascending max_length."""
        slo_ms = self._config.model.slo_ms
        order = sorted(self._runtimes.values(), key=lambda r: (r.max_length, r.name))
        return [RuntimeView(name=r.name, max_length=r.max_length, capacity=capacity(r, slo_ms)) for r in order]

    def _irreplaceable(self, worker: str) -> bool:
        """Whether it is the only one of several workers that serves the longest requests."""
        longest, now_s = self._longest(), monotonic_s()
        if not longest & set(self._deployments.instances.get(worker, ())):
            return False
        up = [other for other in self._fleet.infos if other != worker and self._fleet.ready(other)]
        return bool(up) and not any(
            self.active.answers(other, name, now_s)
            for other in up
            if other not in self._jobs.tasks
            for name in longest & set(self._deployments.instances.get(other, ()))
        )

    def _serves(self, worker: str) -> bool:
        now_s = monotonic_s()
        return any(self.active.answers(worker, n, now_s) for n in self._deployments.instances.get(worker, [])[:1])

    # --- what went wrong ---

    def _failed_with(self, worker: str, target: str | None, error: Exception) -> bool:
        """True for an error that is dealt with here."""
        now_s = monotonic_s()
        self._cover.give_up(worker)
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

    async def _remove(self, worker: str) -> None:
        served = self._deployments.instances.pop(worker, None)
        if served is not None:  # it died while it was to leave
            await self._deployments.ensure()
        await self._pool.remove(worker)
        self._leaving.discard(worker)
        self._jobs.forget(worker)
        self._counters["workers_removed"] += 1
        emit(log, "worker_removed", worker=worker)

    def _longest(self) -> set[str]:
        placed = [self._runtimes[name] for name in self.desired.values()]
        return {max(placed, key=lambda runtime: runtime.max_length).name} if placed else set()
