"""Models of one worker each, and what a planner of them is told."""

from __future__ import annotations

from arlo.catalog.bundle import shared_bundle
from arlo.catalog.manifest import LatencyPoint, Runtime
from arlo.planning.models import Served
from arlo.planning.planner import PlannerSettings

SETTINGS = PlannerSettings(
    slo_ms=100.0,
    policy="late",
    objective="queueing",
    solver="exact",
    solver_time_limit_s=5.0,
    window_s=120.0,
    min_gain=0.05,
    early=True,
)


def runtime(name: str, length: int, ms: float) -> Runtime:
    """A row takes a fourth of it in a batch of eight."""
    points = tuple(LatencyPoint(length=length, batch=rows, latency_us=ms * 1000 * (1 + rows) / 2) for rows in (1, 8))
    return Runtime(
        name=name,
        max_length=length,
        max_batch=8,
        dynamic=False,
        engine="emulated",
        precision="fp16",
        device="none",
        latency=points,
        backend="emulated",
    )


def served(name: str, lengths: tuple[int, ...], slo_ms: float = 100.0, workers: int = 1, share: float = 1.0) -> Served:
    runtimes = [runtime(f"{name}_{length}", length, length / 50) for length in lengths]
    return Served(bundle=shared_bundle(f"{name}_bundle", [runtimes]), slo_ms=slo_ms, workers=workers, share=share)
