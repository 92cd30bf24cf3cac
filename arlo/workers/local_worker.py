"""One local worker: a Triton process that is started, watched, restarted and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from arlo.clock import monotonic_s
from arlo.errors import ArloError, WorkerError
from arlo.workers.admin import TritonAdmin
from arlo.workers.pool import WorkerInfo, WorkerState
from arlo.workers.ports import ReservedPort, free_port
from arlo.workers.process import GuardedProcess
from arlo.workers.triton import TritonOptions, TritonServer, command_line

POLL_S = 0.02


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """What all workers of a local pool share."""

    server: TritonServer
    backends: Path
    repository: Path
    environment: Mapping[str, str]
    address: str = "127.0.0.1"
    metrics: bool = True
    admin_key: str | None = None
    start_timeout_s: float = 60.0
    exit_timeout_s: int = 10  # for queued and running work after SIGTERM
    orphan_grace_s: float = 2.0  # the same, when we are gone
    backoff_first_s: float = 0.2
    backoff_limit_s: float = 10.0
    backoff_reset_s: float = 30.0  # a worker that ran this long starts from backoff_first_s again
    log_verbose: int = 0
    extra: tuple[str, ...] = ()


class LocalWorker:
    """Lives from `start` to `stop`; between them it is restarted, with back-off, each time its process ends.

    Single event loop. `state`: starting (process up, runtimes being loaded) -> ready -> failed (waiting for the next
    attempt) -> starting ...; stopped at the end. The endpoint never changes.
    """

    def __init__(self, worker_id: str, settings: LocalSettings, log: Path) -> None:
        self.id = worker_id
        self.log = log
        self.state: WorkerState = "stopped"
        self.restarts = 0
        self.error: str | None = None
        self._settings = settings
        self._reserved = ReservedPort(settings.address)
        self._process: GuardedProcess | None = None
        self._admin: TritonAdmin | None = None
        self._metrics_port: int | None = None
        self._runtimes: dict[str, None] = {}  # loaded on request; loaded again after a restart
        self._locks: dict[str, asyncio.Lock] = {}
        self._changed = asyncio.Condition()
        self._monitor: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> str:
        return f"{self._settings.address}:{self._reserved.port}"

    async def start(self) -> None:
        """Start the process and wait until it is live; WorkerError (and nothing left running) if it does not get so."""
        await self._launch()
        await self._set("ready")
        self._monitor = asyncio.create_task(self._watch(), name=f"monitor of worker {self.id}")

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after the exit timeout. Idempotent."""
        if self._monitor is not None:
            self._monitor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._monitor
            self._monitor = None
        await self._end_process()
        self._reserved.release()
        await self._set("stopped")

    async def info(self) -> WorkerInfo:
        """Observed now; asks the server for its loaded runtimes."""
        runtimes: tuple[str, ...] = ()
        error = self.error
        if self.state == "ready" and self._admin is not None:
            try:
                runtimes = await self._admin.ready_runtimes()
            except WorkerError as problem:
                error = str(problem)
        return WorkerInfo(
            id=self.id,
            endpoint=self.endpoint,
            metrics_url=f"http://{self._settings.address}:{self._metrics_port}/metrics" if self._metrics_port else None,
            state=self.state,
            pid=self._process.pid if self._process is not None else None,
            restarts=self.restarts,
            runtimes=runtimes,
            log=str(self.log),
            error=error,
        )

    async def load(self, runtime: str, *, timeout_s: float) -> None:
        deadline_s = monotonic_s() + timeout_s
        async with self._locks.setdefault(runtime, asyncio.Lock()):
            admin = await self._ready(f"load {runtime}", timeout_s)
            await admin.load(runtime, timeout_s=max(0.1, deadline_s - monotonic_s()))
            self._runtimes[runtime] = None

    async def unload(self, runtime: str, *, timeout_s: float) -> None:
        deadline_s = monotonic_s() + timeout_s
        async with self._locks.setdefault(runtime, asyncio.Lock()):
            self._runtimes.pop(runtime, None)
            admin = await self._ready(f"unload {runtime}", timeout_s)
            await admin.unload(runtime, timeout_s=max(0.1, deadline_s - monotonic_s()))

    async def _ready(self, what: str, timeout_s: float) -> TritonAdmin:
        """Wait until the worker is ready (it may be restarting)."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.state in ("ready", "stopped"))
        except TimeoutError:
            reason = self.error or "it is still starting"
            raise WorkerError(f"worker {self.id} could not {what} within {timeout_s:g} s: {reason}") from None
        if self.state == "stopped" or self._admin is None:
            raise WorkerError(f"worker {self.id} could not {what}: it is stopped")
        return self._admin

    async def _set(self, state: WorkerState, error: str | None = None) -> None:
        async with self._changed:
            self.state = state
            self.error = error
            self._changed.notify_all()

    async def _launch(self) -> None:
        """Start the process and wait until the server is live. On failure nothing is left running."""
        settings = self._settings
        await self._set("starting")
        self._metrics_port = free_port(settings.address) if settings.metrics else None
        shm_prefix = f"arlo_{os.getpid()}_{self._reserved.port}_"
        options = TritonOptions(
            repository=settings.repository,
            grpc_port=self._reserved.port,
            address=settings.address,
            metrics_port=self._metrics_port,
            exit_timeout_s=settings.exit_timeout_s,
            shm_prefix=shm_prefix,
            admin_key=settings.admin_key,
            log_verbose=settings.log_verbose,
            extra=settings.extra,
        )
        try:
            self._process = GuardedProcess.start(
                command_line(settings.server, settings.backends, options),
                env=settings.environment,
                log=self.log,
                grace_s=settings.exit_timeout_s + 2.0,
                orphan_grace_s=settings.orphan_grace_s,
                shm_prefix=shm_prefix,
            )
            self._admin = TritonAdmin(self.endpoint, admin_key=settings.admin_key)
            await self._wait_live(self._process, self._admin)
        except BaseException:
            await self._end_process(at_once=True)
            raise

    async def _wait_live(self, process: GuardedProcess, admin: TritonAdmin) -> None:
        deadline_s = monotonic_s() + self._settings.start_timeout_s
        while not await admin.is_live():
            if process.returncode is not None:
                raise WorkerError(f"worker {self.id} did not start: {self._ended(process.returncode)}")
            if monotonic_s() > deadline_s:
                raise WorkerError(
                    f"worker {self.id} was not live after {self._settings.start_timeout_s:g} s\n{log_tail(self.log)}"
                )
            await asyncio.sleep(POLL_S)

    async def _watch(self) -> None:
        """Restart the process each time it ends. Ends by cancellation only."""
        attempt = 0
        live_since_s = monotonic_s()
        while True:
            if self._process is not None:
                code = await self._process.wait()
                await self._end_process()
                await self._set("failed", f"worker {self.id} ended: {self._ended(code)}")
            if monotonic_s() - live_since_s > self._settings.backoff_reset_s:
                attempt = 0
            await asyncio.sleep(min(self._settings.backoff_limit_s, self._settings.backoff_first_s * 2**attempt))
            attempt = min(attempt + 1, 16)
            self.restarts += 1
            try:
                await self._launch()
                problems = await self._reload()
            except ArloError as error:
                await self._set("failed", str(error))
                continue
            live_since_s = monotonic_s()
            await self._set("ready", "; ".join(problems) or None)

    async def _reload(self) -> list[str]:
        """Load again what was loaded; the reasons for what could not be."""
        if self._admin is None:
            return []
        problems = []
        for runtime in list(self._runtimes):
            try:
                await self._admin.load(runtime, timeout_s=self._settings.start_timeout_s)
            except WorkerError as error:
                if self._process is None or self._process.returncode is not None:
                    break  # it died again: the next round sees to it
                problems.append(str(error))
        return problems

    async def _end_process(self, *, at_once: bool = False) -> None:
        process, self._process = self._process, None
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()
        if process is not None:
            if at_once:
                process.kill()
                await process.wait()
            else:
                await process.stop(timeout_s=self._settings.exit_timeout_s + 5.0)

    def _ended(self, code: int) -> str:
        how = f"signal {code - 128}" if code > 128 else f"exit code {code}"
        return f"{how}; the end of {self.log}:\n{log_tail(self.log)}"


def log_tail(log: Path, *, lines: int = 15, most_bytes: int = 4096) -> str:
    """The last lines of a log file."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most_bytes))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:])
