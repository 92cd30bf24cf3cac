"""`arlo serve` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil

from tests.fakes.processes import MARK, kill_marked


@dataclasses.dataclass
class Serving:
    """A running `arlo serve`: its process, what it printed when ready, its log so far."""

    process: asyncio.subprocess.Process
    mark: str
    log: Path
    ready: dict[str, Any] = dataclasses.field(default_factory=dict)

    async def wait_ready(self, *, timeout_s: float = 60) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout_s):
            line = await self.process.stdout.readline()
        assert line, f"it ended before it was ready: {self.log.read_text()}"
        self.ready = json.loads(line)

    async def wait(self, *, timeout_s: float = 30) -> int:
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()

    def worker_pid(self) -> int:
        """A Triton server of this one."""
        for process in psutil.process_iter(["name", "pid"]):
            with contextlib.suppress(psutil.Error):
                if "tritonserver" in process.name() and process.environ().get(MARK) == self.mark:
                    return int(process.pid)
        raise AssertionError(json.dumps(self.ready))

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("event") == name]


@contextlib.asynccontextmanager
async def serving(folder: Path, *, ready: bool = True, extra: tuple[str, ...] = ()) -> AsyncIterator[Serving]:
    """`arlo serve` on folder/serve.toml; whatever is left of it after the block is killed."""
    mark = uuid.uuid4().hex
    log = folder / f"{mark}.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "arlo.cli", "serve", str(folder / "serve.toml"), "--json", "--log-json", *extra),
            env={**os.environ, MARK: mark},
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    one = Serving(process, mark, log)
    try:
        if ready:
            await one.wait_ready()
        yield one
    finally:
        kill_marked(mark)
        await process.wait()
