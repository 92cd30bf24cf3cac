"""Steps that take capacity away: serving workers are moved or restarted in small batches. One event loop."""

from __future__ import annotations

from collections.abc import Mapping, Set

from arlo.config import Config
from arlo.control.reconcile.moves import Mover
from arlo.control.reconcile.overlap import Overlap
from arlo.control.reconcile.situation import Situation
from arlo.planning.allocation.curves import capacity
from arlo.planning.placement.replacement import Step, at_a_time, next_step
from arlo.planning.view import RuntimeView


class Replacements:
    """See the module. arlo.planning.placement.replacement chooses the workers of a batch; start() begins the next."""

    def __init__(self, config: Config, situation: Situation, mover: Mover, overlap: Overlap) -> None:
        self._config = config
        self._situation = situation
        self._mover = mover
        self._overlap = overlap

    def start(self, held: Set[str], now_s: float) -> None:
        """Start the next batch, if there is one; call it when none is running. `held`: workers that must stay."""
        fleet, jobs = self._situation.fleet, self._situation.jobs
        placement, longest = self._situation.desired.placement, self._situation.desired.longest()
        instances, overlap = self._situation.deployments.instances, self._overlap.allowed(now_s)
        # A worker that is down, or does not answer the gateway, carries nothing. (Of the latter, those already at their
        # target are left out; the others are moved, which takes nothing away.)
        up = [
            worker
            for worker in fleet.infos
            if fleet.ready(worker)
            and (
                worker not in instances
                or placement.get(worker) not in instances[worker]
                or self._situation.serves(worker, now_s)
            )
        ]
        current = {worker: instances[worker][0] if self._situation.serves(worker, now_s) else None for worker in up}
        if self._start_restart(current, held, now_s):
            return
        if not overlap:  # one worker at a time tries whether a runtime that failed to come up does now
            failing = {trouble.target for trouble in jobs.troubles.values() if now_s < trouble.again_s}
            held = held | {worker for worker in up if placement.get(worker) in failing - {current[worker]}}
        desired = {worker: current[worker] if worker in held else placement.get(worker) for worker in up}
        # A worker that is held, or away, may be the one that will take over the longest runtime: wait for it.
        heirs = {worker for worker, name in placement.items() if name in longest}
        step = self._next_step(current, desired, heirs=bool(heirs & held or heirs - set(up)), overlap=overlap)
        if step is None:
            return
        for change in step.changes:
            if change.worker in held or not instances.get(change.worker):
                continue  # a first runtime takes nothing away: a repair has started it
            job = self._mover.replace(change.worker, change.after, overlap=overlap, interrupts=step.interrupts)
            jobs.start(change.worker, job, placement.get(change.worker), replaces=True)

    def _start_restart(self, current: Mapping[str, str | None], held: Set[str], now_s: float) -> bool:
        """Restart one serving worker; True when there is one."""
        placement, restarts = self._situation.desired.placement, self._situation.restarts
        for worker in sorted(restarts.pending - held):
            name = current.get(worker)
            there = name is not None and (placement.get(worker) == name or restarts.unfit(worker))
            if there and not self._situation.irreplaceable(worker, now_s):
                restarts.done(worker)
                job = self._mover.recycle(worker, interrupts=len(self._situation.fleet.infos) == 1)
                self._situation.jobs.start(worker, job, placement.get(worker), replaces=True)
                return True
        return False

    def _next_step(
        self, current: Mapping[str, str | None], desired: Mapping[str, str | None], *, heirs: bool, overlap: bool
    ) -> Step | None:
        control = self._config.control
        runtimes = self._runtime_views()
        return next_step(
            current,
            {worker: name for worker, name in desired.items() if name is not None},
            heirs=heirs,
            runtimes=runtimes,
            demand=self._situation.desired.demand or [0.0] * len(runtimes),
            max_parallel=at_a_time(
                len(self._situation.fleet.infos),
                overlap=overlap,
                urgent=self._situation.desired.urgent,
                max_moving=control.max_moving,
                max_unavailable=control.max_unavailable,
            ),
            overlap=overlap,
        )

    def _runtime_views(self) -> list[RuntimeView]:
        """All runtimes, by ascending max_length."""
        slo_ms = self._config.model.slo_ms
        order = sorted(self._situation.desired.runtimes.values(), key=lambda r: (r.max_length, r.name))
        return [RuntimeView(name=r.name, max_length=r.max_length, capacity=capacity(r, slo_ms)) for r in order]
