"""What the gateway's tests share: real workers with the emulated engine, gateway processes, known answers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from arlo import proto
from arlo.catalog.manifest import Manifest
from arlo.clock import monotonic_s
from arlo.control.gateway.process import gateway_program
from arlo.workers import LocalPool
from arlo.workers.process import GuardedProcess

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
ACTIVE = proto.message("InstanceStats").State.Value("STATE_ACTIVE")
SERVING, NOT_SERVING = 1, 2  # of grpc.health.v1
EJECTED = proto.message("InstanceStats").State.Value("STATE_EJECTED")

DEFAULTS: dict[str, Any] = {
    "grpc_address": "127.0.0.1:0",
    "http_address": "127.0.0.1:0",
    "admin_address": "127.0.0.1:0",
    "tls": {"certificate_file": "", "key_file": "", "client_ca_file": ""},
    "bearer_token_file": "",
    "max_message_bytes": 16 << 20,
    "dispatch": {"policy": "rs", "lambda": 0.85, "alpha": 0.9, "max_peek": 6, "max_queued": 4096},
    "health": {"interval_ms": 200, "timeout_ms": 300, "failures": 2, "retry_interval_ms": 50, "silence_ms": 5000},
    "max_attempts": 3,
    "unavailable_grace_ms": 1000,
    "drain_timeout_ms": 5000,
    "max_rows": 64,
    "log_level": "debug",
    "ready_file": "",
    "threads": 0,
    "drain_delay_ms": 0,
}


async def until(condition: Callable[[], Any], what: str, *, timeout_s: float = 20.0, every_s: float = 0.01) -> Any:
    """Wait for something that has no event of its own; `condition` may be async. Returns what it returned."""
    deadline_s = monotonic_s() + timeout_s
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        assert monotonic_s() < deadline_s, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(every_s)


class Workers:
    """Real Triton servers, each with every runtime of every model loaded: any deployment can be made of them."""

    def __init__(self, pool: LocalPool, manifests: Mapping[str, Manifest]) -> None:
        self.pool = pool
        self.manifests = manifests
        self.endpoints: list[str] = []
        self._channels: list[grpc.aio.Channel] = []

    @property
    def runtimes(self) -> list[str]:
        return sorted(runtime.name for manifest in self.manifests.values() for runtime in manifest.runtimes)

    async def start(self) -> None:
        infos = await self.pool.workers()
        self.endpoints = [info.endpoint for info in infos]
        self._channels = [grpc.aio.insecure_channel(endpoint) for endpoint in self.endpoints]

        async def load_all(worker: str) -> None:
            for runtime in self.runtimes:
                await self.pool.load(worker, runtime)

        await asyncio.gather(*(load_all(info.id) for info in infos))

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def pid(self, worker: int) -> int:
        pid = (await self.pool.workers())[worker].pid
        assert pid is not None
        return pid

    async def whole(self) -> None:
        """Wait until every worker has everything loaded, as after a restart."""

        async def ready() -> bool:
            return all(list(info.runtimes) == self.runtimes for info in await self.pool.workers())

        await until(ready, "all workers with all runtimes")

    async def executions(self, worker: int, runtime: str) -> int:
        """Requests that the worker has executed, ever; its count follows the answers by a little."""
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channels[worker])
        statistics = await stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name=runtime))
        return int(statistics.model_stats[0].execution_count)

    def deployment(
        self,
        model: str,
        placement: Sequence[tuple[int, int]],
        *,
        version: int = 1,
        slo_ms: int = 2000,
        default_timeout_ms: int = 20_000,
        inflight_limit: int = 4,
        endpoints: Sequence[str] | None = None,
    ) -> Any:
        """An arlo.v1.Deployment with an instance per (worker, max_length)."""
        manifest = self.manifests[model]
        runtimes = {runtime.max_length: runtime for runtime in manifest.runtimes}
        message = proto.message("Deployment")(version=version)
        message.model.name = model
        message.model.slo_ms = slo_ms
        message.model.default_timeout_ms = default_timeout_ms
        for tensor in manifest.inputs:
            role = {"ids": "ROLE_IDS", "mask": "ROLE_MASK", "other": "ROLE_OTHER"}[tensor.role]
            message.model.inputs.add(name=tensor.name, datatype=tensor.datatype, role=role)
        for output in manifest.outputs:
            message.model.outputs.add(
                name=output.name, datatype=output.datatype, token_level=output.token_level, dims=output.dims
            )
        for length in sorted({length for _, length in placement}):
            runtime = runtimes[length]
            longest = runtime.latency[-1].latency_us
            item = message.runtimes.add(
                name=runtime.name,
                max_length=length,
                max_batch=runtime.max_batch,
                dynamic=runtime.dynamic,
                capacity=max(1, slo_ms * 1000 // max(1, longest)),
            )
            for point in runtime.latency:
                item.latency.add(length=point.length, batch=point.batch, latency_us=point.latency_us)
        for worker, length in placement:
            message.instances.add(
                id=f"w{worker}.{length}",
                worker=f"w{worker}",
                endpoint=(endpoints or self.endpoints)[worker],
                runtime=runtimes[length].name,
                inflight_limit=inflight_limit,
            )
        return message


def write_config(path: Path, **changes: Any) -> Path:
    """The gateway's JSON: DEFAULTS, with changes; those of an object are merged into it, None leaves a field out."""
    path.write_text(json.dumps(_merged(DEFAULTS, changes)))
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
        self.log = log
        self.channel = grpc.aio.insecure_channel(self.grpc, options=UNLIMITED)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self._admin = grpc.aio.insecure_channel(self.admin, options=UNLIMITED)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def call(self, method: str, *, timeout: float = 10.0, **fields: Any) -> Any:
        """A unary call of the admin service; AioRpcError when it is refused."""
        request = proto.message(f"{method}Request")(**fields)
        reply = proto.message(f"{method}Reply")
        call = self._admin.unary_unary(
            f"/arlo.v1.Admin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return await call(request, timeout=timeout)

    def watch(self, *, interval_ms: int = 100, once: bool = False) -> Any:
        """A WatchStats call: iterate, or cancel()."""
        call = self._admin.unary_stream(
            "/arlo.v1.Admin/WatchStats",
            request_serializer=proto.message("WatchStatsRequest").SerializeToString,
            response_deserializer=proto.message("Stats").FromString,
        )
        return call(proto.message("WatchStatsRequest")(interval_ms=interval_ms, once=once))

    async def stats(self) -> Any:
        async for stats in self.watch(once=True):
            return stats
        raise AssertionError("no statistics")

    async def stats_when(self, condition: Callable[[Any], Any], what: str, *, timeout_s: float = 20.0) -> Any:
        """The first statistics that meet the condition."""

        async def look() -> Any:
            stats = await self.stats()
            return stats if condition(stats) else None

        return await until(look, what, timeout_s=timeout_s)

    async def apply(self, deployment: Any) -> Any:
        """Apply, and wait until all instances are in service."""
        reply = await self.call("Apply", deployment=deployment)
        await self.stats_when(
            lambda stats: [i.state for i in stats.instances] == [ACTIVE] * len(deployment.instances), "all active"
        )
        return reply

    async def infer(self, request: Any, **options: Any) -> Any:
        """ModelInfer; `timeout` in seconds and `metadata` as options."""
        return await self.stub.ModelInfer(request, **options)

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text().splitlines())
        return [line for line in lines if line.get("event") == event]

    def rss_mb(self) -> float:
        """Resident memory; 0 where a sanitizer keeps what was freed, so that it says nothing of the gateway."""
        if os.environ.get("ARLO_SANITIZED"):
            return 0.0
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    async def close(self) -> None:
        await self.channel.close()
        await self._admin.close()


async def start_gateway(work: Path, **changes: Any) -> Gateway:
    """A gateway on free ports in folder `work`; the caller stops it."""
    work.mkdir(parents=True, exist_ok=True)
    ready = work / "ready.json"
    ready.unlink(missing_ok=True)
    config = write_config(work / "gateway.json", ready_file=str(ready), **changes)
    log = work / "gateway.log"
    command = [str(gateway_program()), "--config", str(config)]
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
async def gateway_of(work: Path, deployment: Any = None, **changes: Any) -> AsyncIterator[Gateway]:
    """A gateway, serving `deployment`. It must stop cleanly at the end, whatever the test did to it."""
    gateway = await start_gateway(work, **changes)
    try:
        if deployment is not None:
            await gateway.apply(deployment)
        yield gateway
        ended_by_test = gateway.process.returncode is not None
    except BaseException:
        gateway.process.kill()
        await gateway.process.wait()
        raise
    finally:
        await gateway.close()
    if not ended_by_test:
        os.kill(gateway.pid, signal.SIGTERM)
        async with asyncio.timeout(20):
            code = await gateway.process.wait()
            assert code == 0, f"{gateway.log}: {gateway.log.read_text()[-4000:]}"


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """The parameters of an answer."""

    level: int
    queue_us: int
    execute_us: int
    total_us: int
    computed_tokens: int
    demoted: int


def split_of(response: Any) -> Split:
    return Split(**{key: value.int64_param for key, value in response.parameters.items()})


async def grpc_health(gateway: Gateway) -> int:
    """The status that grpc.health.v1 gives for the whole server; without generated classes: field 1 of the answer."""
    answer = await gateway.channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    return int(answer[1])
