"""Says when a cascade's early answers differ from its last stage's more often than they may, and, where the
configuration wants it, goes to the next operating point that agrees more often. The gateway tests, row by row."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from arlo.config.cascade import CascadeConfig
from arlo.config.stages import cascade_manifest, cascade_name
from arlo.control.events import emit
from arlo.control.reconcile.cascade import safer_point
from arlo.control.reconcile.deployments import Deployments
from arlo.errors import GatewayError

log = logging.getLogger("arlo.control")

LOOK_S = 1.0


class DriftWatch:
    """See the module. `counters` are those of ControlStatus. One event loop."""

    def __init__(self, config: CascadeConfig, deployments: Deployments, counters: Counter[str]) -> None:
        self._config = config
        self._deployments = deployments
        self._counters = counters
        self._said: str | None = None  # the point whose alarm has been told

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                name = cascade_name(self._config)
                async for stats in self._deployments.admin.watch_stats(interval_ms=round(LOOK_S * 1000), model=name):
                    await self.see(stats)
            except GatewayError:
                pass  # it is restarting; whoever restarts it says so
            await asyncio.sleep(LOOK_S)

    async def see(self, stats: Any) -> None:
        """One arlo.v1.Stats of the cascade."""
        if not stats.shadows.alarm:
            self._said = None
            return
        if self._said == stats.point:
            return
        self._said = stats.point
        self._counters["drift_alarms"] += 1
        safer = safer_point(cascade_manifest(self._config.manifest), stats.point)
        emit(
            log,
            "cascade_drift",
            level=logging.WARNING,
            cascade=stats.model,
            point=stats.point,
            shadow_rows=stats.shadows.rows,
            disagreed=round(stats.shadows.disagreed / max(1, stats.shadows.rows), 4),
            allowed=round(stats.shadows.epsilon, 4),
            advice="record, calibrate and search again on traffic of today",
        )
        if self._config.drift != "raise":
            return
        if safer is None:
            emit(log, "no_safer_point", level=logging.WARNING, cascade=stats.model, point=stats.point)
            return
        self._deployments.point = safer.name
        await self._deployments.ensure()
        emit(log, "cascade_point_raised", level=logging.WARNING, cascade=stats.model, point=safer.name)
