"""Latency curves of runtimes, and M: the input of AllocationProblem. Pure.

    runtimes = static_runtimes(manifest.runtimes)
    AllocationProblem(workers, slo_ms, max_lengths(runtimes), curves(runtimes), demand)

Measured points are used as they are: in any order, some batches missing, a larger batch that happened to be quicker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arlo.catalog.manifest import Runtime
from arlo.errors import ConfigError
from arlo.planning.allocation.problem import LatencyCurve

LEAST_MS = 0.001  # the resolution of a latency profile; an emulated runtime may claim 0


def curve(runtime: Runtime, length: int | None = None) -> LatencyCurve:
    """Latency by batch, 1 to max_batch rows, in ms: at the runtime's max_length, or a dynamic one's at `length` tokens.

    It is the latency of arlo.catalog.latency, except that it never falls with the batch: where a larger batch was
    measured quicker than a smaller one, both take their mean. ConfigError without any point.
    """
    if length is not None and length < 1:
        raise ConfigError(f"a length is at least 1 token, not {length}")
    table = runtime.table
    if not table.points:
        raise ConfigError(f"runtime {runtime.name} has no latency profile: measure it with `arlo compile profile`")
    inside = [batch for batch in table.batches() if 1 < batch < runtime.max_batch]
    points = [
        (rows, max(LEAST_MS, runtime.latency_ns(rows, length) / 1e6))
        for rows in sorted({1, *inside, runtime.max_batch})
    ]
    return LatencyCurve(tuple(_never_falling(points)))


def capacity(runtime: Runtime, slo_ms: float, length: int | None = None) -> int:
    """M of Eq. 3 of a runtime: requests given at once that one instance finishes within the SLO; 0 if not even one.

    For a dynamic one at `length` tokens; by default at its max_length, so that M requests of any length finish in time.
    """
    return curve(runtime, length).capacity(slo_ms)


def static_runtimes(runtimes: Iterable[Runtime]) -> list[Runtime]:
    """The static runtimes by ascending max_length; of several with the same one, that with the most rows per second."""
    best: dict[int, Runtime] = {}
    for runtime in runtimes:
        if runtime.dynamic:
            continue
        other = best.get(runtime.max_length)
        if other is None or _row_ms(runtime) < _row_ms(other):
            best[runtime.max_length] = runtime
    return [runtime for _, runtime in sorted(best.items())]


def max_lengths(runtimes: Iterable[Runtime]) -> tuple[int, ...]:
    """The runtimes' maximum lengths, in the order given."""
    return tuple(runtime.max_length for runtime in runtimes)


def curves(runtimes: Iterable[Runtime]) -> tuple[LatencyCurve, ...]:
    """The runtimes' latency curves at their maximum lengths, in the order given."""
    return tuple(curve(runtime) for runtime in runtimes)


def _row_ms(runtime: Runtime) -> float:
    full = curve(runtime)
    return full.points[-1][1] / full.max_batch


def _never_falling(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The closest non-falling values, in least squares: neighbours that fall are pooled to their mean."""
    blocks: list[tuple[float, int]] = []  # mean, how many points
    for _, value in points:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, size = blocks.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
    values = [mean for mean, count in blocks for _ in range(count)]
    return [(batch, value) for (batch, _), value in zip(points, values, strict=True)]
