"""Workers that outlive a killed owner: taken over by the next pool, or ended when nobody comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.clock import monotonic_s
from arlo.errors import WorkerError
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.local.worker import LocalWorker

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

Eventually = Callable[..., Awaitable[None]]
Alive = Callable[[int], bool]
IDS = np.arange(32, dtype=np.int64)[None]

# Starts a pool, loads, prints its workers as JSON, and waits. Reads a line: then it stops the pool and ends.
OWNER = """\
import asyncio, dataclasses, json, sys
from pathlib import Path
from arlo.workers import LocalPool

async def main():
    given = json.loads(sys.argv[1])
    pool = LocalPool(Path(given["repository"]), run_dir=Path(given["run_dir"]), **given["options"])
    await pool.start()
    for worker in given["load"]:
        await pool.load(worker, "m_len32")
    for _ in range(given["add"]):
        await pool.add()
    print(json.dumps([dataclasses.asdict(worker) for worker in await pool.workers()]), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await pool.stop()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    write_emulated_repository(path, model="m", max_lengths=[32, 64], latency_ms=[2, 2])
    return path


@contextlib.contextmanager
def owner(
    repository: Path, run_dir: Path, *, load: tuple[str, ...] = (), add: int = 0, **options: Any
) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, Any]]]]:
    """Another process with a pool; killed (kill -9) at the end of the block when it still runs."""
    options = {"workers": 1, "threads": 1, "linger_s": 20.0, "metrics": False, "admin_key": "first", **options}
    given = {"repository": str(repository), "run_dir": str(run_dir), "load": load, "add": add, "options": options}
    command = [sys.executable, "-c", OWNER, json.dumps(given)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
        process.kill()


def heir(repository: Path, run_dir: Path, **options: Any) -> LocalPool:
    """A pool that would start workers as `owner` does, but for what is given."""
    given = {"workers": 1, "threads": 1, "linger_s": 20.0, "metrics": False, "admin_key": "second"}
    return LocalPool(repository, run_dir=run_dir, hang_timeout_s=1.0, **(given | options))


class Load:
    """Requests to one worker without a pause, each answer checked, from four tasks."""

    def __init__(self, caller: Any, endpoint: str) -> None:
        self.answered = 0
        self._ended = False
        self._tasks = [asyncio.create_task(self._run(caller, endpoint)) for _ in range(4)]

    async def _run(self, caller: Any, endpoint: str) -> None:
        while not self._ended:
            answer = await caller.infer(endpoint, "m_len32", IDS)
            assert answer["embedding"][0, 0] == IDS.sum()
            self.answered += 1

    async def more(self, count: int) -> None:
        goal = self.answered + count
        while self.answered < goal:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)

    async def end(self) -> int:
        """The number of answers; raises the first error of any request."""
        self._ended = True
        await asyncio.gather(*self._tasks)
        return self.answered


async def test_adoption_under_load(repository: Path, tmp_path: Path, caller: Any, alive: Alive) -> None:
    """Same processes, endpoints, runtimes and key; no request fails; twice in a row."""
    run_dir = tmp_path / ("long" * 25)  # longer than a socket address
    with owner(repository, run_dir, workers=2, load=("w0",)) as (process, before):
        load = Load(caller, before[0]["endpoint"])
        await load.more(50)
        process.kill()
        process.wait()
        await load.more(50)
        with owner(repository, run_dir, workers=2, admin_key="second") as (second, again):
            assert [worker["pid"] for worker in again] == [worker["pid"] for worker in before]
            await load.more(50)
            second.kill()
            second.wait()
        async with heir(repository, run_dir, workers=2) as pool:
            await load.more(50)
            after = await pool.workers()
            assert [(w.id, w.pid, w.endpoint, w.log) for w in after] == [
                (w["id"], w["pid"], w["endpoint"], w["log"]) for w in before
            ]
            assert [(w.state, w.runtimes, w.restarts) for w in after] == [("ready", ("m_len32",), 0), ("ready", (), 0)]
            await pool.load("w1", "m_len32")  # with the first owner's key
            assert await load.end() > 200
            # It is watched like any other.
            assert after[1].pid is not None
            os.kill(after[1].pid, signal.SIGKILL)
            while (await pool.workers())[1].restarts == 0 or (await pool.workers())[1].state != "ready":
                await asyncio.sleep(0.01)
            assert (await pool.workers())[1].runtimes == ("m_len32",)
            assert (await pool.workers())[1].endpoint == after[1].endpoint
        # Stopping ends all at once, without lingering.
        assert not any(alive(worker["pid"]) for worker in before)
    assert sorted(path.name for path in run_dir.iterdir()) == ["w0.log", "w1.log"]


async def test_records_are_private(repository: Path, tmp_path: Path) -> None:
    with owner(repository, tmp_path) as (process, workers):
        record, socket = tmp_path / "w0.process.json", tmp_path / "w0.sock"
        assert json.loads(record.read_text())["pid"] == workers[0]["pid"]
        assert [stat.S_IMODE(path.stat().st_mode) for path in (record, socket)] == [0o600, 0o600]
        with pytest.raises(WorkerError, match="owner is alive"):
            await heir(repository, tmp_path).start()
        assert process.poll() is None
        process.communicate("stop\n")
    assert [path.name for path in tmp_path.iterdir()] == ["w0.log"]


async def test_nobody_comes(repository: Path, tmp_path: Path, alive: Alive, eventually: Eventually) -> None:
    with owner(repository, tmp_path, workers=2, linger_s=1.5) as (process, workers):
        pids = [worker["pid"] for worker in workers]
        process.kill()
        process.wait()
        killed_s = monotonic_s()
    await eventually(lambda: not any(alive(pid) for pid in pids), "the servers are gone", 10.0)
    assert monotonic_s() - killed_s > 1.4
    await eventually(lambda: not list(tmp_path.glob("*.sock")), "their guards are gone", 5.0)
    async with heir(repository, tmp_path, workers=2, linger_s=1.5) as pool:  # what they left does no harm
        assert not {worker.pid for worker in await pool.workers()} & set(pids)


async def test_one_that_would_be_started_otherwise_is_replaced(repository: Path, tmp_path: Path, alive: Alive) -> None:
    changes: list[dict[str, Any]] = [{}, {"linger_s": 30.0}, {"extra": ("--log-verbose=1",)}, {"gpus": ["0"]}]
    options: dict[str, Any] = {}
    before: int | None = None
    for change in (*changes, {"admin_key": None}):
        options |= change
        with owner(repository, tmp_path, load=("w0",), **options) as (process, workers):
            assert workers[0]["pid"] != before
            assert before is None or not alive(before)
            before = workers[0]["pid"]
            process.kill()
            process.wait()
    assert before is not None
    async with heir(repository, tmp_path, **options | {"metrics": True}) as pool:
        after = (await pool.workers())[0]
        assert after.pid != before
        assert not alive(before)
        assert after.runtimes == ()


async def test_those_that_are_not_to_be_used_are_replaced(repository: Path, tmp_path: Path, alive: Alive) -> None:
    with owner(repository, tmp_path, workers=4) as (process, before):
        process.kill()
        process.wait()
        (tmp_path / "w0.process.json").unlink()
        (tmp_path / "w1.process.json").write_text('{"version": 1, "pid"')
        os.kill(before[2]["pid"], signal.SIGKILL)
        os.kill(before[3]["pid"], signal.SIGSTOP)
        async with heir(repository, tmp_path, workers=4, exit_timeout_s=10) as pool:
            for after, one in zip(await pool.workers(), before, strict=True):
                assert (after.id, after.state, after.restarts) == (one["id"], "ready", 0)
                assert after.pid != one["pid"]
                assert not alive(one["pid"])


async def test_a_pool_that_has_grown(repository: Path, tmp_path: Path) -> None:
    """All recorded workers are adopted, also more than asked for; the missing ones are started."""
    with owner(repository, tmp_path, workers=2, add=1) as (process, before):
        process.kill()
        process.wait()
        async with heir(repository, tmp_path, workers=1) as pool:
            after = await pool.workers()
            assert [(w.id, w.pid) for w in after] == [(w["id"], w["pid"]) for w in before]
            assert (await pool.add()).id == "w3"
    with owner(repository, tmp_path, workers=1) as (process, before):
        process.kill()
        process.wait()
        async with heir(repository, tmp_path, workers=3) as pool:
            after = await pool.workers()
            assert [w.id for w in after] == ["w0", "w1", "w2"]
            assert after[0].pid == before[0]["pid"]


async def test_a_failed_start_leaves_nothing(
    repository: Path, tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner(repository, tmp_path) as (process, before):
        process.kill()
        process.wait()

        async def refuse(self: LocalWorker) -> None:
            raise WorkerError("says the test")

        monkeypatch.setattr(LocalWorker, "start", refuse)
        with pytest.raises(WorkerError, match="says the test"):
            await heir(repository, tmp_path, workers=2).start()
        assert not alive(before[0]["pid"])


async def test_kill_now(repository: Path, tmp_path: Path, alive: Alive, eventually: Eventually) -> None:
    """For an owner that ends without stopping: nothing lingers then."""
    pool = heir(repository, tmp_path)
    await pool.start()
    pid = (await pool.workers())[0].pid
    assert pid is not None
    pool.kill_now()
    await eventually(lambda: not alive(pid), "it is gone")
    await pool.stop()
