"""One local worker: a Triton process that is started, watched, restarted and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from arlo.clock import monotonic_s
from arlo.errors import ArloError, WorkerError
from arlo.workers.log_file import LogFile
from arlo.workers.pool import WorkerInfo, WorkerState
from arlo.workers.ports import ReservedPort, free_port
from arlo.workers.process import GuardedProcess
from arlo.workers.record import ProcessRecord, RecordFile, fingerprint
from arlo.workers.triton.admin import TritonAdmin, until_tick
from arlo.workers.triton.server import TritonOptions, TritonServer, command_line, key_environment
from arlo.workers.triton.stubs import StubWatch

POLL_S = 0.02
CHECK_S = 1.0  # between looks at a running worker


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
    hang_timeout_s: float = 30.0  # a live process that answers no health check for so long is killed and restarted
    backoff_first_s: float = 0.2
    backoff_limit_s: float = 10.0
    backoff_reset_s: float = 30.0  # a worker that ran this long starts from backoff_first_s again
    log_verbose: int = 0
    linger_s: float = 0.0  # how long a worker goes on when we die, for a later pool to take it over
    extra: tuple[str, ...] = ()


class LocalWorker:
    """Lives from `start` to `stop`; between them it is restarted, with back-off, each time its process ends.

    What it is asked to load is loaded again after a crash, and forgotten by `restart`. Single event loop. `state`:
    starting (process up, runtimes being loaded) -> ready -> failed (waiting for the next attempt) -> starting ...;
    stopped at the end. The endpoint never changes.
    """

    def __init__(self, worker_id: str, settings: LocalSettings, run_dir: Path, *, gpu: str | None = None) -> None:
        self._environment = dict(settings.environment)
        if gpu is not None:
            self._environment["CUDA_VISIBLE_DEVICES"] = gpu
        self.id = worker_id
        self.gpu = gpu
        self.log = run_dir / f"{worker_id}.log"
        self._log = LogFile(self.log)
        self.state: WorkerState = "stopped"
        self.restarts = 0
        self.error: str | None = None
        self._settings = settings
        self._admin_key = settings.admin_key
        self._record = RecordFile(run_dir, worker_id)
        self._reserved = ReservedPort(settings.address)
        self._process: GuardedProcess | None = None
        self._admin: TritonAdmin | None = None
        self._metrics_port: int | None = None
        self._runtimes: dict[str, None] = {}  # loaded on request; loaded again after a restart
        self._locks: dict[str, asyncio.Lock] = {}
        self._changed = asyncio.Condition()
        self._monitor: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[None] | None = None  # a restart that somebody waits for
        self._wake = asyncio.Event()  # ends the wait before the next attempt
        self._loaded: tuple[str, ...] = ()  # READY when last seen
        self._sightings = 0  # of what is loaded; an answer older than the newest one is void
        self._trouble: str | None = None  # of the last health check
        self._stubs: StubWatch | None = None

    @property
    def endpoint(self) -> str:
        return f"{self._settings.address}:{self._reserved.port}"

    async def start(self) -> None:
        """Start the process and wait until it is live; WorkerError (and nothing left running) if it does not get so."""
        await self._launch()
        await self._set("ready")
        self._start_monitor()

    async def adopt(self) -> bool:
        """Take over the process that a dead owner left under this id, as it is: its port, its key, its runtimes.

        False when there is none, or it was started otherwise than we would or does not answer: then it is ended, and
        `start` may follow. WorkerError when its owner is alive.
        """
        settings = self._settings
        record = self._record.read()
        if record is not None and record.fingerprint != self._fingerprint():
            record = None
        process = await self._record.take_over(record, stop_timeout_s=settings.exit_timeout_s + 5.0)
        if process is None or record is None:
            return False
        self._process = process
        try:
            await self._set("starting")
            self._reserved.release()
            self._reserved = ReservedPort(settings.address, int(record.details["port"]))
            self._metrics_port = record.details["metrics_port"]
            self._admin_key = record.details["admin_key"]
            self.restarts = int(record.details["restarts"])
            self._log.start = int(record.details["log_start"])
            self._admin = TritonAdmin(self.endpoint, admin_key=self._admin_key)
            self._stubs = StubWatch(process.pid)
            await self._wait_live(process, self._admin, min(settings.start_timeout_s, settings.hang_timeout_s))
            runtimes = await self._admin.ready_runtimes()
        except (WorkerError, KeyError, TypeError, ValueError):  # it does not answer, or its record is not one of ours
            await self._end_process(at_once=True)
            return False
        except BaseException:
            await self._end_process(at_once=True)
            raise
        self._runtimes = dict.fromkeys(runtimes)
        await self._set("ready")
        self._saw(runtimes)
        self._start_monitor()
        return True

    def kill_now(self) -> None:
        """Kill the process without waiting."""
        if self._process is not None:
            self._process.kill()

    def _start_monitor(self) -> None:
        self._monitor = asyncio.create_task(self._watch(), name=f"monitor of worker {self.id}")

    def _fingerprint(self) -> str:
        """Of all that a process under this id is started with, but for what is drawn anew each time."""
        settings = self._settings
        options = dataclasses.replace(self._options(), grpc_port=0, metrics_port=None, shm_prefix=None, admin_key=None)
        manifest = settings.repository / "arlo.json"
        return fingerprint(
            command=command_line(settings.server, settings.backends, options),
            manifest=manifest.read_text() if manifest.is_file() else "",
            metrics=settings.metrics,
            has_key=settings.admin_key is not None,
            gpu=self.gpu,
            threads=self._environment.get("ARLO_THREADS", ""),
            linger_s=settings.linger_s,
        )

    def _options(self) -> TritonOptions:
        settings = self._settings
        return TritonOptions(
            repository=settings.repository,
            grpc_port=self._reserved.port,
            address=settings.address,
            metrics_port=self._metrics_port,
            exit_timeout_s=settings.exit_timeout_s,
            shm_prefix=f"arlo_{os.getpid()}_{self._reserved.port}_",
            admin_key=self._admin_key,
            log_verbose=settings.log_verbose,
            extra=settings.extra,
        )

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after the exit timeout. Idempotent."""
        await self._set("stopped")
        if self._asked is not None:
            self._answer_restart(WorkerError(f"worker {self.id} was stopped before it had restarted"))
        if self._monitor is not None:
            self._monitor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._monitor
            self._monitor = None
        await self._end_process()
        self._reserved.release()
        await self._set("stopped")

    async def restart(self) -> None:
        """End the process as `stop` does and start it with no runtime loaded. WorkerError when it does not get live.

        It is then in the state failed, and tried again like any other.
        """
        if self.state == "stopped":
            raise WorkerError(f"worker {self.id} cannot be restarted: it is stopped")
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        asked = self._asked
        self._wake.set()
        await self._set("starting")
        if self._process is not None:
            self._process.terminate()
        await asyncio.shield(asked)

    def info(self) -> WorkerInfo:
        """What the monitor and the calls made here have last seen."""
        return WorkerInfo(
            id=self.id,
            endpoint=self.endpoint,
            metrics_url=f"http://{self._settings.address}:{self._metrics_port}/metrics" if self._metrics_port else None,
            state=self.state,
            pid=self._process.pid if self._process is not None else None,
            restarts=self.restarts,
            runtimes=self._loaded,
            log=str(self.log),
            error=self.error or self._trouble,
        )

    async def load(self, runtime: str, *, timeout_s: float) -> None:
        deadline_s = monotonic_s() + timeout_s
        async with self._locks.setdefault(runtime, asyncio.Lock()):
            admin = await self._ready(f"load {runtime}", timeout_s)
            await admin.load(runtime, timeout_s=max(0.1, deadline_s - monotonic_s()))
            if admin is not self._admin:
                raise WorkerError(f"worker {self.id} ended after it had loaded {runtime}")
            self._runtimes[runtime] = None
            self._saw((*self._loaded, runtime))
            if self._stubs is not None:
                self._stubs.scan_soon()

    async def unload(self, runtime: str, *, timeout_s: float) -> None:
        deadline_s = monotonic_s() + timeout_s
        async with self._locks.setdefault(runtime, asyncio.Lock()):
            self._runtimes.pop(runtime, None)
            admin = await self._ready(f"unload {runtime}", timeout_s)
            await admin.unload(runtime, timeout_s=max(0.1, deadline_s - monotonic_s()))
            self._saw(tuple(each for each in self._loaded if each != runtime))

    def _saw(self, runtimes: tuple[str, ...]) -> None:
        self._sightings += 1
        self._loaded = tuple(sorted(set(runtimes)))

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
        if state != "ready":
            self._saw(())
            self._trouble = None
        async with self._changed:
            self.state = state
            self.error = error
            self._changed.notify_all()

    async def _launch(self) -> None:
        """Start the process and wait until the server is live. On failure nothing is left running."""
        settings = self._settings
        await self._set("starting")
        self._metrics_port = free_port(settings.address) if settings.metrics else None
        options = self._options()
        command = command_line(settings.server, settings.backends, options)
        shown = shlex.join(command)
        if self._admin_key:
            shown = shown.replace(self._admin_key, "...")
        self._log.begin(f"worker {self.id}, restarts {self.restarts}: {shown}")
        try:
            self._process = GuardedProcess.start(
                command,
                env={**self._environment, **key_environment(settings.server, self._admin_key)},
                log=self.log,
                grace_s=settings.exit_timeout_s + 2.0,
                orphan_grace_s=settings.orphan_grace_s,
                linger_s=settings.linger_s,
                socket_path=self._record.socket,
                shm_prefix=options.shm_prefix or "",
            )
            if settings.linger_s > 0:
                self._write_record(self._process)
            self._admin = TritonAdmin(self.endpoint, admin_key=self._admin_key)
            self._stubs = StubWatch(self._process.pid)
            await self._wait_live(self._process, self._admin, settings.start_timeout_s)
        except BaseException:
            await self._end_process(at_once=True)
            raise

    def _write_record(self, process: GuardedProcess) -> None:
        details = {
            "port": self._reserved.port,
            "metrics_port": self._metrics_port,
            "admin_key": self._admin_key,
            "gpu": self.gpu,
            "restarts": self.restarts,
            "log_start": self._log.start,
        }
        self._record.write(ProcessRecord(pid=process.pid, fingerprint=self._fingerprint(), details=details))

    async def _wait_live(self, process: GuardedProcess, admin: TritonAdmin, timeout_s: float) -> None:
        deadline_s = monotonic_s() + timeout_s
        while not (await admin.is_live() and await self._metrics_live()):
            if process.returncode is not None:
                raise WorkerError(f"worker {self.id} did not start: {self._ended(process.returncode)}")
            if monotonic_s() > deadline_s:
                raise WorkerError(f"worker {self.id} was not live after {timeout_s:g} s\n{self._log.excerpt()}")
            await asyncio.sleep(POLL_S)

    async def _metrics_live(self) -> bool:
        """The metrics port opens last; another process may have taken it, and then the server ends."""
        if self._metrics_port is None:
            return True
        try:
            _, writer = await asyncio.open_connection(self._settings.address, self._metrics_port)
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

    async def _watch(self) -> None:
        """Restart the process each time it ends. Ends by cancellation only."""
        attempt = 0
        live_since_s = monotonic_s()
        while True:
            if self._process is not None:
                how = await self._wait_end(self._process, self._admin)
                if self._asked is None:
                    await self._set("failed", f"worker {self.id} ended: {how}")
                await self._end_process()
            if monotonic_s() - live_since_s > self._settings.backoff_reset_s:
                attempt = 0
            if self._asked is None:
                await self._wait_before(attempt)
                attempt = min(attempt + 1, 16)
            asked = self._asked is not None
            if asked:
                self._runtimes.clear()
            self._wake.clear()
            self.restarts += 1
            try:
                await self._launch()
                problems = await self._reload()
            except ArloError as error:
                await self._set("failed", str(error))
                if asked:
                    self._answer_restart(error)
                continue
            live_since_s = monotonic_s()
            await self._set("ready", "; ".join(problems) or None)
            if asked:
                self._answer_restart()

    async def _wait_before(self, attempt: int) -> None:
        wait_s = min(self._settings.backoff_limit_s, self._settings.backoff_first_s * 2**attempt)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()

    def _answer_restart(self, error: ArloError | None = None) -> None:
        asked, self._asked = self._asked, None
        if asked is None or asked.done():
            return
        if error is None:
            asked.set_result(None)
        else:
            asked.set_exception(error)
            asked.exception()  # who asked may have been cancelled meanwhile

    async def _wait_end(self, process: GuardedProcess, admin: TritonAdmin | None) -> str:
        """Wait until the process ends; kill it when it hangs or has lost a Python stub. Returns how it ended."""
        period_s = min(CHECK_S, self._settings.hang_timeout_s / 4)
        answered_s = monotonic_s()
        killed = ""
        end = asyncio.create_task(process.wait())
        try:
            while True:
                await asyncio.wait((end,), timeout=until_tick(monotonic_s(), period_s))
                if end.done():
                    return killed or self._ended(end.result())
                if admin is None or await self._check(admin, period_s):
                    answered_s = monotonic_s()
                elif monotonic_s() - answered_s > self._settings.hang_timeout_s and not await admin.is_live():
                    # (One that is long busy with its repository may answer this, and nothing else.)
                    killed = f"killed because it answered no health check for {self._settings.hang_timeout_s:g} s"
                await asyncio.to_thread(self._log.limit)
                stub = self._stubs.check() if self._stubs is not None else None
                if stub is not None:
                    killed = f"killed because its Python stub {stub} had ended"
                if killed:
                    process.kill()
        finally:
            end.cancel()

    async def _check(self, admin: TritonAdmin, timeout_s: float) -> bool:
        """Ask for what is loaded; True when the server answers, were it with an error."""
        before = self._sightings
        try:
            runtimes = await admin.check(timeout_s=timeout_s)
        except WorkerError as error:
            self._trouble = str(error)
            return True
        if runtimes is None:
            self._trouble = f"worker {self.id} did not answer a health check within {timeout_s:g} s"
            return False
        self._trouble = None
        if self.state == "ready" and self._sightings == before and self._loaded != runtimes:
            self._saw(runtimes)
        return True

    async def _reload(self) -> list[str]:
        """Load again what was loaded; the reasons for what could not be."""
        if self._admin is None:
            return []
        problems = []
        for runtime in list(self._runtimes):
            try:
                await self._admin.load(runtime, timeout_s=self._settings.start_timeout_s)
                self._saw((*self._loaded, runtime))
            except WorkerError as error:
                if self._process is None or self._process.returncode is not None:
                    break  # it died again: the next round sees to it
                problems.append(str(error))
        return problems

    async def _end_process(self, *, at_once: bool = False) -> None:
        # The process is forgotten only once it is gone, so that a cancelled call can be repeated.
        if self._process is not None:
            if at_once:
                self._process.kill()
                await self._process.wait()
            else:
                await self._process.stop(timeout_s=self._settings.exit_timeout_s + 5.0)
            self._process = None
            self._record.remove()
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    def _ended(self, code: int) -> str:
        how = f"signal {code - 128}" if code > 128 else f"exit code {code}"
        return f"{how}; from {self.log}:\n{self._log.excerpt()}"
