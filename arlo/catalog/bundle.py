"""Bundles: runtimes that a worker holds together. Any of them may run next, so each row takes the one of its length.

Placement, counting and scaling treat a bundle as one runtime of dynamic shape whose time rises with the length in
steps. Only the code that loads it, sends to it and checks it looks at its parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from arlo.catalog.manifest import LatencyPoint, Runtime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bundle(Runtime):
    """`members`: ascending max_length. `why`: for people, why these are served together, or if memory is short."""

    members: tuple[Runtime, ...]
    why: str = ""

    @property
    def parts(self) -> tuple[Runtime, ...]:
        return self.members


def shared_bundle(name: str, models: Sequence[Sequence[Runtime]], *, why: str = "") -> Bundle:
    """A bundle of runtimes of several models: the static ones of each, or its one dynamic one.

    Wherever workers are counted, a row costs as much as in the model that takes the longest.
    """
    each = [runtimes[0] if runtimes[0].dynamic else bundle_of(name, runtimes) for runtimes in models]
    longest = max(each, key=lambda runtime: runtime.max_length)
    members = sorted((r for runtimes in models for r in runtimes), key=lambda runtime: runtime.max_length)
    return _bundle(name, longest, tuple(members), longest.latency, why)


def memory_mb(runtimes: Sequence[Runtime]) -> int | None:
    """The memory that the runtimes take together; None if that of one was not measured."""
    known = [runtime.memory_mb for runtime in runtimes if runtime.memory_mb is not None]
    return sum(known) if len(known) == len(runtimes) else None


def load_ms(runtimes: Sequence[Runtime]) -> int | None:
    """The time to load the runtimes one after the other; None if that of one was not measured."""
    known = [runtime.load_ms for runtime in runtimes if runtime.load_ms is not None]
    return sum(known) if len(known) == len(runtimes) else None


def bundle_of(name: str, runtimes: Sequence[Runtime], *, why: str = "") -> Bundle:
    """A bundle of measured runtimes, at least one, all of them static. A row costs as much as on the shortest runtime
    that takes it."""
    members = tuple(sorted(runtimes, key=lambda runtime: runtime.max_length))
    # Every step has all batches that some member knows: a member's missing batch must not be read off its neighbours.
    batches = sorted({point.batch for member in members for point in member.latency})
    latency: list[LatencyPoint] = []
    first = 1  # first length that is too long for the previous member
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
