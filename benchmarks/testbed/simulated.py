"""The same run in the simulator: the same requests, instances, policy and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arlo import _core
from arlo.traces import Trace
from benchmarks.testbed.calibrate import Calibration
from benchmarks.testbed.compare import Side
from benchmarks.testbed.schemes import INFLIGHT_LIMIT, Runtime

ANSWERED = 2  # outcomes on_time and late come first


def simulate(
    trace: Trace,
    placed: Sequence[Runtime],
    calibration: Calibration,
    *,
    policy: str,
    dispatch: Mapping[str, Any],
    slo_ms: float,
) -> Side:
    """`dispatch`: the gateway's own dispatch options, so that both sides have the same."""
    simulation = _core.Simulation(
        policy,
        slo=_ns(slo_ms),
        lambda_=dispatch["lambda"],
        alpha=dispatch["alpha"],
        max_peek=int(dispatch["max_peek"]),
        max_queued=int(dispatch["max_queued"]),
        overhead=_ns(calibration.overhead_ms),
        hop_out=_ns(calibration.hop_out_ms),
        hop_back=_ns(calibration.hop_back_ms),
        record=True,
    )
    ids: dict[str, int] = {}
    level_of: list[int] = []
    levels = sorted({r.max_length for r in placed})
    for runtime in placed:
        if runtime.name not in ids:
            ids[runtime.name] = simulation.add_runtime(
                runtime.max_length,
                runtime.capacity(slo_ms),
                [(length, 1, us * 1000) for length, us in runtime.points_us],
                dynamic=runtime.dynamic,
                inflight_limit=INFLIGHT_LIMIT,
                truth=[(length, 1, us * 1000 + _ns(calibration.turn_around_ms)) for length, us in runtime.points_us],
            )
            level_of.append(levels.index(runtime.max_length))
        simulation.add_worker(ids[runtime.name], 0)
    # The load generator sends at whole microseconds.
    simulation.feed(np.rint(trace.arrived_at_s * 1e6).astype(np.int64) * 1000, trace.length)
    simulation.finish()
    columns = simulation.columns()
    answered = columns["outcome"] < ANSWERED
    runtime_level = np.array(level_of, np.int32)
    return Side(
        arrived_s=trace.arrived_at_s,
        length=trace.length,
        latency_ms=np.where(answered, columns["latency_ns"] / 1e6, np.nan),
        started_ms=np.where(answered, columns["wait_ns"] / 1e6, np.nan),
        level=np.where(answered, runtime_level[columns["runtime"]], -1).astype(np.int32),
    )


def _ns(ms: float) -> int:
    return round(ms * 1e6)
