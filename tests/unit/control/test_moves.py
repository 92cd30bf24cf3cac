"""One worker's move, its steps in order, and what is left when a step fails. In virtual time, see memory_cluster.py."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from arlo.control.mode import mode_of
from arlo.control.reconcile import moves
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.moves import Mover, NoRoomError
from arlo.control.reconcile.overlap import Overlap
from arlo.control.reconcile.restarts import Restarts
from arlo.errors import GatewayError, WorkerError
from tests.fakes import virtual_time
from tests.fakes.memory_cluster import MemoryAdmin, MemoryPool, World
from tests.fakes.placements import MANIFEST, configured


class Bench:
    """A mover over two workers, w0 with m_64 and w1 with m_512."""

    def __init__(self, *, engines: int = 2) -> None:
        self.world = World(random.Random(1), workers=2, longest="m_512", engines=engines, moves=False)
        self.counters: Counter[str] = Counter()
        config = configured("allocation = {64 = 1, 512 = 1}")
        self.deployments = Deployments(mode_of(config, MANIFEST), self.counters)
        self.deployments._admin = MemoryAdmin(self.world)  # type: ignore[assignment]
        self.deployments.always = {"m_512"}
        self.steps: list[str] = []
        self.probed: list[str] = []
        self.mover = Mover(
            config,
            MANIFEST,
            MemoryPool(self.world),
            self.deployments,
            self.counters,
            restarts=Restarts(),
            overlap=Overlap(wanted=True),
            set_step=lambda _, step: self.steps.append(step),
            probe=self._probe,
        )

    async def _probe(self, endpoint: str, *_: object, **__: object) -> None:
        self.probed.append(endpoint)

    async def up(self) -> None:
        self.deployments.endpoints = {worker: info.endpoint for worker, info in self.world.infos.items()}
        await self.mover.join("w0", "m_64")
        await self.mover.join("w1", "m_512")
        self.steps.clear()

    def serving(self) -> dict[str, list[str]]:
        return {worker: sorted(r for w, r in self.world.listed() if w == worker) for worker in self.world.infos}


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test in virtual time."""

    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(moves, "monotonic_s", virtual_time.now_s)
        virtual_time.run(test())

    run.__name__ = test.__name__
    return run


@virtual
async def test_break_before_make() -> None:
    bench = Bench(engines=1)
    await bench.up()
    await bench.mover.replace("w0", "m_128", overlap=False)
    assert bench.steps == ["draining", "unloading", "loading", "warming", "joining", "steady"]
    assert bench.serving() == {"w0": ["m_128"], "w1": ["m_512"]}
    assert bench.world.infos["w0"].runtimes == ("m_128",)
    assert bench.counters["replacements"] == 1
    assert not bench.world.broken


@virtual
async def test_make_before_break() -> None:
    bench = Bench()
    await bench.up()
    await bench.mover.replace("w0", "m_128", overlap=True)
    assert bench.steps[:4] == ["loading", "warming", "joining", "draining"]
    assert bench.serving() == {"w0": ["m_128"], "w1": ["m_512"]}
    assert bench.world.infos["w0"].runtimes == ("m_128",)
    assert not bench.world.broken


@virtual
async def test_without_room_the_old_one_serves_on() -> None:
    bench = Bench(engines=1)
    await bench.up()
    with pytest.raises(NoRoomError, match="out of memory"):
        await bench.mover.replace("w0", "m_128", overlap=True)
    assert bench.serving() == {"w0": ["m_64"], "w1": ["m_512"]}
    with pytest.raises(NoRoomError):
        await bench.mover.stand_by("w0", "m_512")
    assert bench.counters["load_failures"] == 2


@virtual
async def test_the_old_one_is_put_back() -> None:
    bench = Bench()
    await bench.up()
    bench.world.bad = {"m_128"}
    with pytest.raises(WorkerError, match="m_128 is broken"):
        await bench.mover.replace("w0", "m_128", overlap=False)
    assert bench.serving() == {"w0": ["m_64"], "w1": ["m_512"]}
    assert bench.world.infos["w0"].runtimes == ("m_64",)
    assert (bench.counters["load_failures"], bench.counters["replacements"]) == (1, 0)


@virtual
async def test_the_last_of_the_longest_stays() -> None:
    bench = Bench()
    await bench.up()
    with pytest.raises(WorkerError, match="w1 stays: by now no other one serves the longest requests"):
        await bench.mover.replace("w1", "m_64", overlap=False)
    with pytest.raises(WorkerError, match="w1 stays"):
        await bench.mover.recycle("w1")
    assert bench.serving() == {"w0": ["m_64"], "w1": ["m_512"]}
    await bench.mover.stand_by("w0", "m_512")
    assert bench.serving() == {"w0": ["m_512", "m_64"], "w1": ["m_512"]}
    await bench.mover.recycle("w1")
    assert bench.world.infos["w1"].restarts == 1
    await bench.mover.finish("w0", "m_64", ["m_512"])
    assert bench.serving() == {"w0": ["m_64"], "w1": ["m_512"]}
    assert not bench.world.broken
    await bench.mover.take_down("w1", ["m_512"], interrupts=True)  # where there is no other way
    assert bench.serving() == {"w0": ["m_64"], "w1": []}


@virtual
async def test_a_worker_that_goes_elsewhere_meanwhile() -> None:
    bench = Bench()
    await bench.up()
    bench.world.change("w0", endpoint="h:99")
    with pytest.raises(WorkerError, match="w0 went to h:99 while m_128 was being loaded"):
        await bench.mover.replace("w0", "m_128", overlap=True)
    del bench.world.infos["w0"]
    with pytest.raises(WorkerError, match="w0 is gone"):
        await bench.mover.join("w0", "m_64")


@virtual
async def test_the_gateway_does_not_find_it() -> None:
    bench = Bench()
    await bench.up()
    bench.world.hangs.add("w0")
    with pytest.raises(GatewayError, match=r"does not find these instances ready: w0\.m_64"):
        await bench.deployments.until_active([("w0", "m_64")])
    bench.world.draining[("w1", "m_512")] = bench.world.now_s + 100
    bench.world.deployment.Clear()
    with pytest.raises(GatewayError, match=r"still answer requests after 2 s: w1\.m_512"):
        await bench.deployments.until_gone([("w1", "m_512")], timeout_s=2)


@virtual
async def test_deployments_list_what_can_be_reached() -> None:
    bench = Bench()
    await bench.up()
    applied = bench.counters["deployments_applied"]
    await asyncio.gather(*(bench.deployments.ensure() for _ in range(5)))
    assert bench.counters["deployments_applied"] == applied, "nothing to change"
    assert await bench.deployments.adopt() == {"w0": ["m_64"], "w1": ["m_512"]}
    bench.deployments.endpoints["w1"] = "elsewhere:1"
    assert await bench.deployments.adopt() == {"w0": ["m_64"]}
    bench.deployments.endpoints["w1"] = ""  # being placed: it has none
    await bench.deployments.ensure()
    assert bench.serving() == {"w0": ["m_64"], "w1": []}
    assert {runtime.name for runtime in bench.world.deployment.runtimes} == {"m_64", "m_512"}, "it is still waited for"
