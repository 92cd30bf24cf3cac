"""`arlo serve` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.fakes.processes import MARK, kill_marked, nothing_left, until

# The end of a configuration, on ports that are free: further keys of [gateway] may follow.
PORTS = """\
[control]
http_address = "127.0.0.1:0"
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
"""


def arlo(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    command = (sys.executable, "-m", "arlo.cli", *map(str, words))
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


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

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it in order; nothing of it is left."""
        self.process.send_signal(number)
        assert await self.wait() == 0
        await nothing_left(self.mark)

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


@contextlib.contextmanager
def served(folder: Path, **environment: str) -> Iterator[dict[str, Any]]:
    """What `arlo serve` on folder/serve.toml says when it is ready; it is stopped in order after the block."""
    mark = uuid.uuid4().hex
    with (folder / f"{mark}.log").open("wb") as log:
        process = subprocess.Popen(
            (sys.executable, "-m", "arlo.cli", "serve", str(folder / "serve.toml"), "--json"),
            env={**os.environ, **environment, MARK: mark},
            stdout=subprocess.PIPE,
            stderr=log,
        )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"it ended before it was ready: {Path(log.name).read_text()}"
            yield json.loads(line)
            process.terminate()
            assert process.wait(timeout=60) == 0
        finally:
            kill_marked(mark)


@contextlib.asynccontextmanager
async def gateway_alone(config: Path) -> AsyncIterator[dict[str, str]]:
    """`arlo serve gateway` and its addresses; it ends in order after the block, and nothing of it is left."""
    mark, ready = uuid.uuid4().hex, config.parent / "ready.json"
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "arlo.cli", "serve", "gateway", str(config), "--ready-file", str(ready)),
        env={**os.environ, MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await until(ready.exists, "the gateway's ready file", timeout_s=60)
        yield json.loads(ready.read_text())
    finally:
        gateway.terminate()
        assert await gateway.wait() == 0
    await nothing_left(mark)
