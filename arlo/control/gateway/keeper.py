"""Keeps the gateway up and its deployment in force. One event loop.

A managed gateway that died or stopped answering is restarted on the same ports and gets the deployment again; an
external gateway gets it again when it has lost it. A rolling update starts a second gateway under the same name and
ends the first when the second is ready: we apply the deployment to the second, which makes it ready, and stay with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.control.backoff import Backoff
from arlo.control.events import emit
from arlo.control.gateway.admin import GatewayUnreachableError
from arlo.control.gateway.process import Addresses, GatewayProcess, addresses_of, reachable
from arlo.control.gateway.watch import GatewayWatch
from arlo.control.reconcile.deployments import Deployments, OtherControlPlaneError, VersionSpentError
from arlo.errors import GatewayError, explain

log = logging.getLogger("arlo.control")

DEPLOYMENT_POLL_S = 2.0
LOG_CHECK_S = 10.0


class GatewayKeeper:
    """See the module. Life: start(), then all loops() concurrently until they are cancelled, then stop()."""

    def __init__(self, config: Config, deployments: Deployments, counters: Counter[str]) -> None:
        self.config = config  # after start() with the ports that a managed gateway has bound
        self._deployments = deployments
        self._counters = counters
        self._process: GatewayProcess | None = None  # None unless the gateway is managed
        self._up = False
        self._watch: GatewayWatch | None = None
        self.addresses: Addresses | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the managed gateway."""
        return self._process.pid if self._process is not None else None

    @property
    def answers(self) -> bool:
        """Whether the admin port and the data port both answered the last check."""
        return self._up and not (self._watch is not None and self._watch.silent)

    async def start(self) -> None:
        """Start the gateway, take it over, or connect to a running one. ArloError when it does not answer."""
        gateway = self.config.gateway
        if gateway.managed:
            self._process = GatewayProcess(self.config)
            self.addresses = await self._process.start()
            # Port 0 is resolved once: after a restart clients find the gateway at the same address.
            pinned = dataclasses.replace(
                gateway,
                grpc_address=_with_port(gateway.grpc_address, self.addresses.grpc),
                http_address=_with_port(gateway.http_address, self.addresses.http),
                admin_address=_with_port(gateway.admin_address, self.addresses.admin),
            )
            self.config = dataclasses.replace(self.config, gateway=pinned)
            emit(log, "gateway_started", pid=self._process.pid, **dataclasses.asdict(self.addresses))
        else:
            self.addresses = Addresses(
                grpc=gateway.grpc_address, http=gateway.http_address, admin=gateway.admin_address
            )
        admin, data = reachable(self.addresses.admin), self.addresses.grpc
        if not gateway.managed and reachable(data) != data and ":" in admin:  # bound to any address, on another host
            data = f"{admin.rpartition(':')[0]}:{data.rpartition(':')[2]}"
        self._deployments.connect(admin)
        self._watch = GatewayWatch(
            reachable(data),
            tls=gateway.tls_certificate_file is not None,
            hang_timeout_s=gateway.hang_timeout_s,
            kill=self.kill_now if gateway.managed else None,
        )
        if not gateway.managed:
            await self._find()
            await self._deployments.admin.get_deployment()
        self._up = True

    def follow(self, deployments: Deployments) -> None:
        """Keep this deployment from now on; call it while no loop runs."""
        assert self.addresses is not None, "start() first"
        before, self._deployments = self._deployments, deployments
        deployments.connect(before.admin.address)

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that keep the gateway up, by name."""
        loops: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {"deployment": self._keep_deployment}
        if self._process is not None:
            loops["gateway"] = self._keep_process
            loops["gateway_log"] = self._limit_log
        if self._watch is not None:
            loops["gateway_watch"] = self._watch.run
        return loops

    async def stop(self) -> None:
        """Drain and stop a managed gateway; disconnect from an external one. ArloError when it does not stop."""
        try:
            if self._process is not None:
                code = await self._process.stop()
                emit(log, "gateway_stopped", code=code)
            elif self._up:
                with contextlib.suppress(GatewayError):
                    await self._deployments.release()
        finally:
            self._up = False

    def kill_now(self) -> None:
        """Kill a managed gateway without waiting."""
        if self._process is not None:
            self._process.kill_now()

    async def _keep_deployment(self) -> None:
        lost = False
        while True:
            await asyncio.sleep(DEPLOYMENT_POLL_S)
            try:
                if not self.config.gateway.managed:
                    await self._find()
                await self._deployments.ensure(states=True)
                lost, self._up = False, True
            except GatewayUnreachableError as error:
                self._up = False
                # A managed gateway that has ended is left to _keep_process.
                if not lost and not self.config.gateway.managed:
                    emit(log, "gateway_unreachable", level=logging.WARNING, error=str(error))
                lost = True
            except OtherControlPlaneError:
                raise
            except GatewayError as error:
                emit(log, "deployment_refused", level=logging.ERROR, error=str(error))
                if isinstance(error, VersionSpentError):
                    self.kill_now()  # a new process has no version yet

    async def _find(self) -> None:
        """Switch to another gateway of the same name: one without a deployment, or any when ours does not answer."""
        assert self.addresses is not None
        for address in await addresses_of(reachable(self.addresses.admin)):
            if address == self._deployments.admin.address:
                continue
            async with self._deployments.client(address, timeout_s=DEPLOYMENT_POLL_S) as other:
                try:
                    version = (await other.get_deployment()).version
                except GatewayError:
                    continue
            if not (version and self._up):
                self._deployments.connect(address)
                emit(log, "gateway_found", address=address, version=version)
                return

    async def _keep_process(self) -> None:
        assert self._process is not None
        backoff = Backoff()
        while True:
            started = monotonic_s()
            code = await self._process.wait()
            wait_s = backoff.after(monotonic_s() - started)
            self._up = False
            emit(log, "gateway_died", level=logging.ERROR, code=code, restart_in_s=wait_s, log=str(self._process.log))
            while not await self._restart(wait_s):
                wait_s = backoff.after(0)

    async def _limit_log(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            if self._process is not None:
                await asyncio.to_thread(self._process.limit_log)

    async def _restart(self, wait_s: float) -> bool:
        """Restart the gateway after `wait_s` seconds; False when it does not start."""
        await asyncio.sleep(wait_s)
        self._process = GatewayProcess(self.config)
        try:
            self.addresses = await self._process.start()
        except Exception as error:  # any error at all: a gateway that serves nothing is always retried
            self._counters["gateway_restart_failures"] += 1
            emit(log, "gateway_restart_failed", level=logging.ERROR, error=explain(error))
            return False
        if self._watch is not None:
            self._watch.started()
        self._counters["gateway_restarts"] += 1
        emit(log, "gateway_restarted", pid=self._process.pid, **dataclasses.asdict(self.addresses))
        try:
            await self._deployments.admin.connected()
            await self._deployments.ensure()
            self._up = True
        except GatewayError as error:  # _keep_deployment keeps retrying
            emit(log, "deployment_refused", level=logging.ERROR, error=str(error))
        return True


def _with_port(asked: str, bound: str) -> str:
    return f"{asked.rpartition(':')[0]}:{bound.rpartition(':')[2]}"
