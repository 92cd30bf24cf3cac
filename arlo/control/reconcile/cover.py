"""Whether the longest runtime, which alone serves every request, is in service, and who serves it meanwhile.

That is asked of the gateway's statistics: the pool learns late that a worker hangs, the gateway, which sends to it,
learns sooner. No I/O, one event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from arlo import proto
from arlo.catalog.manifest import Runtime
from arlo.control.events import emit
from arlo.planning.placement.replacement import stand_in

log = logging.getLogger("arlo.control")

STALE_S = 2.0  # statistics that stay the same for so long say nothing of now


class ActiveInstances:
    """Which instances the gateway sends to, from the newest arlo.v1.Stats."""

    def __init__(self) -> None:
        self._last: Any = None
        self._fresh_s = 0.0
        self._active: frozenset[tuple[str, str]] = frozenset()
        self._missing: dict[str, float] = {}  # runtime -> since when none of its instances has been active

    def see(self, stats: Any, now_s: float) -> None:
        """The newest statistics, the same object again where none came since; None where there never were any."""
        if stats is None or stats is self._last:
            return
        self._last, self._fresh_s = stats, now_s
        active = proto.message("InstanceStats").State.Value("STATE_ACTIVE")
        self._active = frozenset((item.worker, item.runtime) for item in stats.instances if item.state == active)

    def known(self, now_s: float) -> bool:
        """Whether the gateway tells."""
        return self._last is not None and now_s - self._fresh_s < STALE_S

    def has(self, worker: str, runtime: str) -> bool:
        """Whether the gateway sent to this instance when it told last."""
        return (worker, runtime) in self._active

    def missing_s(self, runtime: str, now_s: float) -> float:
        """For how long no instance of a runtime has been active; 0 while the gateway does not tell."""
        if not self.known(now_s) or any(name == runtime for _, name in self._active):
            self._missing.pop(runtime, None)
            return 0.0
        return now_s - self._missing.setdefault(runtime, now_s)

    def answers(self, worker: str, runtime: str, now_s: float) -> bool:
        """Whether an instance that is to serve does, as far as the gateway tells."""
        return not self.known(now_s) or self.has(worker, runtime)


class Cover:
    """Another worker that serves the longest runtime beside its own, or instead of it, while its own ones cannot."""

    def __init__(self, runtimes: Iterable[Runtime]) -> None:
        self._lengths = {runtime.name: runtime.max_length for runtime in runtimes}
        self.worker: str | None = None
        self.runtime = ""  # that it serves beside its own, or instead

    def choose(self, longest: str, serving: Mapping[str, str], has_loaded: Callable[[str], bool]) -> str | None:
        """The worker to take of those that serve (worker -> runtime) something else; None where there is none."""
        ready = next((worker for worker in serving if has_loaded(worker)), None)
        return ready if ready is not None else stand_in(serving, self._lengths)

    def begin(self, worker: str, longest: str, *, missing_s: float, restarting: list[str]) -> None:
        """It is this worker."""
        emit(
            log,
            "cover_started",
            level=logging.WARNING,
            worker=worker,
            runtime=longest,
            missing_s=round(missing_s, 2),
            restarting=restarting,
        )
        self.worker, self.runtime = worker, longest

    def end(self) -> None:
        """The runtime has an instance of its own again."""
        emit(log, "cover_ended", worker=self.worker, runtime=self.runtime)
        self.worker = None

    def give_up(self, worker: str) -> None:
        """It did not come up on this worker."""
        if self.worker == worker:
            self.worker = None
