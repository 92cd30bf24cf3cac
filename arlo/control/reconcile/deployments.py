"""The gateway's deployment: instances and endpoints, applied whole, read back from the gateway's answers.

The reconciler changes `instances`, then calls ensure(). Nothing here decides. One event loop.

A deployment names its owner. Two control planes on one gateway would overwrite each other for ever; the one with the
earlier start keeps it, the other ends with OtherControlPlaneError.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

from arlo import proto
from arlo.clock import monotonic_s
from arlo.control.events import emit
from arlo.control.gateway.admin import AdminClient
from arlo.control.reconcile.placement import deployment_message, instance_id, same_content
from arlo.errors import GatewayError

if TYPE_CHECKING:
    from arlo.control.mode import ServingMode

log = logging.getLogger("arlo.control")

POLL_S = 0.02
JOIN_TIMEOUT_S = 30.0
OBJECT_S = 5.0  # a live owner checks every DEPLOYMENT_POLL_S that the deployment still belongs to it
LAST_VERSION = (1 << 64) - 1


class OtherControlPlaneError(GatewayError):
    """The gateway belongs to another live control plane."""


class VersionSpentError(GatewayError):
    """No further version can be applied to this gateway process."""


def owner_label(started_at_ms: int) -> str:
    """A unique name for this process that sorts by start time."""
    return f"{started_at_ms:013d} {socket.gethostname()} {os.getpid()}"


class Deployments:
    """See the module. `counters` are those of ControlStatus."""

    def __init__(self, mode: ServingMode, counters: Counter[str], *, owner: str = "") -> None:
        self._mode = mode
        self._counters = counters
        self._owner = owner
        self._owns = False  # whether one of our deployments has been in force
        self._lock = asyncio.Lock()
        self._admin: AdminClient | None = None
        self.instances: dict[
            str, list[str]
        ] = {}  # worker -> runtimes that it should serve; two while one replaces the other
        self.endpoints: dict[str, str] = {}
        self.always: set[str] = set()  # runtimes that are listed even without an instance
        self.version = 0  # in force, as last seen
        self.point: str | None = None  # of the cascade; None: the configuration's
        self.flow_plan: Any | None = None  # of the pipeline, an arlo.v1.PipelinePlan; None: none yet

    @property
    def admin(self) -> AdminClient:
        """The connection to the gateway."""
        assert self._admin is not None, "connect() first"
        return self._admin

    def connect(self, address: str) -> None:
        """Use the gateway whose admin port is at `address`."""
        self._admin = self.client(address)

    def client(self, address: str, *, timeout_s: float = 10.0) -> AdminClient:
        """Another connection, to any gateway, for our model."""
        # A gateway with one model is asked for that one, under any earlier name.
        shared, model = self._mode.config.gateway.several_models, self._mode.models[0]
        return AdminClient(address, model=model if shared else "", beside=shared, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._admin is not None:
            await self._admin.close()

    async def claim(self) -> None:
        """Take over the deployment in force unchanged. OtherControlPlaneError when its owner is alive and objects.

        A released deployment, or none, costs no time; if the owner was killed, this waits OBJECT_S for an objection.
        """
        async with self._lock:
            current = await self.admin.get_deployment()
            if not current.version or current.owner in ("", self._owner):
                return
            other, current.owner = current.owner, self._owner
            current.version = _next(current.version)
            await self.admin.apply(current)
        emit(log, "gateway_claimed", version=current.version, previous_owner=other)
        deadline_s = monotonic_s() + OBJECT_S
        while monotonic_s() < deadline_s:
            await asyncio.sleep(OBJECT_S / 10)
            self._check_owner(await self.admin.get_deployment(), owns=True)

    async def release(self) -> None:
        """Release the deployment: it stays in force without an owner. GatewayError if the gateway cannot be reached."""
        async with self._lock:
            current = await self.admin.get_deployment()
            if self._owns and current.owner == self._owner:
                current.owner, current.version = "", _next(current.version)
                await self.admin.apply(current)

    async def ensure(self, *, states: bool = False) -> None:
        """Apply the wanted deployment unless it is in force already; its version follows the one in force.

        `states`: also apply it when another program has drained an instance that should serve.
        GatewayError when the gateway refuses it or cannot be reached.
        """
        async with self._lock:
            current = await self.admin.get_deployment()
            self._check_owner(current, owns=self._owns)
            # A worker that is just being placed has no endpoint.
            known = [worker for worker in sorted(self.instances) if self.endpoints.get(worker)]
            pairs = [(worker, name) for worker in known for name in self.instances[worker]]
            if not pairs and not self.always:
                return  # nothing to apply yet
            wanted = deployment_message(
                self._mode,
                pairs,
                self.endpoints,
                always=self.always,
                version=_next(current.version),
                owner=self._owner,
                more=lambda message: self._mode.fill(message, self),
            )
            self.version = current.version
            self._owns = self._owns or current.owner == self._owner
            if current.version and same_content(current, wanted):
                drained = await self._drained(pairs) if states else []
                if not drained:
                    return
                emit(log, "drain_undone", level=logging.WARNING, instances=drained)
            reply = await self.admin.apply(wanted)
            self.version = reply.version
            self._owns = True
            self._counters["deployments_applied"] += 1
            emit(
                log,
                "deployment_applied",
                version=reply.version,
                joining=list(reply.joining),
                draining=list(reply.draining),
            )

    async def _drained(self, pairs: list[tuple[str, str]]) -> list[str]:
        """Instances that should serve, but were taken out of service by a Drain call that was not ours."""
        state = proto.message("InstanceStats").State.Value
        wanted = {instance_id(*pair) for pair in pairs}
        out = (state("STATE_DRAINING"), state("STATE_DRAINED"))
        return sorted(i.id for i in (await self.admin.stats()).instances if i.id in wanted and i.state in out)

    def _check_owner(self, current: Any, *, owns: bool) -> None:
        if not owns or not current.version or current.owner in ("", self._owner):
            return
        if current.owner < self._owner:
            raise OtherControlPlaneError(
                f"another control plane keeps the deployment of the gateway at {self.admin.address} (started, host, "
                f"process: {current.owner}): stop that one first, or give this one a gateway of its own"
            )
        emit(log, "other_control_plane", level=logging.ERROR, owner=current.owner)

    async def adopt(self) -> dict[str, list[str]]:
        """Our runtimes that the gateway serves now: worker -> runtimes, for workers at known endpoints."""
        current = await self.admin.get_deployment()
        self.version = current.version
        self._mode.take_over(current, self)
        names = {runtime.name for runtime in self._mode.manifest.runtimes}
        found: dict[str, list[str]] = {}
        for item in current.instances:
            if item.runtime in names and self.endpoints.get(item.worker) == item.endpoint:
                found.setdefault(item.worker, []).append(item.runtime)
        return found

    async def is_last(self, worker: str, names: list[str]) -> bool:
        """Whether one of these instances of a worker is the last one in service for a runtime in `always`."""
        if not self.always & set(names):
            return False
        active = proto.message("InstanceStats").State.Value("STATE_ACTIVE")
        serving = {
            (item.worker, item.runtime)
            for item in (await self.admin.stats()).instances
            if item.state == active and item.runtime in self.always
        }
        leaving = {(worker, name) for name in names} & serving
        return not {name for _, name in leaving} <= {name for _, name in serving - leaving}

    async def until_gone(self, pairs: list[tuple[str, str]], *, timeout_s: float) -> None:
        """Wait until the last request of instances that have left the deployment has been answered.

        (The gateway's Drain won't do: a deployment applied meanwhile for another worker would bring the instance back.)
        """
        gone = {instance_id(*pair) for pair in pairs}
        try:
            async with asyncio.timeout(timeout_s):
                while gone & {item.id for item in (await self.admin.stats()).instances}:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise GatewayError(
                f"these instances still answer requests after {timeout_s:g} s: {', '.join(sorted(gone))}"
            ) from None

    async def until_active(self, pairs: list[tuple[str, str]], *, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Wait until the gateway sends to these instances; GatewayError names those that it does not find ready."""
        active = proto.message("InstanceStats").State.Value("STATE_ACTIVE")
        waiting = {instance_id(*pair) for pair in pairs}
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    stats = await self.admin.stats()
                    waiting -= {item.id for item in stats.instances if item.state == active}
                    if not waiting:
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass
        raise GatewayError(
            f"the gateway does not find these instances ready: {', '.join(sorted(waiting))}. Can it reach their "
            f"workers' endpoints ({', '.join(sorted(self.endpoints.values()))})? Its log says more"
        )


def _next(version: int) -> int:
    if version >= LAST_VERSION:
        raise VersionSpentError(
            f"the deployment in force has version {version}, which no other can follow: it was applied from elsewhere. "
            "Restart the gateway"
        )
    return version + 1
