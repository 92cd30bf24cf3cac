"""The reconciler in a world in memory and virtual time: whatever fails and whenever it is killed, it converges, and at
no moment is a request lost by what it does. See tests/fakes/memory_cluster.py for the rules."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter

import pytest

from arlo.control.mode import mode_of
from arlo.control.reconcile import fleet, jobs, moves, reconciler
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.overlap import AGAIN_S
from arlo.control.reconcile.probation import LONGEST_S
from arlo.control.reconcile.reconciler import Reconciler
from arlo.errors import ArloError, WorkerError
from arlo.planning.placement.assignment import assign
from tests.fakes import virtual_time
from tests.fakes.memory_cluster import MemoryAdmin, MemoryPool, World
from tests.fakes.placements import MANIFEST, configured

RUNTIMES = ("m_64", "m_128", "m_512")
LONGEST = "m_512"
SCENARIOS = int(os.environ.get("ARLO_SCENARIOS", "300"))


@pytest.fixture(autouse=True)
def _virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reconciler, moves, jobs, fleet):
        monkeypatch.setattr(module, "monotonic_s", virtual_time.now_s)


class Plane:
    """A control plane's reconciler, which can be killed and started again on the same world."""

    def __init__(self, world: World, *, overlap: bool) -> None:
        self.world = world
        config = configured("allocation = {512 = 1}", f"[control]\nmake_before_break = {str(overlap).lower()}")
        self.mode = mode_of(config, MANIFEST)
        self.saved: dict[str, str] = {}  # the desired state, which survives
        self.counters: Counter[str] = Counter()
        self._run: asyncio.Task[None] | None = None

    async def probe(self, endpoint: str, manifest: object, runtime: object, **_: object) -> None:
        await self.world.point()
        info = next((info for info in self.world.infos.values() if info.endpoint == endpoint), None)
        if info is None or not self.world.answers((info.id, runtime.name)):  # type: ignore[attr-defined]
            await asyncio.sleep(1)
            raise WorkerError("it does not answer")

    async def start(self) -> None:
        """As Cluster.start(); tried again until it works."""
        for attempt in range(200):
            assert attempt < 199, "it does not start"
            world = self.world
            if attempt == 20:
                world.bad = set()  # where nothing comes up at all, somebody looks into it
            world.died.clear()
            world.die_at = -1
            self.deployments = Deployments(self.mode, self.counters)
            self.admin = MemoryAdmin(world)
            self.deployments._admin = self.admin  # type: ignore[assignment]
            self.one = Reconciler(self.mode, MemoryPool(world), self.deployments, self.counters, probe=self.probe)
            self.one.stats = self._stats
            try:
                await self.one.observe()
                resumed = await self.one.resume()
                if not self.saved:
                    self.place(random.Random(0))
                self.one.want({w: r for w, r in self.saved.items() if w in world.infos})
                if resumed:
                    await self.deployments.ensure()
                else:
                    await self.one.bring_up()
                break
            except ArloError:
                await asyncio.sleep(1)
        self._run = asyncio.create_task(self.supervise())

    def _stats(self) -> object:
        return self.admin.stats_now() if self.world.gateway_up else None

    async def supervise(self) -> None:
        async def keep() -> None:
            while True:
                await asyncio.sleep(2)
                with contextlib.suppress(ArloError):
                    await self.deployments.ensure()

        await asyncio.gather(self.one.run(), keep())

    def place(self, rng: random.Random) -> None:
        """Want a new random allocation that has the longest runtime."""
        usable = [view for view in self.one.views(grace_s=5) if view.usable]
        if usable:
            names = [LONGEST, *(rng.choice(RUNTIMES) for _ in usable[1:])]
            allocation = {name: names.count(name) for name in RUNTIMES if name in names}
            self.saved = assign(allocation, self.one.views(grace_s=5))
            self.one.want(self.saved, [rng.uniform(0, 50) for _ in MANIFEST.runtimes])

    async def kill(self) -> None:
        assert self._run is not None
        self.world.died.set()
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        await self.one.stop()

    def done(self) -> bool:
        """Everywhere what is wanted, and nothing else."""
        wanted = set(self.saved.items())
        loaded = {(w, r) for w, info in self.world.infos.items() for r in info.runtimes}
        return (
            wanted == loaded == self.world.listed()
            and not self.one.leaving
            and all(self.one.step(worker)[0] == "steady" for worker in self.saved)
            and all(self.world.answers(pair) for pair in wanted)
        )


async def disturb(plane: Plane, rng: random.Random) -> None:
    """One thing that goes wrong or changes."""
    world = plane.world
    ready = [worker for worker, info in world.infos.items() if info.state == "ready"]
    what = rng.choice(
        (
            *("place", "place", "crash", "hang", "gateway", "bad", "flaky", "kill", "kill", "add", "let_go", "recycle"),
            *("stuck", "unable"),
        )
    )
    if what == "place":
        plane.place(rng)
    elif what in ("crash", "hang") and ready:
        getattr(world, what)(rng.choice(ready))
    elif what == "gateway":
        world.restart_gateway()
    elif what == "bad":
        world.bad = set() if world.bad else {rng.choice(RUNTIMES)}
    elif what == "flaky":
        world.flaky = 0.0 if world.flaky else 0.3
    elif what == "kill":
        world.die_at = world.calls + rng.randrange(1, 25)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                await world.died.wait()
        await plane.kill()
        await asyncio.sleep(rng.choice((0.0, 1.0, 12.0)))
        await plane.start()
    elif what == "add" and len(world.infos) < 6:
        world.new_worker()
        await plane.one.observe()
        plane.place(rng)
    elif what == "let_go" and len(plane.one.views()) > 2 and not plane.one.leaving:
        plane.one.let_go(rng.choice([view.id for view in plane.one.views()]))
        plane.place(rng)
    elif what == "recycle" and ready:
        plane.one.recycle(rng.choice(ready))
    elif what == "stuck" and ready:
        worker = rng.choice(ready)
        world.stuck.update((worker, name) for name in world.infos[worker].runtimes)
    elif what == "unable" and ready:
        world.unable.add(rng.choice(ready))


async def scenario(seed: int) -> Plane:
    rng = random.Random(seed)
    world = World(
        rng,
        workers=rng.randrange(1, 6),
        longest=LONGEST,
        engines=rng.choice((1, 2, 3)),
        moves=rng.random() < 0.3,
    )
    plane = Plane(world, overlap=rng.random() < 0.7)
    await plane.start()
    for _ in range(rng.randrange(1, 12)):
        await disturb(plane, rng)
        await asyncio.sleep(rng.choice((0.0, 0.1, 0.5, 2.0, 10.0)))
    # From here on nothing goes wrong any more.
    world.bad, world.flaky = set(), 0.0
    await world.quiet()
    await asyncio.sleep(1)
    async with asyncio.timeout(LONGEST_S + 10):
        while any(plane.one._fleet.left_out(worker) for worker in world.infos):
            await asyncio.sleep(1)
    plane.place(rng)
    try:
        async with asyncio.timeout(400):
            while not plane.done():
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(
            f"seed {seed}: wanted {plane.saved}, listed {sorted(world.listed())}, {world.infos}, "
            f"{plane.one._jobs.troubles}, {plane.one._jobs._steps}, cover {plane.one._now.cover.worker}, "
            f"restarts {plane.one._restarts.pending}, "
            f"leaving {plane.one.leaving}"
        ) from None
    await plane.kill()
    return plane


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(50, SCENARIOS, 50))]
)
def test_converges_and_loses_nothing(first: int) -> None:
    for seed in range(first, min(first + 50, SCENARIOS)):
        plane = virtual_time.run(scenario(seed))
        assert not plane.world.broken, f"seed {seed}: {plane.world.broken}"


def move_all(plane: Plane, *names: str) -> None:
    plane.saved = {f"w{number}": name for number, name in enumerate(names)}
    plane.one.want(plane.saved)


async def until_done(plane: Plane, *, within_s: float) -> float:
    began_s = plane.world.now_s
    async with asyncio.timeout(within_s):
        while not plane.done():
            await asyncio.sleep(0.1)
    return plane.world.now_s - began_s


@pytest.mark.parametrize("overlap", [True, False])
def test_a_worker_whose_unloading_does_not_end_is_restarted(overlap: bool) -> None:
    async def scenario() -> Plane:
        world = World(random.Random(3), workers=3, longest=LONGEST, engines=2, moves=False)
        plane = Plane(world, overlap=overlap)
        plane.saved = {"w0": "m_64", "w1": "m_64", "w2": LONGEST}
        await plane.start()
        await until_done(plane, within_s=60)
        world.stuck.add(("w0", "m_64"))
        move_all(plane, "m_128", "m_64", LONGEST)
        await until_done(plane, within_s=120)
        assert not world.unloading
        assert plane.counters["workers_recycled"] == 1
        # Moves of it are quick again.
        move_all(plane, "m_64", "m_64", LONGEST)
        assert await until_done(plane, within_s=60) < moves.UNLOAD_TIMEOUT_S / 2
        await plane.kill()
        return plane

    assert not virtual_time.run(scenario()).world.broken


@pytest.mark.parametrize("overlap", [True, False])
def test_a_worker_that_loads_nothing_is_restarted(overlap: bool) -> None:
    async def scenario() -> Plane:
        world = World(random.Random(3), workers=3, longest=LONGEST, engines=2, moves=False)
        plane = Plane(world, overlap=overlap)
        plane.saved = {"w0": "m_64", "w1": "m_128", "w2": LONGEST}
        await plane.start()
        await until_done(plane, within_s=60)
        world.unable.add("w0")
        move_all(plane, "m_128", "m_128", LONGEST)
        await until_done(plane, within_s=120)
        assert plane.counters["workers_recycled"] == 1
        await plane.kill()
        return plane

    assert not virtual_time.run(scenario()).world.broken


def test_two_engines_are_tried_again_after_a_while() -> None:
    async def scenario() -> Plane:
        world = World(random.Random(3), workers=2, longest=LONGEST, engines=1, moves=False)
        plane = Plane(world, overlap=True)
        plane.saved = {"w0": "m_64", "w1": LONGEST}
        await plane.start()
        move_all(plane, "m_128", LONGEST)
        await until_done(plane, within_s=60)
        move_all(plane, "m_64", LONGEST)
        await until_done(plane, within_s=60)
        assert plane.counters["no_room_for_two"] == 1
        world.engines = 2  # what took the memory has gone
        await asyncio.sleep(AGAIN_S[0])
        with_both = asyncio.create_task(both_loaded(world, "w0"))
        move_all(plane, "m_128", LONGEST)
        await until_done(plane, within_s=60)
        assert with_both.done()
        assert plane.counters["no_room_for_two"] == 1
        await plane.kill()
        return plane

    assert not virtual_time.run(scenario()).world.broken


async def both_loaded(world: World, worker: str) -> None:
    while len(world.infos[worker].runtimes) < 2:
        await asyncio.sleep(0.01)
