"""The control plane killed with SIGKILL at each step of a move, under load: it converges, and no request is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import urllib.request
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from arlo.clock import monotonic_s
from arlo.control.http.status import ControlStatus
from arlo.workers.emulated.repository import write_emulated_repository
from tests.fakes.processes import MARK, kill_marked, nothing_left, until
from tests.fakes.steady_load import steady_load

pytestmark = [pytest.mark.integration, pytest.mark.long]

LENGTHS = (16, 64)
FLIPS = ({"emu_len16": 2, "emu_len64": 1}, {"emu_len16": 1, "emu_len64": 2})
CONFIG = """\
[model]
repository = "repository"
slo_ms = 500
[workers]
linger_s = 60
[deployment]
allocation = {{16 = 2, 64 = 1}}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[health]
interval_ms = 200
[control]
http_address = "127.0.0.1:0"
reallocate = false
make_before_break = {overlap}
"""


class Driver:
    """`arlo serve` in a process of its own, started again after each kill; see tests/fakes/serve_driver.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.log = folder / "serve.log"
        self.ready: dict[str, Any] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("ab") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.fakes.serve_driver", str(self.folder / "serve.toml")),
                env={**os.environ, MARK: self.mark},
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            line = await self._process.stdout.readline()
        assert line, self.log.read_text()[-5000:]
        before, self.ready = self.ready, json.loads(line)
        assert before.get("grpc") in (None, self.ready["grpc"])
        assert before.get("gateway_pid") in (None, self.ready["gateway_pid"]), "the gateway was taken over"

    def flip(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)

    async def killed(self) -> None:
        """Wait until it has killed itself."""
        assert self._process is not None
        async with asyncio.timeout(60):
            assert await self._process.wait() == -signal.SIGKILL

    async def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await self._process.wait() == 0

    async def status(self) -> ControlStatus:
        def get() -> Any:
            with urllib.request.urlopen(f"http://{self.ready['control']}/status", timeout=10) as answer:
                return json.load(answer)

        return ControlStatus.from_json(await asyncio.to_thread(get))

    async def settled(self, wanted: dict[str, int]) -> ControlStatus:
        """Wait until what serves, and what is loaded, is exactly what is wanted."""
        deadline_s = monotonic_s() + 60
        while True:
            status = await self.status()
            found = [worker.loaded for worker in status.workers]
            if status.state == "serving" and status.observed == wanted == Counter(n for names in found for n in names):
                assert all(worker.loaded == [worker.serving] for worker in status.workers)
                return status
            assert monotonic_s() < deadline_s, f"{status.workers}\n{self.log.read_text()[-5000:]}"
            await asyncio.sleep(0.05)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("event") == name]


@contextlib.asynccontextmanager
async def driver(folder: Path) -> AsyncIterator[Driver]:
    one = Driver(folder)
    try:
        await one.start()
        yield one
    finally:
        kill_marked(one.mark)
    await nothing_left(one.mark)


def configure(folder: Path, *, overlap: bool) -> None:
    (folder / "serve.toml").write_text(CONFIG.format(overlap=str(overlap).lower()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_emulated_repository(
        tmp_path / "repository", model="emu", max_lengths=LENGTHS, latency_ms=(2, 4), load_delay_ms=200
    )
    (tmp_path / "flips.json").write_text(json.dumps(FLIPS))
    return tmp_path


async def test_killed_at_each_step_of_a_move(folder: Path) -> None:
    configure(folder, overlap=True)
    steps = [
        *((True, step) for step in ("loading", "warming", "joining", "draining", "unloading")),
        *((False, step) for step in ("draining", "unloading", "loading", "warming", "joining")),
    ]
    async with driver(folder) as one:
        await one.settled(FLIPS[0])
        async with steady_load(one.ready["grpc"]) as load:
            for turn, (_, step) in enumerate(steps):
                (folder / "kill_at").write_text(step)
                one.flip()
                await one.killed()
                configure(folder, overlap=steps[min(turn + 1, len(steps) - 1)][0])
                await load.more(50)  # nobody is in control
                await one.start()
                await one.settled(FLIPS[1 - turn % 2])
            await load.more(50)
        load.check()
        assert one.events("worker_restarted") == []
        await one.stop()
        await until(lambda: len(one.events("serving")) == len(steps) + 1, "all starts")
        assert [event["resumed"] for event in one.events("serving")] == [False] + [True] * len(steps)
