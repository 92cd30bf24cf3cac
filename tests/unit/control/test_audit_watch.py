"""What is said of a pipeline whose answers are worse than expected: once for each time it begins."""

from __future__ import annotations

from collections import Counter

import pytest

from arlo import proto
from arlo.control.watch.audit import audit_watch
from arlo.control.watch.feed import Snapshot


async def test_an_alarm_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    counters: Counter[str] = Counter()
    watch = audit_watch(counters)
    for alarm, told in ((False, 0), (True, 1), (True, 1), (False, 1), (True, 2)):
        stats = proto.message("Stats")(model="pipe")
        stats.audit.rows, stats.audit.disagreed, stats.audit.may_differ, stats.audit.alarm = 100, 40, 25.0, alarm
        await watch(Snapshot((), stats))
        assert counters["drift_alarms"] == told
    said = [record.fields for record in caplog.records if record.getMessage() == "pipeline_audit"]  # type: ignore[attr-defined]
    assert [(each["differ"], each["allowed"]) for each in said] == [(40, 25.0)] * 2
