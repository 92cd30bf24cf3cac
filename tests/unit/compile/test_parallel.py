"""Worker processes: what they tell, what becomes of errors, of crashes, and of them when the caller dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from arlo.compile.parallel import run_all
from arlo.errors import CompileError, ConfigError

WORK = """
import os, signal, sys, time
from arlo.errors import ConfigError

def double(item, tell):
    tell(("begin", item))
    print("some noise from a library", flush=True)
    return 2 * item

def who(item, tell):
    time.sleep(0.2)
    return os.getpid()

def wrong(item, tell):
    if item == 2:
        raise ConfigError("length 2 is wrong: name another")
    return item

def broken(item, tell):
    raise ZeroDivisionError("nobody expected this")

def dies(item, tell):
    print("about to fall over", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)

def killed(item, tell):
    os.kill(os.getpid(), signal.SIGKILL)

def unsendable(item, tell):
    return lambda: item

def waits(item, tell):
    tell(os.getpid())
    time.sleep(300)
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of functions that worker processes can import."""
    (tmp_path / "work_of_tests.py").write_text(WORK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("work_of_tests", None)
    import work_of_tests

    return work_of_tests


def run(function: Callable[..., Any], items: list[int], jobs: int = 2, tell: Any = lambda *_: None) -> list[Any]:
    return run_all(function, items, jobs=jobs, tell=tell, title=lambda item: f"length {item}")


def test_results_come_in_order_and_what_is_told_arrives(work: Any, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, Any]] = []
    assert run(work.double, [5, 3, 4], tell=lambda item, what: told.append((item, what))) == [10, 6, 8]
    assert sorted(told) == [(3, ("begin", 3)), (4, ("begin", 4)), (5, ("begin", 5))]
    assert capfd.readouterr() == ("", "")


def test_as_many_processes_as_asked_for_and_none_is_left(work: Any) -> None:
    before = {child.pid for child in psutil.Process().children()}
    processes = run(work.who, [1, 2, 3, 4])
    assert len(set(processes)) == 2
    assert os.getpid() not in processes
    assert {child.pid for child in psutil.Process().children()} == before


def test_errors_of_ours_come_as_they_are(work: Any) -> None:
    with pytest.raises(ConfigError, match=r"^length 2 is wrong: name another$"):
        run(work.wrong, [1, 2, 3])


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("broken", "build: length 7: ZeroDivisionError: nobody expected this"),
        ("dies", r"build: length 7: its process ended by signal 11 \(Segm.*\); it printed: about to fall over"),
        ("killed", "build: length 7: its process was killed, as happens when memory runs out: try --jobs 1"),
        ("unsendable", "build: length 7: its result cannot be sent"),
    ],
)
def test_what_nobody_expects_names_the_runtime(work: Any, function: str, says: str) -> None:
    with pytest.raises(CompileError, match=says):
        run(getattr(work, function), [7])


def test_workers_die_with_a_killed_caller(work: Any, tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import work_of_tests
        from arlo.compile.parallel import run_all
        run_all(work_of_tests.waits, [1, 2], jobs=2, title=str, tell=lambda _, pid: print(pid, flush=True))
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        workers = [psutil.Process(int(caller.stdout.readline())) for _ in range(2)]
        caller.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert (len(gone), alive) == (2, [])


def test_an_interrupt_of_the_caller_ends_the_workers(work: Any) -> None:
    workers: list[int] = []

    def interrupt(_: int, pid: int) -> None:
        workers.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(work.waits, [1], tell=interrupt)
    assert not psutil.pid_exists(workers[0])
