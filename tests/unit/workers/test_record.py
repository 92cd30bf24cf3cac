"""Records of processes that a later owner may take over; finding stubs. Starts no server."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from arlo.workers.log_file import LogFile
from arlo.workers.record import ProcessRecord, RecordFile, fingerprint, recorded_names
from arlo.workers.triton.admin import until_tick
from arlo.workers.triton.stubs import StubWatch, children, state

RECORD = ProcessRecord(pid=7, fingerprint="abc", details={"port": 1, "admin_key": None, "gpu": "0"})


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "w0")
    assert file.read() is None
    file.write(RECORD)
    file.write(RECORD)
    assert file.read() == RECORD
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert recorded_names(tmp_path) == {"w0"}
    file.remove()
    file.remove()
    assert file.read() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "7", "[]", '{"version": 1}', '{"version": 2, "pid": 7, "fingerprint": "abc", "details": {}}']
)
def test_what_is_not_understood_is_no_record(tmp_path: Path, text: str) -> None:
    file = RecordFile(tmp_path, "w0")
    file.path.write_text(text)
    assert file.read() is None


async def test_leftovers_of_the_dead_are_removed(tmp_path: Path) -> None:
    """A record, and the socket of a guard that was killed."""
    file = RecordFile(tmp_path, "w0")
    file.write(RECORD)
    file.socket.touch()
    (tmp_path / "w1.sock").touch()
    assert recorded_names(tmp_path) == {"w0", "w1"}
    assert await file.take_over(RECORD, stop_timeout_s=1.0) is None
    assert recorded_names(tmp_path) == {"w1"}


def test_fingerprints() -> None:
    assert fingerprint(a=1, b=["x"]) == fingerprint(b=["x"], a=1)
    assert len({fingerprint(a=1), fingerprint(a=2), fingerprint(b=1), fingerprint(a=None)}) == 4


def test_checks_share_their_instants() -> None:
    assert until_tick(12.25, 1.0) == 0.75
    assert until_tick(12.0, 1.0) == 1.0  # never 0, which would be a busy loop


def test_a_stub_that_stays_a_zombie_is_found() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        if child.pid not in children(os.getpid()):
            pytest.skip("this kernel does not list the children of a process")
        watch = StubWatch(os.getpid())
        assert watch.check() is None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
        assert state(child.pid) == "Z"
        assert watch.check() is None  # it may be reaped yet
        assert watch.check() == child.pid
    assert state(child.pid) == "X"
    assert watch.check() is None


def test_new_stubs_are_looked_for_after_a_load() -> None:
    watch = StubWatch(os.getpid())
    watch.check()
    with subprocess.Popen(["true"]) as child:
        if child.pid not in children(os.getpid()):
            pytest.skip("this kernel does not list the children of a process")
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert [watch.check(), watch.check()] == [None, None]
        watch.scan_soon()
        assert [watch.check(), watch.check()] == [None, child.pid]


def test_the_excerpt_is_of_the_process_that_runs_now(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    assert "no log" in log.excerpt()
    log.begin("one")
    log.path.write_text(log.path.read_text() + "old\n")
    log.begin("two")
    with log.path.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(1000))
    lines = log.excerpt().splitlines()
    assert lines[:5] == ["line 0", "line 1", "line 2", "line 3", "..."]
    assert lines[-1] == "line 999"
    assert len(lines) == 20
