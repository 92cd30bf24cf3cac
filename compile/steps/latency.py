"""Step 11, latency profile: how long each runtime takes on this machine, by length and batch.

Input: the built engine. Output: LatencyPoints in microseconds, and the memory that the engine takes. Cache key: the
engine's files, the device, the threads, versions, this code. Check: the process had a core for itself; otherwise a
warning is logged.

The measurement runs in this process, without Triton. Other work on the machine only ever adds time, so the lower
quartile of the repetitions is taken, and a point that took longer than one with more tokens or rows is measured again:
the quicker time counts.

Memory is the increase in use, of the process (CPU) or of the GPU, once the engine was opened and ran its largest batch:
weights and activations. Triton's own process is not included.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from arlo.catalog.manifest import LatencyPoint
from arlo.clock import monotonic_s
from arlo.compile.cache import Entry, code_version
from arlo.compile.engines.interface import Runner
from arlo.compile.job import Job
from arlo.compile.lengths.measure import cpu_s
from arlo.compile.repository.triton_config import model_code
from arlo.compile.spec import RuntimeSpec
from arlo.profiler.points import default_batches

_REPETITIONS = 9
_BUDGET_S = 1.0  # for one point; at least three repetitions are made whatever they take
_SHORT = (8, 16, 32, 64, 128)  # lengths that a dynamic runtime is measured at in any case
_BUSY = 0.9  # share of one core, CPU time over wall time; 0.98 or more on an idle machine
_ODD = 1.03  # time over that of a larger point, above which something else ran meanwhile; less is noise
ROUNDS = 2  # of measuring odd points again

Times = Mapping[tuple[int, int], float]
"""(Length, batch) -> microseconds."""


def odd(times: Times, *, longer: Times | None = None) -> list[tuple[int, int]]:
    """The points that took clearly longer than one of at least their length and batch, in `times` or in `longer`.

    More tokens or rows are never less work, so such a point was disturbed.
    """
    others = [*times.items(), *(longer or {}).items()]
    return [
        point
        for point, took in sorted(times.items())
        if any(took > _ODD * least for other, least in others if other[0] >= point[0] and other[1] >= point[1])
    ]


def latency_step(
    job: Job,
    built: Entry,
    spec: RuntimeSpec,
    lengths: Sequence[int],
    *,
    before: Entry | None = None,
    again: Collection[tuple[int, int]] = (),
) -> Entry:
    """Entry with meta `points` ([length, batch, microseconds] each), `device`, and `memory_mb` (10^6 bytes; None: not
    known). `before` and `again`: that entry with
    the points `again` measured once more, the quicker time of each.

    A static runtime takes as long for any text, so only its own length counts; a dynamic one is measured at each length
    of the build (`lengths`) and at some short ones, between which its time is read off. Only the first output is
    computed, as Triton computes only what a client asks for.
    """
    engine, output = job.engine, job.outputs[0].name
    measured = sorted({*lengths, *_SHORT} & {*range(spec.max_length + 1)}) if spec.dynamic else [spec.max_length]
    parts = {
        "engine": built.files,
        "serving": dict(engine.serving(spec).parameters),
        "lengths": measured,
        "batches": default_batches(spec.max_batch),
        "output": output,
        "device": job.device,
        "tools": engine.versions(),
        "code": [code_version("steps/latency"), *map(job.cache.hash, model_code(engine.serving(spec).template))],
    }

    def make(_: object) -> dict[str, Any]:
        used = engine.memory_used()
        runner = engine.open(built.folder, spec, threads=job.threads)
        found: dict[tuple[int, int], tuple[int, float]] = {}  # microseconds, share of a core

        def take(point: tuple[int, int]) -> None:
            length, batch = point
            latency_s, core = _measure(runner, job.rows(length, batch), output)
            now = (max(1, round(latency_s * 1e6)), core)
            found[point] = min(now, found.get(point, now))

        if before is None:
            for length in measured:
                for batch in default_batches(spec.max_batch):
                    take((length, batch))
            for _ in range(ROUNDS):
                for point in odd({point: us for point, (us, _) in found.items()}):
                    take(point)
        else:
            found.update(
                ((p[0], p[1]), (p[2], core))
                for p, core in zip(before.meta["points"], before.meta["cores"], strict=True)
            )
            for point in again:
                take(point)
        taken = _growth_mb(used, engine.memory_used()) if before is None else before.meta["memory_mb"]
        return {
            "points": [[*point, us] for point, (us, _) in found.items()],
            "cores": [core for _, core in found.values()],
            "device": job.device,
            "memory_mb": taken,
        }

    return job.cache.step("latency", parts, make, fresh=job.options.remeasure or before is not None)


def times_of(entry: Entry) -> Times:
    """The measured times."""
    return {(p[0], p[1]): p[2] for p in entry.meta["points"]}


def busy_warning(entry: Entry) -> str:
    """The warning if other work took the core away, else empty."""
    if min(entry.meta["cores"]) >= _BUSY or not entry.meta["device"].startswith("cpu"):  # a GPU leaves the core idle
        return ""
    return "the machine was busy while the latency was measured: measure again with --remeasure"


def points_of(entry: Entry) -> tuple[LatencyPoint, ...]:
    """The measured points."""
    return tuple(LatencyPoint(length=p[0], batch=p[1], latency_us=p[2]) for p in entry.meta["points"])


def _growth_mb(before: int | None, after: int | None) -> int | None:
    """Growth in MB, rounded up; None if there is none, as on a GPU where other memory was freed meanwhile."""
    if before is None or after is None or after <= before:
        return None
    return -(-(after - before) // 10**6)


def _measure(runner: Runner, inputs: dict[str, Any], output: str) -> tuple[float, float]:
    """Seconds of one run, and the share of a core that this process got meanwhile."""
    runner.run(inputs, [output])  # the first run allocates
    times: list[float] = []
    start_cpu_s = cpu_s()
    while len(times) < 3 or (len(times) < _REPETITIONS and sum(times) < _BUDGET_S):
        start = monotonic_s()
        runner.run(inputs, [output])
        times.append(monotonic_s() - start)
    share = (cpu_s() - start_cpu_s) / sum(times)
    return statistics.quantiles(times, n=4, method="inclusive")[0], min(1.0, share)
