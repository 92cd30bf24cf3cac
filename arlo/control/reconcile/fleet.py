"""The observed state of the workers, and which of them a plan may count on. One event loop."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Mapping

from arlo.clock import monotonic_s
from arlo.control.events import emit
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.probation import Probation
from arlo.errors import ArloError
from arlo.planning.view import WorkerView
from arlo.workers.pool import WorkerInfo, WorkerPool

log = logging.getLogger("arlo.control")

GRACE_S = 5.0  # a worker away for longer counts as lost, and a plan is made without it


class Fleet:
    """See the module."""

    def __init__(
        self,
        pool: WorkerPool,
        deployments: Deployments,
        counters: Counter[str],
        *,
        runtimes: Collection[str],
    ) -> None:
        self._pool = pool
        self._deployments = deployments
        self._counters = counters
        self._runtimes = frozenset(runtimes)
        self._away_since_s: dict[str, float] = {}
        self._probation = Probation()
        self.infos: dict[str, WorkerInfo] = {}

    async def observe(self) -> set[str]:
        """Poll the pool and note changes. Returns workers that are gone for good. WorkerError when the pool fails."""
        now_s = monotonic_s()
        infos = {info.id: info for info in await self._pool.workers()}
        moved = False
        for worker, info in infos.items():
            self._note_changes(self.infos.get(worker), info)
            if info.state == "ready":
                self._away_since_s.pop(worker, None)
                self._probation.back(worker, now_s)
            elif now_s - self._away_since_s.setdefault(worker, now_s) >= GRACE_S:
                self._lose(worker)
            if self._deployments.endpoints.get(worker) != info.endpoint:
                # Instances at the old endpoint are gone; runtimes loaded at the new one join like any others.
                moved = self._deployments.instances.pop(worker, None) is not None or moved
                self._deployments.endpoints[worker] = info.endpoint
        gone = self.infos.keys() - infos.keys()
        for worker in gone:
            self._away_since_s.pop(worker, None)
            self._deployments.endpoints.pop(worker, None)
            self._probation.gone(worker)
            moved = self._deployments.instances.pop(worker, None) is not None or moved
        self.infos = infos
        if moved:  # Ray started a worker on another node, or a worker is gone for good
            with contextlib.suppress(ArloError):
                await self._deployments.ensure()
        return gone

    def ready(self, worker: str) -> bool:
        """Whether the worker's process answers."""
        info = self.infos.get(worker)
        return info is not None and info.state == "ready"

    def loaded(self, worker: str) -> list[str]:
        """Our runtimes that the worker has loaded."""
        info = self.infos.get(worker)
        return [name for name in info.runtimes if name in self._runtimes] if info is not None else []

    def left_out(self, worker: str) -> bool:
        """Whether it was lost repeatedly and has not stayed long enough since; False if it is the only one."""
        now_s = monotonic_s()
        return self._probation.left_out(worker, now_s) and any(
            other != worker and self.ready(other) and not self._probation.left_out(other, now_s) for other in self.infos
        )

    def usable(self, worker: str, *, grace_s: float) -> bool:
        """Whether a plan may count on it: it is ready and trusted, or has been away for less than `grace_s`."""
        if worker not in self.infos or self.left_out(worker):
            return False
        away = self._away_since_s.get(worker)
        return away is None or monotonic_s() - away < grace_s

    def views(self, *, grace_s: float, busy: Mapping[str, float], without: Collection[str]) -> list[WorkerView]:
        """All workers but those of `without`, as planning sees them."""
        return [
            WorkerView(
                id=worker,
                usable=self.usable(worker, grace_s=grace_s),
                loaded=tuple(self.loaded(worker)),
                serving=next(iter(self._deployments.instances.get(worker, ())), None),
                busy=busy.get(worker, 0.0),
            )
            for worker in self.infos
            if worker not in without
        ]

    def _lose(self, worker: str) -> None:
        before_s = self._probation.must_stay_s(worker)
        self._probation.lost(worker)
        must_stay_s = self._probation.must_stay_s(worker)
        if must_stay_s != before_s:
            emit(log, "worker_left_out", level=logging.WARNING, worker=worker, must_stay_s=must_stay_s)

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
        elif info.error and info.error != before.error and not (info.state == "ready" and before.error):
            emit(log, "worker_unwell", level=logging.WARNING, worker=info.id, error=info.error)
