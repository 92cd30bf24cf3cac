"""The latency over the length, measured on this machine in seconds rather than minutes."""

from __future__ import annotations

import itertools
import math
import resource
from collections.abc import Callable
from typing import Any

from arlo.clock import monotonic_s
from arlo.compile.cache import Entry, code_version
from arlo.compile.engines.interface import Runner
from arlo.compile.job import Job
from arlo.compile.lengths.curve import Points, SourcedCurve, from_points
from arlo.compile.spec import RuntimeSpec
from arlo.compile.steps.build import build_step
from arlo.compile.steps.specialise import specialise_step

Measure = Callable[[int], float]
"""Length in tokens -> microseconds of one row."""

STEP = 16
"""Lengths measured are multiples of it: four in each step of 64 tokens."""

BUDGET_S = 10.0
"""For all lengths. The six lengths 16, 32, 64, ..., 512 are measured whatever they take."""

_POINT_S = 0.3  # for one length; at least three runs are made whatever they take
_MOST_RUNS = 15
_FLAT = 0.02  # neighbours that differ by less have nothing between them that is worth measuring
_BUSY = 0.5  # share of a core, CPU time over wall time, below which even CPU time says little


def measured_here(job: Job, longest: int) -> SourcedCurve:
    """The engine's dynamic runtime, measured on this machine at multiples of STEP, in about BUDGET_S.

    Each point is the quickest of 3 to 15 runs with one row: other work only ever adds time, and the shape of the curve
    is what matters. With one thread on a CPU, CPU time is measured, so that other work on the machine disturbs little.
    The points are cached by the engine's files, the device, threads and versions.
    """
    spec, built = dynamic_engine(job, longest)
    engine, output = job.engine, job.outputs[0].name
    parts = {
        "engine": built.files,
        "longest": longest,
        "output": output,
        "device": job.device,
        "tools": engine.versions(),
        "code": code_version("lengths/measure"),
    }

    def make(_: object) -> dict[str, Any]:
        runner, shares = engine.open(built.folder, spec, threads=job.threads), [1.0]
        own_time = engine.settings.device == "cpu" and job.threads == 1

        def measure(length: int) -> float:
            quickest_s, share = quickest(runner, job.rows(length), output, own_time=own_time)
            shares.append(share)
            return quickest_s * 1e6

        return {"points": refined(measure, longest), "share": min(shares), "own_time": own_time}

    entry = job.cache.step("lengths-curve", parts, make, fresh=job.options.remeasure)
    notes = []
    if entry.meta["own_time"] and entry.meta["share"] < _BUSY:
        notes.append("the machine was busy while the latency over the length was measured: --remeasure measures again")
    clock = ", CPU time" if entry.meta["own_time"] else ""
    return from_points(entry.meta["points"], f"measured on {job.device}{clock}", notes)


def dynamic_engine(job: Job, longest: int) -> tuple[RuntimeSpec, Entry]:
    """The runtime measured before the lengths to build are known: any length, any batch."""
    rows = job.options.most_rows
    spec = RuntimeSpec(name=f"{job.model.name}_dynamic", max_length=longest, max_batch=rows, shape="dynamic")
    return spec, build_step(job, specialise_step(job, spec), spec)


def refined(
    measure: Measure, longest: int, *, budget_s: float = BUDGET_S, clock: Callable[[], float] = monotonic_s
) -> Points:
    """(tokens, microseconds) from `longest` down to STEP: a coarse grid, then more where the latency changes most.

    Lengths that took longer than a longer length are measured once more, and the quicker time counts: usually other
    work ran meanwhile. More lengths are measured while the time of the longer neighbour fits into the budget.
    """
    start_s = clock()
    points: dict[int, float] = {}
    took_s: dict[int, float] = {}

    def at(length: int) -> None:
        before_s = clock()
        points[length] = min(measure(length), points.get(length, math.inf))
        took_s[length] = clock() - before_s

    def left_s() -> float:
        return budget_s - (clock() - start_s)

    for power in range(longest.bit_length()):
        if STEP << power < longest:
            at(STEP << power)
    at(longest)
    again: set[int] = set()
    while True:
        odd = [low for low, high in itertools.pairwise(sorted(points)) if points[low] > points[high]]
        doubtful = [length for length in odd if length not in again and took_s[length] <= left_s()]
        if doubtful:
            again.update(doubtful)
            for length in doubtful:
                at(length)
        elif (further := _next(points, took_s, left_s())) is not None:
            at(further)
        else:
            return sorted(points.items())


def _next(points: dict[int, float], took_s: dict[int, float], left_s: float) -> int | None:
    """The length to measure next: in the middle of the neighbours that differ most."""
    best, change = None, _FLAT
    for low, high in itertools.pairwise(sorted(points)):
        middle = ((low + high) // 2 + STEP - 1) // STEP * STEP
        differs = abs(math.log(points[high] / points[low]))
        if low < middle < high and differs > change and took_s[high] <= left_s:
            best, change = middle, differs
    return best


def quickest(runner: Runner, inputs: dict[str, Any], output: str, *, own_time: bool) -> tuple[float, float]:
    """Seconds of one run, and the share of a core that this process got meanwhile. own_time: seconds of the CPU."""
    runner.run(inputs, [output])  # the first run allocates
    times_s: list[float] = []
    wall_s = busy_s = 0.0
    while len(times_s) < 3 or (len(times_s) < _MOST_RUNS and wall_s < _POINT_S):
        start_s, start_cpu_s = monotonic_s(), cpu_s()
        runner.run(inputs, [output])
        took_s, took_cpu_s = monotonic_s() - start_s, cpu_s() - start_cpu_s
        times_s.append(took_cpu_s if own_time else took_s)
        wall_s, busy_s = wall_s + took_s, busy_s + took_cpu_s
    return min(times_s), min(1.0, busy_s / wall_s)


def cpu_s() -> float:
    """CPU seconds that this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
