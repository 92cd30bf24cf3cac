"""One served model: its workers, its gateway, and the loops that keep both as they should be.

Life of a Cluster: start() brings everything up (or takes over a running cluster) or leaves nothing behind;
supervise() keeps it running until it is cancelled; stop() takes the gateway out first (it drains while the workers
still answer), then the workers. One event loop.

Responsibilities: the pool restarts a worker that died; the runtime scheduler (scheduler.py) decides which worker has
which runtime; the reconciler (reconciler.py) carries that out; the gateway finds by its own health checks which
instances answer, and is itself kept up by gateway/keeper.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import functools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import IO, Any

from arlo.catalog.files import check_files
from arlo.catalog.manifest import Manifest, Runtime
from arlo.clock import monotonic_s, unix_s
from arlo.config import Config
from arlo.control.backoff import Backoff
from arlo.control.events import emit
from arlo.control.gateway.admin import AdminClient
from arlo.control.gateway.keeper import GatewayKeeper
from arlo.control.gateway.process import Addresses, made_run_dir, reachable
from arlo.control.http.report import control_status
from arlo.control.http.server import ControlHttp
from arlo.control.http.status import ControlStatus
from arlo.control.mode import ServingMode, mode_of
from arlo.control.reconcile.deployments import Deployments, OtherControlPlaneError, owner_label
from arlo.control.reconcile.moves import Probe
from arlo.control.reconcile.probe import warm_up
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch.feed import Watcher
from arlo.control.watch.recycler import Recycler
from arlo.control.watch.scaler import Scaler
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.errors import ArloError, ConfigError, explain
from arlo.planning.allocation.curves import capacity
from arlo.workers.bundled import BundledPool
from arlo.workers.local.pool import LocalPool
from arlo.workers.pool import WorkerPool

log = logging.getLogger("arlo.control")

CHANGE_AGAIN_S = 5.0  # wait after a failed change()


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """The parts that depend on the manifest."""

    mode: ServingMode
    deployments: Deployments
    reconciler: Reconciler
    scheduler: RuntimeScheduler
    scaler: Scaler
    watchers: Mapping[str, Watcher]


class Cluster:
    """See the module. `report`, if given, is called with a short description of each part of start()."""

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        pool: WorkerPool,
        *,
        report: Callable[[str], None] = lambda _: None,
        probe: Probe = warm_up,
    ) -> None:
        self._config = config
        self._pool = pool
        self._report = report
        self._probe = probe
        self._started_at_ms = round(unix_s() * 1000)
        self.counters: Counter[str] = Counter()
        self._parts = self._parts_for(manifest)
        self._wanted: Manifest | None = None  # the manifest to serve next, see change()
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()  # set when no change is pending
        self._settled.set()
        self._tasks = self.mode.tasks(pool, served=lambda: self.manifest, change=self.change, probe=probe)
        self._http = ControlHttp(config.control.http_address, self.status)
        self._gateway = GatewayKeeper(config, self._deployments, self.counters)
        self._run_lock: IO[bytes] | None = None
        self.http_address = ""  # of /status and /metrics, as bound

    def _parts_for(self, manifest: Manifest) -> _Parts:
        config, counters = self._config, self.counters
        mode = mode_of(config, manifest)
        deployments = Deployments(mode, counters, owner=owner_label(self._started_at_ms))
        bundled = BundledPool(self._pool, mode.manifest)
        reconciler = Reconciler(mode, bundled, deployments, counters, probe=self._probe)
        scheduler = RuntimeScheduler(mode, reconciler, deployments, counters)
        scaler = Scaler(mode, bundled, reconciler, scheduler, counters=counters)
        reconciler.stats = lambda: scheduler.feed.first
        watchers: dict[str, Watcher] = {
            "scaler": scaler.on_stats,
            "recycler": Recycler(config, mode.manifest, reconciler).on_stats,
            **mode.watchers(deployments, counters),
        }
        return _Parts(mode, deployments, reconciler, scheduler, scaler, watchers)

    @property
    def mode(self) -> ServingMode:
        """The serving mode."""
        return self._parts.mode

    @property
    def manifest(self) -> Manifest:
        """The manifest of the runtimes that workers may hold."""
        return self.mode.manifest

    @property
    def reconciler(self) -> Reconciler:
        """The reconciler: which worker has which runtime, and which it should have."""
        return self._parts.reconciler

    @property
    def scheduler(self) -> RuntimeScheduler:
        """The runtime scheduler, which decides the placement."""
        return self._parts.scheduler

    @property
    def scaler(self) -> Scaler:
        """The scaler, which decides the number of workers."""
        return self._parts.scaler

    @property
    def _deployments(self) -> Deployments:
        return self._parts.deployments

    @property
    def gateway_pid(self) -> int | None:
        """Process id of the managed gateway."""
        return self._gateway.pid

    @property
    def addresses(self) -> Addresses | None:
        """The gateway's addresses; after start()."""
        return self._gateway.addresses

    @property
    def admin(self) -> AdminClient:
        """The connection to the gateway's admin port; after start()."""
        return self._deployments.admin

    def status(self) -> ControlStatus:
        """The document of `/status`."""
        return control_status(
            self.mode,
            reconciler=self.reconciler,
            scheduler=self.scheduler,
            scaler=self.scaler,
            deployments=self._deployments,
            counters=self.counters,
            started_at_ms=self._started_at_ms,
            gateway_admin=reachable(self.addresses.admin) if self.addresses else "",
            gateway_up=self._gateway.answers,
        )

    async def start(self) -> None:
        """Start workers and gateway, load, apply, and wait until every instance is in service.

        Processes left running by an earlier control plane (workers.linger_s, a Ray cluster, fixed endpoints) are taken
        over as they are and keep serving. ArloError when a part does not come up, with everything stopped again.
        """
        self._warn()
        self._lock_run_dir()
        self._report(self.mode.choice.text)
        try:
            workers = self._config.workers
            await asyncio.to_thread(
                check_files, self._config.model.repository, self.manifest, must_exist=workers.kind != "endpoints"
            )
            self.http_address = await self._http.start()
            self._report(f"starting {self._config.worker_count} worker(s) and the gateway")
            await _all(self._pool.start(), self._gateway.start())
            if not self._config.gateway.managed:  # (a managed one has the lock of the run folder)
                await self._deployments.claim()
            await self.reconciler.observe()
            self._note_plugins()
            resumed = await self.reconciler.resume()
            self.reconciler.want(self.scheduler.first_placement())
            if resumed:
                self._report("taking over what serves already")
                await self._deployments.ensure()
            else:
                self._report(f"loading {len(self.reconciler.desired)} runtime(s)")
                await self.reconciler.bring_up()
        except BaseException:
            await self.stop()
            raise
        emit(
            log,
            "serving",
            model=self.mode.name,
            instances=len(self.reconciler.desired),
            resumed=resumed,
            status=f"http://{self.http_address}/status",
        )

    def change(self, manifest: Manifest) -> None:
        """Serve another manifest of the repository from now on: one with more runtimes, or other latencies.

        Instances keep serving, and are then moved to better runtimes without losing a request, as when another control
        plane takes over. A runtime of the old manifest that the new one lacks must not be serving.
        """
        self._wanted = manifest
        self._settled.clear()
        self._changed.set()

    async def settled(self) -> None:
        """Wait until the last change() is in force."""
        await self._settled.wait()

    async def supervise(self) -> None:
        """Keep everything running until cancelled. A failed loop is logged, counted and restarted; the others go on."""
        while True:
            loops = asyncio.create_task(self._supervise())
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait((loops, changed), return_when=asyncio.FIRST_COMPLETED)
                if loops.done():
                    return loops.result()
            finally:
                for task in (loops, changed):
                    task.cancel()
                await asyncio.gather(loops, changed, return_exceptions=True)
            self._changed.clear()
            await self._take_over()

    async def _take_over(self) -> None:
        """Serve the wanted manifest; if that fails, serve the old one until the next try."""
        assert self._wanted is not None
        before = self._parts
        await before.reconciler.stop()
        try:
            self._parts = self._parts_for(self._wanted)
            self._gateway.follow(self._deployments)
            await self.reconciler.observe()
            await self.reconciler.resume()
            self.reconciler.want(self.scheduler.first_placement())
            await self._deployments.ensure()
        except ArloError as error:
            emit(log, "change_failed", level=logging.ERROR, error=str(error), again_in_s=CHANGE_AGAIN_S)
            if self._parts is not before:
                await self._deployments.close()
            self._parts = before
            self._gateway.follow(self._deployments)
            asyncio.get_running_loop().call_later(CHANGE_AGAIN_S, self._changed.set)
            return
        await before.deployments.close()
        self._settled.set()
        emit(log, "changed", what=self.mode.choice.text, runtimes=[each.name for each in self.manifest.runtimes])

    async def _supervise(self) -> None:
        loops = {
            "reconciler": self.reconciler.run,
            "scheduler": self.scheduler.run,
            **self._gateway.loops(),
        }
        tasks = {"tasks": self._tasks.on_stats} if self._tasks is not None else {}
        for name, watcher in {**self._parts.watchers, **tasks}.items():
            loops[name] = functools.partial(self.scheduler.feed.follow, watcher)
        await _all(*(self._kept(name, loop) for name, loop in loops.items()))

    async def _kept(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        backoff = Backoff()
        while True:
            started = monotonic_s()
            error: Exception | None = None
            try:
                await loop()
            except OtherControlPlaneError:
                raise
            except Exception as failure:  # a fault of ours must not stop the serving
                error = failure
                log.debug("loop %s", name, exc_info=True)
            wait_s = backoff.after(monotonic_s() - started)
            if error is not None:
                self.counters["loop_failures"] += 1
                emit(log, "loop_failed", level=logging.ERROR, loop=name, error=repr(error), again_in_s=wait_s)
            await asyncio.sleep(wait_s)

    async def stop(self) -> None:
        """Drain and stop the managed gateway, stop the pool. Idempotent; continues when a step fails."""
        steps = (self.reconciler.stop, self._gateway.stop, self._deployments.close, self._stop_pool, self._http.stop)
        for step in steps:
            try:
                await step()
            except Exception as error:  # after any error the rest must still be stopped
                emit(log, "stop_failed", level=logging.ERROR, error=explain(error))
        if self._run_lock is not None:
            self._run_lock.close()
            self._run_lock = None

    async def _stop_pool(self) -> None:
        await self._pool.stop()
        emit(log, "workers_stopped")

    # --- start ---

    def _warn(self) -> None:
        for model, manifest in zip(self._config.models, self.manifest.models, strict=True):
            for runtime in self.manifest.runtimes if len(self.mode.models) == 1 else manifest.runtimes:
                if capacity(runtime, model.slo_ms) == 0:
                    emit(log, "slo_below_latency", level=logging.WARNING, runtime=runtime.name, slo_ms=model.slo_ms)
        if self._config.dispatch.batching == "worker":
            alone = [
                part.name for runtime in self.manifest.runtimes for part in runtime.parts if self._no_batcher(part)
            ]
            if alone:
                emit(
                    log,
                    "no_batcher",
                    level=logging.WARNING,
                    runtimes=alone,
                    error="Triton joins no rows of these: build with --batcher, or leave dispatch.batching out",
                )

    def _note_plugins(self) -> None:
        """Log which workers run the plugin: they may have other clients, which the gateway does not see."""
        names = {manifest.model for manifest in self.manifest.models if manifest.inside}
        workers = [worker for worker, info in self.reconciler.infos.items() if names.intersection(info.runtimes)]
        if workers:
            emit(log, "plugin_servers", workers=workers, models=sorted(names))

    def _no_batcher(self, runtime: Runtime) -> bool:
        """Whether Triton runs each row of a multi-row runtime separately, as far as its files here show."""
        path = self._config.model.repository / runtime.name / "config.pbtxt"
        return runtime.max_batch > 1 and path.is_file() and "dynamic_batching" not in path.read_text()

    def _lock_run_dir(self) -> None:
        run_dir = made_run_dir(self._config)
        try:
            self._run_lock = (run_dir / "lock").open("ab")
        except OSError as error:
            raise ConfigError(f"workers.run_dir: nothing can be written in {run_dir} ({explain(error)})") from None
        try:
            fcntl.flock(self._run_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._run_lock.close()
            self._run_lock = None
            raise ConfigError(
                f"another `arlo serve` uses {run_dir}: stop it, or give this one another workers.run_dir"
            ) from None

    def kill_now(self) -> None:
        """Kill the managed gateway and local workers without waiting: they would linger if this process just ended."""
        self._gateway.kill_now()
        if isinstance(self._pool, LocalPool):
            self._pool.kill_now()


async def _all(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run jobs concurrently; when one fails, cancel the others and raise its error unchanged."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
