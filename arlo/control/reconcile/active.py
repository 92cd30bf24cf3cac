"""Tracks which instances are in service, by the gateway's statistics: the pool learns late that a worker hangs; the
gateway, which sends to it, learns sooner. No I/O, one event loop."""

from __future__ import annotations

from typing import Any

from arlo import proto

STALE_S = 2.0  # statistics unchanged for this long say nothing about the present


class ActiveInstances:
    """The instances that the gateway sends to, from the newest arlo.v1.Stats."""

    def __init__(self) -> None:
        self._last: Any = None
        self._fresh_s = 0.0
        self._active: frozenset[tuple[str, str]] = frozenset()
        self._missing: dict[str, float] = {}  # runtime -> the moment since which none of its instances has been active

    def see(self, stats: Any, now_s: float) -> None:
        """Take the newest statistics: the same object again if there are no newer ones, None before the first ones."""
        if stats is None or stats is self._last:
            return
        self._last, self._fresh_s = stats, now_s
        active = proto.message("InstanceStats").State.Value("STATE_ACTIVE")
        self._active = frozenset((item.worker, item.runtime) for item in stats.instances if item.state == active)

    def known(self, now_s: float) -> bool:
        """Whether the gateway's statistics are fresh."""
        return self._last is not None and now_s - self._fresh_s < STALE_S

    def has(self, worker: str, runtime: str) -> bool:
        """Whether the gateway sent to this instance at the last report."""
        return (worker, runtime) in self._active

    def missing_s(self, runtime: str, now_s: float) -> float:
        """Seconds for which no instance of a runtime has been active; 0 while the statistics are stale."""
        if not self.known(now_s) or any(name == runtime for _, name in self._active):
            self._missing.pop(runtime, None)
            return 0.0
        return now_s - self._missing.setdefault(runtime, now_s)

    def answers(self, worker: str, runtime: str, now_s: float) -> bool:
        """Whether a serving instance answers, as far as the gateway's statistics show."""
        return not self.known(now_s) or self.has(worker, runtime)
