"""The gateway as a child process: found, started, waited for, stopped; it does not outlive us."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import sysconfig
from pathlib import Path

from arlo.config import Config
from arlo.config.gateway import gateway_json
from arlo.errors import EnvironmentProblem, GatewayError
from arlo.workers.process import GuardedProcess

VARIABLE = "ARLO_GATEWAY"
PROGRAM = "arlo-gateway"

_POLL_S = 0.01
_LOG_TAIL = 2000  # bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a gateway listens, host:port each, as bound (never port 0)."""

    grpc: str
    http: str
    admin: str


def gateway_program() -> Path:
    """The binary: what ARLO_GATEWAY names, else the one installed beside `arlo`, else the one on PATH."""
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


def write_gateway_config(config: Config, *, ready_file: Path | None = None) -> Path:
    """Write the gateway's JSON into the run folder and return its path. Readable by the user only."""
    config.workers.run_dir.mkdir(parents=True, exist_ok=True)
    path = config.workers.run_dir / "gateway.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(gateway_json(config, ready_file=ready_file) + "\n")
    temporary.chmod(0o600)
    temporary.replace(path)
    return path


class GatewayProcess:
    """One gateway under the configuration given. `start` once, then `wait` or `stop`. Used from one event loop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._process: GuardedProcess | None = None
        self.log = config.workers.run_dir / "gateway.log"

    @property
    def pid(self) -> int | None:
        """Of the gateway itself; None before the start."""
        return self._process.pid if self._process is not None else None

    async def start(self, *, timeout_s: float = 20.0) -> Addresses:
        """Start it and wait until its ports are bound. GatewayError, with the end of its log, when they are not."""
        program = gateway_program()
        ready_file = self._config.workers.run_dir / "gateway.ready.json"
        ready_file.unlink(missing_ok=True)
        path = write_gateway_config(self._config, ready_file=ready_file)
        log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = GuardedProcess.start(
            [str(program), "--config", str(path)],
            env=os.environ,
            log=self.log,
            grace_s=self._config.gateway.drain_timeout_ms / 1000 + 5,
            orphan_grace_s=2.0,
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
        return addresses

    async def wait(self) -> int:
        """Wait until it has ended; its exit code, 128 + signal when a signal ended it."""
        assert self._process is not None, "start() first"
        return await self._process.wait()

    async def stop(self) -> int | None:
        """Drain (SIGTERM), then make sure. Idempotent; None when it was never started."""
        if self._process is None:
            return None
        if self._process.returncode is not None:
            return await self._process.wait()
        return await self._process.stop(timeout_s=self._config.gateway.drain_timeout_ms / 1000 + 10)

    async def kill(self) -> None:
        """End it at once, and wait until it has."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    def kill_now(self) -> None:
        """End it at once, without waiting."""
        if self._process is not None:
            self._process.kill()

    def _said(self, start: int) -> str:
        """What the log says since `start`, as the end of a message."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(start, file.seek(0, os.SEEK_END) - _LOG_TAIL))
                text = file.read().decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"; {self.log} says:\n{text}" if text else f"; {self.log} is empty"


def _read_ready(path: Path) -> Addresses | None:
    try:
        raw = json.loads(path.read_text())
        return Addresses(grpc=raw["grpc"], http=raw["http"], admin=raw["admin"])
    except (FileNotFoundError, json.JSONDecodeError):  # not there, or half written
        return None
    except KeyError as missing:
        raise GatewayError(f"{path} lacks {missing}: the gateway is of another version than this package") from None
