"""`arlo serve` end to end: real Triton workers (emulated engine), the real gateway, signals, crashes, bad input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.client import AsyncClient
from arlo.client.errors import ClientError
from arlo.control.gateway.admin import AdminClient
from arlo.workers.emulated.repository import write_emulated_repository
from tests.fakes.processes import marked, nothing_left, until
from tests.fakes.serving import Serving, arlo, gateway_alone, serving
from tests.fakes.steady_load import steady_load

pytestmark = pytest.mark.integration

LENGTHS = (16, 64)

CONFIG = """\
[model]
repository = "repository"
slo_ms = 500
[deployment]
allocation = {{16 = 2, 64 = 1}}
[gateway]
grpc_address = "127.0.0.1:{port}"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
drain_timeout_ms = 5000
[health]
interval_ms = 200
[control]
http_address = "127.0.0.1:0"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_emulated_repository(tmp_path / "repository", model="emu", max_lengths=LENGTHS, latency_ms=(2, 5))
    (tmp_path / "serve.toml").write_text(CONFIG.format(port=0))
    return tmp_path


def client_of(one: Serving, **options: Any) -> AsyncClient:
    return AsyncClient(one.ready["grpc"], model="emu", **options)


async def answer(client: AsyncClient, length: int) -> None:
    """One request, its answer checked: the emulated engine sums the ids."""
    ids = np.arange(1, length + 1)
    assert (await client.infer(ids))["embedding"].tolist() == [float(ids.sum())] * 4


def status(one: Serving) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(arlo("top", "--once", "--admin", one.ready["admin"], "--json").stdout)
    (found["stats"],) = found["stats"].values()
    return found


async def at_a_worker(one: Serving, request: asyncio.Task[None]) -> None:
    """Wait until the request is being executed."""
    async with AdminClient(one.ready["admin"]) as admin, asyncio.timeout(20):
        async for stats in admin.watch_stats(interval_ms=100):
            if stats.in_flight:
                return
            assert not request.done(), "it was over before it was seen"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_serves_and_stops_in_order(folder: Path, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("under nohup this signal ends nothing")
    async with serving(folder) as one:
        assert one.ready["model"] == "emu"
        async with client_of(one) as client:
            for length in (1, 16, 17, 64):
                await answer(client, length)
            found = await asyncio.to_thread(status, one)
        assert found["health"] == "ready"
        assert found["deployment"]["version"] == 1
        assert [i["runtime"] for i in found["deployment"]["instances"]] == ["emu_len16", "emu_len16", "emu_len64"]
        assert found["stats"]["outcomes"]["on_time"] == 4
        assert len([c for c in marked(one.mark).values() if c.split()[0].endswith("tritonserver")]) == 3
        await one.stop(number)
        names = [json.loads(line)["event"] for line in one.log.read_text().splitlines()]
        assert names.index("gateway_stopped") < names.index("workers_stopped")
        assert one.events("gateway_stopped")[0]["code"] == 0


async def test_requests_in_flight_are_answered_before_the_end(folder: Path) -> None:
    write_emulated_repository(folder / "repository", model="emu", max_lengths=LENGTHS, latency_ms=(3000, 3000))
    async with serving(folder) as one, client_of(one, retries=0) as client:
        await client.model_info()
        request = asyncio.create_task(answer(client, 10))
        await at_a_worker(one, request)
        one.process.send_signal(signal.SIGINT)
        await request
        assert await one.wait() == 0
        await nothing_left(one.mark)


async def test_ctrl_c_while_starting(folder: Path) -> None:
    async with serving(folder, ready=False) as one:
        await until(lambda: any("tritonserver" in c for c in marked(one.mark).values()), "a worker process")
        await one.stop(signal.SIGINT)


async def test_second_ctrl_c_forces(folder: Path) -> None:
    write_emulated_repository(folder / "repository", model="emu", max_lengths=LENGTHS, latency_ms=(4500, 4500))
    async with serving(folder) as one, client_of(one, retries=0) as client:
        await client.model_info()
        request = asyncio.create_task(answer(client, 10))
        await at_a_worker(one, request)
        one.process.send_signal(signal.SIGINT)
        await until(lambda: one.events("stopping"), "the first one was seen")
        one.process.send_signal(signal.SIGINT)
        assert await one.wait(timeout_s=5) == 128 + signal.SIGINT
        await nothing_left(one.mark)
        with pytest.raises(ClientError):
            await request


async def test_sigkill_leaves_nothing_that_is_not_to_linger(folder: Path) -> None:
    with (folder / "serve.toml").open("a") as file:
        file.write("[workers]\nlinger_s = 0\n")
    async with serving(folder) as one:
        assert len(marked(one.mark)) > 4
        one.process.kill()
        await one.wait()
        await nothing_left(one.mark)


async def test_what_lingers_after_sigkill_is_taken_over_and_goes_with_its_new_owner(folder: Path) -> None:
    async with serving(folder) as one, contextlib.AsyncExitStack() as stack:
        async with steady_load(one.ready["grpc"]) as load:
            one.process.kill()
            await one.wait()
            await load.more(50)
            two = await stack.enter_async_context(serving(folder))
            assert {key: two.ready[key] for key in ("grpc", "gateway_pid")} == {
                key: one.ready[key] for key in ("grpc", "gateway_pid")
            }
            await until(lambda: two.events("serving"), "the log of the second run")
            assert two.events("serving")[0]["resumed"] is True
            await load.more(50)
        load.check()
        await two.stop()
        await nothing_left(one.mark)


async def test_a_gateway_of_its_own_outlives_the_control_process(folder: Path) -> None:
    async with gateway_alone(folder / "serve.toml") as addresses:
        text = (folder / "serve.toml").read_text()
        for key in ("grpc", "http", "admin"):
            text = text.replace(f'{key}_address = "127.0.0.1:0"', f'{key}_address = "{addresses[key]}"', 1)
        (folder / "serve.toml").write_text(text.replace("[gateway]\n", "[gateway]\nmanaged = false\n"))
        for run in (1, 2):
            async with serving(folder) as one:
                assert one.ready["grpc"] == addresses["grpc"]
                assert one.ready["gateway_pid"] is None
                async with client_of(one) as client:
                    await answer(client, 20)
                    assert (await asyncio.to_thread(status, one))["deployment"]["version"] >= run
                await one.stop()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


async def failed_start(folder: Path, code: int) -> str:
    """Run `arlo serve`, which must fail with `code` and leave nothing; returns its message."""
    async with serving(folder, ready=False) as one:
        assert await one.wait(timeout_s=60) == code, one.log.read_text()
        await nothing_left(one.mark)
        message = one.log.read_text()
        assert "Traceback" not in message
        return message[message.index("arlo: error:") :]


async def test_port_taken(folder: Path, taken_port: int) -> None:
    (folder / "serve.toml").write_text(CONFIG.format(port=taken_port))
    message = await failed_start(folder, 6)
    assert str(taken_port) in message


async def test_a_repository_that_was_changed_is_not_served(folder: Path) -> None:
    path = folder / "repository" / "emu_len64" / "config.pbtxt"
    path.write_text(path.read_text() + "\n# changed\n")
    assert "emu_len64/config.pbtxt has changed" in await failed_start(folder, 2)


async def test_run_dir_that_is_a_file(folder: Path) -> None:
    (folder / ".arlo").write_text("")
    said = await failed_start(folder, 2)
    assert f"workers.run_dir cannot be made: {folder / '.arlo'}: File exists" in said
    assert "Traceback" not in said


async def test_runtime_that_does_not_load(folder: Path) -> None:
    write_emulated_repository(
        folder / "repository", model="emu", max_lengths=LENGTHS, latency_ms=(1, 1), fail_load="no such device"
    )
    assert "no such device" in await failed_start(folder, 5)
