"""Real Triton servers with the emulated engine, behind a gateway of a test's own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from arlo.catalog.manifest import Manifest
from arlo.workers import LocalPool
from tests.fakes.gateway import Instance, deployment
from tests.fakes.processes import until


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
        return deployment(
            dataclasses.replace(manifest, model=model),
            [
                Instance(f"w{worker}.{length}", f"w{worker}", (endpoints or self.endpoints)[worker], runtimes[length])
                for worker, length in placement
            ],
            version=version,
            slo_ms=slo_ms,
            default_timeout_ms=default_timeout_ms,
            inflight_limit=inflight_limit,
        )
