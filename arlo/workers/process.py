"""A process that `arlo-guard` starts, and ends when we are gone, so that it cannot outlive us by more than allowed.

With a linger time it survives us for that long, and another process can take it over: see `GuardedProcess.adopt`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from arlo.errors import EnvironmentProblem, WorkerError, explain
from arlo.workers.paths import guard_program

_POLL_S = 0.05
ADOPT_TIMEOUT_S = 5.0  # for the guard to say that it is ours; it waits for its owner's end


class GuardedProcess:
    """One program with its own guard, in its own session (Ctrl-C does not reach it).

    The guard ends the program when this process dies, SIGKILL included, and kills any children the program leaves.
    (A child that we fork without exec would also hold the lifeline, and keep the program alive until the child ends.)
    Make it with `start` or `adopt`; then `wait`, `terminate`, `kill` or `stop`. Use it from one event loop.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int,
        *,
        child: subprocess.Popen[bytes] | None = None,
        lifeline: socket.socket | None = None,
        said: bytes = b"",
    ) -> None:
        self.pid = pid  # of the program itself
        self._pidfd: int | None = pidfd  # of the guard
        self._child = child  # the guard when we started it
        self._lifeline = lifeline  # the connection to the guard when we took it over
        self._said = said  # by the guard over it
        self._code: int | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        grace_s: float = 5.0,
        orphan_grace_s: float = 2.0,
        linger_s: float = 0.0,
        socket_path: Path | None = None,
        shm_prefix: str = "",
    ) -> Self:
        """Start `command`, its output appended to `log`.

        `grace_s` is the time from SIGTERM to SIGKILL, `orphan_grace_s` the same after our death. The guard acts on our
        death `linger_s` later, unless another process has adopted the program at `socket_path` by then. Shared-memory
        files `/dev/shm/{shm_prefix}*` are removed when the program has ended. EnvironmentProblem when the program can't
        be executed.
        """
        program = guard_program()
        guard = [str(program), f"--grace-s={grace_s}", f"--orphan-grace-s={orphan_grace_s}"]
        guard += [f"--shm-prefix={shm_prefix}"]
        if linger_s > 0 and socket_path is not None:
            guard += [f"--linger-s={linger_s}", f"--socket={socket_path.absolute()}"]
        with _appended(log) as output:
            report_read, report_write = os.pipe()
            with os.fdopen(report_read, "rb") as report:
                try:
                    # The guard's standard input is the lifeline: only we hold the other end.
                    popen = subprocess.Popen(
                        [*guard, f"--report-fd={report_write}", "--", *command],
                        env=dict(env),
                        stdin=subprocess.PIPE,
                        stdout=output,
                        stderr=output,
                        pass_fds=[report_write],
                        start_new_session=True,
                    )
                except OSError as error:
                    raise EnvironmentProblem(f"cannot run {program}: {explain(error)}") from None
                finally:
                    os.close(report_write)
                kind, _, value = report.readline().decode().strip().partition(" ")
        try:
            if kind == "pid":
                return cls(int(value), os.pidfd_open(popen.pid), child=popen)
        except OSError as error:
            value = explain(error)
        if popen.stdin is not None:
            popen.stdin.close()  # the guard ends what it has started
        code = popen.wait()
        raise EnvironmentProblem(f"cannot run {command[0]}: {value or f'the guard exited with {code}, see {log}'}")

    @classmethod
    async def adopt(cls, socket_path: Path, *, timeout_s: float = ADOPT_TIMEOUT_S) -> Self | None:
        """Take over a program whose owner is gone: from now on it ends with us, again after its linger time.

        None when there is no such program (any more). WorkerError when its owner does not end within `timeout_s`.
        """
        connection = await _connect(socket_path)
        if connection is None:
            return None
        adopted: Self | None = None
        pidfd = -1
        try:
            guard = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            pidfd = os.pidfd_open(guard)
            async with asyncio.timeout(timeout_s):
                said = await asyncio.get_running_loop().sock_recv(connection, 64)
            kind, _, value = said.partition(b"\n")[0].decode().partition(" ")
            if kind == "pid":
                adopted = cls(int(value), pidfd, lifeline=connection, said=said)
                pidfd = -1
                return adopted
            await _ended(pidfd)  # it is being stopped
        except TimeoutError:
            raise WorkerError(
                f"{socket_path} belongs to a process whose owner is alive: stop that one first, or use another folder"
            ) from None
        except (ProcessLookupError, ConnectionError):
            pass
        finally:
            if pidfd >= 0:
                os.close(pidfd)
            if adopted is None:
                connection.close()
        return None

    @property
    def returncode(self) -> int | None:
        """None while it runs; then the exit code, or 128 + the signal that ended it."""
        if self._code is None and self._pidfd is not None:
            if self._child is not None:
                self._code = self._child.poll()
            elif _has_ended(self._pidfd):
                self._code = self._last_words()
        return self._code

    async def wait(self) -> int:
        """Wait until the program and all it started are gone; return the exit code."""
        if self._pidfd is not None:
            await _ended(self._pidfd)
        code = self.returncode
        assert code is not None
        self._close()
        return code

    def terminate(self) -> None:
        """Ask the program to end (SIGTERM); processes left after the grace time are killed."""
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
        if self._pidfd is not None and self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _last_words(self) -> int:
        """The exit code that an adopted guard reported; 128 + SIGKILL when it was killed before it could report."""
        with contextlib.suppress(OSError):
            while self._lifeline is not None and (more := self._lifeline.recv(64)):
                self._said += more
        words = self._said.decode().split()
        return int(words[-1]) if words[-2:-1] == ["exit"] else 128 + signal.SIGKILL

    def _close(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
        if self._lifeline is not None:
            self._lifeline.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


async def _connect(path: Path) -> socket.socket | None:
    """A connection to a guard's socket; None when nothing listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    folder = -1
    try:
        # A socket address holds 107 bytes and a path may be longer.
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        await asyncio.get_running_loop().sock_connect(connection, f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        connection.close()
        return None
    finally:
        if folder >= 0:
            os.close(folder)
    return connection


def _appended(log: Path) -> IO[bytes]:
    """The log to append to; the null device if it cannot be opened: serving matters more than the log."""
    try:
        return log.open("ab")
    except OSError:
        return Path(os.devnull).open("wb")


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


async def _ended(pidfd: int) -> None:
    """Wait until the process has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    # A duplicate for each waiter: an event loop keeps one reader per descriptor.
    try:
        duplicate = os.dup(pidfd)
    except OSError:  # no descriptor left
        while not _has_ended(pidfd):
            await asyncio.sleep(_POLL_S)
        return
    loop.add_reader(duplicate, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(duplicate)
        os.close(duplicate)
