"""What `arlo status` says of a gateway's health."""

from __future__ import annotations

import pytest

from arlo import proto
from arlo.cli.status import health


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
