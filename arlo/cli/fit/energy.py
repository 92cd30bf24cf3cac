"""The energy of a batch of each stage, by length.

Measured on an otherwise idle worker, by the counter of its GPU (NVML) or of the machine's CPUs (RAPL, including all
else that runs there): batches one after the other, idle power included. With --watts, modelled from the measured
latencies as full power for as long as a batch takes.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.manifest import Manifest, Runtime
from arlo.cli.fit.record import runtimes_of
from arlo.clock import monotonic_s
from arlo.errors import ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from arlo.cascade.energy import Counter

WARM = 3  # batches that are not counted
SECONDS = 3.0  # of batches one after the other; NVML and RAPL count in steps of up to a tenth of a second


def stage_energy(
    name: str, repository: Path, *, watts: float | None, threads: int, seconds: float = SECONDS
) -> dict[str, Any]:
    """`energy_mj` and `energy_source` of a stage."""
    from arlo.cascade.energy import stairs

    runtimes = runtimes_of(Manifest.load(repository))
    wanted = [(r, length, rows) for r in runtimes for length, rows in _places(r)]
    if watts is not None:
        source = f"modelled: {watts:g} W for as long as a batch takes"
        found = [(length, rows, watts * r.table.at_ns(length, rows) / 1e6) for r, length, rows in wanted]
    else:
        counter = counter_of()
        source = f"measured: {counter.source}"
        found = asyncio.run(_measured(name, repository, wanted, counter, threads=threads, seconds=seconds))
    return {"energy_mj": tuple(found) if runtimes[0].dynamic else stairs(found), "energy_source": source}


def _places(runtime: Runtime) -> list[tuple[int, int]]:
    """The (tokens, rows) with a measured latency; of a static runtime at its length. ConfigError without any."""
    if not runtime.latency:
        raise ConfigError(
            f"runtime {runtime.name} was not measured on a device yet: `arlo compile profile` does that first"
        )
    at = {(p.length if runtime.dynamic else runtime.max_length, p.batch) for p in runtime.latency}
    return sorted({place for place in at if place[1] <= runtime.max_batch} | {(runtime.max_length, 1)})


def counter_of() -> Counter:
    """The counter of the first GPU, else of the CPUs. EnvironmentProblem if there is none."""
    from arlo.cascade.energy import NvmlCounter, RaplCounter

    try:
        return NvmlCounter(0)
    except EnvironmentProblem:
        pass
    try:
        return RaplCounter()
    except EnvironmentProblem:
        raise EnvironmentProblem(
            "nothing here counts energy: no GPU by NVML, and no readable RAPL counter of the CPUs. Give --watts, the "
            "power of a busy device: then it is modelled from the measured latencies, and called so"
        ) from None


async def _measured(
    name: str,
    repository: Path,
    wanted: list[tuple[Runtime, int, int]],
    counter: Counter,
    *,
    threads: int,
    seconds: float,
) -> list[tuple[int, int, float]]:
    from rich.console import Console

    from arlo.profiler.wire import infer_request
    from arlo.profiler.worker import end_on_sigterm, in_thread, one_worker
    from arlo.report.progress import LiveBar

    end_on_sigterm()
    manifest, stop = Manifest.load(repository), threading.Event()
    found: list[tuple[int, int, float]] = []
    with LiveBar(Console(stderr=True), f"{name}: starting a worker") as bar:
        async with one_worker(repository, threads=threads) as (pool, worker, client):
            loaded: str | None = None
            for runtime, length, rows in wanted:
                if loaded != runtime.name:
                    if loaded is not None:
                        await pool.unload(worker, loaded)
                    await pool.load(worker, runtime.name)
                    loaded = runtime.name
                outputs = (manifest.outputs[0].name,)
                request = infer_request(manifest, runtime, length=length, batch=rows, outputs=outputs)
                call = client.caller(runtime.name, request)
                mj = await in_thread(functools.partial(batch_mj, call, counter, seconds, stop), stop.set)
                found.append((length, rows, mj))
                bar.show(len(found), len(wanted), f"{name}: {len(found)} of {len(wanted)} batches")
    return found


def batch_mj(call: Any, counter: Counter, seconds: float, stop: threading.Event) -> float:
    """mJ of one call, from so many seconds of calls one after the other. EnvironmentProblem if nothing was counted."""
    for _ in range(WARM):
        call()
    began_s, began_j, calls = monotonic_s(), counter.joules(), 0
    while not stop.is_set() and (calls == 0 or monotonic_s() - began_s < seconds):
        call()
        calls += 1
    spent = 1000 * (counter.joules() - began_j) / max(calls, 1)
    if spent <= 0 and not stop.is_set():
        raise EnvironmentProblem(f"{counter.source} counted nothing within {seconds:g} s: give --watts")
    return spent
