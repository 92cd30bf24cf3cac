"""The findings of a finished profile, in sentences: steps, and reasons not to trust it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from arlo.profiler.format import LatencyProfile, Point, RuntimeProfile

BUSY = 0.10  # share of the machine's CPU time that others may take
_SPREAD = 2.0  # p98 over p50 from which on a point counts as disturbed
_QUEUE = 0.2  # share of the mean that one request at a time may spend in Triton's queue
_STATIC = 0.05  # a shorter row of a static runtime may differ by this much


def staircase_lines(profile: LatencyProfile) -> list[str]:
    """The steps over the static runtimes, if there are several, and over the lengths of each dynamic one."""
    lines = []
    if sum(not runtime.dynamic and bool(runtime.points) for runtime in profile.runtimes) > 1:
        lines.append(f"maximum lengths: {profile.staircase.text}")
    for runtime in profile.runtimes:
        steps = runtime.staircase
        if steps is not None and runtime.points:
            lines.append(f"{runtime.name}, by length: {steps.text}")
    return lines


def warnings(profile: LatencyProfile) -> list[str]:
    """Warnings of a busy machine, points that missed the precision, latencies that vary or include queueing, static
    runtimes whose latency varies with length, and batches that were left out."""
    return [
        *_busy(profile),
        *_imprecise(profile),
        *_spread(profile),
        *_queued(profile),
        *_not_static(profile),
        *_left_out(profile),
    ]


def _points(profile: LatencyProfile) -> Iterator[tuple[RuntimeProfile, Point]]:
    for runtime in profile.runtimes:
        for point in runtime.points:
            yield runtime, point


def _name(runtime: RuntimeProfile, point: Point) -> str:
    return f"{runtime.name} at length {point.length}, batch {point.batch}"


def _some(names: list[str]) -> str:
    return "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")


def _busy(profile: LatencyProfile) -> Iterator[str]:
    loads = [point.other_load for _, point in _points(profile) if (point.other_load or 0) > BUSY]
    if loads:
        yield (
            f"the machine was busy: other work took up to {max(loads, key=lambda load: load or 0):.0%} of its CPU time "
            f"at {len(loads)} point(s), so latencies may be too high. Measure again with --fresh when it is idle"
        )


def _imprecise(profile: LatencyProfile) -> Iterator[str]:
    how = profile.how
    names = [
        f"{_name(runtime, point)} (+-{point.half_width_us / point.mean_us:.1%})"
        for runtime, point in _points(profile)
        if not point.within(how.precision)
    ]
    if names:
        yield (
            f"{len(names)} point(s) missed the precision of {how.precision:.1%} within {how.max_seconds:g} s: "
            f"{_some(names)}. The same command with a longer --max-seconds measures these again"
        )


def _spread(profile: LatencyProfile) -> Iterator[str]:
    names = [_name(runtime, point) for runtime, point in _points(profile) if point.p98_us > _SPREAD * point.p50_us]
    if names:
        yield (
            f"latency spreads widely (p98 above {_SPREAD:g} times p50): {_some(names)}. Other work on the worker's "
            "machine does this"
        )


def _queued(profile: LatencyProfile) -> Iterator[str]:
    found = [
        f"{_name(runtime, point)} ({point.queue_us / 1000:.1f} ms)"
        for runtime, point in _points(profile)
        if point.queue_us is not None and point.queue_us > _QUEUE * point.mean_us
    ]
    if found:
        yield (
            f"requests waited in Triton's queue, though there was never more than one: {_some(found)}. Triton's "
            "dynamic batcher with a queue policy sometimes misses a request, and looks again after 500 ms only: take "
            "default_queue_policy out of config.pbtxt"
        )


def _not_static(profile: LatencyProfile) -> Iterator[str]:
    for runtime in profile.runtimes:
        full, half = runtime.point(runtime.max_length, 1), runtime.shorter
        if full is None or half is None:
            continue
        apart = abs(full.mean_us - half.mean_us)
        if apart > _STATIC * full.mean_us + full.half_width_us + half.half_width_us:
            yield (
                f"{runtime.name} is static, but a row of {half.length} tokens padded to {full.length} took "
                f"{half.mean_us / 1000:.2f} ms instead of {full.mean_us / 1000:.2f} ms: its latency depends on the "
                "padding, or the machine was disturbed"
            )


def _left_out(profile: LatencyProfile) -> Iterator[str]:
    names = [
        f"{runtime.name} ({largest} of {runtime.max_batch} rows)"
        for runtime in profile.runtimes
        if runtime.points and (largest := max(point.batch for point in runtime.points)) < runtime.max_batch
    ]
    if names:
        yield (
            f"the largest batch was not measured: {_some(names)}. Larger batches than the measured ones count as "
            "run one after the other, so none will be formed for their speed. Measure them too: leave --batches out"
        )
