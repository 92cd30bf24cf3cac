"""Raises an alarm when a cascade's early answers differ from its last stage's more often than allowed, and, if so
configured, moves to the next operating point with more agreement. The gateway tests each row. Before that, it warns
when lengths, or the first stage's confidence, no longer match those of the test split."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from arlo.cascade.refresh import sample_of, signs
from arlo.clock import monotonic_s
from arlo.config.flows import CascadeConfig
from arlo.config.stages import cascade_manifest
from arlo.control.events import emit
from arlo.control.reconcile.cascade import safer_point
from arlo.control.reconcile.deployments import Deployments
from arlo.control.watch.feed import Snapshot
from arlo.errors import ConfigError

log = logging.getLogger("arlo.control")

SIGNS_S = 600.0  # between two looks at the gateway's sample
BY_CHANCE = 1e-6  # probability of a sign by chance, in one look


class DriftWatch:
    """See the module. `counters` are those of ControlStatus."""

    def __init__(self, config: CascadeConfig, deployments: Deployments, counters: Counter[str]) -> None:
        self._config = config
        self._deployments = deployments
        self._counters = counters
        self._said: str | None = None  # the point whose alarm has been logged
        self._looked_s = monotonic_s()
        self._signs: set[str] = set()  # signs already logged

    async def on_stats(self, seen: Snapshot) -> None:
        """Check the cascade's shadow rows and, now and then, the gateway's sample."""
        if seen.whole is None:
            return
        await self._see(seen.whole)
        if monotonic_s() - self._looked_s >= SIGNS_S:
            self._looked_s = monotonic_s()
            self.look(await self._deployments.admin.get_sample(seen.whole.model))

    def look(self, rows: Sequence[Any]) -> None:
        """Look for early signs in the gateway's sample, arlo.v1.SampledRow. Too few rows prove nothing."""
        cascade = cascade_manifest(self._config.manifest)
        try:
            found = signs(cascade, sample_of(rows, cascade))
        except ConfigError:
            return
        for what, (distance, chance) in found.items():
            if chance > BY_CHANCE:
                self._signs.discard(what)
            elif what not in self._signs:
                self._signs.add(what)
                self._counters["shift_signs"] += 1
                emit(
                    log,
                    "cascade_shift",
                    level=logging.WARNING,
                    cascade=cascade.name,
                    what=what,
                    distance=round(distance, 3),
                    advice="no alarm yet: watch arlo_cascade_drift_alarm, or search again on traffic of today",
                )

    async def _see(self, stats: Any) -> None:
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
            allowed=round(stats.shadows.may_differ / max(1, stats.shadows.rows), 4),
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
