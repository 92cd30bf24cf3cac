"""The driver of `make check`: lanes side by side, the first failure ends all, the tests' closing line comes last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "check.py"


def run(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout.splitlines()


def test_lanes_run_side_by_side_and_the_tests_output_comes_last(tmp_path: Path) -> None:
    """Each lane waits for a file that the other one writes."""
    wait = "until [ -e {} ]; do sleep 0.02; done"
    tests = f"first=touch a; {wait.format('b')}", "last=echo 7 passed"
    work = f"work={wait.format('a')}; touch b; sleep 0.2; echo hidden"
    status, lines = run(tmp_path, *tests, "++", work)
    assert status == 0
    assert lines[-1] == "7 passed"
    assert "hidden" not in lines
    assert {line.split()[0] for line in lines[lines.index(next(x for x in lines if "all passed" in x)) + 1 : -1]} == {
        "first", "last", "work",
    }  # fmt: skip


def test_the_first_failure_ends_everything_and_is_shown(tmp_path: Path) -> None:
    status, lines = run(
        tmp_path, "tests=sleep 50", "later=touch later", "++", "work=echo what went wrong; exit 3", "x=:"
    )
    assert status == 1
    assert "what went wrong" in lines
    assert lines[-1].endswith("work FAILED")
    assert not (tmp_path / "later").exists()
