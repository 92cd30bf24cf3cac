"""The gateway's statistics: one stream for each model, read only here, and watchers that are called with them.
One event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from arlo.errors import GatewayError
from arlo.planning.traffic.shift import SAMPLE_S

if TYPE_CHECKING:
    from arlo.control.gateway.admin import AdminClient

LISTEN_S = 1.0  # between two calls of a watcher


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest arlo.v1.Stats."""

    models: tuple[Any, ...]  # one for each model on the workers, in the order of the configuration
    whole: Any = None  # of the cascade or pipeline that they form; None: there is none, or it has not reported yet


# Looks at statistics, and acts; not called again before it has returned. A GatewayError is no fault: it is called again
# with the next ones.
Watcher = Callable[[Snapshot], Awaitable[None]]


class StatsFeed:
    """Life: run() until it is cancelled, and follow() for each watcher."""

    def __init__(self, further: Sequence[str | None], whole: str | None) -> None:
        """`further`: names of the models after the first; `whole`: name of the cascade or pipeline that they form."""
        self._models = (None, *further)
        self._whole = whole
        self._newest: dict[str | None, Any] = {}
        self._came, self._count = asyncio.Condition(), 0

    @property
    def first(self) -> Any:
        """The last arlo.v1.Stats of the first model; None before its first report."""
        return self._newest.get(None)

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest statistics; None before all models have reported."""
        models = tuple(self._newest.get(name) for name in self._models)
        return None if None in models else Snapshot(models, self._newest.get(self._whole) if self._whole else None)

    def put(self, stats: Any, model: str | None = None) -> None:
        """Store an arlo.v1.Stats of a model, by default the first."""
        self._newest[model] = stats

    async def run(self, admin: Callable[[], AdminClient], see: Callable[[Any, str | None], Awaitable[None]]) -> None:
        """Read until cancelled. `see` is called with each arlo.v1.Stats and the name of its model."""
        async with asyncio.TaskGroup() as group:
            for name in (*self._models, *([self._whole] if self._whole else [])):
                group.create_task(self._read(name, admin, see))

    async def _read(
        self, name: str | None, admin: Callable[[], AdminClient], see: Callable[[Any, str | None], Awaitable[None]]
    ) -> None:
        while True:
            try:
                async for stats in admin().watch_stats(interval_ms=round(SAMPLE_S * 1000), model=name):
                    self.put(stats, name)
                    await see(stats, name)
                    async with self._came:
                        self._count += 1
                        self._came.notify_all()
            except GatewayError:
                pass  # it is restarting; the restart is logged elsewhere
            await asyncio.sleep(LISTEN_S)

    async def follow(self, watcher: Watcher) -> None:
        """Call a watcher with the newest statistics, at most once a second, until cancelled."""
        before = 0
        while True:
            async with self._came:
                while self._count == before:
                    await self._came.wait()
                before = self._count
            if (seen := self.snapshot) is not None:
                with contextlib.suppress(GatewayError):
                    await watcher(seen)
            await asyncio.sleep(LISTEN_S)
