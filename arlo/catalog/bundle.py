"""Runtimes that a worker holds together: any of them may run next, so each row takes the one of its own length.

To all that place, count and scale, a bundle is a runtime of dynamic shape, whose time follows the length in steps. Only
what loads it, sends to it and checks it looks at its parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from arlo.catalog.manifest import LatencyPoint, Runtime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bundle(Runtime):
    """`members`: ascending max_length. `why`: they are served together, and where memory is short these, for people."""

    members: tuple[Runtime, ...]
    why: str = ""

    @property
    def parts(self) -> tuple[Runtime, ...]:
        return self.members


def memory_mb(runtimes: Sequence[Runtime]) -> int | None:
    """What they take together; None where that of one was not measured."""
    known = [runtime.memory_mb for runtime in runtimes if runtime.memory_mb is not None]
    return sum(known) if len(known) == len(runtimes) else None


def bundle_of(name: str, runtimes: Sequence[Runtime], *, why: str = "") -> Bundle:
    """A bundle of measured runtimes, at least one, all of them static. A row costs what it does on the shortest that
    takes it."""
    members = tuple(sorted(runtimes, key=lambda runtime: runtime.max_length))
    # Every batch that some member knows at every step: what one lacks is not that of its neighbours.
    batches = sorted({point.batch for member in members for point in member.latency})
    latency: list[LatencyPoint] = []
    first = 1  # token that is too long for the member before
    for member in members:
        for length in sorted({first, member.max_length}):
            latency += [
                LatencyPoint(length=length, batch=rows, latency_us=member.latency_ns(rows) / 1000) for rows in batches
            ]
        first = member.max_length + 1
    longest = members[-1]
    return Bundle(
        name=name,
        max_length=longest.max_length,
        max_batch=max(member.max_batch for member in members),
        dynamic=True,
        engine=longest.engine,
        precision=longest.precision,
        device=longest.device,
        latency=tuple(latency),
        backend=longest.backend,
        memory_mb=memory_mb(members),
        files={path: digest for member in members for path, digest in member.files.items()},
        members=members,
        why=why,
    )
