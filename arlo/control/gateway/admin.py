"""Client of the gateway's admin service (proto/arlo/v1/admin.proto), asyncio.

Messages are those of arlo.proto. Every failure is a GatewayError with the gateway's message and the remedy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import grpc

from arlo import proto
from arlo.errors import GatewayError

SERVICE = "arlo.v1.Admin"


class GatewayUnreachableError(GatewayError):
    """The gateway could not be reached; it may come back."""


class UnknownModelError(GatewayError):
    """The gateway serves no model with that name."""


class AdminClient:
    """One connection to one gateway, for one of its models. Use as an async context manager, or call close().

    model: its name; empty: the only one. beside: the gateway serves other models as well, see ApplyRequest.
    """

    def __init__(self, address: str, *, model: str = "", beside: bool = False, timeout_s: float = 10.0) -> None:
        self.address = address
        self.model = model
        self._beside = beside
        self._timeout_s = timeout_s
        # A restarted gateway is found again within a quarter of a second instead of gRPC's twenty seconds.
        self._channel = grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 250),
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.enable_http_proxy", 0),
            ],
        )

    async def __aenter__(self) -> AdminClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._channel.close()

    async def connected(self, *, timeout_s: float = 10.0) -> None:
        """Wait until there is a connection; GatewayUnreachableError when there is none in time."""
        try:
            await asyncio.wait_for(self._channel.channel_ready(), timeout_s)
        except TimeoutError:
            raise self._unreachable(f"no connection within {timeout_s:g} s") from None

    async def apply(self, deployment: Any) -> Any:
        """Apply an arlo.v1.Deployment; returns the ApplyReply. Idempotent for one version with one content."""
        request = proto.message("ApplyRequest")(deployment=deployment, beside=self._beside)
        return await self._call("Apply", request, self._timeout_s)

    async def drain(self, instance: str, *, timeout_s: float = 30.0) -> None:
        """Take one instance out of service and wait until its last request has finished."""
        request = proto.message("DrainRequest")(instance=instance, timeout_ms=round(timeout_s * 1000), model=self.model)
        await self._call("Drain", request, timeout_s + self._timeout_s)

    async def get_deployment(self) -> Any:
        """The arlo.v1.Deployment in force; version 0 when there is none yet."""
        request = proto.message("GetDeploymentRequest")(model=self.model)
        try:
            return (await self._call("GetDeployment", request, self._timeout_s)).deployment
        except UnknownModelError:
            return proto.message("Deployment")()

    async def get_sample(self, model: str | None = None) -> Any:
        """The arlo.v1.SampledRow of a cascade (default: this client's model), oldest first; none if the cascade
        keeps no sample."""
        request = proto.message("GetSampleRequest")(model=self.model if model is None else model)
        return (await self._call("GetSample", request, self._timeout_s)).rows

    async def stats(self, model: str | None = None) -> Any:
        """One arlo.v1.Stats. `model`: a model other than this client's."""
        async for stats in self._watch(1000, once=True, timeout_s=self._timeout_s, model=model):
            return stats
        raise GatewayError(f"the gateway at {self.address} sent no statistics")

    async def watch_stats(self, *, interval_ms: int = 1000, model: str | None = None) -> AsyncIterator[Any]:
        """An arlo.v1.Stats at once, then one every interval, until the caller stops or the gateway goes away.

        `model`: a model other than this client's.
        """
        async for stats in self._watch(interval_ms, once=False, timeout_s=None, model=model):
            yield stats

    async def _watch(
        self, interval_ms: int, *, once: bool, timeout_s: float | None, model: str | None = None
    ) -> AsyncIterator[Any]:
        method = self._channel.unary_stream(
            f"/{SERVICE}/WatchStats",
            request_serializer=proto.message("WatchStatsRequest").SerializeToString,
            response_deserializer=proto.message("Stats").FromString,
        )
        wanted = self.model if model is None else model
        request = proto.message("WatchStatsRequest")(interval_ms=interval_ms, once=once, model=wanted)
        call = method(request, timeout=timeout_s)
        try:
            async for stats in call:
                yield stats
        except grpc.aio.AioRpcError as error:
            raise self._explain("WatchStats", error) from None
        finally:
            call.cancel()

    async def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=proto.message(f"{method}Reply").FromString,
        )
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._explain(method, error) from None

    def _explain(self, method: str, error: grpc.aio.AioRpcError) -> GatewayError:
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.UNAVAILABLE:
            return self._unreachable(details)
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return GatewayError(
                f"{self.address} is not an admin port of an Arlo gateway of this version: "
                "give gateway.admin_address (8003 by default), not the data port"
            )
        if code == grpc.StatusCode.NOT_FOUND and (details or "").startswith("unknown model"):
            return UnknownModelError(f"the gateway at {self.address} says: {details}")
        if code == grpc.StatusCode.INVALID_ARGUMENT and (details or "").startswith("name a model"):
            return GatewayError(f"the gateway at {self.address} says: {details} (`arlo top --once --model NAME`)")
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return GatewayError(f"the gateway at {self.address} did not finish {method} in time ({details})")
        return GatewayError(f"the gateway at {self.address} refused {method}: {details} ({code.name})")

    def _unreachable(self, details: str | None) -> GatewayUnreachableError:
        return GatewayUnreachableError(
            f"no gateway answers at the admin address {self.address}: is `arlo serve` or `arlo serve gateway` running, "
            f"with this gateway.admin_address? ({details})"
        )
