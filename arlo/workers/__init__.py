"""Where workers come from: local Triton processes, or endpoints that somebody else runs."""

from arlo.workers.endpoints import EndpointsPool
from arlo.workers.local import LocalPool
from arlo.workers.pool import WorkerInfo, WorkerPool

__all__ = ["EndpointsPool", "LocalPool", "WorkerInfo", "WorkerPool"]
