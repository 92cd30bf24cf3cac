"""What the simulator is told of the cluster, measured apart from the runs compared; nothing is fitted to them.

One instance of each static runtime and the policy `ilb`, so that each request runs on the runtime of its length:

    alone    requests in turn, each to an instance that has been idle for a while. Latency at the client minus the time
             between hand-over and answer in the gateway is `overhead`: load generator, network, the gateway's own work.
    bursts   many requests at once for every instance, so that each one always has a request that waits at the worker.
             The time between two answers is what an execution occupies the worker for; what that is above the latency
             profile is `turn_around`: the engine's wake-up, and Triton's way from one execution to the next, on a
             machine whose workers are all busy. It counts where requests wait, and there it adds up.

Hand-over to answer of a request alone, minus the profile and `turn_around`, is the way to the worker and back. Only
their sum is seen; half is taken for each way.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.simulator.scenario.scenario import RuntimeModel
from arlo.traces import Trace
from benchmarks.testbed.cluster import EmulatedCluster, Run
from benchmarks.testbed.schemes import Bed, Cluster

BURST_SHARE = 1 / 3  # length of a burst, of the SLO: surely on time
SKIPPED = 0.2  # of the answers to a burst: while the others are still being sent
REST_MS = 10.0  # at least between two requests alone on one instance


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Milliseconds."""

    overhead_ms: float = 0.0
    hop_out_ms: float = 0.0
    hop_back_ms: float = 0.0
    turn_around_ms: float = 0.0  # added to each point of the latency profile: the truth of executions


# Section 5.2.1: a fixed overhead, and executions as the latency profile says.
PAPER = Calibration(overhead_ms=0.8)


async def calibrate(cluster: EmulatedCluster, bed: Bed, *, rounds: int) -> tuple[Calibration, dict[str, Any]]:
    """The calibration, and what it was made from, as JSON. `rounds` requests and bursts on each runtime."""
    await cluster.prepare(bed.static)
    before = [cluster.executed(r.name) for r in bed.static]
    alone = await _run(cluster, bed, *_in_turn(bed.static, rounds))
    after = [cluster.executed(r.name) for r in bed.static]
    bursts = await _run(cluster, bed, *_bursts(bed, rounds))

    by_runtime: list[dict[str, Any]] = []
    for runtime, (count, ns), (count_now, ns_now) in zip(bed.static, before, after, strict=True):
        profile_ms = runtime.points[-1][2]
        occupied = _between_ms(bursts.done_s[bursts.side.length == runtime.max_length].reshape(rounds, -1))
        own = alone.side.length == runtime.max_length
        by_runtime.append(
            {
                "runtime": runtime.name,
                "profile_ms": profile_ms,
                "engine_ms": (ns_now - ns) / (count_now - count) / 1e6,  # by Triton's statistics
                "occupied_ms": float(np.median(occupied)),
                "hand_over_to_answer_ms": float(np.median(alone.execute_ms[own])),
                "latency_ms": float(np.median(alone.side.latency_ms[own])),
            }
        )
    turn_around = float(np.median([r["occupied_ms"] - r["profile_ms"] for r in by_runtime]))
    trip = float(np.median([r["hand_over_to_answer_ms"] - r["profile_ms"] for r in by_runtime])) - turn_around
    overhead = float(np.median(alone.side.latency_ms - alone.execute_ms))
    made = Calibration(overhead, max(trip, 0) / 2, max(trip, 0) / 2, turn_around)
    return made, {**dataclasses.asdict(made), "by_runtime": by_runtime, "cpu_busy": alone.cpu["busy"]}


async def _run(cluster: EmulatedCluster, bed: Bed, at_ms: list[float], lengths: list[int]) -> Run:
    trace = Trace(arrived_at_s=np.array(at_ms) / 1000, length=np.array(lengths, np.int32))
    one_each = Cluster("calibration", "ilb", bed.static, (1,) * len(bed.static), bed.slo_ms)
    run = await asyncio.to_thread(cluster.run, trace, one_each)
    if run.outcomes.keys() != {"on_time"}:
        raise SystemExit(f"the calibration's requests were not all on time: {run.outcomes}")
    return run


def _in_turn(runtimes: tuple[RuntimeModel, ...], rounds: int) -> tuple[list[float], list[int]]:
    """The runtimes one after the other, as often as the slowest one has rest between its own requests."""
    slowest = max(r.points[-1][2] for r in runtimes)
    step = (slowest + REST_MS) / len(runtimes)
    lengths = [r.max_length for _ in range(rounds) for r in runtimes]
    return [100 + step * i for i in range(len(lengths))], lengths


def _bursts(bed: Bed, rounds: int) -> tuple[list[float], list[int]]:
    """As many requests for each runtime as it executes in the time of a burst, all at once."""
    last_ms = bed.slo_ms * BURST_SHARE
    once = [r.max_length for r in bed.static for _ in range(int(last_ms / r.points[-1][2]))]
    at = [100 + 2 * last_ms * i for i in range(rounds) for _ in once]
    return at, once * rounds


def _between_ms(done_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """By burst (a row of instants): the mean time between two answers, without the first ones."""
    done = np.sort(done_s, axis=1)[:, int(SKIPPED * done_s.shape[1]) :]
    return np.asarray((done[:, -1] - done[:, 0]) * 1000 / (done.shape[1] - 1), np.float64)
