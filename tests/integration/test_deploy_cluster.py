"""The compose cluster without Docker: its command lines and its configuration, on this machine's ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml

from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.ports import free_port
from arlo.workers.triton.server import environment, find_triton, prepare_backends

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
WORKERS = [name for name in COMPOSE if name.startswith("worker-")]
LENGTHS = (64, 128, 256, 512)  # of deploy/arlo.toml


@contextlib.asynccontextmanager
async def running(command: list[str], log: Path, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with its output in a file; stopped at the end, whatever happens."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(20):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def healthy(service: str, port: int) -> bool:
    """The service's own health check, on the port that it has here."""
    _, program, flag, code = COMPOSE[service]["healthcheck"]["test"]
    assert (program, flag) == ("python3", "-c")
    here = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", code)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", here, stderr=subprocess.DEVNULL)
    return await process.wait() == 0


async def until_healthy(service: str, port: int, log: Path, process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(60):
            while not await healthy(service, port):
                assert process.returncode is None, log.read_text()[-2000:]
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"{service} did not become healthy: {log.read_text()[-2000:]}")


def worker_command(service: str, repository: Path, ports: dict[str, int]) -> list[str]:
    """The compose file's command for this machine's Triton: other paths, and ports of its own."""
    server = find_triton()
    _, *flags = COMPOSE[service]["command"]
    assert "--model-repository=/models" in flags
    return [
        str(server.executable),
        *(flag.replace("=/models", f"={repository}") for flag in flags),
        f"--backend-directory={prepare_backends(server)}",
        *(f"--{kind}-port={port}" for kind, port in ports.items()),
        *(f"--{kind}-address=127.0.0.1" for kind in ports),
        "--allow-gpu-metrics=false",
    ]


def configuration(folder: Path, endpoints: list[str], http_port: int) -> tuple[Path, str]:
    """deploy/arlo.toml with this machine's addresses, and the admin address in it."""
    text = (ROOT / "deploy" / "arlo.toml").read_text()
    for index, endpoint in enumerate(endpoints):
        text = text.replace(f"worker-{index}:8001", endpoint)
    # A name, as in the cluster, not a number: the admin port binds to what it resolves to.
    admin = f"localhost:{free_port('127.0.0.1')}"
    for old, new in {
        '"/models"': f'"{folder / "models"}"',
        '"/var/lib/arlo"': f'"{folder / "run"}"',
        "0.0.0.0:8001": "127.0.0.1:0",
        "0.0.0.0:8002": f"127.0.0.1:{http_port}",
        "gateway-admin:8003": admin,
        "0.0.0.0:8004": "127.0.0.1:0",
    }.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "arlo.toml"
    path.write_text(text)
    return path, admin


async def arlo(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "arlo.cli", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, (out + err).decode()


def infer(address: str, length: int) -> triton.InferResult:
    ids = triton.InferInput("input_ids", [1, length], "INT64")
    ids.set_data_from_numpy(np.arange(1, length + 1, dtype=np.int64)[None])
    with contextlib.closing(triton.InferenceServerClient(address)) as client:
        return client.infer("emulated", [ids], client_timeout=10)


async def test_the_cluster_serves_and_outlives_its_control_plane(tmp_path: Path) -> None:
    write_emulated_repository(tmp_path / "models", model="emulated", max_lengths=LENGTHS, latency_ms=(1, 2, 4, 8))
    ports = {name: {kind: free_port("127.0.0.1") for kind in ("grpc", "http", "metrics")} for name in WORKERS}
    http_port = free_port("127.0.0.1")
    config, _ = configuration(tmp_path, [f"127.0.0.1:{ports[name]['grpc']}" for name in WORKERS], http_port)
    logs = {name: tmp_path / f"{name}.log" for name in [*WORKERS, "gateway", "control"]}
    async with contextlib.AsyncExitStack() as stack:
        env = environment(find_triton(), threads=1)
        servers = {}
        for name in WORKERS:
            command = worker_command(name, tmp_path / "models", ports[name])
            servers[name] = await stack.enter_async_context(running(command, logs[name], env=env))
        ready = tmp_path / "ready.json"
        program = [sys.executable, "-m", "arlo.cli"]
        command = [*program, *COMPOSE["gateway"]["command"][1:-1], str(config), "--ready-file", str(ready)]
        gateway = await stack.enter_async_context(running(command, logs["gateway"]))
        await until_healthy("gateway", http_port, logs["gateway"], gateway)
        for name in WORKERS:
            await until_healthy(name, ports[name]["http"], logs[name], servers[name])

        command = [*program, *COMPOSE["control"]["command"][1:-1], str(config), "--json"]
        control = await stack.enter_async_context(running(command, logs["control"]))
        async with asyncio.timeout(60):
            while not logs["control"].read_bytes().count(b'"ready"'):
                assert control.returncode is None, logs["control"].read_text()
                await asyncio.sleep(0.05)

        # The control service's own health check, and what people ask.
        said = json.loads(next(line for line in logs["control"].read_text().splitlines() if '"ready"' in line))
        await until_healthy("control", int(said["control"].rpartition(":")[2]), logs["control"], control)
        code, text = await arlo("status", str(config), "--json")
        assert code == 0, text
        assert json.loads(text)["health"] == "ready"

        address = json.loads(ready.read_text())["grpc"]
        for level, length in enumerate((64, 65, 200, 512)):
            result = await asyncio.to_thread(infer, address, length)
            assert result.get_response().parameters["level"].int64_param == level
            assert result.as_numpy("embedding")[0, 0] == length * (length + 1) / 2

        control.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await control.wait()
        result = await asyncio.to_thread(infer, address, 100)
        assert result.as_numpy("embedding")[0, 0] == 5050
