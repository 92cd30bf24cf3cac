"""The clusters of deploy/ without Docker and Kubernetes: their command lines, configurations and probes, on ports of
this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml
from tritonclient.grpc import aio

from arlo.control.gateway.admin import AdminClient
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.ports import free_port
from arlo.workers.triton.server import environment, find_triton, prepare_backends
from tests.fakes.gateway import ACTIVE
from tests.fakes.processes import until

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


KUBERNETES = ROOT / "deploy" / "kubernetes"
DNS = """
import socket

find = socket.getaddrinfo


def getaddrinfo(host, *rest, **more):
    names = open({hosts!r}).read().split() if host == "gateway-admin" else [host]
    return [each for name in names for each in find(name, *rest, **more)]


socket.getaddrinfo = getaddrinfo
"""


class Service:
    """What clients reach: the gateways that were ready when they were asked last, as kubelets and kube-proxy do it."""

    def __init__(self) -> None:
        self.gateways: dict[str, int] = {}  # address of the data port -> port of /readyz on the same host
        self.ready: list[str] = []
        self.asked = self.retried = 0
        self.failed: list[str] = []
        self._clients: dict[str, aio.InferenceServerClient] = {}

    async def watch(self) -> None:
        async with httpx.AsyncClient(timeout=2) as client:
            while True:
                self.ready = [address for address in list(self.gateways) if await self._is_ready(client, address)]
                await asyncio.sleep(0.2)

    async def _is_ready(self, client: httpx.AsyncClient, address: str) -> bool:
        host = address.rpartition(":")[0]
        with contextlib.suppress(httpx.HTTPError):
            return (await client.get(f"http://{host}:{self.gateways[address]}/readyz")).status_code == 200
        return False

    async def ask(self, seed: int) -> None:
        """One client: a row of some length after another, each tried once more."""
        lengths = np.random.default_rng(seed)
        while True:
            length = int(lengths.integers(1, 513))
            self.asked += 1
            try:
                await self._infer(length)
            except Exception:
                self.retried += 1
                try:
                    await self._infer(length)
                except Exception as error:
                    self.failed.append(f"{length} tokens: {error}")

    async def _infer(self, length: int) -> None:
        address = self.ready[self.asked % len(self.ready)]
        client = self._clients.setdefault(address, aio.InferenceServerClient(address))
        ids = triton.InferInput("input_ids", [1, length], "INT64")
        ids.set_data_from_numpy(np.arange(1, length + 1, dtype=np.int64)[None])
        result = await client.infer("emulated", [ids], client_timeout=20)
        assert result.as_numpy("embedding")[0, 0] == length * (length + 1) / 2

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


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
        code, text = await arlo("top", "--once", str(config), "--json")
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


async def test_a_rolling_update_of_workers_and_gateway_fails_no_request(tmp_path: Path) -> None:
    """As Kubernetes does it: one worker after another is ended and comes back until its readiness probe passes; then a
    second gateway starts, becomes ready, and the first one is ended. Clients try once more."""
    write_emulated_repository(tmp_path / "models", model="emulated", max_lengths=LENGTHS, latency_ms=(1, 2, 4, 8))
    workload = {each["kind"]: each for each in yaml.safe_load_all((KUBERNETES / "workers.yaml").read_text())}
    (container,) = workload["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == COMPOSE["worker-0"]["command"]
    _, flag, probe = container["readinessProbe"]["exec"]["command"]
    ports = {name: {kind: free_port("127.0.0.1") for kind in ("grpc", "http", "metrics")} for name in WORKERS}
    admin, http = free_port("127.0.0.1"), free_port("127.0.0.1")
    hosts = tmp_path / "hosts"
    (tmp_path / "dns").mkdir()
    (tmp_path / "dns" / "sitecustomize.py").write_text(DNS.format(hosts=str(hosts)))
    dns = os.environ | {"PYTHONPATH": str(tmp_path / "dns")}
    text = (KUBERNETES / "arlo.toml").read_text()
    for index, name in enumerate(WORKERS):
        text = text.replace(f"worker-{index}.workers:8001", f"127.0.0.1:{ports[name]['grpc']}")
    text = text.replace('"/models"', f'"{tmp_path / "models"}"').replace('api_address = "0.0.0.0:8080"', "")

    def config(name: str, host: str, admin_host: str) -> str:
        told = text.replace('"/var/lib/arlo"', f'"{tmp_path / name}"')
        for old, new in (
            ("0.0.0.0:8001", f"{host}:0"),
            ("0.0.0.0:8002", f"{host}:{http}"),
            ("0.0.0.0:8003", f"{admin_host}:{admin}"),
            ("0.0.0.0:8004", "127.0.0.1:0"),
        ):
            assert old in told
            told = told.replace(old, new)
        (tmp_path / f"{name}.toml").write_text(told)
        return str(tmp_path / f"{name}.toml")

    program = [sys.executable, "-m", "arlo.cli"]
    service = Service()

    async def start_gateway(name: str, host: str) -> asyncio.subprocess.Process:
        ready = tmp_path / f"{name}.json"
        command = [*program, "serve", "gateway", config(name, host, host), "--ready-file", str(ready)]
        process = await stack.enter_async_context(running(command, tmp_path / f"{name}.log"))
        await until(ready.exists, f"ports of {name}")
        service.gateways[json.loads(ready.read_text())["grpc"]] = http
        return process

    async def start_worker(name: str) -> asyncio.subprocess.Process:
        command = worker_command(name, tmp_path / "models", ports[name])
        return await stack.enter_async_context(running(command, tmp_path / f"{name}.log", env=env))

    async def serves(name: str) -> bool:
        here = probe.replace("127.0.0.1:8000", f"127.0.0.1:{ports[name]['http']}")
        process = await asyncio.create_subprocess_exec(sys.executable, flag, here, stderr=subprocess.DEVNULL)
        return await process.wait() == 0

    async def all_active() -> bool:
        async with AdminClient(f"127.0.0.1:{admin}") as client:
            states = [each.state for each in (await client.stats()).instances]
        return states.count(ACTIVE) >= len(WORKERS)

    async with contextlib.AsyncExitStack() as stack:
        env = environment(find_triton(), threads=1)
        servers = {name: await start_worker(name) for name in WORKERS}
        hosts.write_text("127.0.0.1")
        first = await start_gateway("first", "127.0.0.1")
        for name in WORKERS:
            await until_healthy(name, ports[name]["http"], tmp_path / f"{name}.log", servers[name])
            assert not await serves(name)  # it lives and has nothing loaded
        control = [*program, "serve", config("control", "127.0.0.1", "gateway-admin"), "--log-json"]
        await stack.enter_async_context(running(control, tmp_path / "control.log", env=dns))
        watch = asyncio.create_task(service.watch())
        await until(lambda: service.ready, "a gateway that is ready", timeout_s=60)
        await until(all_active, "all instances", timeout_s=60)
        clients = [asyncio.create_task(service.ask(seed)) for seed in range(4)]
        for name in reversed(WORKERS):
            servers[name].send_signal(signal.SIGTERM)
            await servers[name].wait()
            servers[name] = await start_worker(name)
            await until(lambda name=name: serves(name), f"{name} ready", timeout_s=60)
            await until(all_active, f"{name} in service", timeout_s=60)  # minReadySeconds
        before = service.asked
        hosts.write_text("127.0.0.1 127.0.0.2")
        await start_gateway("second", "127.0.0.2")
        await until(lambda: len(service.ready) == 2, "the second gateway ready", timeout_s=60)
        first.send_signal(signal.SIGTERM)
        assert await first.wait() == 0
        hosts.write_text("127.0.0.2")
        after = service.asked
        await until(lambda: service.asked > after + 200, "further answers", timeout_s=60)
        for task in (*clients, watch):
            task.cancel()
        await asyncio.gather(*clients, watch, return_exceptions=True)
        await service.close()
        assert service.failed == []
        assert service.asked > before > 100
        assert '"gateway_found"' in (tmp_path / "control.log").read_text()
        # The control plane keeps the deployment of the second one.
        async with AdminClient(f"127.0.0.2:{admin}") as client:
            assert (await client.get_deployment()).owner
