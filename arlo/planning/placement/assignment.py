"""Assigns runtimes to workers: an allocation laid over the present workers, with the fewest changes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from arlo.planning.view import WorkerView


def assign(allocation: Mapping[str, int], workers: Sequence[WorkerView]) -> dict[str, str]:
    """Worker id -> runtime name, with the fewest workers whose runtime changes. Deterministic.

    `allocation`: instances per runtime, by ascending max_length. Workers that are missing from the answer are idle: the
    unusable ones, and those left when there are more workers than instances.
    A worker that becomes idle also counts as changed, so a worker that has to give up its runtime anyway is used
    before one that is idle already.

    Among placements with equally few changes, first as many workers as possible get a runtime that they have loaded;
    then the changing workers are the least busy of their runtime, and the longest runtimes go to the workers that
    cost nothing (idle ones), then to the least busy; ties by the order of `workers`.

    With fewer usable workers than instances: see `shrink`.
    """
    usable = [worker for worker in workers if worker.usable]
    wanted = shrink(allocation, len(usable))
    serving = Counter(worker.serving for worker in usable if worker.serving is not None)
    gains = {name: count - min(count, serving[name]) for name, count in wanted.items()}
    gains = {name: count for name, count in gains.items() if count}
    # The number of changing workers per group; None is the group of idle ones, used only when the others run out.
    releases: dict[str | None, int] = {name: count - min(count, wanted.get(name, 0)) for name, count in serving.items()}
    releases[None] = max(0, sum(gains.values()) - sum(releases.values()))

    by_cost = sorted(usable, key=lambda worker: (worker.serving is not None, worker.busy))
    movers = _Movers(by_cost, gains, releases)
    movers.use_loaded()
    movers.use_any()
    left = {name: count - movers.released(name) for name, count in releases.items()}
    for worker in by_cost:  # those that become idle
        if worker.id not in movers.given and worker.serving is not None and left[worker.serving] > 0:
            left[worker.serving] -= 1
            movers.idle.add(worker.id)
    placement = {}
    for worker in usable:
        runtime = movers.given.get(worker.id, None if worker.id in movers.idle else worker.serving)
        if runtime is not None:
            placement[worker.id] = runtime
    return placement


def shrink(allocation: Mapping[str, int], workers: int) -> dict[str, int]:
    """The allocation, cut down if there are fewer workers than instances. Ascending max_length as given.

    The longest runtime comes first, with one instance: it can serve every request. Each further worker goes to the
    runtime with the smallest part of its wanted share (Webster's method: the largest wanted / (2 given + 1)), which
    keeps the shares; ties go to the longer one.
    """
    wanted = {name: count for name, count in allocation.items() if count}
    if sum(wanted.values()) <= workers:
        return wanted
    given = dict.fromkeys(wanted, 0)
    order = list(reversed(wanted))
    for turn in range(workers):
        open_ = [name for name in order if given[name] < wanted[name]]
        best = order[0] if turn == 0 else max(open_, key=lambda name: wanted[name] / (2 * given[name] + 1))
        given[best] += 1
    return {name: count for name, count in given.items() if count}


def changed(current: Mapping[str, str | None], desired: Mapping[str, str]) -> tuple[str, ...]:
    """Ids of the workers whose runtime differs; a worker missing from either mapping is idle there."""
    workers: Iterable[str] = dict.fromkeys([*current, *desired])
    return tuple(worker for worker in workers if current.get(worker) != desired.get(worker))


class _Movers:
    """Chooses the workers that change and their new runtimes, within the number that each group gives up.

    `workers` in the order in which they are taken, `gains` instances to fill per runtime, `releases` workers to take
    per group (their present runtime).
    """

    def __init__(
        self, workers: Sequence[WorkerView], gains: dict[str, int], releases: Mapping[str | None, int]
    ) -> None:
        self.given: dict[str, str] = {}  # worker -> runtime
        self.idle: set[str] = set()  # workers that lose their runtime and get none
        self._workers = workers
        self._gains = gains
        self._releases = releases
        self._group = {worker.id: worker.serving for worker in workers}
        self._filled: Counter[str] = Counter()
        self._taken: Counter[str | None] = Counter()
        # Only workers of a group that releases some; such a group gains none, so none is offered its present runtime.
        self._candidates = {
            name: [worker.id for worker in workers if name in worker.loaded and releases.get(worker.serving, 0)]
            for name in gains
        }

    def released(self, group: str | None) -> int:
        """Workers of a group that were taken."""
        return self._taken[group]

    def use_loaded(self) -> None:
        """Give runtimes to as many workers as possible that have them loaded."""
        for name in reversed(self._gains):  # the longest first
            while self._filled[name] < self._gains[name] and self._augment(name, {name}, set()):
                self._filled[name] += 1

    def use_any(self) -> None:
        """Fill the rest, the longest runtime first, with workers in order."""
        free = (
            worker.id
            for worker in self._workers
            if worker.id not in self.given and self._taken[worker.serving] < self._releases.get(worker.serving, 0)
        )
        for name in reversed(self._gains):
            while self._filled[name] < self._gains[name]:
                self._give(next(free), name)
                self._filled[name] += 1

    def _give(self, worker: str, runtime: str) -> None:
        if worker not in self.given:
            self._taken[self._group[worker]] += 1
        self.given[worker] = runtime

    def _augment(self, name: str, runtimes: set[str], groups: set[str | None]) -> bool:
        """Add a worker for `name`, by an augmenting path that visits each runtime and each full group once."""
        for worker in self._candidates[name]:
            group = self._group[worker]
            if worker not in self.given and self._taken[group] < self._releases[group]:
                self._give(worker, name)
                return True
        for worker in self._candidates[name]:
            # Its place or, if its group gives no more, a group member's place: that member then needs another runtime.
            if worker in self.given:
                holders = [worker]
            elif self._group[worker] not in groups:
                groups.add(self._group[worker])
                holders = [other for other in self.given if self._group[other] == self._group[worker]]
            else:
                continue
            for holder in holders:
                robbed = self.given[holder]
                if robbed not in runtimes:
                    runtimes.add(robbed)
                    if self._augment(robbed, runtimes, groups):
                        del self.given[holder]
                        self.given[worker] = name
                        return True
        return False
