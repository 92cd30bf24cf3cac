"""Steps that take no capacity away: each starts as soon as the need for it is seen. One event loop."""

from __future__ import annotations

import logging
from collections import Counter

from arlo.control.events import emit
from arlo.control.reconcile.cover import Cover
from arlo.control.reconcile.jobs import REPLACE_BACKOFF_S, Trouble
from arlo.control.reconcile.moves import Mover
from arlo.control.reconcile.situation import Situation
from arlo.workers.pool import WorkerPool

log = logging.getLogger("arlo.control")


class Repairs:
    """See the module. One call per worker and pass."""

    def __init__(
        self, situation: Situation, pool: WorkerPool, mover: Mover, cover: Cover, counters: Counter[str]
    ) -> None:
        self._situation = situation
        self._pool = pool
        self._mover = mover
        self._cover = cover
        self._counters = counters

    def start(self, worker: str, now_s: float) -> bool:
        """Start the repair that a worker needs, if any. False for a worker that cannot be moved now."""
        desired, fleet, jobs = self._situation.desired, self._situation.fleet, self._situation.jobs
        deployments, restarts = self._situation.deployments, self._situation.restarts
        ready = fleet.ready(worker)
        target = desired.placement.get(worker)
        trouble = jobs.trouble(worker, target)
        if worker in jobs.tasks:
            return False
        leaving = worker in desired.leaving
        if not ready and not leaving:
            jobs.set_step(worker, "failed")
        if (trouble is not None and now_s < trouble.again_s) or (not ready and not leaving):
            return False
        serving = deployments.instances.get(worker, [])
        loaded = fleet.loaded(worker)
        restarting = worker in restarts.pending
        if leaving:
            if not serving or not ready:
                jobs.start(worker, self._remove(worker), None)
        elif worker == self._cover.worker:
            return False
        elif target is None and fleet.left_out(worker):
            return False  # its loaded runtimes serve until it is known whether it stays
        elif (
            restarting
            and restarts.unfit(worker)
            and not (set(serving) & set(loaded) and self._situation.serves(worker, now_s))
        ):
            restarts.done(worker)
            jobs.start(worker, self._mover.recycle(worker), target, settles=False)
        elif not serving and target is not None:
            self._fill(worker, target, trouble, now_s)
        elif target in serving and target not in loaded:
            # It came back without its runtimes, or a load was lost: loading again takes nothing away.
            jobs.start(worker, self._mover.join(worker, target), target)
        elif target in serving and len(serving) > 1:
            others = [name for name in serving if name != target]
            jobs.start(worker, self._mover.finish(worker, target, others), target)
        elif serving in ([], [target]) and set(loaded) - {target} and not restarting:
            jobs.start(worker, self._mover.tidy(worker, [n for n in loaded if n != target]), target)
        elif serving in ([], [target]) and not restarting:
            jobs.set_step(worker, "steady" if serving else "waiting")
        return True

    def _fill(self, worker: str, target: str, trouble: Trouble | None, now_s: float) -> None:
        """Load the target on a worker that serves nothing; while it fails to come up, load the longest runtime."""
        jobs = self._situation.jobs
        kept = self._situation.desired.longest()
        longest = target if target in kept else next(iter(kept), target)
        if trouble is not None and trouble.attempts > 1 and longest != target:
            emit(log, "stand_in", level=logging.WARNING, worker=worker, runtime=longest, error=trouble.error)
            trouble.again_s = now_s + REPLACE_BACKOFF_S[0]
            jobs.start(worker, self._mover.join(worker, longest), target, settles=False)
        else:
            jobs.start(worker, self._mover.join(worker, target), target)

    async def _remove(self, worker: str) -> None:
        deployments = self._situation.deployments
        served = deployments.instances.pop(worker, None)
        if served is not None:  # it died while it was leaving
            await deployments.ensure()
        await self._pool.remove(worker)
        self._situation.desired.leaving.discard(worker)
        self._situation.jobs.forget(worker)
        self._counters["workers_removed"] += 1
        emit(log, "worker_removed", worker=worker)
