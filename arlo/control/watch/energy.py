"""What the answers of a served cascade cost in energy: of all workers' devices, idle time included, over the rows that
arrived meanwhile (HybridServe section VI-C, per request of one row).

Measured where a counter can be read: those of the GPUs that local workers are given, or see; where there are none, the
machine's CPU packages, with all else that runs there. Modelled from how busy the workers are where none can, if
`cascade.worker_watts` says of what: P_idle + u (P_max - P_idle); else by what `arlo fit` wrote of the
stages, without the time that workers wait. Else not known, and not said.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arlo.cascade.energy import Counter, NvmlCounter, RaplCounter, energy_mj, gpus, modelled_joules, per_request
from arlo.catalog.manifest import Manifest
from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.config.stages import cascade_manifest, cascade_name
from arlo.control.http.status import EnergyStatus
from arlo.control.reconcile.deployments import Deployments
from arlo.errors import EnvironmentProblem, GatewayError

LOOK_S = 1.0
WINDOW_S = 60.0
MODELLED = "modelled"


class EnergyMeter:
    """Joules and rows, looked at now and then. No clock, no I/O."""

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        # s, J since some moment, rows so far, work so far of each stage
        self._looks: deque[tuple[float, float, int, dict[str, float]]] = deque()
        self._first_j: float | None = None

    def add(self, at_s: float, joules: float, rows: int, work: Mapping[str, float] | None = None) -> None:
        """A look: all only grow. Fewer rows than before, of a gateway that was restarted, start the window over.
        `work`: of each stage, in any unit."""
        if self._looks and rows < self._looks[-1][2]:
            self._looks.clear()
        self._first_j = joules if self._first_j is None else self._first_j
        self._looks.append((at_s, joules, rows, dict(work or {})))
        while len(self._looks) > 2 and self._looks[1][0] <= at_s - self._window_s:
            self._looks.popleft()

    def status(self, source: str) -> EnergyStatus | None:
        """As told; None before there was a look."""
        if not self._looks or self._first_j is None:
            return None
        (first_s, first_j, first_rows, before), (s, joules, rows, work) = self._looks[0], self._looks[-1]
        arrived = rows - first_rows
        grown = {stage: max(0.0, done - before.get(stage, 0.0)) for stage, done in work.items()}
        whole = sum(grown.values())
        return EnergyStatus(
            source=source,
            joules=joules - self._first_j,
            window_s=s - first_s,
            window_joules=joules - first_j,
            window_rows=arrived,
            joules_per_request=per_request(joules - first_j, arrived) if arrived else None,
            by_stage={stage: (joules - first_j) * part / whole for stage, part in grown.items()} if whole else {},
        )


@dataclasses.dataclass(slots=True)
class ModelledCounter:
    """Joules of workers by how busy they say that they are."""

    idle_w: float  # of one worker
    max_w: float
    source: str = MODELLED
    _sum_j: float = 0.0
    _at_s: float | None = None
    _busy_us: dict[str, int] = dataclasses.field(default_factory=dict)  # by instance

    def see(self, at_s: float, workers: int, stats: Any) -> None:
        """One arlo.v1.Stats, which has every instance, and how many workers there are."""
        busy_s: dict[str, float] = {}
        for each in stats.instances:
            before = self._busy_us.get(each.id, 0)
            grown = each.busy_us - before if each.busy_us >= before else each.busy_us  # it was away: its counter is new
            busy_s[each.worker] = busy_s.get(each.worker, 0.0) + grown / 1e6
        self._busy_us = {each.id: each.busy_us for each in stats.instances}
        if self._at_s is not None and at_s > self._at_s:
            span_s = at_s - self._at_s
            for share in [min(1.0, s / span_s) for s in busy_s.values()] + [0.0] * max(0, workers - len(busy_s)):
                self._sum_j += modelled_joules(share, span_s, idle_w=self.idle_w, max_w=self.max_w)
        self._at_s = at_s

    def joules(self) -> float:
        """Since the first look."""
        return self._sum_j


@dataclasses.dataclass(slots=True)
class TableCounter:
    """Joules of rows by what `arlo fit` wrote of each stage, at the lengths that come: rows alone, and no
    time that workers wait."""

    tables: Sequence[tuple[Sequence[tuple[int, int, float]], str]]  # of each stage its energy_mj, and its name
    source: str = f"{MODELLED}, by energy_mj of cascade.json"
    _sum_j: float = 0.0
    _seen: Any = None

    def see(self, at_s: float, workers: int, stats: Any) -> None:
        """One arlo.v1.Stats of the cascade."""
        del at_s, workers
        before, self._seen = self._seen, stats
        if before is None or len(before.arrivals_by_length) > len(stats.arrivals_by_length):
            return
        old = np.zeros(len(stats.arrivals_by_length))
        old[: len(before.arrivals_by_length)] = before.arrivals_by_length
        came = np.asarray(stats.arrivals_by_length, np.float64) - old
        if came.min(initial=0.0) < 0:  # another gateway counts anew
            came = np.asarray(stats.arrivals_by_length, np.float64)
        came = came if came.any() else np.asarray(stats.arrivals_by_length, np.float64)
        if not came.any():
            return
        visits = {stage.model: stage.visits for stage in before.stages}
        for (points, name), stage in zip(self.tables, stats.stages, strict=False):
            grown = stage.visits - visits.get(stage.model, 0)
            mean_mj = np.average(energy_mj(points, np.arange(len(came)), name), weights=came)
            self._sum_j += float(mean_mj) * (grown if grown >= 0 else stage.visits) / 1000

    def joules(self) -> float:
        """Since the first look."""
        return self._sum_j


class SumCounter:
    """Of several devices."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self._counters = counters
        self.source = counters[0].source

    def joules(self) -> float:
        """Of all of them."""
        return sum(counter.joules() for counter in self._counters)


def counter_of(config: Config) -> Counter | ModelledCounter | TableCounter | None:
    """The best that there is; None: nothing is known."""
    workers, cascade = config.workers, config.cascade
    if workers.kind == "local":
        with contextlib.suppress(EnvironmentProblem):
            found = list(dict.fromkeys(workers.gpus)) or [str(number) for number in range(gpus())]
            if found:
                return SumCounter([NvmlCounter(gpu) for gpu in found])
        if not workers.gpus:
            with contextlib.suppress(EnvironmentProblem):
                return RaplCounter()
    if cascade is not None and cascade.worker_watts:
        idle_w, max_w = cascade.worker_watts
        return ModelledCounter(idle_w, max_w)
    stages = cascade_manifest(cascade.manifest).stages if cascade is not None else ()
    if stages and all(any(rows == 1 for _, rows, _ in stage.energy_mj) for stage in stages):
        return TableCounter([(stage.energy_mj, stage.name) for stage in stages])
    return None


class EnergyWatch:
    """Looks once a second. One event loop."""

    def __init__(self, config: Config, deployments: Deployments) -> None:
        assert config.cascade is not None
        self._name = cascade_name(config.cascade)
        self._config = config
        self._deployments = deployments
        self._counter = counter_of(config)
        self._meter = EnergyMeter()
        path = config.cascade.manifest
        folder = path if path.is_dir() else path.parent
        stages = cascade_manifest(path).stages
        self._tables = [_row_ms(Manifest.load(folder / stage.repository)) for stage in stages]

    @property
    def status(self) -> EnergyStatus | None:
        """What is known by now."""
        return self._meter.status(self._counter.source) if self._counter is not None else None

    async def run(self) -> None:
        """Watch until cancelled."""
        while self._counter is not None:
            try:
                watched = self._deployments.admin.watch_stats(interval_ms=round(LOOK_S * 1000), model=self._name)
                async for stats in watched:
                    await self._look(self._counter, stats)
            except GatewayError:
                pass  # it is restarting; whoever restarts it says so
            await asyncio.sleep(LOOK_S)
        await asyncio.Event().wait()

    async def _look(self, counter: Counter | ModelledCounter | TableCounter, stats: Any) -> None:
        now_s = monotonic_s()
        if isinstance(counter, ModelledCounter | TableCounter):
            counter.see(now_s, self._config.worker_count, stats)
            joules = counter.joules()
        else:
            joules = await asyncio.to_thread(counter.joules)
        self._meter.add(now_s, joules, sum(stats.arrivals_by_length), self._work(stats))

    def _work(self, stats: Any) -> dict[str, float]:
        """Of each stage, ms so far: its rows at the time that a row alone takes there, over the lengths that came."""
        came = np.asarray(stats.arrivals_by_length, np.float64)
        if not came.any():
            return {}
        lengths, found = np.arange(len(came)), {}
        for (ends, ms), stage in zip(self._tables, stats.stages, strict=False):
            at = np.minimum(np.searchsorted(ends, lengths), len(ends) - 1)
            found[str(stage.model)] = stage.visits * float(np.average(np.asarray(ms)[at], weights=came))
        return found


def _row_ms(manifest: Manifest) -> tuple[list[int], list[float]]:
    """Longest rows and ms of a row alone, of the runtimes that were measured, ascending; nothing where none was."""
    rows = sorted((r.max_length, r.latency_ns(1) / 1e6) for r in manifest.runtimes if r.latency)
    return [length for length, _ in rows] or [1], [ms for _, ms in rows] or [0.0]
