"""Whether the longest runtime, which alone serves every request, is in service: asked of the gateway's statistics.

The pool learns late that a worker hangs; the gateway, which sends to it, learns sooner. No I/O, one event loop.
"""

from __future__ import annotations

from typing import Any

from arlo import proto

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
