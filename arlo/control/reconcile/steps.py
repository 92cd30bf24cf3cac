"""The steps that a pass of the reconciler starts. One event loop.

`repair`: what takes no capacity away, as soon as the need for it is seen. `replace`: what does; serving workers are
moved or restarted in small batches, each when the last is done. `cover`: the longest runtime is guarded more closely
than others, as some requests fit no other (where several models have separate workers, each model's runtime is). While
the gateway finds none of its instances healthy, or the last one is about to be restarted, another worker serves it in
addition to its usual runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set

from arlo.control.events import emit
from arlo.control.reconcile.jobs import REPLACE_BACKOFF_S, Trouble
from arlo.control.reconcile.situation import Situation
from arlo.planning.allocation.curves import capacity
from arlo.planning.placement.replacement import COVER_AFTER, at_a_time, next_step, stand_in
from arlo.planning.view import RuntimeView

log = logging.getLogger("arlo.control")


def repair(now: Situation, worker: str, now_s: float) -> bool:
    """Start the repair that a worker needs, if any. False for a worker that cannot be moved now."""
    jobs, mover, restarts = now.jobs, now.mover, now.restarts
    ready, target, leaving = now.fleet.ready(worker), now.desired.placement.get(worker), worker in now.desired.leaving
    trouble = jobs.trouble(worker, target)
    if worker in jobs.tasks:
        return False
    if not ready and not leaving:
        jobs.set_step(worker, "failed")
    if (trouble is not None and now_s < trouble.again_s) or (not ready and not leaving):
        return False
    serving, loaded = now.deployments.instances.get(worker, []), now.fleet.loaded(worker)
    restarting = worker in restarts.pending
    if leaving:
        if not serving or not ready:
            jobs.start(worker, _remove(now, worker), None)
    elif worker == now.cover.worker:
        return False
    elif target is None and now.fleet.left_out(worker):
        return False  # its loaded runtimes serve until it is known whether it stays
    elif restarting and restarts.unfit(worker) and not (set(serving) & set(loaded) and now.serves(worker, now_s)):
        restarts.done(worker)
        jobs.start(worker, mover.recycle(worker), target, settles=False)
    elif not serving and target is not None:
        _fill(now, worker, target, trouble, now_s)
    elif target in serving and target not in loaded:
        # It came back without its runtimes, or a load was lost: loading again takes nothing away.
        jobs.start(worker, mover.join(worker, target), target)
    elif target in serving and len(serving) > 1:
        jobs.start(worker, mover.finish(worker, target, [name for name in serving if name != target]), target)
    elif serving in ([], [target]) and set(loaded) - {target} and not restarting:
        jobs.start(worker, mover.tidy(worker, [name for name in loaded if name != target]), target)
    elif serving in ([], [target]) and not restarting:
        jobs.set_step(worker, "steady" if serving else "waiting")
    return True


def _fill(now: Situation, worker: str, target: str, trouble: Trouble | None, now_s: float) -> None:
    """Load the target on a worker that serves nothing; while it fails to come up, load the longest runtime."""
    kept = now.desired.longest()
    longest = target if target in kept else next(iter(kept), target)
    if trouble is not None and trouble.attempts > 1 and longest != target:
        emit(log, "stand_in", level=logging.WARNING, worker=worker, runtime=longest, error=trouble.error)
        trouble.again_s = now_s + REPLACE_BACKOFF_S[0]
        now.jobs.start(worker, now.mover.join(worker, longest), target, settles=False)
    else:
        now.jobs.start(worker, now.mover.join(worker, target), target)


async def _remove(now: Situation, worker: str) -> None:
    if now.deployments.instances.pop(worker, None) is not None:  # it died while it was leaving
        await now.deployments.ensure()
    await now.pool.remove(worker)
    now.desired.leaving.discard(worker)
    now.jobs.forget(worker)
    now.counters["workers_removed"] += 1
    emit(log, "worker_removed", worker=worker)


def replace(now: Situation, held: Set[str], now_s: float) -> None:
    """Start the next batch, if there is one; call it when none is running. `held`: workers that must stay."""
    placement, longest, control = now.desired.placement, now.desired.longest(), now.config.control
    instances, overlap = now.deployments.instances, now.overlap.allowed(now_s)
    # A worker that is down, or does not answer the gateway, carries nothing. (Of the latter, those already at their
    # target are left out; the others are moved, which takes nothing away.)
    up = [
        worker
        for worker in now.fleet.infos
        if now.fleet.ready(worker)
        and (placement.get(worker) not in instances.get(worker, ()) or now.serves(worker, now_s))
    ]
    current = {worker: instances[worker][0] if now.serves(worker, now_s) else None for worker in up}
    if _restart(now, current, held, now_s):
        return
    if not overlap:  # one worker at a time tries whether a runtime that failed to come up does now
        failing = {trouble.target for trouble in now.jobs.troubles.values() if now_s < trouble.again_s}
        held = held | {worker for worker in up if placement.get(worker) in failing - {current[worker]}}
    wanted = {worker: current[worker] if worker in held else placement.get(worker) for worker in up}
    # A worker that is held, or away, may be the one that will take over the longest runtime: wait for it.
    heirs = {worker for worker, name in placement.items() if name in longest}
    runtimes = [
        RuntimeView(name=r.name, max_length=r.max_length, capacity=capacity(r, now.config.model.slo_ms))
        for r in sorted(now.desired.runtimes.values(), key=lambda r: (r.max_length, r.name))
    ]
    step = next_step(
        current,
        {worker: name for worker, name in wanted.items() if name is not None},
        heirs=bool(heirs & held or heirs - set(up)),
        runtimes=runtimes,
        demand=now.desired.demand or [0.0] * len(runtimes),
        max_parallel=at_a_time(
            len(now.fleet.infos),
            overlap=overlap,
            urgent=now.desired.urgent,
            max_moving=control.max_moving,
            max_unavailable=control.max_unavailable,
        ),
        overlap=overlap,
    )
    for change in step.changes if step is not None else ():
        if change.worker in held or not instances.get(change.worker):
            continue  # a first runtime takes nothing away: a repair has started it
        assert step is not None
        job = now.mover.replace(change.worker, change.after, overlap=overlap, interrupts=step.interrupts)
        now.jobs.start(change.worker, job, placement.get(change.worker), replaces=True)


def _restart(now: Situation, current: Mapping[str, str | None], held: Set[str], now_s: float) -> bool:
    """Restart one serving worker; True when there is one."""
    placement, restarts = now.desired.placement, now.restarts
    for worker in sorted(restarts.pending - held):
        name = current.get(worker)
        there = name is not None and (placement.get(worker) == name or restarts.unfit(worker))
        if there and not now.irreplaceable(worker, now_s):
            restarts.done(worker)
            job = now.mover.recycle(worker, interrupts=len(now.fleet.infos) == 1)
            now.jobs.start(worker, job, placement.get(worker), replaces=True)
            return True
    return False


def cover(now: Situation, held: Set[str], now_s: float) -> None:
    """Begin or end the cover. `held`: workers that must stay as they are."""
    if now.cover.worker is not None:
        _end_cover_when_needless(now, now.cover.worker, now.cover.runtime)
        return
    kept = sorted(now.desired.longest())
    missing_s = {name: now.active.missing_s(name, now_s) for name in kept}
    going = {
        name
        for worker in now.restarts.pending
        if worker not in held and now.irreplaceable(worker, now_s)
        for name in now.alone_with(worker, now_s)
    }
    grace_s = now.config.dispatch.unavailable_grace_ms / 1000  # a request waits so long for an instance that fits it
    for name in kept:
        if name in going or missing_s[name] > COVER_AFTER * grace_s:
            _begin_cover(now, name, held, missing_s[name], now_s)
            return


def _end_cover_when_needless(now: Situation, covering: str, longest: str) -> None:
    others = any(
        name == longest
        and worker != covering
        and worker not in now.jobs.tasks
        and worker not in now.restarts.pending
        and now.active.has(worker, longest)
        for worker, name in now.desired.placement.items()
    )
    if not now.fleet.ready(covering) or others or now.desired.placement.get(covering) == longest:
        emit(log, "cover_ended", worker=covering, runtime=longest)
        now.cover.worker = None
        now.wake()


def _begin_cover(now: Situation, longest: str, held: Set[str], missing_s: float, now_s: float) -> None:
    pending = now.restarts.pending
    serving = {
        worker: names[0]
        for worker, names in now.deployments.instances.items()
        if worker not in held | now.desired.leaving | pending
        and longest not in names
        and now.active.has(worker, names[0])
    }
    loaded = next((worker for worker in serving if longest in now.fleet.loaded(worker)), None)
    worker = loaded or stand_in(serving, {name: runtime.max_length for name, runtime in now.desired.runtimes.items()})
    if worker is None:
        return
    emit(
        log,
        "cover_started",
        level=logging.WARNING,
        worker=worker,
        runtime=longest,
        missing_s=round(missing_s, 2),
        restarting=sorted(pending),
    )
    now.cover.worker, now.cover.runtime = worker, longest
    now.counters["covers"] += 1
    if now.overlap.allowed(now_s):
        now.jobs.start(worker, now.mover.stand_by(worker, longest), longest)
    else:
        now.jobs.start(worker, now.mover.replace(worker, longest, overlap=False), longest)
