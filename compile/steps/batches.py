"""Step 6, batches: with `--max-batch auto`, how many rows a batch of each maximum length holds.

Input: the lengths. Output: times of batches of 1, 2, 4, ... rows at each length, and the memory of a runtime. Cache
key: the engine's files, the lengths, the device, versions, this code. Check: a batch of one row was measured for each.

The times come from `options.latency_profile`; else they are measured here, on the engine's dynamic runtime. If this
machine cannot run the engine, the user must name the batch. On a CPU it is often small: one row of many tokens keeps a
core busy, and a batch only takes longer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import arlo.planning.lengths.batches as planning
from arlo.catalog.latency import LatencyTable
from arlo.compile.cache import Entry, code_version
from arlo.compile.engines.interface import Engine
from arlo.compile.job import Job
from arlo.compile.lengths.measure import dynamic_engine, quickest
from arlo.compile.options import CompileOptions
from arlo.errors import ConfigError
from arlo.planning.lengths.batches import MOST_ROWS, BatchChoice, Memory, choose_batches, measure_on
from arlo.profiler import LatencyProfile

_LONGEST_S = 1.0  # of one batch; what takes longer is not doubled


def check_batches(options: CompileOptions, engine: Engine) -> None:
    """Raise ConfigError, before the work starts, if batches are to be chosen without a source for their times."""
    if options.max_batch != "auto" or options.latency_profile is not None:
        return
    if why := engine.cannot_run():
        raise ConfigError(
            f"max_batch = auto needs a measurement, and {why}: name a number, such as --max-batch 16, or give a "
            "--latency-profile of a build that has one"
        )


def batches_step(job: Job, lengths: Sequence[int]) -> Entry:
    """Entry with meta `points` ([length, rows, microseconds] each), `weights_mb` and `token_mb` (10^6 bytes, None where
    not known), for `batches_of`. ConfigError for a latency profile that cannot be read, or has no batches."""
    if job.options.latency_profile is not None:
        points = _of_profile(job.options.latency_profile, lengths)
        parts: dict[str, Any] = {"points": points}
        return job.cache.step("batches", parts, lambda _: {"points": points, "weights_mb": None, "token_mb": None})
    engine, output = job.engine, job.outputs[0].name
    spec, built = dynamic_engine(job, lengths[-1])
    parts = {
        "engine": built.files,
        "lengths": list(lengths),
        "output": output,
        "device": job.device,
        "tools": engine.versions(),
        "code": [
            code_version("steps/batches", "lengths/measure"),
            hashlib.sha256(Path(planning.__file__).read_bytes()).hexdigest()[:16],
        ],
    }

    def make(_: object) -> dict[str, Any]:
        used = engine.memory_used()
        runner = engine.open(built.folder, spec, threads=job.threads)
        opened = engine.memory_used()
        own_time = engine.settings.device == "cpu" and job.threads == 1
        points: list[tuple[int, int, float]] = []
        for length in lengths:
            here: list[tuple[int, float]] = []
            while not here or (measure_on(here) and here[-1][1] < _LONGEST_S * 1e6):
                rows = 2 * here[-1][0] if here else 1
                took_s, _ = quickest(runner, job.rows(length, rows), output, own_time=own_time)
                here.append((rows, took_s * 1e6))
            points += [(length, rows, us) for rows, us in here]
        tokens = max(length * rows for length, rows, _ in points)
        if engine.name.startswith("tensorrt"):  # takes the room for its largest shape when it is opened
            tokens = MOST_ROWS * lengths[-1]
            weights: int | None = sum(path.stat().st_size for path in built.folder.iterdir())
        else:
            weights = None if used is None or opened is None else opened - used
        return {"points": points, **_memory(weights, used, engine.memory_used(), tokens)}

    return job.cache.step("batches", parts, make, fresh=job.options.remeasure)


def batches_of(job: Job, entry: Entry) -> tuple[BatchChoice, ...]:
    """The rows of each length, from the measurements. ConfigError if not even one row each fits into the memory."""
    measured: dict[int, dict[int, float]] = {}
    for length, rows, us in entry.meta["points"]:
        measured.setdefault(length, {})[rows] = us
    weights_mb, token_mb = entry.meta["weights_mb"], entry.meta["token_mb"]
    memory = None if token_mb is None else Memory(weights_mb=weights_mb, token_mb=token_mb)
    return choose_batches(measured, memory=memory, limit_mb=job.options.memory_mb)


def _memory(weights: int | None, before: int | None, after: int | None, tokens: int) -> dict[str, float | None]:
    """Memory in addition to the weights is attributed to the tokens of the largest batch that ran."""
    if weights is None or before is None or after is None:
        return {"weights_mb": None, "token_mb": None}
    return {"weights_mb": max(0, weights) / 1e6, "token_mb": max(0, after - before - weights) / 1e6 / tokens}


def _of_profile(path: Path, lengths: Sequence[int]) -> list[list[float]]:
    runtimes = LatencyProfile.load(path).runtimes
    static = [runtime for runtime in runtimes if not runtime.dynamic]
    table = LatencyTable.from_us(
        (point.length, point.batch, point.mean_us) for runtime in static or runtimes for point in runtime.points
    )
    most = min(MOST_ROWS, max(table.batches(), default=1))
    rows = [1 << power for power in range(most.bit_length())]
    if len(rows) == 1:
        raise ConfigError(f"{path} has no batches to choose from: compile with --max-batch 32, and measure again")
    return [[length, batch, table.at_ns(length, batch) / 1000] for length in lengths for batch in rows]
