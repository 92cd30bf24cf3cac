"""The GPU kit: the time limits of its stages, and a report of recorded results."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu import report

ROOT = Path(__file__).resolve().parents[3]
RECORDED = Path(__file__).parent / "kit_outputs"
# Stands for Python: `facts` fails, `mixes` measures a cell and does not end, not even when it is asked to.
FAKE = """#!/usr/bin/env bash
stage=$3 out=$5
echo "[{}]" >"$out/$stage.json"
case $stage in
  facts) echo "no such card"; exit 3 ;;
  mixes) echo "{" >"$out/$stage.json.new"; trap '' TERM; while true; do sleep 0.1; done ;;
esac
"""


def test_a_stage_that_fails_or_does_not_end_leaves_time_to_the_next(tmp_path: Path) -> None:
    program, out = tmp_path / "python", tmp_path / "out"
    program.write_text(FAKE)
    program.chmod(0o755)
    command = [str(ROOT / "benchmarks/gpu/offline/run.sh"), "20", "--out", str(out), "facts", "mixes", "table"]
    env = {**os.environ, "ARLO_KIT_PYTHON": str(program), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    log = (out / "log.txt").read_text()
    assert "facts: failed with 3: no such card" in log
    assert "mixes: ended by its time limit" in log
    assert "table: done" in log
    assert {path.name for path in out.iterdir()} == {
        *("facts.json", "mixes.json", "table.json"),
        *("log.txt", "logs.tar.gz"),
    }
    assert not list(tmp_path.glob("arlo-kit.*"))


def test_a_report_of_recorded_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from arlo.simulator.profiles import load_profile

    assert report.main([str(RECORDED), "--out", str(tmp_path), "--profiles", str(tmp_path / "profiles")]) == 0
    folder = tmp_path / "nvidia-h100"
    text = (folder / "summary.md").read_text()
    assert "| one row of 16 tokens: launched over graph | 3 | 7.10 | met |" in text
    assert "| 32 x 1 | not run |" in text
    assert "| triton, 1 worker | failed: RuntimeError: arlo serve did not start |" in text
    assert (
        "| NVIDIA H100 80GB HBM3, bert-base fp16, a long queue of `mix`: rows/s | 20,000 (both)"
        in capsys.readouterr().out
    )
    profile = load_profile(tmp_path / "profiles" / "bert-base-h100-static")
    assert profile.static_ms(16) == pytest.approx(0.455, rel=0.2)
