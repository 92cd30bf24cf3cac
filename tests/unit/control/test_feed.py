"""One stream of statistics for each model, and watchers that are called with the newest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from arlo import proto
from arlo.control.watch import feed as module
from arlo.control.watch.feed import Snapshot, StatsFeed
from arlo.errors import GatewayError
from tests.fakes.processes import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTEN_S", 0.01)


class Admin:
    """A gateway that tells of a model when it is asked to, and goes away after each word."""

    def __init__(self) -> None:
        self.queues: dict[str | None, asyncio.Queue[int]] = {name: asyncio.Queue() for name in (None, "two", "whole")}

    async def watch_stats(self, *, interval_ms: int, model: str | None) -> AsyncIterator[Any]:
        yield proto.message("Stats")(model=model or "one", uptime_ns=await self.queues[model].get())
        raise GatewayError("away")


class Watch:
    def __init__(self) -> None:
        self.seen: list[tuple[list[int], int | None]] = []
        self.fails: list[Exception] = []

    async def on_stats(self, seen: Snapshot) -> None:
        whole = None if seen.whole is None else seen.whole.uptime_ns
        self.seen.append(([each.uptime_ns for each in seen.models], whole))
        if self.fails:
            raise self.fails.pop()


async def test_watchers_get_the_newest_of_all_models() -> None:
    admin, feed, watch, told = Admin(), StatsFeed(["two"], "whole"), Watch(), []

    async def see(stats: Any, model: str | None) -> None:
        told.append((model, stats.uptime_ns))

    tasks = [asyncio.create_task(feed.run(lambda: admin, see)), asyncio.create_task(feed.follow(watch.on_stats))]  # type: ignore[arg-type,return-value]
    with contextlib.ExitStack() as stack:
        for task in tasks:
            stack.callback(task.cancel)
        await asyncio.sleep(0)
        admin.queues[None].put_nowait(1)
        await until(lambda: told == [(None, 1)], "the first has told")
        assert feed.snapshot is None
        assert watch.seen == [], "the second has not told"
        watch.fails = [GatewayError("refused")]
        admin.queues["two"].put_nowait(2)
        await until(lambda: watch.seen == [([1, 2], None)], "both have told")
        admin.queues["whole"].put_nowait(3)
        await until(lambda: watch.seen[1:] == [([1, 2], 3)], "called again, after a call that failed with the gateway")
        assert feed.first.uptime_ns == 1
        watch.fails = [ValueError("a fault of ours")]
        admin.queues[None].put_nowait(4)
        await until(tasks[1].done, "for its caller to start again")
    assert isinstance(tasks[1].exception(), ValueError)
