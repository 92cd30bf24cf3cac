"""What `arlo status` says of a gateway's health."""

from __future__ import annotations

import pytest

from arlo import proto
from arlo.cli.status import audited, health, worths


@pytest.mark.parametrize(
    ("wanted", "levels", "state", "said"),
    [
        ((64, 512), {64: 1, 512: 1}, "STATE_ACTIVE", "ready"),
        ((64, 512), {64: 0, 512: 1}, "STATE_ACTIVE", "failing"),
        ((512,), {64: 0, 512: 1}, "STATE_ACTIVE", "ready"),  # the control plane moved all of 64 elsewhere
        ((512,), {512: 1}, "STATE_EJECTED", "degraded"),
        ((), {}, "STATE_ACTIVE", "empty"),
    ],
)
def test_health(wanted: tuple[int, ...], levels: dict[int, int], state: str, said: str) -> None:
    deployment, stats = proto.message("Deployment")(version=len(wanted)), proto.message("Stats")()
    for length in wanted:
        deployment.runtimes.add(name=f"len{length}", max_length=length)
    for length, instances in levels.items():
        stats.levels.add(max_length=length, instances=instances)
    stats.instances.add(id="w0.len512", state=state)
    assert health(deployment, stats) == said


def test_tenants_and_audits() -> None:
    stats = proto.message("Stats")()
    stats.worth.add(of="interactive", offered=20, earned=13, in_time=15, right=13, evicted=5)
    assert worths(stats) == [
        "interactive: 13 right in time, 2 wrong, 0 late, 5 evicted, 0 failed; utility 13 of 20 (65.0%)"
    ]
    del stats.worth[:]
    stats.by_tenant.add(of="search", offered=10, earned=9, in_time=10, right=9, busy_s=1, price=1)
    stats.by_tenant.add(of="mail", offered=10, earned=4, in_time=5, right=4, evicted=5, busy_s=3, price=8)
    stats.by_tenant.add(of="", price=1)
    said = worths(stats)
    assert [line.split(":")[0] for line in said] == ["tenant search", "tenant mail"]
    assert "5 evicted" in said[1]
    assert said[1].endswith("; 75% of the worker time, at 8 times the price")
    assert audited(stats) == []
    stats.audit.rows, stats.audit.agreed, stats.audit.may_differ, stats.audit.accuracy = 200, 170, 25.0, 180.0
    assert audited(stats) == [
        "audit: 170 of 200 rows, expected accuracy 90.0%, are answered alike by the most accurate variants; 30 differ: "
        "at most 25.0 may"
    ]
    stats.audit.alarm = True
    assert audited(stats)[0].endswith("30 differ: more often than their accuracies allow")
