"""The same run in the simulator: the same requests, instances, policy and limits, as a scenario."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Allocate, Dispatch, Scenario
from arlo.traces import Trace
from benchmarks.testbed.calibrate import Calibration
from benchmarks.testbed.compare import Side
from benchmarks.testbed.schemes import Cluster

ANSWERED = 2  # outcomes on_time and late come first


class Replayed:
    """A trace as a workload, at the whole microseconds at which the load generator sends."""

    def __init__(self, trace: Trace) -> None:
        self.name = "replayed"
        self.duration_s = trace.duration_s
        self._trace = trace

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        yield np.rint(self._trace.arrived_at_s * 1e6).astype(np.int64) * 1000, self._trace.length

    def describe(self) -> str:
        return f"{len(self._trace)} requests of a trace"


def scenario(
    trace: Trace, cluster: Cluster, told: Calibration, dispatch: Mapping[str, Any], timeout_ms: float
) -> Scenario:
    """`dispatch`: the gateway's own dispatch options, so that both sides have the same."""
    return Scenario(
        name=cluster.name,
        workload=Replayed(trace),
        runtimes=tuple(
            dataclasses.replace(
                runtime, truth=tuple((n, rows, ms + told.turn_around_ms) for n, rows, ms in runtime.points)
            )
            for runtime in cluster.runtimes
        ),
        workers=sum(cluster.instances),
        slo_ms=cluster.slo_ms,
        timeout_ms=timeout_ms,
        dispatch=Dispatch(
            policy=cluster.policy,
            lambda_=dispatch["lambda"],
            alpha=dispatch["alpha"],
            max_peek=int(dispatch["max_peek"]),
            max_queued=int(dispatch["max_queued"]),
        ),
        allocate=Allocate(kind="fixed", start=cluster.instances),
        overhead_ms=told.overhead_ms,
        hop_out_ms=told.hop_out_ms,
        hop_back_ms=told.hop_back_ms,
        record=True,
    )


def simulate(trace: Trace, cluster: Cluster, told: Calibration, dispatch: Mapping[str, Any], timeout_ms: float) -> Side:
    """Both sides have the requests in the order of the trace."""
    columns = run(scenario(trace, cluster, told, dispatch, timeout_ms)).columns
    assert columns is not None
    answered = columns["outcome"] < ANSWERED
    # As the gateway counts them: levels of the runtimes that have an instance.
    levels = sorted({r.max_length for r in cluster.placed()})
    level_of = np.array([levels.index(r.max_length) if r.max_length in levels else -1 for r in cluster.runtimes])
    return Side(
        arrived_s=trace.arrived_at_s,
        length=trace.length,
        latency_ms=np.where(answered, columns["latency_ns"] / 1e6, np.nan),
        level=np.where(answered, level_of[columns["runtime"]], -1).astype(np.int32),
    )
