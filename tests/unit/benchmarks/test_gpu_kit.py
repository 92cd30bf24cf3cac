"""The GPU kit: time limits and failures of stages, the files that come back, and reports of recorded results."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import profiles, report
from benchmarks.gpu.bench import Bench

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "benchmarks" / "gpu" / "offline" / "run.sh"
RECORDED = Path(__file__).parent / "kit_outputs"
# Stands for Python: `facts` fails, `mixes` measures a cell and does not end, not even when it is asked to.
BUSY_S = 15  # that a loaded machine may take longer
FAKE = """#!/usr/bin/env bash
stage=$3 out=$5
echo "[{}]" >"$out/$stage.json"
case $stage in
  facts) echo "no such card"; exit 3 ;;
  mixes) echo "{" >"$out/$stage.json.new"; trap '' TERM; while true; do sleep 0.1; done ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """The environment of a run with a Python that is not one."""
    program = tmp_path / "python"
    program.write_text(FAKE)
    program.chmod(0o755)
    return {**os.environ, "ARLO_KIT_PYTHON": str(program), "TMPDIR": str(tmp_path)}


def test_a_stage_that_fails_or_does_not_end_leaves_time_to_the_next(tmp_path: Path, fake: dict[str, str]) -> None:
    out, start_s = tmp_path / "out", time.monotonic()
    command = [str(RUN), "20", "--out", str(out), "facts", "mixes", "table"]
    done = subprocess.run(command, env=fake, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert time.monotonic() - start_s < 20 + BUSY_S
    log = (out / "log.txt").read_text()
    assert "facts: failed with 3: no such card" in log
    assert re.search(r"mixes: \d+ s", log)
    assert "mixes: ended by its time limit" in log
    assert "table: done" in log
    assert {path.name for path in out.iterdir()} == {
        *("facts.json", "mixes.json", "table.json"),
        *("log.txt", "logs.tar.gz"),
    }
    assert not list(tmp_path.glob("arlo-kit.*"))


def test_a_run_that_is_ended_packs_what_it_has(tmp_path: Path, fake: dict[str, str]) -> None:
    out = tmp_path / "out"
    with subprocess.Popen([str(RUN), "60", "--out", str(out), "mixes"], env=fake, stdout=subprocess.DEVNULL) as run:
        while not (out / "mixes.json.new").exists():
            time.sleep(0.05)
        (out / "large.json").write_bytes(os.urandom(17 << 20))
        run.send_signal(signal.SIGTERM)
        assert run.wait(20) == 143
    assert {path.name for path in out.iterdir()} == {"mixes.json", "log.txt", "logs.tar.gz"}
    assert "large.json.gz was too large" in (out / "log.txt").read_text()


def test_a_stage_keeps_its_cells_and_ends_when_the_next_would_not_fit(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "x.json", 2.0, dry=True, logs=tmp_path, stretch=2)

    def measure(cell: dict[str, Any]) -> None:
        time.sleep(0.15)
        if cell["number"]:
            raise RuntimeError("no memory")

    start_s = time.monotonic()
    while bench.cell("cell", {"number": len(bench.cells)}, measure):
        pass
    assert time.monotonic() - start_s < 1 + BUSY_S
    kept = json.loads((tmp_path / "x.json").read_text())
    assert kept == bench.cells
    assert kept[:2] == [{"number": 0}, {"number": 1, "error": "RuntimeError: no memory"}]


def test_a_report_of_recorded_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from arlo.simulator.profiles import load_profile

    assert report.main([str(RECORDED), "--out", str(tmp_path), "--profiles", str(tmp_path / "profiles")]) == 0
    folder = tmp_path / "nvidia-h100"
    text = (folder / "summary.md").read_text()
    assert "| one row of 16 tokens: launched over graph | 3 | 7.10 | met |" in text
    assert "| 32 x 1 | not run |" in text
    assert "| mix | both | 20,000 | 1,661,785 | 1.27x | 51 % | 21 |" in text
    assert "| triton, 1 worker | failed: RuntimeError: arlo serve did not start |" in text
    assert "static, 1 worker | not run | not run |" in text
    assert (
        "| NVIDIA H100 80GB HBM3, bert-base fp16, a long queue of `mix`: rows/s | 20,000 (both)"
        in capsys.readouterr().out
    )
    assert (folder / "latency.svg").read_text().startswith("<svg")
    profile = load_profile(tmp_path / "profiles" / "bert-base-h100-static")
    assert profile.static_ms(16) == pytest.approx(0.455, rel=0.2)
    assert json.loads((folder / "packed.json").read_text())["bert-base"]["fit"].keys() == {"512", "16384"}


def test_a_report_of_nothing_says_that_nothing_was_run(tmp_path: Path) -> None:
    assert report.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out" / "cpu").iterdir()} == {"summary.md"}


def test_the_cost_of_packed_batches_is_fitted() -> None:
    made = [
        (1024, rows, n, s, 300 + 0.5 * n + 0.001 * s)
        for rows, n, s in ((9, 400, 9000), (2, 900, 500_000), (4, 1000, 90_000))
    ]
    assert profiles.fit(made) == pytest.approx((300, 0.5, 0.001))
    full = [(1024, rows, 1020 + rows, s, 800 + 0.001 * s) for rows, s in ((1, 10_000), (2, 40_000), (3, 90_000))]
    assert profiles.fit(full) == pytest.approx((800, 0, 0.001))
    assert profiles.fit([(1024, 1, 1000, 9, 700.0)]) == (700, 0, 0)
