"""One served model: its workers, its gateway, and the loop that keeps both as the plan wants them.

Life of a Cluster: start() brings everything up or leaves nothing behind; supervise() repairs until it is cancelled;
stop() takes the gateway out first (it drains while the workers still answer), then the workers. One event loop.

What is repaired, and by whom: the pool restarts a worker that died, with its runtime; supervise() loads what is missing
on a worker all the same; the gateway finds by its own health checks that the instance is back. A managed gateway that
died is started again on the same ports and gets the deployment; one that runs elsewhere gets it when it has lost it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import logging
from collections.abc import Callable, Coroutine
from typing import IO, Any

from arlo import proto
from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.control.admin import AdminClient, GatewayUnreachableError
from arlo.control.events import emit
from arlo.control.gateway_process import Addresses, GatewayProcess
from arlo.control.placement import Plan, capacity, deployment_message, place, plan_from_config, same_content
from arlo.errors import ArloError, ConfigError, GatewayError, WorkerError
from arlo.manifest import Manifest
from arlo.workers.pool import WorkerInfo, WorkerPool

log = logging.getLogger("arlo.control")

WORKER_POLL_S = 0.25
DEPLOYMENT_POLL_S = 2.0
BACKOFF_S = (0.1, 5.0)  # of a gateway that keeps dying, and of a load that keeps failing: first, longest
STEADY_S = 30.0  # a gateway that has lived this long starts over with the first
JOIN_TIMEOUT_S = 30.0


class Cluster:
    """See the module. `report`, when given, is told what start() is doing, in a few words."""

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        pool: WorkerPool,
        *,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self.manifest = manifest
        self._pool = pool
        self._report = report
        self._plan: Plan = plan_from_config(config, manifest)
        self._placement: dict[str, str] = {}
        self._endpoints: dict[str, str] = {}
        self._gateway: GatewayProcess | None = None
        self._admin: AdminClient | None = None
        self._apply_lock = asyncio.Lock()
        self._run_lock: IO[bytes] | None = None
        self._seen: dict[str, WorkerInfo] = {}
        self._loads: dict[str, asyncio.Task[None]] = {}
        self.addresses: Addresses | None = None

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
        assert self._admin is not None, "start() first"
        return self._admin

    async def start(self) -> None:
        """Start workers and gateway, load, apply, and wait until every instance is in service.

        ArloError when something does not come up, with everything stopped again.
        """
        self._warn()
        self._lock_run_dir()
        try:
            self._report(f"starting {self._config.worker_count} worker(s) and the gateway")
            await _all(self._pool.start(), self._start_gateway())
            workers = await self._pool.workers()
            self._endpoints = {worker.id: worker.endpoint for worker in workers}
            self._seen = {worker.id: worker for worker in workers}
            self._placement = place(self._plan, [worker.id for worker in workers])
            self._report(f"loading {self._plan.total} runtime(s)")
            missing = [pair for pair in self._placement.items() if pair[1] not in self._seen[pair[0]].runtimes]
            await _all(*(self._load(worker, runtime) for worker, runtime in missing))
            await self._ensure_deployment()
            self._report("waiting until the gateway has seen every instance")
            await self._until_in_service()
        except BaseException:
            await self.stop()
            raise
        emit(log, "serving", model=self.model, instances=self._plan.total)

    async def supervise(self) -> None:
        """Keep it so until cancelled."""
        jobs = [self._keep_workers(), self._keep_deployment()]
        if self._gateway is not None:
            jobs.append(self._keep_gateway())
        await _all(*jobs)

    async def stop(self) -> None:
        """Drain and stop the managed gateway, stop the pool. Idempotent; goes on where a step fails."""
        for task in self._loads.values():
            task.cancel()
        self._loads.clear()
        problems: list[ArloError] = []
        if self._gateway is not None:
            try:
                code = await self._gateway.stop()
                emit(log, "gateway_stopped", code=code)
            except ArloError as error:
                problems.append(error)
        if self._admin is not None:
            await self._admin.close()
        try:
            await self._pool.stop()
            emit(log, "workers_stopped")
        except ArloError as error:
            problems.append(error)
        if self._run_lock is not None:
            self._run_lock.close()
            self._run_lock = None
        for problem in problems:
            emit(log, "stop_failed", level=logging.ERROR, error=str(problem))

    # --- start ---

    def _warn(self) -> None:
        runtimes = {runtime.name: runtime for runtime in self.manifest.runtimes}
        for name, _ in self._plan.instances:
            if capacity(runtimes[name], self._config.model.slo_ms) == 0:
                emit(log, "slo_below_latency", level=logging.WARNING, runtime=name, slo_ms=self._config.model.slo_ms)

    def _lock_run_dir(self) -> None:
        run_dir = self._config.workers.run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        self._run_lock = (run_dir / "lock").open("ab")
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
        self._admin = AdminClient(reachable(self.addresses.admin))
        if not gateway.managed:
            await self._admin.get_deployment()

    async def _load(self, worker: str, runtime: str) -> None:
        before = monotonic_s()
        await self._pool.load(worker, runtime, timeout_s=self._config.workers.load_timeout_s)
        emit(log, "runtime_loaded", worker=worker, runtime=runtime, seconds=round(monotonic_s() - before, 2))

    async def _until_in_service(self) -> None:
        active = proto.message("InstanceStats").State.Value("STATE_ACTIVE")
        waiting: list[str] = []
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                async for stats in self.admin.watch_stats(interval_ms=100):
                    waiting = [item.id for item in stats.instances if item.state != active]
                    if not waiting and len(stats.instances) == len(self._placement):
                        return
        except TimeoutError:
            pass
        raise GatewayError(
            f"the gateway does not find these instances ready: {', '.join(waiting) or 'none listed'}. Can it reach "
            f"their workers' endpoints ({', '.join(self._endpoints.values())})? Its log says more"
        )

    # --- the deployment ---

    async def _ensure_deployment(self) -> None:
        """Apply what is wanted unless it is in force already; its version follows the one in force."""
        async with self._apply_lock:
            current = await self.admin.get_deployment()
            wanted = deployment_message(
                self._config, self.manifest, self._placement, self._endpoints, version=current.version + 1
            )
            if current.version and same_content(current, wanted):
                return
            reply = await self.admin.apply(wanted)
            emit(
                log,
                "deployment_applied",
                version=reply.version,
                joining=list(reply.joining),
                draining=list(reply.draining),
            )

    async def _keep_deployment(self) -> None:
        lost = False
        while True:
            await asyncio.sleep(DEPLOYMENT_POLL_S)
            try:
                await self._ensure_deployment()
                lost = False
            except GatewayUnreachableError as error:
                # A managed gateway that is gone is _keep_gateway's business.
                if not lost and not self._config.gateway.managed:
                    emit(log, "gateway_unreachable", level=logging.WARNING, error=str(error))
                lost = True
            except GatewayError as error:
                emit(log, "deployment_refused", level=logging.ERROR, error=str(error))

    # --- repairs ---

    async def _keep_gateway(self) -> None:
        assert self._gateway is not None
        backoff = BACKOFF_S[0]
        while True:
            started = monotonic_s()
            code = await self._gateway.wait()
            if monotonic_s() - started > STEADY_S:
                backoff = BACKOFF_S[0]
            emit(log, "gateway_died", level=logging.ERROR, code=code, restart_in_s=backoff, log=str(self._gateway.log))
            while not await self._restart_gateway(backoff):
                backoff = min(2 * backoff, BACKOFF_S[1])
            backoff = min(2 * backoff, BACKOFF_S[1])

    async def _restart_gateway(self, backoff: float) -> bool:
        """After `backoff` seconds; False when it does not start."""
        await asyncio.sleep(backoff)
        self._gateway = GatewayProcess(self._config)
        try:
            self.addresses = await self._gateway.start()
        except ArloError as error:
            emit(log, "gateway_restart_failed", level=logging.ERROR, error=str(error))
            return False
        emit(log, "gateway_restarted", pid=self._gateway.pid, **dataclasses.asdict(self.addresses))
        try:
            await self.admin.connected()
            await self._ensure_deployment()
        except GatewayError as error:  # _keep_deployment goes on trying
            emit(log, "deployment_refused", level=logging.ERROR, error=str(error))
        return True

    async def _keep_workers(self) -> None:
        while True:
            await asyncio.sleep(WORKER_POLL_S)
            try:
                workers = await self._pool.workers()
            except WorkerError as error:
                emit(log, "workers_unknown", level=logging.ERROR, error=str(error))
                continue
            for worker in workers:
                self._note_changes(worker)
                runtime = self._placement.get(worker.id)
                known = worker.state == "ready" and worker.error is None
                if known and runtime is not None and runtime not in worker.runtimes and worker.id not in self._loads:
                    self._loads[worker.id] = asyncio.create_task(self._reload(worker.id, runtime))

    def _note_changes(self, worker: WorkerInfo) -> None:
        before = self._seen.get(worker.id)
        self._seen[worker.id] = worker
        if before is None:
            return
        if worker.restarts != before.restarts:
            emit(log, "worker_restarted", level=logging.WARNING, worker=worker.id, restarts=worker.restarts)
        if worker.state != before.state:
            level = logging.ERROR if worker.state == "failed" else logging.INFO
            error = {"error": worker.error} if worker.error else {}
            emit(log, "worker_state", level=level, worker=worker.id, state=worker.state, log=worker.log, **error)

    async def _reload(self, worker: str, runtime: str) -> None:
        backoff = BACKOFF_S[0]
        try:
            while True:
                try:
                    await self._load(worker, runtime)
                    return
                except WorkerError as error:
                    info = self._seen.get(worker)
                    if info is not None and info.state != "ready":
                        return  # it died meanwhile; the next pass sees it ready again
                    emit(log, "load_failed", level=logging.ERROR, worker=worker, runtime=runtime, error=str(error))
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, BACKOFF_S[1])
        finally:
            self._loads.pop(worker, None)

    def kill_now(self) -> None:
        """Kill the managed gateway without waiting. The guards end all other processes when this one ends."""
        if self._gateway is not None:
            self._gateway.kill_now()


def reachable(address: str) -> str:
    """An address to connect to for one that was bound: any-address means loopback."""
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "::", "*") else address


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
