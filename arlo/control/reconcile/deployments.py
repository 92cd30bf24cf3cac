"""What the gateway is to serve now: instances and endpoints, applied whole, read back from the gateway's own answers.

The reconciler changes `instances`, then calls ensure(). Nothing here decides. One event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from arlo import proto
from arlo.catalog.manifest import Manifest
from arlo.config import Config
from arlo.control.events import emit
from arlo.control.gateway.admin import AdminClient
from arlo.control.reconcile.placement import deployment_message, instance_id, same_content
from arlo.errors import GatewayError

log = logging.getLogger("arlo.control")

POLL_S = 0.02
JOIN_TIMEOUT_S = 30.0


class Deployments:
    """See the module. `counters` are those of ControlStatus."""

    def __init__(self, config: Config, manifest: Manifest, counters: Counter[str]) -> None:
        self._config = config
        self._manifest = manifest
        self._counters = counters
        self._lock = asyncio.Lock()
        self._admin: AdminClient | None = None
        self.instances: dict[
            str, list[str]
        ] = {}  # worker -> runtimes that are to serve on it; two while one replaces the other
        self.endpoints: dict[str, str] = {}
        self.always: set[str] = set()  # runtimes that are listed even without an instance
        self.version = 0  # in force, as last seen

    @property
    def admin(self) -> AdminClient:
        """The connection to the gateway."""
        assert self._admin is not None, "connect() first"
        return self._admin

    def connect(self, address: str) -> None:
        """Use the gateway whose admin port is at `address`."""
        self._admin = AdminClient(address)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._admin is not None:
            await self._admin.close()

    async def ensure(self) -> None:
        """Apply what is wanted unless it is in force already; its version follows the one in force.

        GatewayError when the gateway refuses it or cannot be reached.
        """
        async with self._lock:
            current = await self.admin.get_deployment()
            # A worker that is just being placed somewhere has no endpoint.
            known = [worker for worker in sorted(self.instances) if self.endpoints.get(worker)]
            pairs = [(worker, name) for worker in known for name in self.instances[worker]]
            if not pairs and not self.always:
                return  # nothing to say yet
            wanted = deployment_message(
                self._config,
                self._manifest,
                pairs,
                self.endpoints,
                always=self.always,
                version=current.version + 1,
            )
            self.version = current.version
            if current.version and same_content(current, wanted):
                return
            reply = await self.admin.apply(wanted)
            self.version = reply.version
            self._counters["deployments_applied"] += 1
            emit(
                log,
                "deployment_applied",
                version=reply.version,
                joining=list(reply.joining),
                draining=list(reply.draining),
            )

    async def adopt(self) -> dict[str, list[str]]:
        """What the gateway serves of our runtimes now: worker -> runtimes, for workers at known endpoints."""
        current = await self.admin.get_deployment()
        self.version = current.version
        names = {runtime.name for runtime in self._manifest.runtimes}
        found: dict[str, list[str]] = {}
        for item in current.instances:
            if item.runtime in names and self.endpoints.get(item.worker) == item.endpoint:
                found.setdefault(item.worker, []).append(item.runtime)
        return found

    async def is_last(self, worker: str, names: list[str]) -> bool:
        """Whether these instances of a worker are the last in service of the runtimes in `always`."""
        if not self.always & set(names):
            return False
        active = proto.message("InstanceStats").State.Value("STATE_ACTIVE")
        serving = [
            (item.worker, item.runtime)
            for item in (await self.admin.stats()).instances
            if item.state == active and item.runtime in self.always
        ]
        leaving = {(worker, name) for name in names}
        return bool(leaving & set(serving)) and not set(serving) - leaving

    async def until_gone(self, pairs: list[tuple[str, str]], *, timeout_s: float) -> None:
        """Wait until the last request of instances that are no longer in the deployment has been answered.

        (Not the gateway's Drain: a deployment applied meanwhile for another worker would bring the instance back.)
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
        """Wait until the gateway sends to these instances; GatewayError that names those it does not find ready."""
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
