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


def shared_bundle(name: str, models: Sequence[Sequence[Runtime]], *, why: str = "") -> Bundle:
    """A bundle of runtimes of several models: of each its static ones, or one dynamic one.

    What a row costs, to all that count workers, is what it does in the model that takes the longest.
    """
    each = [runtimes[0] if runtimes[0].dynamic else bundle_of(name, runtimes) for runtimes in models]
    longest = max(each, key=lambda runtime: runtime.max_length)
    members = sorted((r for runtimes in models for r in runtimes), key=lambda runtime: runtime.max_length)
    return _bundle(name, longest, tuple(members), longest.latency, why)


def memory_mb(runtimes: Sequence[Runtime]) -> int | None:
    """What they take together; None where that of one was not measured."""
    known = [runtime.memory_mb for runtime in runtimes if runtime.memory_mb is not None]
    return sum(known) if len(known) == len(runtimes) else None


def load_ms(runtimes: Sequence[Runtime]) -> int | None:
    """What loading them one after the other takes; None where that of one was not measured."""
    known = [runtime.load_ms for runtime in runtimes if runtime.load_ms is not None]
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
    return _bundle(name, members[-1], members, tuple(latency), why)


def _bundle(
    name: str, longest: Runtime, members: tuple[Runtime, ...], latency: tuple[LatencyPoint, ...], why: str
) -> Bundle:
    return Bundle(
        name=name,
        max_length=longest.max_length,
        max_batch=max(member.max_batch for member in members),
        dynamic=True,
        engine=longest.engine,
        precision=longest.precision,
        device=longest.device,
        latency=latency,
        backend=longest.backend,
        memory_mb=memory_mb(members),
        load_ms=load_ms(members),
        files={path: digest for member in members for path, digest in member.files.items()},
        members=members,
        why=why,
    )
