"""One served model: its workers, its gateway, and the loops that keep both as they should be.

Life of a Cluster: start() brings everything up (or takes over what an earlier one left) or leaves nothing behind;
supervise() keeps it so until it is cancelled; stop() takes the gateway out first (it drains while the workers still
answer), then the workers. One event loop.

Who does what: the pool restarts a worker that died; the runtime scheduler (scheduler.py) decides which worker has which
runtime; the reconciler (reconciler.py) makes it so; the gateway finds by its own health checks what answers. A managed
gateway that died is started again on the same ports and gets the deployment; one that runs elsewhere gets it when it
has lost it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import IO, Any

from arlo.catalog.integrity import check_files
from arlo.catalog.manifest import Manifest
from arlo.clock import monotonic_s, unix_s
from arlo.config import Config
from arlo.control.events import emit
from arlo.control.gateway.admin import AdminClient, GatewayUnreachableError
from arlo.control.gateway.process import Addresses, GatewayProcess, made_run_dir, reachable
from arlo.control.gateway.watch import GatewayWatch
from arlo.control.http.report import control_status
from arlo.control.http.server import ControlHttp
from arlo.control.http.status import ControlStatus
from arlo.control.reconcile.choice import servable
from arlo.control.reconcile.deployments import (
    Deployments,
    OtherControlPlaneError,
    VersionSpentError,
    owner_label,
)
from arlo.control.reconcile.moves import Probe
from arlo.control.reconcile.probe import warm_up
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch.recycler import Recycler
from arlo.control.watch.scaler import Scaler
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.errors import ArloError, ConfigError, GatewayError
from arlo.planning.allocation.curves import capacity
from arlo.workers.local.pool import LocalPool
from arlo.workers.pool import WorkerPool

log = logging.getLogger("arlo.control")

DEPLOYMENT_POLL_S = 2.0
LOG_CHECK_S = 10.0
BACKOFF_S = (0.1, 5.0)  # of a gateway that keeps dying: first, longest
STEADY_S = 30.0  # a gateway that has lived this long starts over with the first


class Cluster:
    """See the module. `report`, when given, is told what start() is doing, in a few words."""

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
        self.manifest = manifest = servable(config, manifest)
        self._pool = pool
        self._report = report
        self._started_at_ms = round(unix_s() * 1000)
        self.counters: Counter[str] = Counter()
        self._deployments = Deployments(config, manifest, self.counters, owner=owner_label(self._started_at_ms))
        self.reconciler = Reconciler(config, manifest, pool, self._deployments, self.counters, probe=probe)
        self.scheduler = RuntimeScheduler(config, manifest, self.reconciler, self._deployments, self.counters)
        self.scaler = Scaler(config, pool, self.reconciler, self.scheduler, counters=self.counters)
        self.recycler = Recycler(config, manifest, self.reconciler)
        self.scheduler.listeners += [self.scaler.see, self.recycler.see]
        self.reconciler.stats = lambda: self.scheduler.stats
        self._http = ControlHttp(config.control.http_address, self.status)
        self._gateway: GatewayProcess | None = None
        self._gateway_up = False
        self._watch: GatewayWatch | None = None
        self._run_lock: IO[bytes] | None = None
        self.addresses: Addresses | None = None
        self.http_address = ""  # of /status and /metrics, as bound

    @property
    def model(self) -> str:
        """The name that clients ask for."""
        return self._config.model.name or self.manifest.model

    @property
    def gateway_pid(self) -> int | None:
        """Of the managed gateway."""
        return self._gateway.pid if self._gateway is not None else None

    @property
    def admin(self) -> AdminClient:
        """The connection to the gateway's admin port; after start()."""
        return self._deployments.admin

    def status(self) -> ControlStatus:
        """What `/status` says."""
        return control_status(
            self._config,
            self.manifest,
            reconciler=self.reconciler,
            scheduler=self.scheduler,
            scaler=self.scaler,
            deployments=self._deployments,
            counters=self.counters,
            started_at_ms=self._started_at_ms,
            gateway_admin=reachable(self.addresses.admin) if self.addresses else "",
            gateway_up=self._gateway_up and not (self._watch is not None and self._watch.silent),
        )

    async def start(self) -> None:
        """Start workers and gateway, load, apply, and wait until every instance is in service.

        What an earlier control plane left running (workers.linger_s, a Ray cluster, fixed endpoints) is taken over as
        it is and goes on serving. ArloError when something does not come up, with everything stopped again.
        """
        self._warn()
        self._lock_run_dir()
        self._report(self.scheduler.choice.text)
        try:
            workers = self._config.workers
            await asyncio.to_thread(
                check_files, self._config.model.repository, self.manifest, must_exist=workers.kind != "endpoints"
            )
            self.http_address = await self._http.start()
            self._report(f"starting {self._config.worker_count} worker(s) and the gateway")
            await _all(self._pool.start(), self._start_gateway())
            if not self._config.gateway.managed:  # (a managed one has the lock of the run folder)
                await self._deployments.claim()
            await self.reconciler.observe()
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
            model=self.model,
            instances=len(self.reconciler.desired),
            resumed=resumed,
            status=f"http://{self.http_address}/status",
        )

    async def supervise(self) -> None:
        """Keep it so until cancelled. A loop that fails is logged, counted and started again; the others go on."""
        loops = {
            "reconciler": self.reconciler.run,
            "scheduler": self.scheduler.run,
            "scaler": self.scaler.run,
            "deployment": self._keep_deployment,
        }
        if self._gateway is not None:
            loops["gateway"] = self._keep_gateway
            loops["gateway_log"] = self._limit_gateway_log
        if self._watch is not None:
            loops["gateway_watch"] = self._watch.run
        await _all(*(self._kept(name, loop) for name, loop in loops.items()))

    async def _kept(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        backoff = BACKOFF_S[0]
        while True:
            started = monotonic_s()
            try:
                await loop()
            except OtherControlPlaneError:
                raise
            except Exception as error:  # a fault of ours must not end what serves
                self.counters["loop_failures"] += 1
                emit(log, "loop_failed", level=logging.ERROR, loop=name, error=repr(error), again_in_s=backoff)
                log.debug("loop %s", name, exc_info=True)
            if monotonic_s() - started > STEADY_S:
                backoff = BACKOFF_S[0]
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, BACKOFF_S[1])

    async def stop(self) -> None:
        """Drain and stop the managed gateway, stop the pool. Idempotent; goes on where a step fails."""
        await self.reconciler.stop()
        problems: list[ArloError] = []
        if self._gateway is not None:
            try:
                code = await self._gateway.stop()
                emit(log, "gateway_stopped", code=code)
            except ArloError as error:
                problems.append(error)
        elif self._gateway_up:
            with contextlib.suppress(GatewayError):
                await self._deployments.release()
        self._gateway_up = False
        await self._deployments.close()
        try:
            await self._pool.stop()
            emit(log, "workers_stopped")
        except ArloError as error:
            problems.append(error)
        await self._http.stop()
        if self._run_lock is not None:
            self._run_lock.close()
            self._run_lock = None
        for problem in problems:
            emit(log, "stop_failed", level=logging.ERROR, error=str(problem))

    # --- start ---

    def _warn(self) -> None:
        slo_ms = self._config.model.slo_ms
        for runtime in self.manifest.runtimes:
            if capacity(runtime, slo_ms) == 0:
                emit(log, "slo_below_latency", level=logging.WARNING, runtime=runtime.name, slo_ms=slo_ms)

    def _lock_run_dir(self) -> None:
        run_dir = made_run_dir(self._config)
        try:
            self._run_lock = (run_dir / "lock").open("ab")
        except OSError as error:
            raise ConfigError(f"workers.run_dir: nothing can be written in {run_dir} ({error.strerror})") from None
        try:
            fcntl.flock(self._run_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._run_lock.close()
            self._run_lock = None
            raise ConfigError(
                f"another `arlo serve` uses {run_dir}: stop it, or give this one another workers.run_dir"
            ) from None

    async def _start_gateway(self) -> None:
        gateway = self._config.gateway
        if gateway.managed:
            self._gateway = GatewayProcess(self._config)
            self.addresses = await self._gateway.start()
            # Port 0 is drawn once: after a restart clients find the gateway where it was.
            pinned = dataclasses.replace(
                gateway,
                grpc_address=_with_port(gateway.grpc_address, self.addresses.grpc),
                http_address=_with_port(gateway.http_address, self.addresses.http),
                admin_address=_with_port(gateway.admin_address, self.addresses.admin),
            )
            self._config = dataclasses.replace(self._config, gateway=pinned)
            emit(log, "gateway_started", pid=self._gateway.pid, **dataclasses.asdict(self.addresses))
        else:
            self.addresses = Addresses(
                grpc=gateway.grpc_address, http=gateway.http_address, admin=gateway.admin_address
            )
        self._deployments.connect(reachable(self.addresses.admin))
        self._watch = GatewayWatch(
            reachable(self.addresses.grpc),
            tls=gateway.tls_certificate_file is not None,
            hang_timeout_s=gateway.hang_timeout_s,
            kill=self._kill_gateway if gateway.managed else None,
        )
        if not gateway.managed:
            await self.admin.get_deployment()
        self._gateway_up = True

    async def _keep_deployment(self) -> None:
        lost = False
        while True:
            await asyncio.sleep(DEPLOYMENT_POLL_S)
            try:
                await self._deployments.ensure(states=True)
                lost, self._gateway_up = False, True
            except GatewayUnreachableError as error:
                self._gateway_up = False
                # A managed gateway that is gone is _keep_gateway's business.
                if not lost and not self._config.gateway.managed:
                    emit(log, "gateway_unreachable", level=logging.WARNING, error=str(error))
                lost = True
            except OtherControlPlaneError:
                raise
            except GatewayError as error:
                emit(log, "deployment_refused", level=logging.ERROR, error=str(error))
                if isinstance(error, VersionSpentError):
                    self._kill_gateway()  # a new one has no version yet

    # --- repairs ---

    async def _keep_gateway(self) -> None:
        assert self._gateway is not None
        backoff = BACKOFF_S[0]
        while True:
            started = monotonic_s()
            code = await self._gateway.wait()
            if monotonic_s() - started > STEADY_S:
                backoff = BACKOFF_S[0]
            self._gateway_up = False
            emit(log, "gateway_died", level=logging.ERROR, code=code, restart_in_s=backoff, log=str(self._gateway.log))
            while not await self._restart_gateway(backoff):
                backoff = min(2 * backoff, BACKOFF_S[1])
            backoff = min(2 * backoff, BACKOFF_S[1])

    async def _limit_gateway_log(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            if self._gateway is not None:
                await asyncio.to_thread(self._gateway.limit_log)

    async def _restart_gateway(self, backoff: float) -> bool:
        """After `backoff` seconds; False when it does not start."""
        await asyncio.sleep(backoff)
        self._gateway = GatewayProcess(self._config)
        try:
            self.addresses = await self._gateway.start()
        except ArloError as error:
            self.counters["gateway_restart_failures"] += 1
            emit(log, "gateway_restart_failed", level=logging.ERROR, error=str(error))
            return False
        if self._watch is not None:
            self._watch.started()
        self.counters["gateway_restarts"] += 1
        emit(log, "gateway_restarted", pid=self._gateway.pid, **dataclasses.asdict(self.addresses))
        try:
            await self.admin.connected()
            await self._deployments.ensure()
            self._gateway_up = True
        except GatewayError as error:  # _keep_deployment goes on trying
            emit(log, "deployment_refused", level=logging.ERROR, error=str(error))
        return True

    def _kill_gateway(self) -> None:
        if self._gateway is not None:
            self._gateway.kill_now()

    def kill_now(self) -> None:
        """Kill the managed gateway and local workers without waiting: they would linger when this process just ends."""
        self._kill_gateway()
        if isinstance(self._pool, LocalPool):
            self._pool.kill_now()


def _with_port(asked: str, bound: str) -> str:
    return f"{asked.rpartition(':')[0]}:{bound.rpartition(':')[2]}"


async def _all(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run jobs side by side; when one fails the others are cancelled and its error is raised as it is."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
