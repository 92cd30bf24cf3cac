"""Where workers come from: local Triton processes, or endpoints that run already."""

from arlo.workers.endpoints.pool import EndpointsPool
from arlo.workers.local.pool import LocalPool
from arlo.workers.pool import WorkerInfo, WorkerPool

__all__ = ["EndpointsPool", "LocalPool", "WorkerInfo", "WorkerPool"]
