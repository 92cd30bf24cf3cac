"""One local worker: a Triton process that is started, watched, restarted and stopped."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from arlo.clock import monotonic_s
from arlo.errors import ArloError, WorkerError, explain, known
from arlo.workers.local.server import LocalServer, LocalSettings
from arlo.workers.pool import WorkerInfo, WorkerState
from arlo.workers.process import GuardedProcess
from arlo.workers.triton.admin import TritonAdmin, until_tick

CHECK_S = 1.0  # between looks at a running worker


class LocalWorker:
    """Lives from `start` to `stop`; between them it is restarted, with back-off, each time its process ends.

    Requested runtimes are loaded again after a crash, and forgotten by `restart`. Single event loop. `state`:
    starting (process up, runtimes being loaded) -> ready -> failed (waiting for the next attempt) -> starting ...;
    stopped at the end. The endpoint never changes.
    """

    def __init__(self, worker_id: str, settings: LocalSettings, run_dir: Path, *, gpu: str | None = None) -> None:
        self.id = worker_id
        self.gpu = gpu
        self._server = LocalServer(worker_id, settings, run_dir, gpu=gpu)
        self.state: WorkerState = "stopped"
        self.restarts = 0
        self.error: str | None = None
        self._settings = settings
        self._runtimes: dict[str, None] = {}  # loaded on request; loaded again after a restart
        self._locks: dict[str, asyncio.Lock] = {}
        self._changed = asyncio.Condition()
        self._monitor: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[None] | None = None  # a restart that a caller waits for
        self._wake = asyncio.Event()  # ends the wait before the next attempt
        self._loaded: tuple[str, ...] = ()  # READY when last seen
        self._sightings = 0  # of the loaded runtimes; an answer older than the newest one is void
        self._trouble: str | None = None  # of the last health check

    @property
    def endpoint(self) -> str:
        """host:port of Triton's gRPC port; it never changes."""
        return self._server.endpoint

    async def start(self) -> None:
        """Start the process and wait until it is live; if that fails, WorkerError and nothing is left running."""
        await self._launch()
        await self._set("ready")
        self._start_monitor()

    async def adopt(self) -> bool:
        """Take over the process that a dead owner left under this id, with its port, key and runtimes.

        False when there is none, or when it has other settings or does not answer, in which case it is ended; `start`
        may follow. WorkerError when its owner is alive.
        """
        record = await self._server.find()
        if record is None:
            return False
        await self._set("starting")
        found = await self._server.adopt(record)
        if found is None:
            return False
        self.restarts, runtimes = found
        self._runtimes = dict.fromkeys(runtimes)
        await self._set("ready")
        self._saw(runtimes)
        self._start_monitor()
        return True

    def kill_now(self) -> None:
        """Kill the process without waiting."""
        if self._server.process is not None:
            self._server.process.kill()

    def _start_monitor(self) -> None:
        self._monitor = asyncio.create_task(self._watch(), name=f"monitor of worker {self.id}")

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after the exit timeout. Idempotent."""
        await self._set("stopped")
        if self._asked is not None:
            self._answer_restart(WorkerError(f"worker {self.id} was stopped before it had restarted"))
        if self._monitor is not None:
            self._monitor.cancel()
            await asyncio.gather(self._monitor, return_exceptions=True)
            self._monitor = None
        await self._server.end()
        self._server.release()
        await self._set("stopped")

    async def restart(self) -> None:
        """End the process as `stop` does and start it with no runtime loaded. WorkerError when it does not become live.

        The worker is then in the state failed, and is retried like any other.
        """
        if self.state == "stopped":
            raise WorkerError(f"worker {self.id} cannot be restarted: it is stopped")
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        asked = self._asked
        self._wake.set()
        await self._set("starting")
        if self._server.process is not None:
            self._server.process.terminate()
        await asyncio.shield(asked)

    def info(self) -> WorkerInfo:
        """The state last seen by the monitor and by the calls made here."""
        return WorkerInfo(
            id=self.id,
            endpoint=self.endpoint,
            metrics_url=self._server.metrics_url,
            state=self.state,
            pid=self._server.process.pid if self._server.process is not None else None,
            restarts=self.restarts,
            runtimes=self._loaded,
            log=str(self._server.log.path),
            error=self.error or self._trouble or self._server.trouble,
        )

    async def load(self, runtime: str, *, timeout_s: float) -> None:
        deadline_s = monotonic_s() + timeout_s
        async with self._locks.setdefault(runtime, asyncio.Lock()):
            admin = await self._ready(f"load {runtime}", timeout_s)
            await admin.load(runtime, timeout_s=max(0.1, deadline_s - monotonic_s()))
            if admin is not self._server.admin:
                raise WorkerError(f"worker {self.id} ended after it had loaded {runtime}")
            self._runtimes[runtime] = None
            self._saw((*self._loaded, runtime))
            if self._server.stubs is not None:
                self._server.stubs.scan_soon()

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
        """Wait until the worker is ready; it may be restarting now."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.state in ("ready", "stopped"))
        except TimeoutError:
            reason = self.error or "it is still starting"
            raise WorkerError(f"worker {self.id} could not {what} within {timeout_s:g} s: {reason}") from None
        if self.state == "stopped" or self._server.admin is None:
            raise WorkerError(f"worker {self.id} could not {what}: it is stopped")
        return self._server.admin

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
        await self._set("starting")
        await self._server.launch(restarts=self.restarts)

    async def _watch(self) -> None:
        """Restart the process each time it ends. Ends by cancellation only."""
        attempt = 0
        live_since_s = monotonic_s()
        while True:
            asked = False
            try:
                if self._server.process is not None:
                    how = await self._wait_end(self._server.process, self._server.admin)
                    if self._asked is None:
                        await self._set("failed", f"worker {self.id} ended: {how}")
                    await self._server.end()
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
                await self._launch()
                problems = await self._reload()
            except Exception as error:  # a full disk, no descriptor left, a bug of ours: every failure is retried
                if self._server.process is not None and self._server.process.returncode is None:
                    self._trouble = explain(error)  # it runs; the watch goes on in a moment
                    await self._wait_before(attempt)
                    attempt = min(attempt + 1, 16)
                    continue
                failure = known(error) or WorkerError(f"worker {self.id} could not be started: {explain(error)}")
                await self._set("failed", str(failure))
                if asked:
                    self._answer_restart(failure)
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
                    return killed or self._server.ended(end.result())
                if admin is None or await self._check(admin, period_s):
                    answered_s = monotonic_s()
                elif monotonic_s() - answered_s > self._settings.hang_timeout_s and not await admin.is_live():
                    # (One that is long busy with its repository may answer this, and nothing else.)
                    killed = f"killed because it answered no health check for {self._settings.hang_timeout_s:g} s"
                await asyncio.to_thread(self._server.log.limit)
                if self._server.trouble is not None:
                    self._server.write_files()
                stub = self._server.stubs.check() if self._server.stubs is not None else None
                if stub is not None:
                    killed = f"killed because its Python stub {stub} had ended"
                if killed:
                    process.kill()
        finally:
            end.cancel()

    async def _check(self, admin: TritonAdmin, timeout_s: float) -> bool:
        """Ask for the loaded runtimes; True when the server answers, even with an error."""
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
        """Reload the runtimes that were loaded; returns the reasons of those that failed."""
        admin = self._server.admin
        if admin is None:
            return []
        problems = []
        for runtime in list(self._runtimes):
            try:
                await admin.load(runtime, timeout_s=self._settings.start_timeout_s)
                self._saw((*self._loaded, runtime))
            except WorkerError as error:
                if self._server.process is None or self._server.process.returncode is not None:
                    break  # it died again: the next round handles it
                problems.append(str(error))
        return problems
