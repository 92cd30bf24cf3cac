"""A steady open-loop load on a gateway, by arlo-loadgen and without retries, and what came of every request."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import AsyncIterator

import numpy as np

from arlo.client import AsyncClient
from arlo.clock import monotonic_s
from arlo.replay import Progress, ReplayOptions, ReplayResult, run_replay
from arlo.traces import Trace
from tests.fakes.processes import until

LONGEST_S = 240.0
CHECKED_EVERY = 5  # answers whose content is compared


@dataclasses.dataclass
class SteadyLoad:
    """The load while it runs (`answered`), and its outcome after the block (`result`)."""

    answered: int = 0
    not_ok: int = 0
    in_flight: int = 0
    result: ReplayResult | None = None

    def see(self, progress: Progress) -> None:
        self.answered = progress.outcomes.get("on_time", 0) + progress.outcomes.get("late", 0)
        self.not_ok = sum(progress.outcomes.values()) - self.answered
        self.in_flight = progress.in_flight

    async def more(self, count: int) -> None:
        """Wait until `count` further requests have been answered."""
        goal = self.answered + count
        await until(lambda: self.answered >= goal, f"{count} more answers, have {self.answered}", timeout_s=60)

    async def caught_up(self) -> None:
        """Wait until no backlog is left: what is when the load ends is cancelled."""
        await until(lambda: self.in_flight < 20, f"a backlog of {self.in_flight} to go", timeout_s=60)

    @property
    def failures(self) -> Counter[str]:
        """What was said to the requests that were not answered."""
        assert self.result is not None
        bad = self.result.records[self.result.records["code"] != 0]
        found: Counter[str] = Counter()
        for code, error in zip(bad["code"], bad["error"], strict=True):
            found[f"{code}: {self.result.messages.get(int(error), '')}"] += 1
        return found

    @property
    def failed_at_s(self) -> list[float]:
        """When, seconds from the start of the load, the failed requests had been scheduled."""
        assert self.result is not None
        bad = self.result.records[self.result.records["code"] != 0]
        return [round(float(at) / 1e6, 2) for at in bad["scheduled_us"]]

    def check(self, *, lengths: int | None = None) -> None:
        """Every request was answered, once, and rightly."""
        result = self.result
        assert result is not None
        assert result.summary.requests > 0
        assert not self.failures, f"{self.failures} scheduled at {self.failed_at_s[:20]} s"
        assert len(np.unique(result.records["index"])) == len(result.records) == result.summary.requests
        assert not result.summary.undrained
        checked = 0
        for index, outputs in result.responses.items():
            ids = result.rows.of(index).ids
            assert outputs["embedding"].reshape(-1)[0] == np.float32(sum(ids)), index
            checked += 1
        assert checked >= result.summary.requests // (2 * CHECKED_EVERY)


@contextlib.asynccontextmanager
async def steady_load(
    endpoint: str, *, rate: float = 100.0, lengths: tuple[int, int] = (1, 64), timeout_ms: float = 40_000, seed: int = 1
) -> AsyncIterator[SteadyLoad]:
    """Poisson arrivals of lengths from..to, evenly, until the block ends; then `result` is there."""
    rng = np.random.default_rng(seed)
    count = round(rate * LONGEST_S)
    trace = Trace(
        arrived_at_s=np.cumsum(rng.exponential(1 / rate, count)),
        length=rng.integers(lengths[0], lengths[1] + 1, count).astype(np.int32),
    )
    # A gateway that has just been restarted has the deployment before it has found the workers ready.
    async with AsyncClient(endpoint) as client:
        await until(client.ready, f"a model that is ready at {endpoint}", timeout_s=60)
    load, stop = SteadyLoad(), threading.Event()
    options = ReplayOptions(
        endpoint=endpoint, slo_ms=500, timeout_ms=timeout_ms, seed=seed, keep_responses=CHECKED_EVERY, vocabulary=1000
    )
    job = asyncio.create_task(asyncio.to_thread(run_replay, trace, options, on_progress=load.see, stop=stop))
    try:
        started_s = monotonic_s()
        while not load.answered:
            if job.done():
                job.result()
            assert monotonic_s() - started_s < 60, "no request was answered"
            await asyncio.sleep(0.05)
        yield load
        with contextlib.suppress(AssertionError):  # `check` says what was left
            await load.caught_up()
    finally:
        stop.set()
        load.result = await job
