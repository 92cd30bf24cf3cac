"""Profiles that were measured: what `arlo compile` and `arlo compile profile` write into a manifest."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from arlo.catalog.manifest import FILE_NAME, Manifest, Runtime
from arlo.errors import ConfigError
from arlo.planning.allocation.curves import LEAST_MS, curve, static_runtimes
from arlo.simulator.profiles import inflation
from arlo.simulator.profiles.model import Point, Profile

# The SLO that a measured profile suggests, in latencies of its longest runtime: the paper's 150 ms for 4.86 ms.
SLO_SHARE = 30
SHIPPED = Path(__file__).parent / "h100"


def names() -> tuple[str, ...]:
    """Profiles of the package that were measured on an H100, sorted; each is a folder of SHIPPED."""
    return tuple(sorted(path.name for path in SHIPPED.iterdir()))


def from_manifest(path: Path, dynamic: str | None = None) -> Profile:
    """The profile of a model repository (or of its arlo.json). ConfigError when nothing was measured.

    Static: the measured runtimes; for a max_length between two compiled ones, the line between them. Dynamic: the
    measured dynamic runtime, or a model of inflation.DESCRIPTIONS where `dynamic` names one.
    """
    manifest = Manifest.load(path.parent if path.name == FILE_NAME else path)
    compiled = [runtime for runtime in static_runtimes_measured(manifest) if runtime.latency]
    ranges = [runtime for runtime in manifest.runtimes if runtime.dynamic and runtime.latency]
    if not compiled and not ranges:
        raise ConfigError(f"no runtime of {path} has a latency profile: measure them with `arlo compile profile`")
    static = tuple(_static_points(compiled))
    longest = max(runtime.max_length for runtime in [*compiled, *ranges])
    lengths = [runtime.max_length for runtime in compiled]
    step = min((b - a for a, b in itertools.pairwise(lengths)), default=longest)
    measured = max(ranges, key=lambda runtime: runtime.max_length, default=None)
    if dynamic is not None:
        if not static:
            raise ConfigError(f"a model of dynamic shapes ({dynamic!r}) needs static runtimes, and {path} has none")
        points = inflation.inflate(static, dynamic, longest, first=step)
        about = inflation.source(dynamic)
    elif measured is not None:
        points, about = tuple(_dynamic_points(measured)), f"Dynamic shapes measured ({measured.name})."
    else:
        points, about = (), "Dynamic shapes were not measured."
    device = ", ".join(sorted({f"{r.engine} {r.precision} on {r.device}" for r in [*compiled, *ranges]}))
    full_ms = max(ms for length, batch, ms in (static or points) if batch == 1 and length == longest)
    return Profile(
        name=manifest.model,
        kind="measured",
        source=f"{manifest.model}, {device}: measured by `arlo compile profile`; max_length between those compiled "
        f"({', '.join(map(str, lengths)) or 'none'}) on the line between them.",
        slo_ms=_two_digits(SLO_SHARE * full_ms),
        max_length=longest,
        step=step,
        static=static,
        dynamic=points,
        dynamic_source=about,
        max_batch=max(runtime.max_batch for runtime in [*compiled, *ranges]),
        static_load=tuple((one.max_length, one.load_ms) for one in compiled if one.load_ms is not None),
        dynamic_load_ms=measured.load_ms if measured is not None and dynamic is None else None,
    )


def static_runtimes_measured(manifest: Manifest) -> list[Runtime]:
    """The best static runtime of each max_length; those that were not measured are left out."""
    measured = [runtime for runtime in manifest.runtimes if not runtime.dynamic and runtime.latency]
    lengths = {runtime.max_length for runtime in measured}
    if len(lengths) == len(measured):
        return sorted(measured, key=lambda runtime: runtime.max_length)
    return static_runtimes(measured)


def _static_points(runtimes: Sequence[Runtime]) -> list[Point]:
    """All at the same batches, so that a batch lies between two measured ones at every length."""
    batches = sorted({batch for runtime in runtimes for batch, _ in curve(runtime).points})
    points = []
    for runtime in runtimes:
        line = curve(runtime)
        for batch in batches:
            over = max(1.0, batch / line.max_batch)  # above its largest batch in proportion, as the scheduler reads it
            points.append((runtime.max_length, batch, line.batch_ms(batch) * over))
    return points


def _dynamic_points(runtime: Runtime) -> list[Point]:
    """The measured points, repeated ones averaged."""
    values: dict[tuple[int, int], list[float]] = defaultdict(list)
    for point in runtime.latency:
        values[point.length, point.batch].append(point.latency_us / 1000)
    points = {at: max(LEAST_MS, sum(ms) / len(ms)) for at, ms in sorted(values.items())}
    longest = max(length for length, _ in points)
    for batch in {batch for _, batch in points}:
        if (runtime.max_length, batch) not in points:
            nearest_length = max(length for length, rows in points if rows == batch)
            points[runtime.max_length, batch] = points[nearest_length, batch]
    if (longest, 1) not in points and (runtime.max_length, 1) not in points:
        smallest = min(batch for _, batch in points)
        points |= {(length, 1): ms for (length, batch), ms in list(points.items()) if batch == smallest}
    return [(length, batch, ms) for (length, batch), ms in sorted(points.items())]


def _two_digits(value: float) -> float:
    return float(f"{value:.{2 if value > 0 and math.isfinite(value) else 1}g}")
