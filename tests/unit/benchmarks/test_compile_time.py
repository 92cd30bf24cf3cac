"""The bench of `arlo compile`: the lines it reads, what it adds up, and the memory that it sees."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from arlo.compile.progress import Progress
from arlo.compile.tools.display import display
from benchmarks.compile_time import Case, Step, compile_once, environment, parse_step, summarise, time_line


def printed(**fields: object) -> str:
    """The line that the program prints for a finished step."""
    stream = io.StringIO()
    with display(stream) as show:
        show(Progress(**({"number": 3, "total": 41, "done": True} | fields)))  # type: ignore[arg-type]
    return stream.getvalue()


def test_lines_of_progress_are_read_as_they_are_printed() -> None:
    line = printed(step="verify", title="length 128", seconds=1.25, note="largest difference: 3.0e-06")
    assert parse_step(line, 7.0) == Step(step="verify", title="length 128", seconds=1.25, cached=False, at_s=7.0)
    line = printed(step="build", title="dynamic up to 512", cached=True)
    assert parse_step(line, 7.0) == Step(step="build", title="dynamic up to 512", seconds=0.0, cached=True, at_s=7.0)
    assert parse_step("arlo: warning: something [1/2] else", 7.0) is None


def test_the_time_line_begins_before_the_first_step_and_ends_after_the_last() -> None:
    steps = [
        Step(step="resolve", title="m", seconds=0.5, cached=False, at_s=2.0),
        Step(step="build", title="length 64", seconds=3.0, cached=False, at_s=5.0),
        Step(step="build", title="length 128", seconds=3.0, cached=False, at_s=5.5),
    ]
    found = time_line(steps, wall_s=6.0)
    assert found == {"build": 6.0, "start of the program": 1.5, "resolve": 0.5, "end of the program": 0.5}
    assert list(found) == ["build", "start of the program", "resolve", "end of the program"]


PROGRAM = """
import json, subprocess, sys, time
print("[1/2] resolve m: 0.10 s, bert", file=sys.stderr, flush=True)
subprocess.run([sys.executable, "-c", "import time; held = bytearray(80_000_000); time.sleep(0.6)"], check=True)
print("[2/2] build length 64: cached", file=sys.stderr, flush=True)
json.dump({"seconds": 1}, sys.stdout)
"""


def test_a_run_is_measured_with_its_children() -> None:
    run = compile_once([sys.executable, "-c", PROGRAM], os.environ)
    assert run.summary == {"seconds": 1}
    assert [step.step for step in run.steps] == ["resolve", "build"]
    assert run.processes == 2
    assert 80 < run.resident_mb < 1000
    assert run.largest_process_mb > 80
    assert 80 < run.proportional_mb <= run.resident_mb + 1
    assert run.wall_s > 0.6
    assert run.cpu_s > 0


def test_builds_run_with_compiled_python_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    env = environment(tmp_path / "cache", tmp_path / "bytecode")
    program = [sys.executable, "-c", "import sys, colorsys, json; json.dump([sys.dont_write_bytecode], sys.stdout)"]
    assert compile_once(program, env).summary == [False]
    assert list((tmp_path / "bytecode").rglob("colorsys.*.pyc"))


FAILS = "import sys; print('no such model', file=sys.stderr); sys.exit(3)"


def test_a_build_that_fails_ends_the_bench_with_what_it_said() -> None:
    with pytest.raises(SystemExit, match=r"(?s)failed \(3\).*no such model"):
        compile_once([sys.executable, "-c", FAILS], os.environ)


def test_bars() -> None:
    cold = {"wall_s": 95.0, "resident_mb": 5000, "proportional_mb": 4000}
    quick = cold | {"wall_s": 80.0, "resident_mb": 6100}
    rounds = [{"cold": each, "warm": {"wall_s_each": [2.0, 2.9]}} for each in (cold, quick, cold)]
    found = summarise(Case(model="minilm", engine="onnxruntime"), rounds)
    assert (found["cold_s"], found["warm_s"], found["resident_mb"]) == (95.0, 2.45, 6100)
    assert found["bars_missed"] == ["cold_s", "resident_mb"]
    assert found["middle_round"]["cold"]["wall_s"] == 95.0
    found = summarise(Case(model="bert-base", engine="onnxruntime"), [{"cold": cold}])
    assert found["bars_missed"] == []  # no bar for the time of that model
