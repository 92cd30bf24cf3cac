"""Says when a pipeline's answers differ from those of its most accurate variants more often than the accuracies of both
allow: then some variant is less accurate on today's rows than its file says. The gateway tests, row by row."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from arlo.config.flow_variants import pipeline_name
from arlo.config.pipeline import PipelineConfig
from arlo.control.events import emit
from arlo.control.reconcile.deployments import Deployments
from arlo.errors import GatewayError

log = logging.getLogger("arlo.control")

LOOK_S = 1.0


class AuditWatch:
    """See the module. `counters` are those of ControlStatus. One event loop."""

    def __init__(self, config: PipelineConfig, deployments: Deployments, counters: Counter[str]) -> None:
        self._name = pipeline_name(config)
        self._deployments, self._counters = deployments, counters
        self._said = False

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                stats = self._deployments.admin.watch_stats(interval_ms=round(LOOK_S * 1000), model=self._name)
                async for each in stats:
                    self.see(each)
            except GatewayError:
                pass  # it is restarting; whoever restarts it says so
            await asyncio.sleep(LOOK_S)

    def see(self, stats: Any) -> None:
        """One arlo.v1.Stats of the pipeline. An alarm is told once; with another flow it begins anew."""
        audit = stats.audit
        if audit.alarm and not self._said:
            self._counters["drift_alarms"] += 1
            emit(
                log,
                "pipeline_audit",
                level=logging.WARNING,
                pipeline=stats.model,
                rows=audit.rows,
                differ=audit.disagreed,
                allowed=round(audit.may_differ, 1),
                advice="measure again on labelled rows of today (`arlo accuracy`) what each variant gets right",
            )
        self._said = audit.alarm
