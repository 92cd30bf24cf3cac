"""A gateway process of a test or a bench: its settings, its life, its ports, and what it is told to serve."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2_grpc

from arlo import proto
from arlo.catalog.manifest import Manifest, Runtime
from arlo.config.gateway import gateway_json
from arlo.config.model import Config, DeploymentConfig, ModelConfig
from arlo.control.gateway.process import gateway_program
from arlo.workers.process import GuardedProcess
from tests.fakes.processes import until

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
ACTIVE = proto.message("InstanceStats").State.Value("STATE_ACTIVE")
SERVING, NOT_SERVING = 1, 2  # of grpc.health.v1
SANITIZED = bool(os.environ.get("ARLO_SANITIZED"))  # ARLO_GATEWAY names a program built with sanitizers
CALL_S = 60.0 if SANITIZED else 10.0  # for a call of the admin service: such a program is slow
EJECTED = proto.message("InstanceStats").State.Value("STATE_EJECTED")

FREE_PORTS = {f"{port}_address": "127.0.0.1:0" for port in ("grpc", "http", "admin", "api")}
# What tests change of the settings that ship: it fails soon, refuses early and says all.
TESTING: dict[str, Any] = {
    "max_message_bytes": 16 << 20,
    "dispatch": {"policy": "rs"},
    "health": {
        "interval_ms": 200,
        "timeout_ms": 3000 if SANITIZED else 300,  # a slow program and its workers in one process with the test
        "failures": 2,
        "retry_interval_ms": 50,
        "silence_ms": 5000,
    },
    "unavailable_grace_ms": 1000,
    "drain_delay_ms": 0,
    "drain_timeout_ms": 5000,
    "max_rows": 64,
    "log_level": "debug",
}


def write_config(path: Path, settings: Mapping[str, Any] = TESTING, **changes: Any) -> Path:
    """The gateway's JSON: what ships, on free ports, with `settings` and changes; those of an object are merged into
    it, None leaves a field out."""
    model = ModelConfig(repository=path.parent, slo_ms=1500)  # not of the gateway; a configuration has to have them
    shipped = json.loads(gateway_json(Config(model=model, deployment=DeploymentConfig(allocation={64: 1}))))
    merged = _merged(_merged({**shipped, **FREE_PORTS}, settings), changes)
    path.write_text(json.dumps(merged))
    return path


def _merged(defaults: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(defaults)
    for key, value in changes.items():
        merged[key] = _merged(defaults[key], value) if isinstance(value, dict) else value
    return {key: value for key, value in merged.items() if value is not None}


class Gateway:
    """A running gateway process, with a connection to its data port and one to its admin port."""

    def __init__(self, process: GuardedProcess, addresses: Mapping[str, str], log: Path) -> None:
        self.process = process
        self.grpc, self.http, self.admin = (addresses[key] for key in ("grpc", "http", "admin"))
        self.api = addresses.get("api", "")
        self.log = log
        self.channel = grpc.aio.insecure_channel(self.grpc, options=UNLIMITED)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self._admin = grpc.aio.insecure_channel(self.admin, options=UNLIMITED)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def call(self, method: str, *, timeout: float = CALL_S, **fields: Any) -> Any:
        """A unary call of the admin service; AioRpcError when it is refused."""
        request = proto.message(f"{method}Request")(**fields)
        reply = proto.message(f"{method}Reply")
        call = self._admin.unary_unary(
            f"/arlo.v1.Admin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return await call(request, timeout=timeout)

    def watch(self, *, model: str = "", interval_ms: int = 100, once: bool = False) -> Any:
        """A WatchStats call: iterate, or cancel(). `model`: empty is the only one."""
        call = self._admin.unary_stream(
            "/arlo.v1.Admin/WatchStats",
            request_serializer=proto.message("WatchStatsRequest").SerializeToString,
            response_deserializer=proto.message("Stats").FromString,
        )
        return call(proto.message("WatchStatsRequest")(model=model, interval_ms=interval_ms, once=once))

    async def stats(self, model: str = "") -> Any:
        async for stats in self.watch(model=model, once=True):
            return stats
        raise AssertionError("no statistics")

    async def stats_when(
        self, condition: Callable[[Any], Any], what: str, *, model: str = "", timeout_s: float = 20.0
    ) -> Any:
        """The first statistics that meet the condition."""
        last = None

        async def look() -> Any:
            nonlocal last
            last = await self.stats(model)
            return last if condition(last) else None

        try:
            return await until(look, what, timeout_s=timeout_s)
        except AssertionError as error:
            error.add_note(f"the last statistics: {last}; {last_words(self.log)}")
            raise

    async def apply(self, deployment: Any, *, beside: bool = False) -> Any:
        """Apply, beside other models or as the only one, and wait until all instances are in service."""
        reply = await self.call("Apply", deployment=deployment, beside=beside)
        await self.stats_when(
            lambda stats: [i.state for i in stats.instances] == [ACTIVE] * len(deployment.instances),
            "all active",
            model=deployment.model.name,
        )
        return reply

    async def infer(self, request: Any, **options: Any) -> Any:
        """ModelInfer; `timeout` in seconds and `metadata` as options."""
        return await self.stub.ModelInfer(request, **options)

    def metrics(self) -> dict[str, Any]:
        """Families by name, as Prometheus reads them."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as page:
            return {family.name: family for family in text_string_to_metric_families(page.read().decode())}

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text().splitlines())
        return [line for line in lines if line.get("event") == event]

    def rss_mb(self) -> float:
        """Resident memory; 0 where a sanitizer keeps what was freed, so that it says nothing of the gateway."""
        if SANITIZED:
            return 0.0
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    async def close(self) -> None:
        await self.channel.close()
        await self._admin.close()


async def start_gateway(
    work: Path, settings: Mapping[str, Any] = TESTING, *, program: Path | None = None, **changes: Any
) -> Gateway:
    """A gateway on free ports in folder `work`; the caller stops it. `program`: None is that of gateway_program()."""
    work.mkdir(parents=True, exist_ok=True)
    ready = work / "ready.json"
    ready.unlink(missing_ok=True)
    config = write_config(work / "gateway.json", settings, ready_file=str(ready), **changes)
    log = work / "gateway.log"
    command = [str(program or gateway_program()), "--config", str(config)]
    process = GuardedProcess.start(command, env=os.environ, log=log, grace_s=20)
    try:
        await until(lambda: ready.exists() or process.returncode is not None, "the gateway's ready file")
        assert process.returncode is None, log.read_text()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return Gateway(process, json.loads(ready.read_text()), log)


@contextlib.asynccontextmanager
async def gateway_of(
    work: Path,
    deployment: Any = None,
    settings: Mapping[str, Any] = TESTING,
    *,
    program: Path | None = None,
    **changes: Any,
) -> AsyncIterator[Gateway]:
    """A gateway, serving `deployment`. It must stop cleanly at the end, whatever was done to it."""
    gateway = await start_gateway(work, settings, program=program, **changes)
    try:
        if deployment is not None:
            await gateway.apply(deployment)
        yield gateway
        ended_by_test = gateway.process.returncode is not None
    except BaseException as error:
        state = "still runs" if gateway.process.returncode is None else "has ended"
        error.add_note(f"the gateway {state}, {last_words(gateway.log)}")
        if gateway.process.returncode is None:
            with contextlib.suppress(grpc.aio.AioRpcError, AssertionError, TimeoutError):
                async with asyncio.timeout(5):
                    error.add_note(f"its statistics: {await gateway.stats()}")
        gateway.process.kill()
        await gateway.process.wait()
        raise
    finally:
        await gateway.close()
    if not ended_by_test:
        os.kill(gateway.pid, signal.SIGTERM)
        async with asyncio.timeout(20):
            code = await gateway.process.wait()
            assert code == 0, last_words(gateway.log)


def last_words(log: Path) -> str:
    """What a sanitizer has found, from its beginning; else the end of the log."""
    text = log.read_text()
    found = re.search(r"(ERROR|WARNING): \w+Sanitizer|runtime error: ", text)
    return f"{log}: {text[found.start() :][:6000] if found else text[-4000:]}"


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """One of a deployment. `capacity`: of its runtime, in requests; None: what the SLO and its latency make of it."""

    id: str
    worker: str
    endpoint: str
    runtime: Runtime
    capacity: int | None = None


def deployment(
    manifest: Manifest,
    instances: Sequence[Instance],
    *,
    version: int = 1,
    slo_ms: int,
    default_timeout_ms: int,
    inflight_limit: int,
) -> Any:
    """An arlo.v1.Deployment of these instances, with the runtimes that they have."""
    message = proto.message("Deployment")(version=version)
    message.model.name = manifest.model
    message.model.slo_ms = slo_ms
    message.model.default_timeout_ms = default_timeout_ms
    for tensor in manifest.inputs:
        role = {"ids": "ROLE_IDS", "mask": "ROLE_MASK", "other": "ROLE_OTHER"}[tensor.role]
        message.model.inputs.add(name=tensor.name, datatype=tensor.datatype, role=role, optional=tensor.optional)
    for output in manifest.outputs:
        message.model.outputs.add(
            name=output.name,
            datatype=output.datatype,
            token_level=output.token_level,
            dims=output.dims,
            on_request=output.on_request,
        )
    by_name = {instance.runtime.name: instance for instance in instances}
    for instance in sorted(by_name.values(), key=lambda instance: instance.runtime.max_length):
        runtime = instance.runtime
        item = message.runtimes.add(
            name=runtime.name,
            max_length=runtime.max_length,
            max_batch=runtime.max_batch,
            dynamic=runtime.dynamic,
            capacity=instance.capacity or max(1, slo_ms * 1000 // max(1, round(runtime.latency[-1].latency_us))),
        )
        for point in runtime.latency:
            item.latency.add(length=point.length, batch=point.batch, latency_us=round(point.latency_us))
    for instance in instances:
        message.instances.add(
            id=instance.id,
            worker=instance.worker,
            endpoint=instance.endpoint,
            runtime=instance.runtime.name,
            inflight_limit=inflight_limit,
        )
    return message


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """The parameters of an answer."""

    level: int
    max_length: int
    queue_us: int
    execute_us: int
    total_us: int
    computed_tokens: int
    demoted: int
    batch_rows: int


def split_of(response: Any) -> Split:
    return Split(**{key: value.int64_param for key, value in response.parameters.items()})


async def grpc_health(gateway: Gateway) -> int:
    """The status that grpc.health.v1 gives for the whole server; without generated classes: field 1 of the answer."""
    answer = await gateway.channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    return int(answer[1])
