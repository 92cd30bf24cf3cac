"""Restarts a worker whose latency has crept up, or that the gateway ejects again and again.

arlo.planning.health decides, and the reconciler restarts.
"""

from __future__ import annotations

import logging
from typing import Any

from arlo.catalog.manifest import Manifest
from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.control.events import emit
from arlo.control.reconcile.placement import service_us
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch.feed import Snapshot
from arlo.control.watch.usage import UsageWindow
from arlo.planning.health.creep import CreepDetector, Sample
from arlo.planning.health.ejections import EJECTIONS, EjectionWatch

log = logging.getLogger("arlo.control")

INTERVAL_S = 10.0


class Recycler:
    """Latencies are judged every 10 s, and not at all when control.recycle_factor is 0."""

    def __init__(self, config: Config, manifest: Manifest, reconciler: Reconciler) -> None:
        factor = config.control.recycle_factor
        self._detector = CreepDetector(factor) if factor > 0 else None
        # A dynamic runtime's time depends on its requests: its peers are the only measure, and it is not judged.
        self._expected_ms = {r.name: service_us(r) / 1000 for r in manifest.runtimes if not r.dynamic}
        self._reconciler = reconciler
        self._usage = UsageWindow(window_s=INTERVAL_S)
        self._ejections = EjectionWatch()
        self._restarts: dict[str, int] = {}  # restarts of each worker's process, as last seen

    async def on_stats(self, seen: Snapshot) -> None:
        """Judge the workers, and have slow ones restarted."""
        stats = seen.models[0]
        self._judge_ejections(stats)
        if self._detector is None:
            return
        self._usage.add(stats)
        if self._usage.span_s < INTERVAL_S:
            return
        samples = {
            worker: Sample(
                runtime=usage.runtime,
                rows=usage.rows,
                busy_s=usage.busy_s,
                expected_ms=self._expected_ms[usage.runtime],
            )
            for worker, usage in self._usage.by_worker().items()
            if usage.runtime in self._expected_ms and self._reconciler.step(worker)[0] == "steady"
        }
        self._usage.clear()
        for suspect in self._detector.observe(monotonic_s(), samples):
            emit(
                log,
                "worker_crept",
                level=logging.WARNING,
                worker=suspect.worker,
                ratio=round(suspect.ratio, 2),
                reason=suspect.reason,
            )
            self._reconciler.recycle(suspect.worker)

    def _judge_ejections(self, stats: Any) -> None:
        restarts = {worker: info.restarts for worker, info in self._reconciler.infos.items()}
        for worker, count in restarts.items():
            if self._restarts.get(worker, count) != count:
                self._ejections.restarted(worker)
        self._restarts = restarts
        instances = [(item.id, item.worker, item.ejections) for item in stats.instances]
        why = {item.worker: item.last_error for item in stats.instances if item.last_error}
        for worker in self._ejections.observe(monotonic_s(), instances):
            reason = f"the gateway took it out of service {EJECTIONS} times: {why.get(worker, 'it is back now')}"
            self._reconciler.restart_unfit(worker, reason)
