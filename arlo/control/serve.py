"""The foreground job of `arlo serve`: brings a cluster up, keeps it up, and takes it down on request.

Signals: the first SIGINT, SIGTERM or SIGHUP (the terminal was closed) stops in order: the gateway drains, then the
workers end. A second one stops at once. Under nohup SIGHUP stays ignored. SIGKILL also leaves nothing behind: the
guards of all processes notice that we are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from arlo.catalog.joined import joined, link
from arlo.catalog.manifest import Manifest
from arlo.config import Config
from arlo.control.events import emit
from arlo.control.gateway.process import made_run_dir
from arlo.control.plane import Cluster
from arlo.control.pool import make_pool

log = logging.getLogger("arlo.control")


@contextlib.contextmanager
def stop_signals(force: Callable[[], None]) -> Iterator[asyncio.Event]:
    """An event that the first stop signal sets; at the second one `force` is called and the process ends."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def asked(number: signal.Signals) -> None:
        if stop.is_set():
            emit(log, "forced", level=logging.WARNING, signal=number.name)
            force()
            os._exit(128 + number)
        emit(log, "stopping", signal=number.name)
        stop.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # without nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, asked, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def running(cluster: Cluster, stop: asyncio.Event) -> AsyncIterator[bool]:
    """Run the block with the cluster started and supervised, and stop the cluster after it.

    Yields False, with nothing running, when `stop` was set before the start had finished. An error of the supervision
    ends the block by cancellation and is raised after it.
    """
    start = asyncio.create_task(cluster.start())
    if not await _unless(start, stop):
        yield False
        return
    owner = asyncio.current_task()
    supervise = asyncio.create_task(cluster.supervise())

    def failed(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and owner is not None:
            owner.cancel()

    supervise.add_done_callback(failed)
    try:
        yield True
    finally:
        supervise.remove_done_callback(failed)
        supervise.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.gather(supervise, return_exceptions=True))
        await cluster.stop()
        if not supervise.cancelled():
            supervise.result()


async def _unless(task: asyncio.Task[None], stop: asyncio.Event) -> bool:
    """Wait for a task; if `stop` is set first, cancel it. True when it finished; its errors are raised."""
    waiter = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        waiter.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def load_manifest(config: Config) -> Manifest:
    """The repository's manifest, with the latencies of model.latency_profile if given; several models are joined.
    Raises ConfigError."""
    if config.more_models:
        manifests = [load_manifest(config.of(model)) for model in config.models]
        return joined(manifests, [model.name for model in config.models])
    manifest = Manifest.load(config.model.repository)
    if config.model.latency_profile is None:
        return manifest
    from arlo.profiler import LatencyProfile, with_profile

    return with_profile(manifest, LatencyProfile.load(config.model.latency_profile))


def with_one_repository(config: Config, manifest: Manifest) -> Config:
    """The configuration for local workers: several models lie in one folder, in workers.run_dir."""
    if not config.more_models or config.workers.kind == "endpoints":
        return config
    folder = link([model.repository for model in config.models], manifest, made_run_dir(config))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, repository=folder))


async def serve(
    config: Config,
    *,
    ready: Callable[[Cluster], None],
    manifest: Manifest | None = None,
    beside: Callable[[Cluster], Coroutine[Any, Any, None]] | None = None,
) -> int:
    """Serve until a stop signal; `ready` is called once, when requests are answered. Returns the exit code, 0.

    beside: runs at the same time, and is cancelled at the end.

    manifest: the result of load_manifest(), if the caller has it (and a recommendation for its latencies).
    ArloError when a part does not come up; nothing is left running then.
    """
    manifest = manifest or load_manifest(config)
    config = with_one_repository(config, manifest)
    cluster = Cluster(
        config,
        manifest,
        make_pool(config),
        report=lambda text: emit(log, "starting", what=text),
    )
    with stop_signals(cluster.kill_now) as stop:
        async with running(cluster, stop) as up:
            if up:
                ready(cluster)
                work = asyncio.create_task(beside(cluster)) if beside is not None else None
                await stop.wait()
                if work is not None:
                    work.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await work
    return 0
