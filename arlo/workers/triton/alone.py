"""One Triton server on a repository as it is: no pool, no gateway, no key; Triton's own ports for clients."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from arlo.clock import monotonic_s
from arlo.errors import ConfigError, WorkerError
from arlo.workers.log_file import LogFile
from arlo.workers.ports import accepts
from arlo.workers.process import GuardedProcess
from arlo.workers.triton.admin import POLL_S, READY, TritonAdmin
from arlo.workers.triton.server import (
    TritonOptions,
    command_line,
    core_count,
    environment,
    find_triton,
    prepare_backends,
)


class LoneTriton:
    """A lone server, as `async with`; every model of the repository is loaded on entry.

    WorkerError, with an excerpt of the log, when the server does not start or a model does not load.
    """

    def __init__(
        self,
        repository: Path,
        *,
        grpc_port: int,
        http_port: int | None,
        metrics_port: int | None = None,
        address: str = "127.0.0.1",
        log: Path,
        threads: int | None = None,  # of engines that compute on the CPU; None: all cores
        start_timeout_s: float = 120.0,
        extra: tuple[str, ...] = (),
    ) -> None:
        self._options = TritonOptions(
            repository=repository.absolute(),
            grpc_port=grpc_port,
            http_port=http_port,
            metrics_port=metrics_port,
            address=address,
            shm_prefix=f"arlo_{os.getpid()}_{grpc_port}_",
            extra=("--load-model=*", *extra),
        )
        self._threads = threads or core_count()
        self._start_timeout_s = start_timeout_s
        self._process: GuardedProcess | None = None
        self.log = LogFile(log)

    @property
    def endpoint(self) -> str:
        """host:port of gRPC."""
        return f"{self._options.address}:{self._options.grpc_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it has not been started"
        return self._process.pid

    async def __aenter__(self) -> Self:
        server = find_triton()
        command = command_line(server, prepare_backends(server), self._options)
        if (problem := self.log.begin("triton")) is not None:
            raise ConfigError(f"--log: {problem}")
        self._process = GuardedProcess.start(
            command,
            env=environment(server, threads=self._threads),
            log=self.log.path,
            grace_s=self._options.exit_timeout_s + 2.0,
            shm_prefix=self._options.shm_prefix or "",
        )
        try:
            await self._wait_ready(self._process)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def wait(self) -> int:
        """Wait until the server has ended by itself; returns its exit code."""
        assert self._process is not None, "it has not been started"
        return await self._process.wait()

    async def _end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await process.stop(timeout_s=self._options.exit_timeout_s + 5.0)

    async def _ports_open(self) -> bool:
        for name, port in (("http", self._options.http_port), ("metrics", self._options.metrics_port)):
            moved = any(option.startswith((f"--allow-{name}", f"--{name}-")) for option in self._options.extra)
            # Further options may have closed it, or put it elsewhere.
            if port is not None and not moved and not await accepts(self._options.address, port):
                return False
        return True

    async def _wait_ready(self, process: GuardedProcess) -> None:
        deadline_s = monotonic_s() + self._start_timeout_s
        admin = TritonAdmin(self.endpoint)
        try:
            while not (await admin.is_live() and await self._ports_open()):  # gRPC's is the first to open
                if process.returncode is not None:
                    raise WorkerError(f"Triton did not start; from {self.log.path}:\n{self.log.excerpt()}")
                if monotonic_s() > deadline_s:
                    raise WorkerError(f"Triton was not live after {self._start_timeout_s:g} s\n{self.log.excerpt()}")
                await asyncio.sleep(POLL_S)
            # The server is live once all models have been tried.
            index = await admin.index()
            failed = [f"{name}: {reason or state}" for name, (state, reason) in index.items() if state != READY]
            if failed:
                raise WorkerError("Triton did not load " + "; ".join(failed))
        finally:
            await admin.close()
