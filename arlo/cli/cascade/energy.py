"""`arlo cascade energy`: what a batch of each stage costs in energy, by length, written into cascade.json.

Measured on a worker of its own that has nothing else to do, by the counter of its GPU (NVML), or of the machine's CPUs
(RAPL, with all else that runs there): batches one after the other, idle power included. Modelled from the measured
latencies, all of the time at full power, where --watts says which.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.manifest import Manifest, Runtime
from arlo.cli.cascade.common import names, within
from arlo.cli.cascade.record import runtimes_of
from arlo.cli.text import print_json
from arlo.clock import monotonic_s
from arlo.errors import ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from arlo.cascade.energy import Counter
    from arlo.cascade.manifest import Stage

WARM = 3  # batches that are not counted
LEAST_S = 0.2  # NVML and RAPL count in steps of up to a tenth of a second


def run(args: argparse.Namespace) -> int:
    """Measure or model, write, print."""
    from arlo.cascade.manifest import CascadeManifest

    within(args.seconds, LEAST_S, 600, "--seconds")
    within(args.watts, 0.001, 100_000, "--watts")
    within(args.threads, 1, 256, "--threads")
    cascade = CascadeManifest.load(args.cascade)
    folder = args.cascade if args.cascade.is_dir() else args.cascade.parent
    chosen = names(args.stages) or tuple(stage.name for stage in cascade.stages)
    if unknown := set(chosen) - {stage.name for stage in cascade.stages}:
        raise ConfigError(
            f"--stages names {min(unknown)!r}; the cascade has: {', '.join(s.name for s in cascade.stages)}"
        )
    stages = []
    for stage in cascade.stages:
        stages.append(_of_stage(stage, folder / stage.repository, args) if stage.name in chosen else stage)
        dataclasses.replace(cascade, stages=(*stages, *cascade.stages[len(stages) :])).save(args.cascade)
    if args.json:
        print_json({s.name: {"energy_mj": s.energy_mj, "energy_source": s.energy_source} for s in stages})
    else:
        for stage in stages:
            single = {length: mj for length, rows, mj in stage.energy_mj if rows == 1}
            shown = ", ".join(f"{length} tokens {mj:.3g} mJ" for length, mj in single.items())
            print(f"{stage.name}: {shown or 'not known'} ({stage.energy_source or 'nothing measured'})")
        print(f"written to {args.cascade}; next: arlo cascade search {args.cascade} --data ... --objective energy")
    return 0


def _of_stage(stage: Stage, repository: Path, args: argparse.Namespace) -> Stage:
    from arlo.cascade.energy import stairs

    runtimes = runtimes_of(Manifest.load(repository))
    wanted = [(r, length, rows) for r in runtimes for length, rows in _places(r)]
    if args.watts is not None:
        source = f"modelled: {args.watts:g} W for as long as a batch takes"
        found = [(length, rows, args.watts * r.table.at_ns(length, rows) / 1e6) for r, length, rows in wanted]
    else:
        counter = counter_of(args.gpu)
        source = f"measured: {counter.source}"
        found = asyncio.run(_measured(stage.name, repository, wanted, counter, args))
    points = tuple(found) if runtimes[0].dynamic else stairs(found)
    return dataclasses.replace(stage, energy_mj=points, energy_source=source)


def _places(runtime: Runtime) -> list[tuple[int, int]]:
    """(tokens, rows) of which the latency was measured; of a static runtime at its length. ConfigError without any."""
    if not runtime.latency:
        raise ConfigError(f"runtime {runtime.name} was not measured on a device yet: `arlo profile` does that first")
    at = {(p.length if runtime.dynamic else runtime.max_length, p.batch) for p in runtime.latency}
    return sorted({place for place in at if place[1] <= runtime.max_batch} | {(runtime.max_length, 1)})


def counter_of(gpu: str | None) -> Counter:
    """Of this GPU; of the first one, or else of the CPUs, where none is named. EnvironmentProblem: nothing counts."""
    from arlo.cascade.energy import NvmlCounter, RaplCounter

    if gpu is not None:
        return NvmlCounter(gpu)
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
    name: str, repository: Path, wanted: list[tuple[Runtime, int, int]], counter: Counter, args: argparse.Namespace
) -> list[tuple[int, int, float]]:
    from rich.console import Console

    from arlo.profiler.wire import WorkerClient, infer_request
    from arlo.report.progress import LiveBar
    from arlo.workers import LocalPool

    manifest = Manifest.load(repository)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    found: list[tuple[int, int, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="arlo-energy-") as run_dir,
        LiveBar(Console(stderr=True), f"{name}: starting a worker") as bar,
    ):
        gpus = (args.gpu,) if args.gpu is not None else ()
        pool = LocalPool(
            repository,
            workers=1,
            run_dir=Path(run_dir),
            threads=args.threads,
            gpus=gpus,
            metrics=False,
            exit_timeout_s=2,
        )
        stop = threading.Event()
        try:
            await pool.start()
            worker = (await pool.workers())[0]
            client = WorkerClient(worker.endpoint, timeout_s=120.0)
            loaded: str | None = None
            for runtime, length, rows in wanted:
                if loaded != runtime.name:
                    if loaded is not None:
                        await pool.unload(worker.id, loaded)
                    await pool.load(worker.id, runtime.name)
                    loaded = runtime.name
                outputs = (manifest.outputs[0].name,)
                request = infer_request(manifest, runtime, length=length, batch=rows, outputs=outputs)
                call = client.caller(runtime.name, request)
                work = asyncio.create_task(asyncio.to_thread(batch_mj, call, counter, args.seconds, stop))
                try:
                    found.append((length, rows, await asyncio.shield(work)))
                except asyncio.CancelledError:
                    stop.set()
                    await asyncio.gather(work, return_exceptions=True)
                    raise
                bar.show(len(found), len(wanted), f"{name}: {len(found)} of {len(wanted)} batches")
            client.close()
        finally:
            await pool.stop()
    return found


def batch_mj(call: Any, counter: Counter, seconds: float, stop: threading.Event) -> float:
    """mJ of one call, of so many seconds of calls one after the other. EnvironmentProblem where nothing was counted."""
    for _ in range(WARM):
        call()
    began_s, began_j, calls = monotonic_s(), counter.joules(), 0
    while not stop.is_set() and (calls == 0 or monotonic_s() - began_s < seconds):
        call()
        calls += 1
    spent = 1000 * (counter.joules() - began_j) / max(calls, 1)
    if spent <= 0 and not stop.is_set():
        raise EnvironmentProblem(
            f"{counter.source} counted nothing within {seconds:g} s: give more --seconds, or --watts"
        )
    return spent
