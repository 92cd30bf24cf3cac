"""Where `arlo top` gets its numbers: the control plane's /status and the gateway's admin port, asked side by side.

Either may be missing, come and go; the sample says why. The gateway's address is the one that the control plane names,
unless it was given.
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
    """Use as an async context manager. `admin` None: the address that the control plane names, or `fallback`; `model`
    None: the control plane's, of several all of them."""

    def __init__(
        self, control: str, *, admin: str | None = None, model: str | None = None, fallback: str = "127.0.0.1:8003"
    ) -> None:
        self.control = control
        self._fixed = admin
        self._address = admin or fallback
        self._fixed_model = model
        self._model = model or ""  # of a gateway that serves several; the control plane says which is its own
        self._client: AdminClient | None = None
        self._deployment: dict[str, Any] | None = None
        self._several: dict[str, dict[str, Any]] = {}  # statistics of each of several models

    async def __aenter__(self) -> Source:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def sample(self) -> Sample:
        """Ask both; never an error."""
        (status, control_error), (stats, gateway_error) = await asyncio.gather(self._ask_control(), self._ask_gateway())
        if status is not None:
            named = self._fixed or seen_from_here(status.gateway_admin, self.control)
            model = self._fixed_model or status.model
            if (named, model) != (self._address, self._model):
                self._address, self._model = named, model
                stats, gateway_error = await self._ask_gateway()
        return Sample(
            at_s=monotonic_s(),
            control=status,
            control_error=control_error,
            gateway=stats,
            gateway_error=gateway_error,
            deployment=self._deployment if stats is not None else None,
            several=self._several if stats is not None else {},
            chosen=self._fixed_model or "",
        )

    async def _ask_control(self) -> tuple[ControlStatus | None, str]:
        try:
            return await asyncio.to_thread(fetch_status, self.control), ""
        except ArloError as error:
            return None, str(error)

    async def _ask_gateway(self) -> tuple[dict[str, Any] | None, str]:
        if self._client is None or (self._client.address, self._client.model) != (self._address, self._model):
            if self._client is not None:
                await self._client.close()
            self._client = AdminClient(self._address, model=self._model, timeout_s=TIMEOUT_S)
            self._deployment = None
        try:
            stats = to_dict(await self._client.stats())
            if self._deployment is None or self._deployment["version"] != stats["deployment_version"]:
                self._deployment = to_dict(await self._client.get_deployment())
            names = [model["name"] for model in models_of(self._deployment)]
            asked = await asyncio.gather(*(self._client.stats(name) for name in names)) if len(names) > 1 else []
            self._several = {name: to_dict(one) for name, one in zip(names, asked, strict=False)}
            return stats, ""
        except GatewayError as error:
            return None, str(error)


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
    """The admin address that the control plane at `control` names, as it is reached from here: its own loopback is the
    control plane's machine."""
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
