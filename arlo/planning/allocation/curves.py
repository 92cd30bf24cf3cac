"""Latency curves from a manifest's latency profile: what AllocationProblem is made of. Pure.

    runtimes = static_runtimes(manifest)
    AllocationProblem(workers, slo_ms, max_lengths(runtimes), curves(runtimes), demand)

Measured points are taken as they come: in any order, some batches missing, a larger batch that happened to be quicker.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence

from arlo.catalog.manifest import Manifest, Runtime
from arlo.errors import ConfigError
from arlo.planning.allocation.problem import LatencyCurve

LEAST_MS = 0.001  # the resolution of a latency profile; an emulated runtime may claim 0


def curve(runtime: Runtime, length: int | None = None) -> LatencyCurve:
    """Latency by batch, 1 to max_batch rows, in ms: at the runtime's max_length, or a dynamic one's at `length` tokens.

    A static runtime takes the same for every length. Between measured lengths and batches linear, outside the
    measured lengths flat, as the gateway reads a profile; below the smallest measured batch flat, above the largest
    in proportion to the rows. Repeated points are averaged, and where a larger batch was measured quicker than a
    smaller one both take their mean: latency never falls with the batch. ConfigError without any point.
    """
    tokens = runtime.max_length if length is None or not runtime.dynamic else length
    if tokens < 1:
        raise ConfigError(f"a length is at least 1 token, not {tokens}")
    measured: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in runtime.latency:
        measured[point.batch][point.length].append(point.latency_us / 1000)
    if not measured:
        raise ConfigError(f"runtime {runtime.name} has no latency profile: measure it with `arlo profile`")
    points = []
    for batch, by_length in sorted(measured.items()):
        line = sorted((at, sum(values) / len(values)) for at, values in by_length.items())
        points.append((batch, max(LEAST_MS, _line(line, tokens))))
    return LatencyCurve(tuple(_never_falling(_whole_range(points, runtime.max_batch))))


def static_runtimes(manifest: Manifest) -> list[Runtime]:
    """The static runtimes by ascending max_length; of several with the same one, that with the most rows per second."""
    best: dict[int, Runtime] = {}
    for runtime in manifest.runtimes:
        if runtime.dynamic:
            continue
        other = best.get(runtime.max_length)
        if other is None or _row_ms(runtime) < _row_ms(other):
            best[runtime.max_length] = runtime
    return [runtime for _, runtime in sorted(best.items())]


def max_lengths(runtimes: Iterable[Runtime]) -> tuple[int, ...]:
    """Their maximum lengths, in the order given."""
    return tuple(runtime.max_length for runtime in runtimes)


def curves(runtimes: Iterable[Runtime]) -> tuple[LatencyCurve, ...]:
    """Their latency curves at their maximum lengths, in the order given."""
    return tuple(curve(runtime) for runtime in runtimes)


def _row_ms(runtime: Runtime) -> float:
    full = curve(runtime)
    return full.points[-1][1] / full.max_batch


def _line(points: Sequence[tuple[int, float]], x: int) -> float:
    """The line through ascending points at x; flat outside them."""
    index = bisect.bisect_left(points, x, key=lambda point: point[0])
    if index == 0:
        return points[0][1]
    if index == len(points):
        return points[-1][1]
    (low, low_y), (high, high_y) = points[index - 1], points[index]
    return low_y + (high_y - low_y) * (x - low) / (high - low)


def _whole_range(points: Sequence[tuple[int, float]], max_batch: int) -> list[tuple[int, float]]:
    """The points with batches 1 and max_batch added where they lack, and those above max_batch left out."""
    largest, largest_ms = points[-1]
    end = _line(points, max_batch) if max_batch <= largest else largest_ms * max_batch / largest
    inner = {batch: ms for batch, ms in points if batch < max_batch}
    return sorted({1: points[0][1], **inner, max_batch: end}.items())


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
