"""Raises an alarm when a pipeline's answers differ from those of its most accurate variants more often than both
accuracies allow: then some variant is less accurate on today's rows than its file says. The gateway tests each row."""

from __future__ import annotations

import logging
from collections import Counter

from arlo.control.events import emit
from arlo.control.watch.feed import Snapshot, Watcher

log = logging.getLogger("arlo.control")


def audit_watch(counters: Counter[str]) -> Watcher:
    """The watcher, which raises an alarm once, until it is over. `counters` are those of ControlStatus."""
    said = False

    async def watch(seen: Snapshot) -> None:
        nonlocal said
        if seen.whole is None:
            return
        audit = seen.whole.audit
        if audit.alarm and not said:
            counters["drift_alarms"] += 1
            emit(
                log,
                "pipeline_audit",
                level=logging.WARNING,
                pipeline=seen.whole.model,
                rows=audit.rows,
                differ=audit.disagreed,
                allowed=round(audit.may_differ, 1),
                advice="measure again on labelled rows of today (`arlo fit --variants`) what each variant gets right",
            )
        said = audit.alarm

    return watch
