"""The worker-pool interface: where workers come from.

A worker is one managed Triton server on one device. The pool starts, restarts and stops them, and loads and unloads
runtimes (Triton models) on them; which runtime belongs on which worker is decided elsewhere.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol

from arlo.errors import WorkerError


class StuckError(WorkerError):
    """A runtime stays UNLOADING after an unload: only the end of the worker's process frees it."""


WorkerState = Literal["starting", "ready", "failed", "stopped"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """The current observed state of a worker."""

    id: str  # stable across restarts
    endpoint: str  # host:port of Triton's gRPC port; may change when a pool restarts the worker on another node
    metrics_url: str | None  # Triton's Prometheus page
    state: WorkerState
    pid: int | None
    restarts: int
    runtimes: tuple[str, ...]  # loaded (READY in Triton's own repository index)
    log: str | None  # path of its log file
    error: str | None = None  # why it failed, with the end of its log


class WorkerPool(Protocol):
    """Asynchronous; all methods run on one event loop. Methods raise WorkerError."""

    resizable: bool  # whether add() and remove() work
    restartable: bool  # whether restart() ends the worker's process, and does not merely empty it

    async def start(self) -> None:
        """Start all workers, or adopt those that an earlier control plane left, and wait until each is live.

        On failure, the workers that this call started are stopped.
        """

    async def workers(self) -> list[WorkerInfo]:
        """Observed state of every worker, in a stable order. Cheap: what the pool's own checks last saw."""

    async def add(self) -> WorkerInfo:
        """Start one more worker and wait until it is live. WorkerError where the pool's size is fixed."""

    async def remove(self, worker: str) -> None:
        """Stop a worker for good; its queued and running requests are answered first."""

    async def restart(self, worker: str) -> None:
        """Stop a worker and start it again, with no runtime loaded; wait until it is live."""

    async def load(self, worker: str, runtime: str, *, timeout_s: float = 120.0) -> None:
        """Load a runtime and wait until it is ready."""

    async def unload(self, worker: str, runtime: str, *, timeout_s: float = 60.0) -> None:
        """Unload a runtime and wait until Triton reports it unloaded (its memory is free only then).

        StuckError when Triton is still unloading it after `timeout_s`.
        """

    async def stop(self) -> None:
        """Stop all workers, gracefully first (SIGTERM), then for sure. Idempotent."""
