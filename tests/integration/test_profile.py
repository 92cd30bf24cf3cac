"""`arlo compile profile` on real Triton workers with the emulated engine, whose latencies are known."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from arlo.catalog.manifest import LatencyPoint
from arlo.profiler import LatencyProfile
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import EmulatedRuntime, write_emulated_repository, write_runtimes
from tests.fakes.processes import MARK, kill_marked, marked, nothing_left, until

pytestmark = [pytest.mark.integration, pytest.mark.long]

MEASURE = (sys.executable, "-m", "arlo.cli", "compile", "profile")
QUICK = ("--precision", "0.05", "--max-seconds", "2")
# What may be on top of the table in the worker's own time. Generous, for a loaded machine.
OVERHEAD_US = 6000


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    kill_marked(mark)


def environment(mark: str) -> dict[str, str]:
    return {**os.environ, MARK: mark}


def arlo_profile(mark: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*MEASURE, *arguments]
    return subprocess.run(
        command, check=False, cwd=folder, env=environment(mark), capture_output=True, text=True, timeout=120
    )


def check_against_table(profile: LatencyProfile, table_us: Mapping[tuple[str, int, int], float]) -> None:
    """Every measured point of the table lies where it should: by the worker's own time, for what the client sees on top
    of it is the machine's."""
    measured = {
        (runtime.name, point.length, point.batch): point for runtime in profile.runtimes for point in runtime.points
    }
    assert table_us.keys() == measured.keys()
    for place, expected_us in table_us.items():
        point = measured[place]
        assert 0.97 * expected_us <= point.p50_us <= point.p98_us, (place, expected_us, point)
        assert point.samples >= 3
        # Triton's own time of the backend has neither the network nor the client in it.
        assert point.compute_us is not None
        most_us = min(point.mean_us, 1.03 * expected_us + OVERHEAD_US)
        assert 0.97 * expected_us <= point.compute_us <= most_us, (place, expected_us, point)


async def test_static_runtimes_by_batch(tmp_path: Path, mark: str) -> None:
    write_emulated_repository(
        tmp_path / "emu", model="emu", max_lengths=[16, 64], latency_ms=[10, 30], max_batch=4, batch_growth=0.5,
        jitter=0.03, seed=4, load_delay_ms=400,
    )  # fmt: skip
    done = arlo_profile(mark, tmp_path, "emu", "--out", "profile.json", "--precision", "0.05", "--max-seconds", "1")
    assert done.returncode == 0, done.stderr
    profile = LatencyProfile.load(tmp_path / "profile.json")
    table = {
        (f"emu_len{length}", length, batch): 1000 * first_ms * (1 + 0.5 * (batch - 1))
        for length, first_ms in ((16, 10), (64, 30))
        for batch in (1, 2, 4)
    }
    check_against_table(profile, table)
    assert profile.device == "emulated"
    assert profile.versions["triton"].startswith("2.")
    assert profile.provenance.startswith("measured through Triton 2.")
    for runtime in profile.runtimes:
        assert runtime.load_ms is not None
        assert runtime.load_ms >= 400
        assert runtime.shorter is not None
        assert runtime.shorter.length == runtime.max_length // 2
        # As long as a full one takes; a loaded machine may add to it what it likes.
        assert runtime.shorter.p50_us >= 0.97 * table[runtime.name, runtime.max_length, 1]
    assert "6/6  emu_len64  length 64  batch 4" in done.stderr
    assert 'latency_profile = "profile.json"' in done.stdout
    assert not (tmp_path / ".arlo").exists()
    await nothing_left(mark)


async def test_interrupted_and_resumed(tmp_path: Path, mark: str) -> None:
    write_emulated_repository(tmp_path / "emu", model="emu", max_lengths=[16, 32, 64], latency_ms=[5, 10, 15])
    out = tmp_path / "profile.json"
    command = (*MEASURE, "emu", "--out", str(out), *QUICK)
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, env=environment(mark), stdout=log, stderr=log
        )
        # The first runtime is measured, the second is under way.
        await until(out.exists, "the first point", timeout_s=60)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            assert await process.wait() == 130
    await nothing_left(mark)
    assert "the same command goes on from there" in (tmp_path / "log").read_text()
    first = LatencyProfile.load(out)
    kept = [point for runtime in first.runtimes for point in runtime.points]
    assert 1 <= len(kept) < 3

    again = arlo_profile(mark, tmp_path, "emu", "--out", str(out), *QUICK)
    assert again.returncode == 0, again.stderr
    second = LatencyProfile.load(out)
    assert [len(runtime.points) for runtime in second.runtimes] == [1, 1, 1]
    assert second.runtimes[0] == first.runtimes[0]
    assert "emu_len16" not in again.stderr

    # All there: nothing is measured; --fresh measures all again; other options do not mix.
    third = arlo_profile(mark, tmp_path, "emu", "--out", str(out), *QUICK)
    assert third.returncode == 0, third.stderr
    assert LatencyProfile.load(out) == second
    other = arlo_profile(mark, tmp_path, "emu", "--out", str(out), "--precision", "0.04")
    assert other.returncode == 2
    assert "another precision (0.05, now 0.04)" in other.stderr
    assert "--fresh" in other.stderr
    assert LatencyProfile.load(out) == second
    fresh = arlo_profile(mark, tmp_path, "emu", "--out", str(out), *QUICK, "--fresh", "--runtimes", "emu_len16")
    assert fresh.returncode == 0, fresh.stderr
    assert [len(runtime.points) for runtime in LatencyProfile.load(out).runtimes] == [1, 0, 0]
    await nothing_left(mark)


async def test_a_runtime_that_does_not_load_is_named(tmp_path: Path, mark: str) -> None:
    point = (LatencyPoint(length=16, batch=1, latency_us=2000),)
    good = EmulatedRuntime(name="good", max_length=16, max_batch=1, dynamic=False, latency=point)
    bad = EmulatedRuntime(
        name="bad", max_length=32, max_batch=1, dynamic=False, latency=point, fail_load="the disk is on fire"
    )
    write_runtimes(tmp_path / "emu", model="emu", runtimes=[good, bad])
    done = arlo_profile(mark, tmp_path, "emu", *QUICK)
    assert done.returncode == 5
    assert "bad" in done.stderr
    assert "the disk is on fire" in done.stderr
    assert "Traceback" not in done.stderr
    profile = LatencyProfile.load(tmp_path / "emu-latency.json")
    assert [len(runtime.points) for runtime in profile.runtimes] == [1, 0]
    await nothing_left(mark)


async def test_a_worker_that_runs_already(tmp_path: Path, mark: str) -> None:
    """The first endpoint of a configuration; what it had loaded stays loaded, and nothing else is."""
    write_emulated_repository(tmp_path / "emu", model="emu", max_lengths=[16, 32], latency_ms=[4, 8])
    async with LocalPool(tmp_path / "emu", workers=1, run_dir=tmp_path / "run") as pool:
        await pool.load("w0", "emu_len32")
        endpoint = (await pool.workers())[0].endpoint
        (tmp_path / "serve.toml").write_text(
            '[model]\nrepository = "emu"\nslo_ms = 100\nlatency_profile = "p.json"\n'
            "[deployment]\nallocation = {32 = 2}\n"
            f'[workers]\nkind = "endpoints"\nendpoints = ["{endpoint}", "127.0.0.1:9"]\n'
        )
        done = await asyncio.to_thread(arlo_profile, mark, tmp_path, "serve.toml", *QUICK)
        assert done.returncode == 0, done.stderr
        assert f"measuring on the worker at {endpoint}, which is taken out of no deployment" in done.stderr
        profile = LatencyProfile.load(tmp_path / "p.json")
        check_against_table(profile, {("emu_len16", 16, 1): 4000, ("emu_len32", 32, 1): 8000})
        assert profile.device == f"worker at {endpoint}"
        assert profile.how.threads is None
        assert not marked(mark)
        assert [worker.runtimes for worker in await pool.workers()] == [("emu_len32",)]
    shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_stopped_when_its_worker_has_just_started(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    """Nothing is left running, whatever it was doing; the only request would take 100 s."""
    write_emulated_repository(tmp_path / "emu", model="emu", max_lengths=[16], latency_ms=[100_000])
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *MEASURE, "emu", cwd=tmp_path, env=environment(mark), stdout=log, stderr=log
        )
        await until(lambda: any("tritonserver" in command for command in marked(mark).values()), "its worker")
        process.send_signal(number)
        async with asyncio.timeout(30):
            assert await process.wait() == 128 + number
    await nothing_left(mark)
    assert (tmp_path / "log").read_text() == ""
    assert not (tmp_path / "emu-latency.json").exists()
