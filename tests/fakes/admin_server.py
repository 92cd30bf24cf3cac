"""An in-process server of the admin contract, for tests of the client side: versions as the real gateway keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from arlo import proto
from arlo.control.gateway.admin import SERVICE
from arlo.control.reconcile.placement import same_content


class AdminServer:
    """Serves Admin; port 0 is a free one. `deployment` is what is in force, `applied` counts changes."""

    def __init__(self, bind: str = "127.0.0.1:0") -> None:
        self._bind = bind
        self.deployment = proto.message("Deployment")()
        self.applied = 0
        self.drained: list[str] = []
        self.address = ""
        self._server = grpc.aio.server()

    async def __aenter__(self) -> AdminServer:
        handlers = {
            "Apply": self._unary("Apply", self._apply),
            "Drain": self._unary("Drain", self._drain),
            "GetDeployment": self._unary("GetDeployment", self._get),
            "WatchStats": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=proto.message("WatchStatsRequest").FromString,
                response_serializer=proto.message("Stats").SerializeToString,
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port(self._bind)}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    @staticmethod
    def _unary(name: str, handler: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            handler,
            request_deserializer=proto.message(f"{name}Request").FromString,
            response_serializer=proto.message(f"{name}Reply").SerializeToString,
        )

    async def _apply(self, request: Any, context: Any) -> Any:
        new = request.deployment
        changed = not (new.version == self.deployment.version and same_content(new, self.deployment))
        if changed and new.version <= self.deployment.version:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"version {self.deployment.version} is in force")
        if changed:
            self.deployment.CopyFrom(new)
            self.drained.clear()  # what is listed comes back
            self.applied += 1
        return proto.message("ApplyReply")(version=new.version, changed=changed)

    async def _drain(self, request: Any, context: Any) -> Any:
        if request.instance not in {instance.id for instance in self.deployment.instances}:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no instance {request.instance}")
        self.drained.append(request.instance)
        return proto.message("DrainReply")()

    async def _get(self, request: Any, context: Any) -> Any:
        return proto.message("GetDeploymentReply")(deployment=self.deployment)

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        while True:
            stats = proto.message("Stats")(
                started_at_ms=1000, at_ms=11_000, deployment_version=self.deployment.version, policy="rs"
            )
            for runtime in self.deployment.runtimes:
                stats.levels.add(max_length=runtime.max_length, ideal=10, dispatched=9, demoted=1, instances=1)
            for instance in self.deployment.instances:
                state = "STATE_DRAINED" if instance.id in self.drained else "STATE_ACTIVE"
                stats.instances.add(
                    id=instance.id, worker=instance.worker, runtime=instance.runtime, state=state, started=9
                )
            yield stats
            if request.once:
                return
            await asyncio.sleep(request.interval_ms / 1000)


def deployment(version: int) -> object:
    message = proto.message("Deployment")(version=version)
    message.model.name = "m"
    message.model.slo_ms = 150
    message.runtimes.add(name="m_64", max_length=64, capacity=10)
    message.instances.add(id="w0.m_64", worker="w0", endpoint="h:1", runtime="m_64", inflight_limit=2)
    return message
