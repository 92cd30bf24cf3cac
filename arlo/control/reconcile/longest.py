"""Guards the longest runtime more closely than others, as some requests fit no other; where several models have
separate workers, it guards each model's runtime. One event loop.

While the gateway finds none of its instances healthy, or the last one is about to be restarted, another worker serves
it in addition to its usual runtime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set

from arlo.control.reconcile.cover import Cover
from arlo.control.reconcile.moves import Mover
from arlo.control.reconcile.overlap import Overlap
from arlo.control.reconcile.situation import Situation
from arlo.planning.placement.replacement import COVER_AFTER


class LongestRuntime:
    """See the module. `grace_s`: how long a request waits for an instance that fits it. `wake`: look again now."""

    def __init__(
        self,
        situation: Situation,
        mover: Mover,
        overlap: Overlap,
        cover: Cover,
        counters: Counter[str],
        *,
        grace_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._situation = situation
        self._mover = mover
        self._overlap = overlap
        self._cover = cover
        self._counters = counters
        self._grace_s = grace_s
        self._wake = wake

    def look_after(self, held: Set[str], now_s: float) -> None:
        """Begin or end the cover. `held`: workers that must stay as they are."""
        situation = self._situation
        kept = sorted(situation.desired.longest())
        missing_s = {name: situation.active.missing_s(name, now_s) for name in kept}
        if self._cover.worker is not None:
            self._end_when_needless(self._cover.worker, self._cover.runtime)
            return
        going = {
            name
            for worker in situation.restarts.pending
            if worker not in held and situation.irreplaceable(worker, now_s)
            for name in situation.alone_with(worker, now_s)
        }
        for name in kept:
            if name in going or missing_s[name] > COVER_AFTER * self._grace_s:
                self._begin(name, held, missing_s[name], now_s)
                return

    def _end_when_needless(self, covering: str, longest: str) -> None:
        situation = self._situation
        others = any(
            name == longest
            and worker != covering
            and worker not in situation.jobs.tasks
            and worker not in situation.restarts.pending
            and situation.active.has(worker, longest)
            for worker, name in situation.desired.placement.items()
        )
        if not situation.fleet.ready(covering) or others or situation.desired.placement.get(covering) == longest:
            self._cover.end()
            self._wake()

    def _begin(self, longest: str, held: Set[str], missing_s: float, now_s: float) -> None:
        situation, pending = self._situation, self._situation.restarts.pending
        serving = {
            worker: names[0]
            for worker, names in situation.deployments.instances.items()
            if worker not in held | situation.desired.leaving | pending
            and longest not in names
            and situation.active.has(worker, names[0])
        }
        worker = self._cover.choose(longest, serving, lambda worker: longest in situation.fleet.loaded(worker))
        if worker is None:
            return
        self._cover.begin(worker, longest, missing_s=missing_s, restarting=sorted(pending))
        self._counters["covers"] += 1
        if self._overlap.allowed(now_s):
            situation.jobs.start(worker, self._mover.stand_by(worker, longest), longest)
        else:
            situation.jobs.start(worker, self._mover.replace(worker, longest, overlap=False), longest)
