"""The data for `arlo top`: the control plane's /status and the gateway's admin port, asked at once.

Either may be missing, come and go; the sample says why. The gateway's address is the one that the control plane names,
unless an address was given.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from types import TracebackType
from typing import Any

from arlo.cli.top.view import Sample, models_of
from arlo.clock import monotonic_s
from arlo.control.gateway.admin import AdminClient
from arlo.control.gateway.messages import to_dict
from arlo.control.http.status import ControlStatus
from arlo.errors import ArloError, ConfigError, GatewayError

TIMEOUT_S = 3.0
ANY = ("0.0.0.0", "[::]", "::", "*", "")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


class ControlUnreachableError(ArloError):
    """No control plane answers."""

    exit_code = GatewayError.exit_code


class Source:
    """Use as an async context manager.

    control: None asks the gateway alone. admin: None takes the address that the control plane names, or `fallback`.
    model: the only one to show. own: a model of the deployment to show, if a gateway has several; a control plane picks
    one itself.
    """

    def __init__(
        self, control: str | None, *, admin: str | None, fallback: str, model: str = "", own: str = ""
    ) -> None:
        self._control = control
        self._fixed = admin
        self._address = admin or fallback
        self._model = model
        self._own = model or own
        self._client: AdminClient | None = None
        self._deployment: dict[str, Any] = {}

    async def __aenter__(self) -> Source:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def sample(self) -> Sample:
        """Ask both; failures are part of the sample, never raised."""
        (control, control_error), (stats, gateway_error) = await asyncio.gather(
            self._ask_control(), self._ask_gateway()
        )
        if control is not None and self._control is not None:
            address = self._fixed or seen_from_here(control.gateway_admin, self._control)
            own = self._model or control.model
            if (address, own) != (self._address, self._own):
                self._address, self._own = address, own
                stats, gateway_error = await self._ask_gateway()
        return Sample(
            at_s=monotonic_s(),
            control=control,
            control_error=control_error,
            gateway_error=gateway_error,
            deployment=self._deployment if stats else {},
            stats=stats,
            model=self._model,
        )

    async def first(self) -> Sample:
        """One sample. GatewayError: neither control plane nor gateway answered."""
        sample = await self.sample()
        if sample.control is None and sample.gateway_error:
            raise GatewayError("\nand ".join(filter(None, (sample.control_error, sample.gateway_error))))
        return sample

    async def _ask_control(self) -> tuple[ControlStatus | None, str]:
        if self._control is None:
            return None, ""
        try:
            return await asyncio.to_thread(fetch_status, self._control), ""
        except ArloError as error:
            return None, str(error)

    async def _ask_gateway(self) -> tuple[dict[str, dict[str, Any]], str]:
        if self._client is None or (self._client.address, self._client.model) != (self._address, self._own):
            if self._client is not None:
                await self._client.close()
            self._client = AdminClient(self._address, model=self._own, timeout_s=TIMEOUT_S)
            self._deployment = {}
        try:
            first = to_dict(await self._client.stats())
            if self._deployment.get("version") != first["deployment_version"]:
                self._deployment = to_dict(await self._client.get_deployment())
            names = [model["name"] for model in models_of(self._deployment)]
            if len(names) < 2:
                return {names[0] or first["model"]: first}, ""
            several = await asyncio.gather(*(self._client.stats(name) for name in names))
            return {name: to_dict(stats) for name, stats in zip(names, several, strict=True)}, ""
        except GatewayError as error:
            return {}, str(error)


def fetch_status(address: str) -> ControlStatus:
    """GET /status. Blocks up to TIMEOUT_S; ControlUnreachableError when nothing answers there, or another program."""
    host, _, port = address.rpartition(":")
    host = "127.0.0.1" if host in ANY else host.strip("[]")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/status")
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ControlUnreachableError(
            f"no control plane answers at {address}: is `arlo serve` running, with this control.http_address? ({error})"
        ) from None
    finally:
        connection.close()
    if answer.status == 503:
        raise ControlUnreachableError(f"the control plane at {address} says: {body.decode(errors='replace').strip()}")
    try:
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}")
        return ControlStatus.from_json(json.loads(body))
    except ValueError as error:
        raise ControlUnreachableError(
            f"{address} is not the HTTP port of a control plane of this version: give control.http_address (8004 by "
            f"default), not the gateway's port ({error})"
        ) from None


def seen_from_here(admin: str, control: str) -> str:
    """The admin address that the control plane at `control` names, as reachable from here: its loopback is the control
    plane's machine."""
    host, _, port = admin.rpartition(":")
    there = control.rpartition(":")[0]
    if host in ANY or host in LOOPBACK:
        return f"{'127.0.0.1' if there in ANY or there in LOOPBACK else there}:{port}"
    return admin


def checked(address: str, option: str) -> str:
    """host:port with a port that one can connect to, or unix:PATH for --admin; else ConfigError."""
    if option == "--admin" and len(address) > len("unix:") and address.startswith("unix:"):
        return address
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) <= 65535):
        why = "that port is drawn when `arlo serve` starts, and logged" if port == "0" else f"not {address!r}"
        raise ConfigError(f"{option} must be HOST:PORT with a port from 1 to 65535: {why}")
    return address
