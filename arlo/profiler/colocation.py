"""How many instances a device holds: `arlo compile profile --colocate` (Pf of Tabi, EuroSys'23, section 7.1).

Pf is the number of instances on one device at which each takes less than 10 % longer than alone. It is measured by
running them: workers of their own with the same runtime, each answering one request after the other, all at once; one
more at a time, until they are too slow, or one no longer starts or loads.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
from collections.abc import Callable

from arlo.catalog.manifest import Manifest, Runtime
from arlo.clock import monotonic_s
from arlo.errors import WorkerError
from arlo.profiler.format import Colocation, too_slow
from arlo.profiler.job import ProfileOptions
from arlo.profiler.wire import WorkerClient, infer_request
from arlo.workers import WorkerInfo, WorkerPool

WARM = 3  # calls of each instance that are not counted

Call = Callable[[], None]


async def colocate(
    pool: WorkerPool,
    manifest: Manifest,
    runtime: Runtime,
    most: int,
    *,
    options: ProfileOptions,
    report: Callable[[int, float], None] = lambda _count, _us: None,
) -> Colocation:
    """On a started pool of one worker, to which others are added: rows alone, `options.max_seconds` for each number of
    instances. WorkerError where not even one answers. `report`: number of instances, mean us of each."""
    request = infer_request(
        manifest,
        runtime,
        length=runtime.max_length,
        batch=1,
        outputs=options.outputs or (manifest.outputs[0].name,),
    )
    clients: list[WorkerClient] = []
    means: list[float] = []
    why = f"no more than {most} were tried"
    stop = threading.Event()
    try:
        while len(clients) < most:
            try:
                worker = (await pool.workers())[0] if not clients else await pool.add()
                clients.append(await _with_runtime(pool, worker, runtime, options))
                calls = [client.caller(runtime.name, request) for client in clients]
                work = asyncio.create_task(asyncio.to_thread(side_by_side, calls, options.max_seconds, stop))
                try:
                    mean_us = await asyncio.shield(work)
                except asyncio.CancelledError:
                    stop.set()
                    await asyncio.gather(work, return_exceptions=True)
                    raise
            except WorkerError as error:
                if not means:
                    raise
                why = f"one more than {len(means)} does not run: {error}"
                break
            means.append(round(mean_us, 1))
            report(len(means), mean_us)
            if too_slow(means[-1], means[0]):
                why = f"{len(means)} take {means[-1] / means[0] - 1:.0%} longer"
                break
    finally:
        for client in clients:
            client.close()
    return Colocation(runtime=runtime.name, mean_us=tuple(means), ended=why)


async def _with_runtime(
    pool: WorkerPool, worker: WorkerInfo, runtime: Runtime, options: ProfileOptions
) -> WorkerClient:
    if runtime.name not in worker.runtimes:
        await pool.load(worker.id, runtime.name, timeout_s=options.load_timeout_s)
    return WorkerClient(worker.endpoint, timeout_s=options.request_timeout_s)


def side_by_side(calls: list[Call], seconds: float, stop: threading.Event) -> float:
    """Mean us of a call, each repeated in a thread of its own. Counted are calls that begin and end while all threads
    call, at least one of each. The first error of any is raised."""
    ready, over = threading.Barrier(len(calls)), threading.Event()
    spans: list[list[tuple[float, float]]] = [[] for _ in calls]
    failed: list[BaseException] = []

    def repeat(call: Call, mine: list[tuple[float, float]]) -> None:
        try:
            for _ in range(WARM):
                call()
            ready.wait()
            until_s = monotonic_s() + seconds
            while not over.is_set() and not stop.is_set() and (not mine or monotonic_s() < until_s):
                began_s = monotonic_s()
                call()
                mine.append((began_s, monotonic_s()))
        except threading.BrokenBarrierError:
            pass  # another one failed before
        except Exception as error:
            failed.append(error)
            over.set()
            ready.abort()

    threads = [threading.Thread(target=repeat, args=pair) for pair in zip(calls, spans, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    first, last = max(mine[0][0] for mine in spans), min(mine[-1][1] for mine in spans)
    inside = [[1e6 * (b - a) for a, b in mine if a >= first and b <= last] for mine in spans]
    # Of one that fits no whole call between the others' ends, its own.
    each = [times or [1e6 * (b - a) for a, b in mine] for times, mine in zip(inside, spans, strict=True)]
    return statistics.fmean(statistics.fmean(times) for times in each)
