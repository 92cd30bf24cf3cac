"""Every command with values that nobody means: a message and an exit code, never a Python trace.

The command lines come from the parsers: each option of each command gets each odd value in turn, beside what the
command needs. What reaches the work itself is started in a folder of the test's own, where nothing is to be had.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from arlo.cli import main
from arlo.cli.app import build_parsers
from arlo.cli.commands import ACTIONS, COMMANDS, nested
from arlo.workers.emulated.repository import write_emulated_repository

ODD = (
    "nan", "inf", "-inf", "-1", "0", "1e400", "9" * 40, "", " ", "x", "64,x", "../../x", "/", "a/b", "a=b",
    "\x1b[31mred", "a\x00b", "\udcff", "n" * 100_000, "{}", "FILE", "FOLDER", "EMPTY", "MISSING", "BROKEN.json",
    "BROKEN.toml", "SECRET", "REPOSITORY",
)  # fmt: skip

# What runs as it is, so that an odd value of one more option reaches the work itself.
BASE = {
    "compile emulate": {"--out": "OUT", "--max-lengths": "16,32", "--latency-ms": "1,2"},
    "compile lengths": {"--max-length": "64"},
    "plan": {"--workers": "2", "--max-lengths": "16,32", "--latency-ms": "1,2", "--demand": "2,2", "--slo-ms": "50"},
    "simulate trace make": {"file": "OUT.csv", "--rate": "5", "--duration-s": "1"},
    "simulate trace inspect": {"file": "TRACE.csv"},
    "simulate": {"--rate": "50", "--duration-s": "1", "--workers": "2", "--arrivals": "poisson"},
    "config show": {"file": "serve.toml"},
    "config check": {"file": "serve.toml"},
    "compile inspect": {"repository": "REPOSITORY"},
    "compile verify": {"repository": "REPOSITORY"},
}

SERVE = '[model]\nrepository = "REPOSITORY"\nslo_ms = 50\n[deployment]\nallocation = {16 = 1}\n'

# These begin to serve, to listen or to fetch where all they are given is right.
LONG = {"up", "serve", "top"}


def leaves() -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    """Each command without commands of its own, with the words that name it."""
    for command in COMMANDS + ACTIONS:
        parser = build_parsers(command.name).command
        assert parser is not None
        for each in [parser, *nested(parser)]:
            if not any(isinstance(action, argparse._SubParsersAction) for action in each._actions):
                yield each.prog.split()[1:], each


def lines(parser: argparse.ArgumentParser, names: list[str]) -> Iterator[list[str]]:
    """Command lines of one command: each argument with each odd value; the others as little as goes."""
    actions = [a for a in parser._actions if not isinstance(a, argparse._HelpAction | argparse._VersionAction)]
    base = BASE.get(" ".join(names), {})
    usual = {a: base[name] for a in actions for name in [*a.option_strings, a.dest] if name in base}
    if not usual:
        usual = {a: usual_of(a) for a in actions if a.required or not a.option_strings}
        groups = (group._group_actions[0] for group in parser._mutually_exclusive_groups if group.required)
        usual |= {action: usual_of(action) for action in groups}
    valued = [action for action in actions if action.nargs != 0]
    for number, action in enumerate(valued):
        # All values of the first ones; of the rest each one value more than the one before, so that all come up.
        values = ODD if number < 3 else [ODD[(number + step) % len(ODD)] for step in range(0, len(ODD), 5)]
        for value in values:
            if value in ("../../x", "/") and action.type is Path:
                continue  # a path that is named may lie anywhere
            given = usual | {action: value}
            yield [*names, *itertools.chain.from_iterable(written(a, v) for a, v in given.items())]


def usual_of(action: argparse.Action) -> str:
    if action.choices is not None:
        return str(next(iter(action.choices)))
    return "MISSING" if action.type is Path else "1" if action.type in (int, float) else "x"


def written(action: argparse.Action, value: str) -> list[str]:
    if not action.option_strings:
        return [] if value.startswith("-") else [value]
    return [f"{action.option_strings[-1]}={value}"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "deep" / "work"
    work.mkdir(parents=True)
    (work / "FILE").write_text("text\n")
    (work / "FOLDER").mkdir()
    (work / "FOLDER" / "file").write_text("text\n")
    (work / "EMPTY").mkdir()
    (work / "BROKEN.json").write_text('{"format": 1, "a": [')
    (work / "BROKEN.toml").write_text('[model\nx = "')
    (work / "SECRET").write_text("x")
    (work / "SECRET").chmod(0)
    (work / "TRACE.csv").write_text("arrived_at_s,length\n0.1,5\n0.2,9\n")
    (work / "serve.toml").write_text(SERVE)
    write_emulated_repository(work / "REPOSITORY", model="m", max_lengths=[16], latency_ms=[1])
    monkeypatch.chdir(work)
    for name in ("HOME", "ARLO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return work


def ended(line: list[str]) -> tuple[int, str]:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main(line)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return code, out.getvalue() + errors.getvalue()


@pytest.mark.parametrize("names", [" ".join(names) for names, _ in leaves()])
def test_odd_values_are_answered_in_words(folder: Path, names: str) -> None:
    parser = next(parser for found, parser in leaves() if " ".join(found) == names)
    outside = set(folder.parent.parent.iterdir())
    for line in lines(parser, names.split()):
        if names.split(maxsplit=1)[0] in LONG and "REPOSITORY" in str(line):
            continue
        code, said = ended(line)
        shown = [word[:80] for word in line]
        assert code in range(8), shown
        assert "unexpected" not in said, (shown, said[-2000:])
        assert "Traceback" not in said, (shown, said[-2000:])
        assert max(map(len, said.splitlines()), default=0) < 10_000, shown
        assert "\x1b[31mred" not in said, shown
    # Nothing was written beside the folder that it was called in.
    assert set(folder.parent.iterdir()) == {folder}
    assert set(folder.parent.parent.iterdir()) - outside <= {folder.parent.parent / "home"}


@pytest.mark.parametrize("name", ["../../x", "..", ".x", "a/b", "/x", "x" * 201, "a\nb"])
def test_a_name_is_no_path(folder: Path, name: str) -> None:
    before = set(folder.parent.parent.rglob("*"))
    for line in (
        "up REPOSITORY --port 0 --grpc-port 0",
        "compile FOLDER --out out",
        "compile emulate --out out --max-lengths 16",
    ):
        option = "--model" if line.startswith("compile emulate") else "--name"
        given = ["--latency-ms", "1"] if line.startswith("compile emulate") else []
        code, said = ended([*line.split(), *given, f"{option}={name}"])
        assert code == 2, said
        assert "cannot name a model: use up to 200" in said
    assert set(folder.parent.parent.rglob("*")) == before


def test_there_are_enough_of_them() -> None:
    assert sum(len(list(lines(parser, names))) for names, parser in leaves()) >= 300


MOMENTS_S = (0.05, 0.15, 0.3, 0.5, 1.0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "line"),
    list(enumerate([
        "version", "top --once", "compile emulate --out out --max-lengths 16 --latency-ms 1",
        "config check serve.toml", "simulate --rate 100 --duration 1000", "compile FOLDER --out out",
        "serve serve.toml", "serve triton REPOSITORY", "fit a=REPOSITORY b=REPOSITORY --data FILE", "up FOLDER",
    ])),
)  # fmt: skip
def test_ctrl_c_at_any_moment_of_the_start(folder: Path, number: int, line: str) -> None:
    """From the first instruction of ours on, imports included. Commands take turns at the moments."""
    program = (
        "import sys, os; sys.path[:0] = []\n"
        "from arlo.cli import main\n"
        "print('begun', flush=True)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for wait_s in MOMENTS_S[number % 2 :: 2]:
        with subprocess.Popen(
            [sys.executable, "-c", program, *line.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=folder,
            text=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        assert "Traceback" not in errors, (line, wait_s, errors[-3000:])
        # -SIGINT: it was about to exit, when Python has let go of its handlers.
        assert process.returncode in (*range(8), 130, -signal.SIGINT), (line, wait_s, process.returncode)


def test_out_of_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from arlo.cli import version

    for error in (MemoryError(), RuntimeError("std::bad_alloc"), OSError(12, "Cannot allocate memory")):

        def fail(*_: object, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(version, "run", fail)
        code, said = ended(["version"])
        assert code == 3
        assert "memory" in said


def test_what_an_import_makes_of_ctrl_c_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from arlo import cli
    from arlo.cli import app

    def broken_off(*_: object) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr(app, "main", broken_off)
    assert cli.main([]) == 130
    monkeypatch.setattr(app, "main", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main([])


@pytest.mark.parametrize("how", ["sys.excepthook(Key, Key(), None)", "weakref.ref(C(), raises)"])
def test_an_interrupt_that_python_lets_fall_is_sent_again(how: str) -> None:
    """Printed by C code that goes on, or raised in a callback: the command ends all the same, with nothing printed."""
    program = f"""
import sys, time, weakref
from arlo import cli
from arlo.cli import app
Key = KeyboardInterrupt
class C: pass
def raises(_): raise Key
def run(arguments):
    {how}
    time.sleep(60)
app._run = run
sys.exit(cli.main(["version"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")
