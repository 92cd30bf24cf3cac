"""How many instances a device holds: threads side by side, and when no more are tried."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from arlo.errors import WorkerError
from arlo.profiler import Colocation, ProfileOptions, colocate
from arlo.profiler import colocation as module
from tests.fakes.placements import MANIFEST


def test_fit_is_the_last_number_before_one_that_is_too_slow() -> None:
    def fit(*mean_us: float) -> int:
        return Colocation(runtime="r", mean_us=mean_us, ended="").fit

    assert fit(100) == 1
    assert fit(100, 109.9, 109) == 3
    assert fit(100, 110) == 1, "less than 10 %"
    assert fit(100, 105, 120, 101) == 2


def test_calls_that_share_a_device_wait_for_each_other() -> None:
    device, stop = threading.Lock(), threading.Event()

    def call() -> None:
        with device:
            time.sleep(0.01)

    def alone() -> None:
        time.sleep(0.01)

    shared_us = module.side_by_side([call] * 3, 0.5, stop)
    assert shared_us > 1.5 * module.side_by_side([alone] * 3, 0.5, stop)


def test_the_first_error_is_raised_and_nobody_waits() -> None:
    def broken() -> None:
        raise WorkerError("away")

    for calls in ([broken, lambda: None], [lambda: None, broken, lambda: time.sleep(0.001)]):
        with pytest.raises(WorkerError, match="away"):
            module.side_by_side(calls, 60.0, threading.Event())


class Pool:
    """Of which so many workers start."""

    def __init__(self, most: int = 10) -> None:
        self.count, self.most, self.loaded = 1, most, list[tuple[str, str]]()

    async def workers(self) -> list[Any]:
        return [self._info(0)]

    async def add(self) -> Any:
        if self.count == self.most:
            raise WorkerError("out of memory")
        self.count += 1
        return self._info(self.count - 1)

    async def load(self, worker: str, runtime: str, *, timeout_s: float) -> None:
        self.loaded.append((worker, runtime))

    @staticmethod
    def _info(number: int) -> Any:
        return SimpleNamespace(id=f"w{number}", endpoint="127.0.0.1:1", runtimes=())


@pytest.mark.parametrize(
    ("most", "start", "says"),
    [
        (8, 10, (3, 4, "4 take 30% longer")),
        (2, 10, (2, 2, "no more than 2 were tried")),
        (8, 2, (2, 2, "one more than 2 does not run: out of memory")),
    ],
)
async def test_one_more_at_a_time(
    monkeypatch: pytest.MonkeyPatch, most: int, start: int, says: tuple[int, int, str]
) -> None:
    times = {1: 100.0, 2: 101.0, 3: 109.0, 4: 130.0}
    monkeypatch.setattr(module, "side_by_side", lambda calls, *_: times[len(calls)])
    pool, runtime = Pool(start), MANIFEST.runtimes[-1]
    found = await colocate(pool, MANIFEST, runtime, most, options=ProfileOptions())  # type: ignore[arg-type]
    assert (found.fit, len(found.mean_us), found.ended) == says
    assert len(pool.loaded) == (says[1] if start >= says[1] else start)
    assert {name for _, name in pool.loaded} == {runtime.name}
