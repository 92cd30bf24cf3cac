"""The Triton process of one local worker: started or taken over, waited for, ended. One at a time, on one endpoint."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from arlo.clock import monotonic_s
from arlo.errors import WorkerError, explain, system_errors
from arlo.workers.log_file import LogFile
from arlo.workers.ports import ReservedPort, accepts, free_port
from arlo.workers.process import GuardedProcess
from arlo.workers.record import ProcessRecord, RecordFile, fingerprint
from arlo.workers.triton.admin import TritonAdmin
from arlo.workers.triton.server import TritonOptions, TritonServer, command_line, key_environment
from arlo.workers.triton.stubs import StubWatch

POLL_S = 0.02


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """The settings that all workers of a local pool share."""

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
    linger_s: float = 0.0  # how long a worker goes on when we die, for a later pool to take it over
    extra: tuple[str, ...] = ()


class LocalServer:
    """See the module. `process`, `admin` and `stubs` are those of the process that runs, None while there is none."""

    def __init__(self, worker_id: str, settings: LocalSettings, run_dir: Path, *, gpu: str | None) -> None:
        self._environment = dict(settings.environment)
        if gpu is not None:
            self._environment["CUDA_VISIBLE_DEVICES"] = gpu
        self._id = worker_id
        self._gpu = gpu
        self._settings = settings
        self._admin_key = settings.admin_key
        self._record = RecordFile(run_dir, worker_id)
        self._heading: str | None = None
        self._unwritten: ProcessRecord | None = None
        self._reserved = ReservedPort(settings.address)
        self._metrics_port: int | None = None
        self.log = LogFile(run_dir / f"{worker_id}.log")
        self.trouble: str | None = None  # with the files of the process that runs
        self.process: GuardedProcess | None = None
        self.admin: TritonAdmin | None = None
        self.stubs: StubWatch | None = None

    @property
    def endpoint(self) -> str:
        """host:port of Triton's gRPC port; the same over restarts."""
        return f"{self._settings.address}:{self._reserved.port}"

    @property
    def metrics_url(self) -> str | None:
        """Metrics URL of the running process; None without a metrics port."""
        return f"http://{self._settings.address}:{self._metrics_port}/metrics" if self._metrics_port else None

    async def launch(self, *, restarts: int) -> None:
        """Start the process and wait until the server is live. On failure nothing is left running."""
        settings = self._settings
        try:
            with system_errors(WorkerError, f"worker {self._id} cannot be started"):
                self._metrics_port = free_port(settings.address) if settings.metrics else None
                options = self._options()
                command = command_line(settings.server, settings.backends, options)
                shown = shlex.join(command)
                if self._admin_key:
                    shown = shown.replace(self._admin_key, "...")
                self._heading = f"worker {self._id}, restarts {restarts}: {shown}"
                self.write_files()
                self.process = GuardedProcess.start(
                    command,
                    env={**self._environment, **key_environment(settings.server, self._admin_key)},
                    log=self.log.path,
                    grace_s=settings.exit_timeout_s + 2.0,
                    orphan_grace_s=settings.orphan_grace_s,
                    linger_s=settings.linger_s,
                    socket_path=self._record.socket,
                    shm_prefix=options.shm_prefix or "",
                )
                if settings.linger_s > 0:
                    self._unwritten = self._new_record(self.process, restarts)
                    self.write_files()
                self.admin = TritonAdmin(self.endpoint, admin_key=self._admin_key)
                self.stubs = StubWatch(self.process.pid)
                await self._wait_live(self.process, self.admin, settings.start_timeout_s)
        except BaseException:
            await self.end(at_once=True)
            raise

    def write_files(self) -> None:
        """Write the pending files: the log heading, and the record by which a later owner finds the process. A full
        disk must not stop a serving worker."""
        self.trouble = None
        if self._heading is not None:
            self.trouble = self.log.begin(self._heading)
            self._heading = self._heading if self.trouble else None
        if self._unwritten is not None:
            try:
                self._record.write(self._unwritten)
                self._unwritten = None
            except OSError as error:
                error.filename = error.filename or self._record.path
                self.trouble = explain(error)

    async def find(self) -> ProcessRecord | None:
        """Find the process that a dead owner left under this id; call `adopt` next.

        None when there is none, or when it was started with other settings, in which case it is ended. WorkerError when
        its owner is alive.
        """
        record = self._record.read()
        if record is not None and record.fingerprint != self._fingerprint():
            record = None
        process = await self._record.take_over(record, stop_timeout_s=self._settings.exit_timeout_s + 5.0)
        if process is None or record is None:
            return None
        self.process = process
        return record

    async def adopt(self, record: ProcessRecord) -> tuple[int, tuple[str, ...]] | None:
        """Take over the process that find() returned, with its port and key. Returns its restarts and its runtimes.

        None when it does not answer; it is then ended.
        """
        assert self.process is not None, "find() first"
        settings = self._settings
        try:
            self._reserved.release()
            self._reserved = ReservedPort(settings.address, int(record.details["port"]))
            self._metrics_port = record.details["metrics_port"]
            self._admin_key = record.details["admin_key"]
            restarts = int(record.details["restarts"])
            self.log.start = int(record.details["log_start"])
            self.admin = TritonAdmin(self.endpoint, admin_key=self._admin_key)
            self.stubs = StubWatch(self.process.pid)
            await self._wait_live(self.process, self.admin, min(settings.start_timeout_s, settings.hang_timeout_s))
            return restarts, await self.admin.ready_runtimes()
        except (WorkerError, KeyError, TypeError, ValueError):  # it does not answer, or its record is not one of ours
            await self.end(at_once=True)
            return None
        except BaseException:
            await self.end(at_once=True)
            raise

    async def end(self, *, at_once: bool = False) -> None:
        """End the process: SIGTERM, then SIGKILL after the exit timeout. Idempotent."""
        # The process is forgotten only once it is gone, so that a cancelled call can be repeated.
        if self.process is not None:
            if at_once:
                self.process.kill()
                await self.process.wait()
            else:
                await self.process.stop(timeout_s=self._settings.exit_timeout_s + 5.0)
            self.process = self._unwritten = None
            self._record.remove()
        admin, self.admin = self.admin, None
        if admin is not None:
            await admin.close()

    def release(self) -> None:
        """Give the endpoint back."""
        self._reserved.release()

    def ended(self, code: int) -> str:
        """A text on how the process ended, with an excerpt of its log."""
        how = f"signal {code - 128}" if code > 128 else f"exit code {code}"
        return f"{how}; from {self.log.path}:\n{self.log.excerpt()}"

    def _fingerprint(self) -> str:
        """Fingerprint of a process's start options under this id, without those drawn at each start."""
        settings = self._settings
        options = dataclasses.replace(self._options(), grpc_port=0, metrics_port=None, shm_prefix=None, admin_key=None)
        manifest = settings.repository / "arlo.json"
        return fingerprint(
            command=command_line(settings.server, settings.backends, options),
            manifest=manifest.read_text() if manifest.is_file() else "",
            metrics=settings.metrics,
            has_key=settings.admin_key is not None,
            gpu=self._gpu,
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
            extra=settings.extra,
        )

    def _new_record(self, process: GuardedProcess, restarts: int) -> ProcessRecord:
        details = {
            "port": self._reserved.port,
            "metrics_port": self._metrics_port,
            "admin_key": self._admin_key,
            "gpu": self._gpu,
            "restarts": restarts,
            "log_start": self.log.start,
        }
        return ProcessRecord(pid=process.pid, fingerprint=self._fingerprint(), details=details)

    async def _wait_live(self, process: GuardedProcess, admin: TritonAdmin, timeout_s: float) -> None:
        settings = self._settings
        deadline_s = monotonic_s() + timeout_s
        # The metrics port opens last; another process may have taken it, and then the server ends.
        port = self._metrics_port
        while not (await admin.is_live() and (port is None or await accepts(settings.address, port))):
            if process.returncode is not None:
                raise WorkerError(f"worker {self._id} did not start: {self.ended(process.returncode)}")
            if monotonic_s() > deadline_s:
                raise WorkerError(f"worker {self._id} was not live after {timeout_s:g} s\n{self.log.excerpt()}")
            await asyncio.sleep(POLL_S)
