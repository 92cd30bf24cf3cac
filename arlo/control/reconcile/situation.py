"""The desired state and the known state, which the steps of a pass compare. No I/O, no clock."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from arlo.catalog.manifest import Runtime
from arlo.config import Config
from arlo.control.reconcile.active import ActiveInstances
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.fleet import Fleet
from arlo.control.reconcile.jobs import Jobs
from arlo.control.reconcile.moves import Mover
from arlo.control.reconcile.overlap import Overlap
from arlo.control.reconcile.restarts import Restarts
from arlo.workers.pool import WorkerPool


@dataclasses.dataclass(slots=True)
class Desired:
    """The state that the last plan wants."""

    runtimes: Mapping[str, Runtime]  # all runtimes, by name
    placement: dict[str, str] = dataclasses.field(default_factory=dict)  # worker -> runtime
    demand: Sequence[float] = ()  # by ascending max_length of all runtimes; orders the steps
    urgent: bool = False  # all workers may be moved at a time, as long as each keeps serving
    leaving: set[str] = dataclasses.field(default_factory=set)  # workers that are to go
    by_model: bool = False  # each of several models has only one runtime

    def longest(self) -> set[str]:
        """The longest wanted runtime, if any; with one runtime per model, each of them. These are always kept."""
        placed = [self.runtimes[name] for name in self.placement.values()]
        if self.by_model:
            return {runtime.name for runtime in placed}
        return {max(placed, key=lambda runtime: runtime.max_length).name} if placed else set()


@dataclasses.dataclass(slots=True)
class Cover:
    """The worker that also, or instead, serves the longest runtime while that runtime's usual workers cannot."""

    worker: str | None = None
    runtime: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """See the module; and what a step works with."""

    config: Config
    pool: WorkerPool
    desired: Desired
    fleet: Fleet  # the workers, as the pool sees them
    deployments: Deployments  # the gateway's deployment
    active: ActiveInstances  # the instances that the gateway sends to
    restarts: Restarts
    overlap: Overlap
    jobs: Jobs
    mover: Mover
    counters: Counter[str]
    wake: Callable[[], None]  # runs another pass now
    cover: Cover = dataclasses.field(default_factory=Cover)

    def serves(self, worker: str, now_s: float) -> bool:
        """Whether the gateway sends to the first instance of a worker, as far as its statistics show."""
        return any(self.active.answers(worker, n, now_s) for n in self.deployments.instances.get(worker, [])[:1])

    def irreplaceable(self, worker: str, now_s: float) -> bool:
        """Whether it is the only one of several workers that can serve some requests."""
        up = [other for other in self.fleet.infos if other != worker and self.fleet.ready(other)]
        return bool(up) and bool(self.alone_with(worker, now_s))

    def alone_with(self, worker: str, now_s: float) -> set[str]:
        """The always-kept runtimes that this worker serves and no other does."""
        kept = self.desired.longest() & set(self.deployments.instances.get(worker, ()))
        elsewhere = {
            name
            for other, names in self.deployments.instances.items()
            if other != worker and other not in self.jobs.tasks and self.fleet.ready(other)
            for name in names
            if self.active.answers(other, name, now_s)
        }
        return kept - elsewhere
