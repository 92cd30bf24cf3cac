"""A process that can't outlive us: started through `arlo-guard`, which ends it when we are gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from arlo.errors import EnvironmentProblem, WorkerError
from arlo.workers.paths import guard_program


class GuardedProcess:
    """One program under a guard of its own, in a session of its own (Ctrl-C does not reach it).

    The guard ends the program when this process dies, SIGKILL included, and kills what the program leaves behind.
    (A child that we fork without exec would hold the lifeline too, and keep the program alive until it ends.)
    Make it with `start`; then `wait`, `terminate`, `kill` or `stop`. Used from one event loop.
    """

    def __init__(self, guard: subprocess.Popen[bytes], pid: int) -> None:
        self._guard = guard
        self.pid = pid  # of the program itself
        self._pidfd: int | None = os.pidfd_open(guard.pid)

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        grace_s: float = 5.0,
        orphan_grace_s: float = 2.0,
        shm_prefix: str = "",
    ) -> Self:
        """Start `command`, its output appended to `log`.

        `grace_s` is the time from SIGTERM to SIGKILL, `orphan_grace_s` the same when we are gone. Shared-memory files
        `/dev/shm/{shm_prefix}*` are removed when the program has ended. EnvironmentProblem when the program can't be
        executed.
        """
        program = guard_program()
        report_read, report_write = os.pipe()
        guard = [str(program), f"--grace-s={grace_s}", f"--orphan-grace-s={orphan_grace_s}"]
        guard += [f"--report-fd={report_write}", f"--shm-prefix={shm_prefix}"]
        with log.open("ab") as output, os.fdopen(report_read, "rb") as report:
            try:
                # The guard's standard input is the lifeline: only we hold the other end.
                popen = subprocess.Popen(
                    [*guard, "--", *command],
                    env=dict(env),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[report_write],
                    start_new_session=True,
                )
            except OSError as error:
                raise EnvironmentProblem(f"cannot run {program}: {error}") from None
            finally:
                os.close(report_write)
            kind, _, value = report.readline().decode().strip().partition(" ")
        if kind != "pid":
            code = popen.wait()
            if popen.stdin is not None:
                popen.stdin.close()
            raise EnvironmentProblem(f"cannot run {command[0]}: {value or f'the guard exited with {code}, see {log}'}")
        return cls(popen, int(value))

    @property
    def returncode(self) -> int | None:
        """None while it runs; then the exit code, or 128 + the signal that ended it."""
        return self._guard.poll()

    async def wait(self) -> int:
        """Wait until the program and all it started are gone; return the exit code."""
        if self._pidfd is not None:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            # A duplicate for each waiter: an event loop keeps one reader per descriptor.
            pidfd = os.dup(self._pidfd)
            loop.add_reader(pidfd, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(pidfd)
                os.close(pidfd)
            self._close()
        return self._guard.wait()

    def terminate(self) -> None:
        """Ask the program to end (SIGTERM); what is left after the grace time is killed."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the program and all it started, at once."""
        self._signal(signal.SIGQUIT)

    async def stop(self, *, timeout_s: float) -> int:
        """`terminate`, wait, and make sure: WorkerError if even the guard does not end within `timeout_s`."""
        self.terminate()
        try:
            return await asyncio.wait_for(self.wait(), timeout_s)
        except TimeoutError:
            self.kill()
            try:
                return await asyncio.wait_for(self.wait(), 5.0)
            except TimeoutError:
                raise WorkerError(f"process {self.pid} does not end; kill it by hand") from None

    def _signal(self, number: signal.Signals) -> None:
        if self._guard.poll() is None:
            self._guard.send_signal(number)

    def _close(self) -> None:
        self._guard.poll()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
