"""The emulated cluster: ten Triton processes for the whole bench, a fresh gateway for each run."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient

from arlo.catalog.manifest import LatencyPoint
from arlo.clock import monotonic_s
from arlo.replay import ReplayOptions, run_replay
from arlo.replay.progress import ProgressHook
from arlo.replay.records import Records, delay_us, latency_us
from arlo.simulator.profiles import capacity
from arlo.simulator.scenario.scenario import RuntimeModel
from arlo.traces import Trace
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import EmulatedRuntime, write_runtimes
from benchmarks import harness
from benchmarks.testbed.compare import Side
from benchmarks.testbed.schemes import INFLIGHT_LIMIT, Cluster, execution_ms, points_us

# A run in which the load generator does not keep to the trace says nothing about the cluster.
PATIENT_MS = 60_000.0  # a time-out that never passes
LATE_MS, LATE_SHARE, LATE_P98_MS = 5.0, 0.001, 1.0


@dataclasses.dataclass(frozen=True)
class Run:
    """What one replay brought back."""

    side: Side
    parts: dict[str, float]  # means of the parts of the latency, ms
    sends: dict[str, float]  # how well the load generator kept to the trace
    cpu: dict[str, float]  # share of all cores: of everything, and of what the bench itself started
    outcomes: dict[str, int]
    dispatch: dict[str, Any]  # of the gateway's configuration
    execute_ms: NDArray[np.float64]  # by request: hand-over to an instance until its answer
    done_s: NDArray[np.float64]  # by request: instant of the answer; NaN without one

    @property
    def problems(self) -> list[str]:
        """Why the run is not valid; empty when it is."""
        found = []
        if self.sends["p98_delay_ms"] > LATE_P98_MS or self.sends["late_share"] > LATE_SHARE:
            found.append(
                f"the load generator lagged: p98 {self.sends['p98_delay_ms']:.2f} ms, "
                f"{100 * self.sends['late_share']:.2f} % later than {LATE_MS:g} ms"
            )
        if self.outcomes.get("failed", 0):
            found.append(f"{self.outcomes['failed']} requests failed")
        return found


class EmulatedCluster:
    """Use from one event loop. `run` blocks a thread, so call it with asyncio.to_thread."""

    def __init__(self, work: Path, pool: LocalPool, endpoints: Sequence[str], pids: Sequence[int]) -> None:
        self._work = work
        self._pool = pool
        self._endpoints = tuple(endpoints)
        self._pids = tuple(pids)
        self._loaded: set[tuple[int, str]] = set()

    async def prepare(self, placed: Sequence[RuntimeModel]) -> None:
        """Load these runtimes, one for each worker. What was loaded before stays: it has no requests, so no cost."""
        missing = [(w, r.name) for w, r in enumerate(placed) if (w, r.name) not in self._loaded]
        await asyncio.gather(*(self._pool.load(f"w{w}", name) for w, name in missing))
        self._loaded.update(missing)

    def backends(self, placed: Sequence[RuntimeModel], slo_ms: float) -> list[harness.Backend]:
        return [
            harness.Backend(
                endpoint=endpoint,
                runtime=runtime.name,
                max_length=runtime.max_length,
                latency_us=points_us(runtime)[-1][1],
                capacity=capacity(runtime, slo_ms),
                dynamic=runtime.dynamic,
                points_us=points_us(runtime),
            )
            for endpoint, runtime in zip(self._endpoints, placed, strict=False)
        ]

    def run(
        self,
        trace: Trace,
        cluster: Cluster,
        *,
        timeout_ms: float = PATIENT_MS,
        on_progress: ProgressHook | None = None,
    ) -> Run:
        """Replay `trace` open-loop against the prepared runtimes, with a gateway of its own."""
        placed, policy, slo_ms = cluster.placed(), cluster.policy, cluster.slo_ms
        backends = self.backends(placed, slo_ms)
        with harness.gateway(
            self._work, backends, dims=4, policy=policy, inflight_limit=INFLIGHT_LIMIT, slo_ms=round(slo_ms)
        ) as (gateway, port):
            options = ReplayOptions(
                endpoint=f"127.0.0.1:{port}", model="bench", slo_ms=slo_ms, timeout_ms=timeout_ms, late_ms=LATE_MS
            )
            gateway_s, workers_s, busy_s, began_s = gateway.cpu_s(), self._cpu_s(), _busy_s(), monotonic_s()
            result = run_replay(trace, options, on_progress=on_progress)
            # The replay's own preparation is in it too: the shares are a little low.
            took_s = (monotonic_s() - began_s) * (os.cpu_count() or 1)
            own_s = gateway.cpu_s() - gateway_s + self._cpu_s() - workers_s
            busy_s = _busy_s() - busy_s
        summary, records = result.summary, result.records
        own_s += summary.sends.cpu_us_per_request * len(records) / 1e6
        if len(records) != len(trace) or (records["index"] != np.arange(len(trace))).any():
            raise SystemExit(f"{len(records)} of {len(trace)} requests were recorded")
        answered = records["code"] == 0
        latency_ms = np.where(answered, latency_us(records) / 1000, np.nan)
        total_ms = np.where(answered, records["total_us"] / 1000, np.nan)
        execute_ms = np.where(answered, records["execute_us"] / 1000, np.nan)
        queue_ms = np.where(answered, records["queue_us"] / 1000, np.nan)
        delay = delay_us(records)
        return Run(
            side=Side(
                arrived_s=trace.arrived_at_s,
                length=trace.length,
                latency_ms=latency_ms,
                level=np.where(answered, records["level"], -1).astype(np.int32),
            ),
            parts={
                "before_gateway_and_after_ms": float(np.nanmean(latency_ms - total_ms)),
                "waiting_in_gateway_ms": float(np.nanmean(queue_ms)),
                "at_worker_ms": float(np.nanmean(execute_ms)),
                "waiting_at_worker_ms": float(np.nanmean(execute_ms - _execution_ms(placed, records))),
                "demoted": float(records["demoted"][answered].mean()),
            },
            sends={
                "p98_delay_ms": summary.sends.p98_delay_ms,
                "max_delay_ms": summary.sends.max_delay_ms,
                "mean_delay_ms": float(delay.mean()) / 1000,
                "late_share": summary.sends.late / len(records),
            },
            cpu={
                "busy": busy_s / took_s,
                "own": own_s / took_s,
                "own_us_per_request": own_s * 1e6 / len(records),
                "load_average": os.getloadavg()[0],
            },
            outcomes={name: count for name, count in summary.outcomes.items() if count},
            dispatch=json.loads((self._work / "gateway.json").read_text())["dispatch"],
            execute_ms=execute_ms,
            done_s=np.where(answered, records["done_us"] / 1e6, np.nan),
        )

    def executed(self, runtime: str) -> tuple[int, int]:
        """Requests executed so far and their ns in the engine, over all workers, from Triton's own statistics."""
        count = ns = 0
        for worker, endpoint in enumerate(self._endpoints):
            if (worker, runtime) not in self._loaded:
                continue
            with contextlib.closing(InferenceServerClient(endpoint)) as client:
                stats = client.get_inference_statistics(runtime).model_stats[0].inference_stats
            count += stats.compute_infer.count
            ns += stats.compute_infer.ns
        return count, ns

    def _cpu_s(self) -> float:
        times = [psutil.Process(pid).cpu_times() for pid in self._pids]
        return float(sum(t.user + t.system for t in times))


def _execution_ms(placed: Sequence[RuntimeModel], records: Records) -> NDArray[np.float64]:
    """By request: what the latency profile says of the tokens that were computed."""
    if placed[0].dynamic:
        return execution_ms(placed[0], records["length"])
    longest = sorted({r.max_length for r in placed})
    took = {r.max_length: r.points[-1][2] for r in placed}
    each = np.array([took[n] for n in longest], np.float64)
    return np.asarray(each[np.maximum(records["level"], 0)])


def _busy_s() -> float:
    times = psutil.cpu_times()
    return sum(float(t) for t in (times.user, times.nice, times.system, times.irq, times.softirq))


@contextlib.asynccontextmanager
async def emulated_cluster(
    work: Path, runtimes: Sequence[RuntimeModel], workers: int
) -> AsyncIterator[EmulatedCluster]:
    """Triton processes over a repository of these runtimes; they end with the block."""
    repository = work / "repository"
    write_runtimes(
        repository,
        model="bench",
        runtimes=[
            EmulatedRuntime(
                name=r.name,
                max_length=r.max_length,
                max_batch=1,
                dynamic=r.dynamic,
                latency=tuple(LatencyPoint(length=n, batch=1, latency_us=us) for n, us in points_us(r)),
            )
            for r in runtimes
        ],
    )
    async with LocalPool(repository, workers=workers, run_dir=work / "run", threads=1, metrics=False) as pool:
        infos = await pool.workers()
        pids = [info.pid for info in infos if info.pid is not None]
        yield EmulatedCluster(work, pool, [info.endpoint for info in infos], pids)
