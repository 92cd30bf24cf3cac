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
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from arlo.catalog.manifest import Manifest
from arlo.clock import monotonic_s, unix_s
from arlo.config import Config
from arlo.control.events import emit
from arlo.control.http.status import WorkerStep
from arlo.control.reconcile.cover import ActiveInstances
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.moves import Mover, NoRoomError, Probe
from arlo.control.reconcile.placement import capacity
from arlo.control.reconcile.probe import warm_up
from arlo.errors import ArloError, WorkerError
from arlo.planning.placement.replacement import replacement_plan
from arlo.planning.view import RuntimeView, WorkerView
from arlo.workers.pool import WorkerInfo, WorkerPool

log = logging.getLogger("arlo.control")

PASS_S = 0.5
BACKOFF_S = (0.2, 10.0)  # of a worker that does not get where it should: first, longest
REPLACE_BACKOFF_S = (1.0, 120.0)  # the same for one that serves something else meanwhile: trying may cost capacity
COVER_AFTER = 0.25  # of the time that a request waits for an instance that fits it


@dataclasses.dataclass(slots=True)
class Trouble:
    """A worker that did not get where it should, and when to try again."""

    target: str | None
    error: str
    delay_s: float
    again_s: float
    attempts: int


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
        self._manifest = manifest
        self._pool = pool
        self._deployments = deployments
        self._counters = counters
        self._runtimes = {runtime.name: runtime for runtime in manifest.runtimes}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._replacing: set[str] = set()  # workers whose task takes capacity away
        self._troubles: dict[str, Trouble] = {}
        self._overlap = config.control.make_before_break
        self._urgent = False
        self._leaving: set[str] = set()
        self._recycle: set[str] = set()
        self._wake = asyncio.Event()
        self._cover: str | None = None  # worker that serves the longest runtime beside its own, or instead of it
        self._active = ActiveInstances()
        self.stats: Callable[[], Any] = lambda: None  # the newest arlo.v1.Stats that somebody else has read
        self._steps: dict[str, tuple[WorkerStep, int]] = {}
        self._away_since_s: dict[str, float] = {}
        self.infos: dict[str, WorkerInfo] = {}
        self.desired: dict[str, str] = {}
        self.demand: Sequence[float] = ()  # of the last plan, by ascending max_length of all runtimes; orders the steps
        self._mover = Mover(config, manifest, pool, deployments, counters, set_step=self._set_step, probe=probe)

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
        self._recycle.add(worker)
        self._wake.set()

    def wake(self) -> None:
        """Look again now."""
        self._wake.set()

    @property
    def busy(self) -> bool:
        """Whether a worker is being moved, or is not yet where it should be."""
        return bool(self._tasks) or any(
            self._deployments.instances.get(worker) != [name] for worker, name in self.desired.items()
        )

    @property
    def leaving(self) -> frozenset[str]:
        """Workers that are being let go."""
        return frozenset(self._leaving)

    def step(self, worker: str) -> tuple[WorkerStep, int]:
        """Where a worker is, and since when (Unix milliseconds)."""
        return self._steps.get(worker, ("waiting", 0))

    def error(self, worker: str) -> str | None:
        """Why a worker is not where it should be."""
        info, trouble = self.infos.get(worker), self._troubles.get(worker)
        return (trouble.error if trouble else None) or (info.error if info else None)

    def usable(self, worker: str, *, grace_s: float = 0.0) -> bool:
        """Whether a worker can carry an instance: it is ready, or has been away for less than `grace_s`."""
        if worker in self._leaving or worker not in self.infos:
            return False
        away = self._away_since_s.get(worker)
        return away is None or monotonic_s() - away < grace_s

    def views(self, *, grace_s: float = 0.0, busy: Mapping[str, float] | None = None) -> list[WorkerView]:
        """All workers but those that are leaving, as planning sees them."""
        shares = busy or {}
        return [
            WorkerView(
                id=worker,
                usable=self.usable(worker, grace_s=grace_s),
                loaded=tuple(name for name in info.runtimes if name in self._runtimes),
                serving=next(iter(self._deployments.instances.get(worker, ())), None),
                busy=shares.get(worker, 0.0),
            )
            for worker, info in self.infos.items()
            if worker not in self._leaving
        ]

    # --- life ---

    async def observe(self) -> None:
        """Ask the pool; note what changed. WorkerError when it cannot say."""
        now_s = monotonic_s()
        infos = {info.id: info for info in await self._pool.workers()}
        moved = False
        for worker, info in infos.items():
            self._note_changes(self.infos.get(worker), info)
            if info.state == "ready":
                self._away_since_s.pop(worker, None)
            else:
                self._away_since_s.setdefault(worker, now_s)
            if self._deployments.endpoints.get(worker) != info.endpoint:
                # What served elsewhere is gone; what is loaded here joins like anything that was loaded.
                moved = self._deployments.instances.pop(worker, None) is not None or moved
                self._deployments.endpoints[worker] = info.endpoint
        for worker in self.infos.keys() - infos.keys():
            for notes in (self._away_since_s, self._deployments.endpoints, self._steps, self._troubles):
                notes.pop(worker, None)
            self._leaving.discard(worker)
            self._recycle.discard(worker)
            moved = self._deployments.instances.pop(worker, None) is not None or moved
        self.infos = infos
        if moved:  # Ray started a worker on another node, or one is gone for good
            with contextlib.suppress(ArloError):
                await self._deployments.ensure()

    async def resume(self) -> bool:
        """Take over what the gateway serves already; False when that is nothing."""
        found = await self._deployments.adopt()
        for worker, names in found.items():
            loaded = [name for name in names if name in self.infos[worker].runtimes]
            if loaded:
                self._deployments.instances[worker] = loaded
                self._set_step(worker, "steady")
        return bool(self._deployments.instances)

    async def bring_up(self) -> None:
        """First start: all workers at once. The first error of a worker is raised, as it is.

        Where something that is wanted is loaded already (the gateway went with an earlier control plane, the workers
        did not), what comes up serves, and run() goes on trying with the rest; an error is raised when nothing does.
        """
        wanted = list(self.desired.items())
        again = any(name in self.infos[worker].runtimes for worker, name in wanted)
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
                self._failed(worker, name, str(result))
            elif isinstance(result, BaseException):
                raise result
        self._deployments.instances = {worker: [name] for worker, name in ready}
        await self._deployments.ensure()
        await self._deployments.until_active(ready)
        for worker in self.infos.keys() - self._troubles.keys():
            self._set_step(worker, "steady" if worker in self.desired else "waiting")

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
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    # --- one pass ---

    def _start_tasks(self) -> None:
        now_s = monotonic_s()
        instances = self._deployments.instances
        self._active.see(self.stats(), now_s)
        held: set[str] = set()  # workers that cannot be moved now
        for worker, info in self.infos.items():
            target = self.desired.get(worker)
            trouble = self._troubles.get(worker)
            if trouble is not None and trouble.target != target:
                del self._troubles[worker]
                trouble = None
            if worker in self._tasks:
                held.add(worker)
                continue
            if info.state != "ready" and worker not in self._leaving:
                self._set_step(worker, "failed")
            if (trouble is not None and now_s < trouble.again_s) or (
                info.state != "ready" and worker not in self._leaving
            ):
                held.add(worker)
                continue
            serving = instances.get(worker, [])
            loaded = [name for name in info.runtimes if name in self._runtimes]
            if worker in self._leaving:
                if not serving or info.state != "ready":
                    self._start(worker, self._remove(worker), None)
            elif worker == self._cover:
                held.add(worker)
            elif not serving and target is not None:
                self._fill(worker, target, trouble)
            elif target in serving and target not in loaded:
                # It came back without what it had, or a load was lost: nothing is taken away by loading it again.
                self._start(worker, self._mover.join(worker, target), target)
            elif target in serving and len(serving) > 1:
                others = [name for name in serving if name != target]
                self._start(worker, self._mover.finish(worker, target, others), target)
            elif serving in ([], [target]) and set(loaded) - {target} and worker not in self._recycle:
                self._start(worker, self._mover.tidy(worker, [n for n in loaded if n != target]), target)
            elif serving in ([], [target]) and worker not in self._recycle:
                self._set_step(worker, "steady" if serving else "waiting")
        self._look_after_longest(held | self._tasks.keys(), now_s)
        if not self._replacing:
            self._start_replacements(held | self._tasks.keys())

    def _fill(self, worker: str, target: str, trouble: Trouble | None) -> None:
        """Give a worker that serves nothing its runtime; where that does not come up, the longest one meanwhile."""
        longest = next(iter(self._longest()), target)
        if trouble is not None and trouble.attempts > 1 and longest != target:
            emit(log, "stand_in", level=logging.WARNING, worker=worker, runtime=longest, error=trouble.error)
            trouble.again_s = monotonic_s() + REPLACE_BACKOFF_S[0]
            self._start(worker, self._mover.join(worker, longest), target, settles=False)
        else:
            self._start(worker, self._mover.join(worker, target), target)

    def _look_after_longest(self, held: set[str], now_s: float) -> None:
        """Begin or end the cover of the longest runtime, see the module."""
        longest = next(iter(self._longest()), None)
        if longest is None:
            return
        missing_s = self._active.missing_s(longest, now_s)
        if self._cover is not None:
            info = self.infos.get(self._cover)
            others = any(
                name == longest
                and worker != self._cover
                and worker not in self._tasks
                and worker not in self._recycle
                and self._active.has(worker, longest)
                for worker, name in self.desired.items()
            )
            if info is None or info.state != "ready" or others or self.desired.get(self._cover) == longest:
                emit(log, "cover_ended", worker=self._cover, runtime=longest)
                self._cover = None
                self._wake.set()
            return
        last = any(worker not in held and self._irreplaceable(worker) for worker in self._recycle)
        grace_s = self._config.dispatch.unavailable_grace_ms / 1000
        if last or missing_s > COVER_AFTER * grace_s:
            self._begin_cover(longest, held, missing_s)

    def _begin_cover(self, longest: str, held: set[str], missing_s: float) -> None:
        serving = {
            worker: names[0]
            for worker, names in self._deployments.instances.items()
            if worker not in held | self._leaving | self._recycle
            and longest not in names
            and self._active.has(worker, names[0])
        }
        if not serving:
            return
        # One of a runtime with many instances, of the longer ones where there are equally many.
        count = Counter(serving.values())
        name = max(count, key=lambda name: (count[name], self._runtimes[name].max_length))
        worker = next(
            (w for w in serving if longest in self.infos[w].runtimes), min(w for w in serving if serving[w] == name)
        )
        emit(
            log,
            "cover_started",
            level=logging.WARNING,
            worker=worker,
            runtime=longest,
            missing_s=round(missing_s, 2),
            restarting=sorted(self._recycle),
        )
        self._counters["covers"] += 1
        self._cover = worker
        if self._overlap:
            self._start(worker, self._mover.stand_by(worker, longest), longest)
        else:
            self._start(worker, self._mover.replace(worker, longest, overlap=False), longest)

    def _start_replacements(self, held: set[str]) -> None:
        instances = self._deployments.instances
        # A worker that is down, or that the gateway gets no answer of, carries nothing. (Of the latter, those that are
        # where they should be are left out; the others are moved, which takes nothing away.)
        up = [
            worker
            for worker, info in self.infos.items()
            if info.state == "ready"
            and (worker not in instances or self.desired.get(worker) not in instances[worker] or self._serves(worker))
        ]
        current = {worker: instances[worker][0] if self._serves(worker) else None for worker in up}
        if not self._overlap:  # one worker at a time finds out whether a runtime that did not come up does now
            now_s = monotonic_s()
            failing = {trouble.target for trouble in self._troubles.values() if now_s < trouble.again_s}
            held = held | {worker for worker in up if self.desired.get(worker) in failing - {current[worker]}}
        desired = {worker: current[worker] if worker in held else self.desired.get(worker) for worker in up}
        for worker in sorted(self._recycle - held):
            settled = current.get(worker) is not None and desired.get(worker) == current[worker]
            if settled and not self._irreplaceable(worker):
                self._recycle.discard(worker)
                self._replace(worker, self._mover.recycle(worker, interrupts=len(self.infos) == 1))
                return
        control = self._config.control
        share = control.max_moving if self._overlap else control.max_unavailable
        if self._overlap and self._urgent:
            share = 1.0
        order = sorted(self._runtimes.values(), key=lambda r: (r.max_length, r.name))
        steps = replacement_plan(
            current,
            {worker: name for worker, name in desired.items() if name is not None},
            runtimes=[
                RuntimeView(name=r.name, max_length=r.max_length, capacity=capacity(r, self._config.model.slo_ms))
                for r in order
            ],
            demand=self.demand or [0.0] * len(order),
            max_parallel=max(1, int(len(self.infos) * share)),
            overlap=self._overlap,
        )
        # A worker that is held back, or away, may be the one that is to take over the longest runtime: wait for it.
        heirs = {worker for worker, name in self.desired.items() if name in self._longest()}
        wait = steps and steps[0].interrupts and (heirs & held or heirs - set(up))
        for change in steps[0].changes if steps and not wait else ():
            if change.worker in held or not instances.get(change.worker):
                continue  # gaining a first runtime takes nothing away: it was started above
            job = self._mover.replace(
                change.worker, change.after, overlap=self._overlap, interrupts=steps[0].interrupts
            )
            self._replace(change.worker, job)

    def _irreplaceable(self, worker: str) -> bool:
        """Whether it is the only one of several workers that serves the longest requests."""
        longest = self._longest()
        if not longest & set(self._deployments.instances.get(worker, ())):
            return False
        up = [other for other, info in self.infos.items() if other != worker and info.state == "ready"]
        return bool(up) and not any(
            self._answers(other, name)
            for other in up
            if other not in self._tasks
            for name in longest & set(self._deployments.instances.get(other, ()))
        )

    def _serves(self, worker: str) -> bool:
        return any(self._answers(worker, name) for name in self._deployments.instances.get(worker, [])[:1])

    def _answers(self, worker: str, name: str) -> bool:
        """Whether an instance that is to serve does, as far as the gateway tells."""
        return not self._active.known(monotonic_s()) or self._active.has(worker, name)

    def _replace(self, worker: str, job: Coroutine[Any, Any, None]) -> None:
        self._replacing.add(worker)
        self._start(worker, job, self.desired.get(worker))

    def _start(self, worker: str, job: Coroutine[Any, Any, None], target: str | None, *, settles: bool = True) -> None:
        guarded = self._guarded(worker, job, target, settles=settles)
        self._tasks[worker] = asyncio.create_task(guarded, name=f"move of {worker}")

    async def _guarded(self, worker: str, job: Coroutine[Any, Any, None], target: str | None, *, settles: bool) -> None:
        try:
            await job
        except NoRoomError as error:
            emit(log, "no_room_for_two", level=logging.WARNING, worker=worker, runtime=target, error=str(error))
            self._counters["no_room_for_two"] += 1
            self._overlap = False
            self._cover = None if self._cover == worker else self._cover
            self._set_step(worker, "steady")
        except ArloError as error:
            self._failed(worker, target, str(error))
        except Exception as error:  # a fault of ours: the other workers are kept, and this one is tried again
            log.exception("a move failed in a way that nobody thought of")
            self._failed(worker, target, repr(error))
        else:
            if settles:
                self._troubles.pop(worker, None)
        finally:
            self._replacing.discard(worker)
            self._tasks.pop(worker, None)
            self._wake.set()

    def _failed(self, worker: str, target: str | None, error: str) -> None:
        before = self._troubles.get(worker)
        serves = bool(self._deployments.instances.get(worker))
        first_s, longest_s = REPLACE_BACKOFF_S if serves else BACKOFF_S
        attempts, delay_s = 1, first_s
        if before is not None and before.target == target:
            attempts, delay_s = before.attempts + 1, max(first_s, min(2 * before.delay_s, longest_s))
        self._troubles[worker] = Trouble(target, error, delay_s, monotonic_s() + delay_s, attempts)
        self._counters["replacement_failures" if worker in self._replacing else "repair_failures"] += 1
        self._cover = None if self._cover == worker else self._cover
        self._set_step(worker, "failed")
        emit(
            log,
            "worker_not_moved",
            level=logging.ERROR,
            worker=worker,
            target=target,
            again_in_s=round(delay_s, 2),
            error=error,
        )

    async def _remove(self, worker: str) -> None:
        served = self._deployments.instances.pop(worker, None)
        if served is not None:  # it died while it was to leave
            await self._deployments.ensure()
        await self._pool.remove(worker)
        self._leaving.discard(worker)
        self._steps.pop(worker, None)
        self._counters["workers_removed"] += 1
        emit(log, "worker_removed", worker=worker)

    # --- notes ---

    def _set_step(self, worker: str, step: WorkerStep) -> None:
        if worker not in self._steps or self._steps[worker][0] != step:
            self._steps[worker] = (step, round(unix_s() * 1000))
            emit(log, "worker_step", level=logging.DEBUG, worker=worker, step=step)

    def _note_changes(self, before: WorkerInfo | None, info: WorkerInfo) -> None:
        if before is None:
            return
        if info.restarts != before.restarts:
            self._counters["worker_restarts"] += max(0, info.restarts - before.restarts)
            emit(log, "worker_restarted", level=logging.WARNING, worker=info.id, restarts=info.restarts)
        if info.state != before.state:
            level = logging.ERROR if info.state == "failed" else logging.INFO
            error = {"error": info.error} if info.error else {}
            emit(log, "worker_state", level=level, worker=info.id, state=info.state, log=info.log, **error)
        elif info.error and not before.error:
            emit(log, "worker_unwell", level=logging.WARNING, worker=info.id, error=info.error)

    def _longest(self) -> set[str]:
        placed = [self._runtimes[name] for name in self.desired.values()]
        return {max(placed, key=lambda runtime: runtime.max_length).name} if placed else set()
