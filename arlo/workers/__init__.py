"""Where workers come from: local Triton processes, or endpoints that somebody else runs."""

from arlo.workers.local import LocalPool
from arlo.workers.pool import WorkerInfo, WorkerPool

__all__ = ["LocalPool", "WorkerInfo", "WorkerPool"]
