"""GuardedProcess: nothing of a program outlives the process that started it, but for the time it may linger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from arlo.errors import EnvironmentProblem, WorkerError
from arlo.workers.process import GuardedProcess

pytestmark = [pytest.mark.integration, pytest.mark.long]

Eventually = Callable[..., Awaitable[None]]
Alive = Callable[[int], bool]


def start(script: str, log: Path, *, grace_s: float = 5.0, shm_prefix: str = "") -> GuardedProcess:
    return GuardedProcess.start(["sh", "-c", script], env=os.environ, log=log, grace_s=grace_s, shm_prefix=shm_prefix)


def first_number(log: Path) -> int | None:
    lines = log.read_text().splitlines()
    return int(lines[0]) if lines else None


async def test_exit_code_and_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start("echo hello; echo problem >&2; exit 3", log)
    assert await process.wait() == 3
    assert process.returncode == 3
    assert log.read_text() == "hello\nproblem\n"


async def test_terminate_lets_the_program_finish(tmp_path: Path, eventually: Eventually) -> None:
    log = tmp_path / "log"
    process = start("trap 'echo bye; exit 4' TERM; echo 1; while :; do sleep 0.01; done", log)
    await eventually(lambda: first_number(log), "the program runs")
    assert await process.stop(timeout_s=10.0) == 4
    assert log.read_text() == "1\nbye\n"


async def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path, alive: Alive) -> None:
    process = start("trap '' TERM; while :; do sleep 0.05; done", tmp_path / "log", grace_s=0.1)
    assert await process.stop(timeout_s=10.0) in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    assert not alive(process.pid)


async def test_kill_is_at_once(tmp_path: Path, alive: Alive) -> None:
    process = start("trap '' TERM; while :; do sleep 0.05; done", tmp_path / "log", grace_s=60.0)
    process.kill()
    assert await process.wait() == 128 + signal.SIGKILL
    assert not alive(process.pid)


async def test_what_the_program_leaves_behind_is_killed(tmp_path: Path, alive: Alive) -> None:
    """Also a daemon in a session of its own, and shared memory with the prefix given."""
    log = tmp_path / "log"
    prefix = f"arlo_test_{os.getpid()}_"
    shared, other = Path(f"/dev/shm/{prefix}region"), Path(f"/dev/shm/other_{prefix}")
    shared.write_text("x")
    other.write_text("x")
    try:
        script = f"setsid sh -c 'echo $$; exec sleep 1000' & until [ -s '{log}' ]; do sleep 0.02; done"
        process = start(script, log, shm_prefix=prefix)
        assert await process.wait() == 0
        daemon = first_number(log)
        assert daemon is not None
        assert not alive(daemon)
        assert not shared.exists()
        assert other.exists()
    finally:
        shared.unlink(missing_ok=True)
        other.unlink()


async def test_the_program_dies_with_its_guard(tmp_path: Path, alive: Alive, eventually: Eventually) -> None:
    process = start("exec sleep 1000", tmp_path / "log")
    guard = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    await process.wait()
    await eventually(lambda: not alive(process.pid), "the program is gone")


async def test_the_thread_that_started_it_may_end(tmp_path: Path) -> None:
    """A parent-death signal alone would kill the program here."""
    started: list[GuardedProcess] = []
    thread = threading.Thread(target=lambda: started.append(start("sleep 0.2; exit 7", tmp_path / "log")))
    thread.start()
    thread.join()
    assert await started[0].wait() == 7


async def test_own_session(tmp_path: Path) -> None:
    """So Ctrl-C in our terminal does not reach the program before we have drained."""
    process = start("exec sleep 1000", tmp_path / "log")
    assert os.getsid(process.pid) != os.getsid(0)
    assert os.getpgid(process.pid) == process.pid
    process.kill()
    await process.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_everything_ends_with_the_parent(
    tmp_path: Path, number: signal.Signals, alive: Alive, eventually: Eventually
) -> None:
    log = tmp_path / "log"
    parent_code = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from arlo.workers.process import GuardedProcess\n"
        "script = 'setsid sleep 1000 & echo $!; trap \"\" TERM; while :; do sleep 0.05; done'\n"
        "process = GuardedProcess.start(['sh', '-c', script], env=os.environ, log=Path(sys.argv[1]),\n"
        "                               grace_s=60.0, orphan_grace_s=0.1)\n"
        "print(process.pid, flush=True)\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent_code, str(log)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        program = int(parent.stdout.readline())
        await eventually(lambda: first_number(log), "the daemon runs")
        daemon = first_number(log)
        assert daemon is not None
        assert alive(program)
        parent.send_signal(number)
    await eventually(lambda: not alive(program) and not alive(daemon), "program and daemon are gone")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"/nowhere/program.*No such file"):
        GuardedProcess.start(["/nowhere/program"], env={}, log=tmp_path / "log")


# Starts the program of the second argument with a lingering time, or adopts it when there is no second one.
OWNER = """\
import asyncio, os, sys
from pathlib import Path
from arlo.workers.process import GuardedProcess

async def main():
    folder, linger_s, script = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    if script:
        process = GuardedProcess.start(["sh", "-c", script], env=os.environ, log=folder / "log", orphan_grace_s=0.2,
                                       linger_s=linger_s, socket_path=folder / "sock")
    else:
        process = await GuardedProcess.adopt(folder / "sock")
    print(process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def start_and_die(folder: Path, script: str = "", *, linger_s: float = 20.0, writes: bool = False) -> int:
    """Run a process that owns the program and is killed, once that wrote to its log where it `writes`; the program's
    pid. No script: it adopts what runs.
    """
    command = [sys.executable, "-c", OWNER, str(folder), str(linger_s), script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        while writes and first_number(folder / "log") is None:
            time.sleep(0.01)
        owner.kill()
    return pid


async def adopt(folder: Path) -> GuardedProcess:
    process = await GuardedProcess.adopt(folder / "sock")
    assert process is not None
    return process


async def test_an_adopted_program_is_like_one_that_was_started(tmp_path: Path, alive: Alive) -> None:
    pid = start_and_die(tmp_path, "trap 'exit 9' TERM; while :; do sleep 0.02; done")
    assert start_and_die(tmp_path) == pid  # a second owner, which dies too
    process = await adopt(tmp_path)
    assert process.pid == pid
    assert alive(pid)
    assert process.returncode is None
    assert await process.stop(timeout_s=10.0) == 9
    assert process.returncode == 9
    assert await process.wait() == 9
    process.kill()  # harmless now
    assert not (tmp_path / "sock").exists()


async def test_a_stopped_program_is_killed(tmp_path: Path, alive: Alive) -> None:
    process = start("exec sleep 1000", tmp_path / "log", grace_s=0.2)
    os.kill(process.pid, signal.SIGSTOP)
    # SIGKILL wakes it, and the SIGTERM that waited may be what it dies of.
    assert await process.stop(timeout_s=10.0) in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    assert not alive(process.pid)


async def test_the_guard_of_an_adopted_program_dies(tmp_path: Path, alive: Alive, eventually: Eventually) -> None:
    pid = start_and_die(tmp_path, "exec sleep 1000")
    process = await adopt(tmp_path)
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert await process.wait() == 128 + signal.SIGKILL
    await eventually(lambda: not alive(pid), "the program is gone")
    assert await GuardedProcess.adopt(tmp_path / "sock") is None  # the socket is there, nobody listens


async def test_a_program_that_ended_while_lingering(tmp_path: Path, alive: Alive, eventually: Eventually) -> None:
    pid = start_and_die(tmp_path, "sleep 0.3")
    await eventually(lambda: not alive(pid), "it ends by itself")
    await eventually(lambda: not (tmp_path / "sock").exists(), "so does its guard")
    assert await GuardedProcess.adopt(tmp_path / "sock") is None


async def test_lingering_ends(tmp_path: Path, alive: Alive, eventually: Eventually) -> None:
    """What the program left behind goes too, and whoever comes while it is being ended gets nothing."""
    script = "setsid sleep 1000 & echo $!; trap '' TERM; while :; do sleep 0.02; done"
    pid = start_and_die(tmp_path, script, linger_s=0.3, writes=True)
    daemon = first_number(tmp_path / "log")
    assert daemon is not None
    await eventually(lambda: not alive(pid) and not alive(daemon), "program and daemon are gone", 5.0)
    assert await GuardedProcess.adopt(tmp_path / "sock") is None
    assert not (tmp_path / "sock").exists()


async def test_a_program_that_is_being_ended_is_not_adopted(
    tmp_path: Path, alive: Alive, eventually: Eventually
) -> None:
    """The caller waits until it is gone, so that what it held is free."""
    pid = start_and_die(tmp_path, "trap '' TERM; while :; do sleep 0.02; done")
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGTERM)

    def taken() -> bool:  # the guard has read the signal, so it waits for the program's end
        lines = Path(f"/proc/{guard}/status").read_text().splitlines()
        pending = next(line for line in lines if line.startswith("ShdPnd:"))
        return not int(pending.split()[1], 16) & (1 << (signal.SIGTERM - 1))

    await eventually(taken, "the guard knows")
    assert await GuardedProcess.adopt(tmp_path / "sock", timeout_s=1.0) is None
    assert not alive(pid)


async def test_one_owner_at_a_time(tmp_path: Path) -> None:
    process = GuardedProcess.start(
        ["sleep", "1000"], env=os.environ, log=tmp_path / "log", linger_s=5.0, socket_path=tmp_path / "sock"
    )
    with pytest.raises(WorkerError, match="owner is alive"):
        await GuardedProcess.adopt(tmp_path / "sock", timeout_s=0.2)
    process.kill()
    assert await process.wait() == 128 + signal.SIGKILL


async def test_a_socket_that_can_not_be_made(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="No such file"):
        GuardedProcess.start(
            ["true"], env=os.environ, log=tmp_path / "log", linger_s=5.0, socket_path=tmp_path / "no" / "sock"
        )
