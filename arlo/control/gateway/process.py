"""The gateway as a child process: found, started or taken over, waited for, stopped.

It outlives us by at most `workers.linger_s`. Within that time a control plane in the same run folder takes it over,
with its ports and the deployment in force, if that control plane would start it with the same configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import socket
import sysconfig
from pathlib import Path

from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.config.gateway import gateway_json
from arlo.control.gateway.pulse import answers
from arlo.errors import ConfigError, EnvironmentProblem, GatewayError, explain, system_errors
from arlo.workers.log_file import LogFile
from arlo.workers.process import GuardedProcess
from arlo.workers.record import ProcessRecord, RecordFile, fingerprint

VARIABLE = "ARLO_GATEWAY"
PROGRAM = "arlo-gateway"

_POLL_S = 0.01
_ALIVE_TIMEOUT_S = 2.0
_LOG_TAIL = 2000  # bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a gateway listens, host:port each, as bound (never port 0)."""

    grpc: str
    http: str
    admin: str


def gateway_program() -> Path:
    """The binary: the one named by ARLO_GATEWAY, else the one installed next to `arlo`, else the one on PATH."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise EnvironmentProblem(f"{VARIABLE}={named} is not a program: name the {PROGRAM} binary")
        return Path(named)
    installed = Path(sysconfig.get_path("scripts")) / PROGRAM
    if os.access(installed, os.X_OK):
        return installed
    on_path = shutil.which(PROGRAM)
    if on_path:
        return Path(on_path)
    raise EnvironmentProblem(
        f"the program {PROGRAM} is missing: install Arlo with `make setup` or `pip install .`, or name it in {VARIABLE}"
    )


def made_run_dir(config: Config) -> Path:
    """The run folder, created if missing. ConfigError when it cannot be a folder."""
    run_dir = config.workers.run_dir
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"workers.run_dir cannot be made: {explain(error)}") from None
    return run_dir


def write_gateway_config(config: Config, *, ready_file: Path | None = None) -> Path:
    """Write the gateway's JSON into the run folder and return its path. Only the user can read it."""
    path = made_run_dir(config) / "gateway.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(gateway_json(config, ready_file=ready_file) + "\n")
    temporary.chmod(0o600)
    temporary.replace(path)
    return path


class GatewayProcess:
    """One gateway under the configuration given. `start` once, then `wait` or `stop`. Used from one event loop.

    `adopted`: `start` found it running. It keeps its deployment, which `AdminClient.get_deployment` returns.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._process: GuardedProcess | None = None
        self._record = RecordFile(config.workers.run_dir, "gateway")
        self.log = config.workers.run_dir / "gateway.log"
        self._log = LogFile(self.log)
        self.adopted = False

    @property
    def pid(self) -> int | None:
        """Process id of the gateway itself; None before the start."""
        return self._process.pid if self._process is not None else None

    async def start(self, *, timeout_s: float = 20.0) -> Addresses:
        """Take over the gateway that a dead owner left in the run folder, or start one and wait until it has its ports.

        A gateway started with another configuration is drained and replaced. GatewayError, with the end of the log,
        when the ports are not bound in time.
        """
        with system_errors(GatewayError, "the gateway cannot be started"):
            return await self._start(gateway_program(), timeout_s)

    async def _start(self, program: Path, timeout_s: float) -> Addresses:
        found = await self._adopt(program)
        if found is not None:
            return found
        ready_file = self._config.workers.run_dir / "gateway.ready.json"
        ready_file.unlink(missing_ok=True)
        path = write_gateway_config(self._config, ready_file=ready_file)
        log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = GuardedProcess.start(
            [str(program), "--config", str(path)],
            env=os.environ,
            log=self.log,
            grace_s=self._drain_s + 5,
            orphan_grace_s=2.0,
            linger_s=self._config.workers.linger_s,
            socket_path=self._record.socket,
        )
        try:
            async with asyncio.timeout(timeout_s):
                while (addresses := _read_ready(ready_file)) is None:
                    if self._process.returncode is not None:
                        code = await self._process.wait()
                        raise GatewayError(f"the gateway ended with exit code {code}{self._said(log_start)}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            await self.kill()
            raise GatewayError(f"the gateway was not ready after {timeout_s:g} s{self._said(log_start)}") from None
        except BaseException:
            await self.kill()
            raise
        if self._config.workers.linger_s > 0:
            details = {"addresses": dataclasses.asdict(addresses)}
            mark = self._fingerprint(program, addresses)
            with contextlib.suppress(OSError):  # disk full: it serves, but no later owner takes it over
                self._record.write(ProcessRecord(pid=self._process.pid, fingerprint=mark, details=details))
        return addresses

    async def _adopt(self, program: Path) -> Addresses | None:
        record = self._record.read()
        addresses = None
        if record is not None:
            try:
                addresses = Addresses(**record.details["addresses"])
            except (KeyError, TypeError):
                record = None
        if record is not None and addresses is not None and record.fingerprint != self._fingerprint(program, addresses):
            record = None
        process = await self._record.take_over(record, stop_timeout_s=self._stop_timeout_s)
        if process is None or addresses is None:
            return None
        self._process = process
        try:
            alive = await self._answers(addresses.grpc)
        except BaseException:
            await self.kill()
            raise
        if not alive:
            await self.kill()
            self._process = None
            return None
        self.adopted = True
        return addresses

    async def _answers(self, address: str) -> bool:
        """Whether the data port answers within the time after which the gateway would be killed for hanging."""
        gateway = self._config.gateway
        tls = gateway.tls_certificate_file is not None
        deadline_s = monotonic_s() + gateway.hang_timeout_s
        while monotonic_s() < deadline_s and self._process is not None and self._process.returncode is None:
            if await answers(reachable(address), tls=tls, timeout_s=_ALIVE_TIMEOUT_S):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    def _fingerprint(self, program: Path, bound: Addresses) -> str:
        """A fingerprint of the gateway's start parameters; a port that may be any is replaced by the bound one."""
        gateway = self._config.gateway
        pinned = dataclasses.replace(
            gateway,
            grpc_address=_pinned(gateway.grpc_address, bound.grpc),
            http_address=_pinned(gateway.http_address, bound.http),
            admin_address=_pinned(gateway.admin_address, bound.admin),
        )
        named = (
            gateway.tls_certificate_file,
            gateway.tls_key_file,
            gateway.tls_client_ca_file,
            gateway.bearer_token_file,
            gateway.bulk_token_file,
        )
        return fingerprint(
            program=str(program.resolve()),
            config=gateway_json(dataclasses.replace(self._config, gateway=pinned)),
            files=[hashlib.sha256(path.read_bytes()).hexdigest() for path in named if path is not None],
            linger_s=self._config.workers.linger_s,
        )

    @property
    def _stop_timeout_s(self) -> float:
        return self._drain_s + 10

    @property
    def _drain_s(self) -> float:
        return (self._config.gateway.drain_delay_ms + self._config.gateway.drain_timeout_ms) / 1000

    async def wait(self) -> int:
        """Wait until the process has ended; returns its exit code, or 128 + signal when a signal ended it."""
        assert self._process is not None, "start() first"
        return await self._process.wait()

    async def stop(self) -> int | None:
        """Drain (SIGTERM), then kill if needed. Idempotent; None when the process was never started."""
        if self._process is None:
            return None
        if self._process.returncode is not None:
            return await self._process.wait()
        code = await self._process.stop(timeout_s=self._stop_timeout_s)
        self._record.remove()
        return code

    async def kill(self) -> None:
        """Kill the process and wait until it has ended."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._record.remove()

    def kill_now(self) -> None:
        """Kill the process without waiting."""
        if self._process is not None:
            self._process.kill()

    def limit_log(self) -> None:
        """Keep the log from growing without bound. Blocks."""
        self._log.limit()

    def _said(self, start: int) -> str:
        """The log since `start`, formatted as the end of a message."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(start, file.seek(0, os.SEEK_END) - _LOG_TAIL))
                text = file.read().decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"; {self.log} says:\n{text}" if text else f"; {self.log} is empty"


def reachable(address: str) -> str:
    """A connectable form of a bound address: any-address becomes loopback."""
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "::", "*") else address


async def addresses_of(address: str) -> list[str]:
    """The host:port of each address that the host's name resolves to now; `address` itself if it is not a name."""
    host, _, port = address.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # a Unix socket, or a name that does not resolve now
        return [address]
    return sorted({f"[{to[0]}]:{port}" if family == socket.AF_INET6 else f"{to[0]}:{port}" for family, *_, to in found})


def _pinned(asked: str, bound: str) -> str:
    host, _, port = asked.rpartition(":")
    return f"{host}:{bound.rpartition(':')[2]}" if port == "0" else asked


def _read_ready(path: Path) -> Addresses | None:
    try:
        raw = json.loads(path.read_text())
        return Addresses(grpc=raw["grpc"], http=raw["http"], admin=raw["admin"])
    except (FileNotFoundError, json.JSONDecodeError):  # missing, or half written
        return None
    except KeyError as missing:
        raise GatewayError(f"{path} lacks {missing}: the gateway is of another version than this package") from None
