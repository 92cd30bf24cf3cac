"""`arlo serve` while its run folder takes nothing: full, or gone. What dies meanwhile comes back."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from arlo.client import AsyncClient
from arlo.workers.emulated.repository import write_emulated_repository
from tests.fakes.processes import MARK
from tests.fakes.serving import Serving, serving

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = """\
[model]
repository = "repository"
slo_ms = 500
[deployment]
allocation = {{16 = 1, 32 = 1}}
[workers]
run_dir = "disk/run"
linger_s = {linger_s}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[control]
http_address = "127.0.0.1:0"
"""

Eventually = Callable[..., Awaitable[None]]


@dataclasses.dataclass
class Disk:
    """A small file system of its own where that can be mounted; else a folder whose rights are taken away."""

    path: Path
    mounted: bool

    def break_(self, how: str) -> None:
        if how == "gone":
            shutil.rmtree(self.path / "run")
        elif not self.mounted:
            (self.path / "run").chmod(0o500)
        else:
            for log in (self.path / "run").glob("*.log"):  # no byte more without a page more
                os.truncate(log, -(-log.stat().st_size // 4096) * 4096)
            with (self.path / "ballast").open("wb") as file:
                try:
                    while True:
                        os.write(file.fileno(), bytes(4096))
                except OSError:
                    pass

    def mend(self) -> None:
        if not self.mounted:
            (self.path / "run").chmod(0o700)
            return
        (self.path / "ballast").unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0
    if os.geteuid() == 0 and not mounted:
        pytest.skip("root may mount nothing here, and no folder is closed to root")
    yield Disk(path, mounted)
    if mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def processes(one: Serving, name: str) -> dict[int, psutil.Process]:
    """Ours of that name, by pid."""
    found = {}
    for process in psutil.process_iter(["name", "pid"]):
        try:
            if name in process.name() and process.environ().get(MARK) == one.mark:
                found[process.pid] = process
        except psutil.Error:
            continue
    return found


async def answered(one: Serving) -> bool:
    try:
        async with AsyncClient(one.ready["grpc"], model="m", retries=0, timeout_s=5) as client:
            for length in (5, 30):
                await client.infer(list(range(1, length + 1)))
    except Exception:
        return False
    return True


@pytest.mark.parametrize(("how", "linger_s"), [("full", 0), ("full", 20), ("gone", 0)])
async def test_what_dies_meanwhile_comes_back(
    tmp_path: Path, disk: Disk, eventually: Eventually, how: str, linger_s: int
) -> None:
    write_emulated_repository(tmp_path / "repository", model="m", max_lengths=[16, 32], latency_ms=[1, 1])
    (tmp_path / "serve.toml").write_text(CONFIG.format(linger_s=linger_s))
    async with serving(tmp_path) as one:
        before = {name: set(processes(one, name)) for name in ("tritonserver", "arlo-gateway")}
        first, second = sorted(before["tritonserver"])
        guard = psutil.Process(second).parent()
        assert guard is not None
        assert "arlo-guard" in guard.name()
        disk.break_(how)
        os.kill(first, signal.SIGKILL)
        guard.kill()
        for pid in before["arlo-gateway"]:
            os.kill(pid, signal.SIGKILL)
        again = ("gateway_restarted", "gateway_restart_failed")
        await eventually(lambda: any(map(one.events, again)), "the gateway was started again", 60)
        await eventually(lambda: len(said_to_have_ended(one)) == 2, "both workers are said to have ended", 60)
        disk.mend()

        async def back() -> bool:
            new = {name: set(processes(one, name)) - pids for name, pids in before.items()}
            return len(new["tritonserver"]) == 2 and len(new["arlo-gateway"]) == 1 and await answered(one)

        await eventually(back, "all are back and answer", 90)
        log = one.log.read_text()
        assert how == "gone" or "No space left" in log or not disk.mounted
        one.process.send_signal(signal.SIGTERM)
        assert await one.wait() == 0
        assert "Traceback" not in one.log.read_text()


def said_to_have_ended(one: Serving) -> set[Any]:
    failed = {event["worker"] for event in one.events("worker_state") if event["state"] == "failed"}
    return failed | {event["worker"] for event in one.events("worker_restarted")}


async def test_stop_while_the_disk_is_full(tmp_path: Path, disk: Disk, eventually: Eventually) -> None:
    write_emulated_repository(tmp_path / "repository", model="m", max_lengths=[16, 32], latency_ms=[1, 1])
    (tmp_path / "serve.toml").write_text(CONFIG.format(linger_s=20))
    async with serving(tmp_path) as one:
        disk.break_("full")
        os.kill(one.worker_pid(), signal.SIGKILL)
        await eventually(lambda: said_to_have_ended(one), "the end of the worker is said", 60)
        one.process.send_signal(signal.SIGTERM)
        assert await one.wait() == 0
        assert "Traceback" not in one.log.read_text()


async def test_workers_come_back_when_there_are_descriptors_again(tmp_path: Path, eventually: Eventually) -> None:
    write_emulated_repository(tmp_path / "repository", model="m", max_lengths=[16, 32], latency_ms=[1, 1])
    text = CONFIG.format(linger_s=0).replace("disk/run", "run")
    (tmp_path / "serve.toml").write_text(text)
    async with serving(tmp_path) as one:
        pid, victim = one.process.pid, one.worker_pid()
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: "Too many open files" in one.log.read_text(), "the limit is named", 60)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        await eventually(lambda: answered(one), "it answers", 90)
        await eventually(lambda: len(set(processes(one, "tritonserver")) - {victim}) == 2, "the worker is back", 90)
        one.process.send_signal(signal.SIGTERM)
        assert await one.wait() == 0


async def test_a_disk_that_is_full_at_the_start_is_named(tmp_path: Path, disk: Disk) -> None:
    write_emulated_repository(tmp_path / "repository", model="m", max_lengths=[16, 32], latency_ms=[1, 1])
    (tmp_path / "serve.toml").write_text(CONFIG.format(linger_s=0))
    (disk.path / "run").mkdir()
    disk.break_("full")
    async with serving(tmp_path, ready=False) as one:
        assert await one.wait() not in (0, 1)
        log = one.log.read_text()
        assert "arlo: error: " in log
        assert "Traceback" not in log
