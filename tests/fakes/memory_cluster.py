"""A worker pool and a gateway in memory that fail in all the ways they can, and notice when a request would be lost.

The rules that the real ones do not enforce, and that a control plane must keep at every moment, are in `broken`:

- an instance joins the deployment only when its runtime is loaded and ready on its worker;
- a runtime is unloaded only when the gateway neither sends to it nor waits for an answer of it;
- the last instance of the longest runtime that answers is not taken out of the deployment.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from typing import Any

from arlo import proto
from arlo.control.gateway.admin import GatewayUnreachableError
from arlo.errors import GatewayError, WorkerError
from arlo.workers.pool import StuckError, WorkerInfo

Pair = tuple[str, str]  # worker, runtime


class World:
    """What outlives a control plane: the workers and the gateway. `random` decides on delays."""

    def __init__(self, rng: random.Random, *, workers: int, longest: str, engines: int, moves: bool) -> None:
        self.rng = rng
        self.longest = longest
        self.engines = engines  # that a worker's memory holds
        self.moves = moves  # a worker that dies comes back elsewhere (Ray), else in place with what it had
        self.infos: dict[str, WorkerInfo] = {}
        self.kept: dict[str, set[str]] = {}  # what a worker loads again when it is restarted
        self.born_s: dict[str, float] = {}
        self.hangs: set[str] = set()
        self.bad: set[str] = set()  # runtimes that do not load
        self.stuck: set[Pair] = set()  # whose unloading does not end, and takes memory, until the process is restarted
        self.unloading: set[Pair] = set()  # of these, those that were to be unloaded
        self.unable: set[str] = set()  # workers that load nothing until their process is restarted
        self.flaky = 0.0  # share of calls to workers that fail
        self.deployment = proto.message("Deployment")()
        self.draining: dict[Pair, float] = {}  # until when
        self.gateway_up = True
        self.broken: list[str] = []
        self.crashed_s: dict[str, float] = {}
        self.calls = 0
        self.die_at = -1  # the number of the call that is the control plane's last
        self.died = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._next = 0
        for _ in range(workers):
            self.new_worker()

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def new_worker(self) -> WorkerInfo:
        name = f"w{self._next}"
        self._next += 1
        self.kept[name] = set()
        self.born_s[name] = self.now_s
        self.infos[name] = WorkerInfo(
            id=name,
            endpoint=f"h:{self._next}",
            metrics_url=None,
            state="ready",
            pid=None,
            restarts=0,
            runtimes=(),
            log=None,
        )
        return self.infos[name]

    def change(self, worker: str, **values: Any) -> None:
        if worker in self.infos:
            self.infos[worker] = dataclasses.replace(self.infos[worker], **values)

    def later(self, job: Any) -> None:
        task = asyncio.create_task(job)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def quiet(self) -> None:
        """Wait for restarts under way."""
        while self._background:
            await asyncio.gather(*self._background)

    # --- what goes wrong ---

    def crash(self, worker: str) -> None:
        if self.infos[worker].state == "ready":
            self.hangs.discard(worker)
            self.crashed_s[worker] = self.now_s
            endpoint = "" if self.moves else self.infos[worker].endpoint
            state = "starting" if self.moves else "failed"
            self.change(worker, state=state, runtimes=(), endpoint=endpoint, error="it died")
            self.later(self._come_back(worker))

    async def _come_back(self, worker: str) -> None:
        await asyncio.sleep(self.rng.choice((0.3, 1.0, 8.0)))
        if worker not in self.infos:
            return
        self.renew(worker)
        self._next += self.moves
        endpoint = f"h:{self._next}" if self.moves else self.infos[worker].endpoint
        self.change(
            worker,
            state="ready",
            endpoint=endpoint,
            restarts=self.infos[worker].restarts + 1,
            runtimes=() if self.moves else tuple(sorted(self.kept[worker] - self.bad)),
            error=None,
        )

    def renew(self, worker: str) -> None:
        """Its process is another one."""
        self.unable.discard(worker)
        self.stuck = {pair for pair in self.stuck if pair[0] != worker}
        self.unloading = {pair for pair in self.unloading if pair[0] != worker}

    def hang(self, worker: str) -> None:
        if self.infos[worker].state == "ready" and worker not in self.hangs:
            self.hangs.add(worker)
            self.later(self._end_hang(worker))

    async def _end_hang(self, worker: str) -> None:
        await asyncio.sleep(10)
        if worker in self.hangs and worker in self.infos:
            self.crash(worker)

    def restart_gateway(self) -> None:
        if self.gateway_up:
            self.gateway_up = False
            self.deployment.Clear()
            self.draining.clear()
            self.later(self._gateway_back())

    async def _gateway_back(self) -> None:
        await asyncio.sleep(0.3)
        self.gateway_up = True

    # --- what is so ---

    def listed(self) -> set[Pair]:
        return {(item.worker, item.runtime) for item in self.deployment.instances}

    def answers(self, pair: Pair, endpoint: str | None = None) -> bool:
        """Whether an instance serves requests."""
        info = self.infos.get(pair[0])
        return (
            info is not None
            and info.state == "ready"
            and pair[0] not in self.hangs
            and pair[1] in info.runtimes
            and endpoint in (None, info.endpoint)
        )

    def in_use(self, pair: Pair) -> bool:
        return pair in self.listed() or self.draining.get(pair, 0.0) > self.now_s

    async def point(self) -> None:
        """A moment at which the control plane may die: its call never returns."""
        self.calls += 1
        if self.calls == self.die_at:
            self.died.set()
        if self.died.is_set():
            await asyncio.Future()
        await asyncio.sleep(0)


class MemoryPool:
    """WorkerPool of a World."""

    resizable = True
    restartable = True

    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def workers(self) -> list[WorkerInfo]:
        return list(self._world.infos.values())

    async def _reach(self, worker: str, timeout_s: float) -> WorkerInfo:
        """As the real pools: wait until the worker is ready; its answer takes a moment, and may be an error."""
        world = self._world
        await world.point()
        try:
            async with asyncio.timeout(timeout_s):
                while world.infos[worker].state != "ready" or worker in world.hangs:
                    await asyncio.sleep(0.1)
                restarts = world.infos[worker].restarts
                await asyncio.sleep(world.rng.choice((0.01, 0.3, 1.0)))
        except (KeyError, TimeoutError):
            raise WorkerError(f"{worker} does not answer") from None
        info = world.infos.get(worker)
        if info is None or info.state != "ready" or info.restarts != restarts or world.rng.random() < world.flaky:
            raise WorkerError(f"{worker} ended meanwhile, or said no")
        return info

    async def load(self, worker: str, runtime: str, *, timeout_s: float = 120.0) -> None:
        world = self._world
        info = await self._reach(worker, timeout_s)
        if runtime in world.bad:
            raise WorkerError(f"{runtime} is broken")
        if worker in world.unable:
            raise WorkerError(f"{runtime}: an illegal memory access was encountered")
        held = {name for other, name in world.unloading if other == worker}
        if len({*info.runtimes, *held, runtime}) > world.engines:
            raise WorkerError(f"{runtime}: out of memory")
        world.change(worker, runtimes=tuple(sorted({*info.runtimes, runtime})))
        world.kept[worker].add(runtime)
        await world.point()

    async def unload(self, worker: str, runtime: str, *, timeout_s: float = 60.0) -> None:
        world = self._world
        world.kept[worker].discard(runtime)
        info = await self._reach(worker, timeout_s)
        if world.in_use((worker, runtime)) and world.answers((worker, runtime)):
            world.broken.append(f"{runtime} unloaded on {worker}, where requests run")
        world.change(worker, runtimes=tuple(each for each in info.runtimes if each != runtime))
        if (worker, runtime) in world.stuck:
            world.unloading.add((worker, runtime))
            await asyncio.sleep(timeout_s)
            raise StuckError(f"{worker} did not unload {runtime} within {timeout_s:g} s: it is still UNLOADING")
        await world.point()

    async def add(self) -> WorkerInfo:
        await self._world.point()
        return self._world.new_worker()

    async def remove(self, worker: str) -> None:
        world = self._world
        await world.point()
        if any(pair[0] == worker and world.answers(pair) for pair in world.listed()):
            world.broken.append(f"{worker} removed while it serves")
        world.infos.pop(worker, None)
        await world.point()

    async def restart(self, worker: str) -> None:
        world = self._world
        info = await self._reach(worker, 60.0)
        if any(pair[0] == worker and world.in_use(pair) and world.answers(pair) for pair in world.listed()):
            world.broken.append(f"{worker} restarted while it serves")
        world.kept[worker].clear()
        world.renew(worker)
        world.change(worker, runtimes=(), restarts=info.restarts + 1)
        await world.point()


class MemoryAdmin:
    """AdminClient of a World's gateway."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def _reach(self) -> None:
        await self._world.point()
        if not self._world.gateway_up:
            raise GatewayUnreachableError("the gateway is away")

    async def close(self) -> None:
        pass

    async def get_deployment(self) -> Any:
        await self._reach()
        copy = proto.message("Deployment")()
        copy.CopyFrom(self._world.deployment)
        return copy

    async def apply(self, deployment: Any) -> Any:
        await self._reach()
        world = self._world
        if deployment.version <= world.deployment.version:
            raise GatewayError("an older version")
        before, names = world.listed(), {runtime.name for runtime in deployment.runtimes}
        if world.longest not in names:
            world.broken.append("the longest runtime is no level")
        after = {(item.worker, item.runtime) for item in deployment.instances}
        for item in deployment.instances:
            pair = (item.worker, item.runtime)
            recently = world.now_s - world.crashed_s.get(item.worker, -10.0) < 10.0
            hangs = item.worker in world.hangs
            joins = bool(world.deployment.version) and pair not in before
            if joins and not world.answers(pair, item.endpoint) and not (recently or hangs):
                world.broken.append(f"{pair} joined before it was ready")
            if not item.endpoint:
                world.broken.append(f"{pair} has no endpoint")
        longest = [pair for pair in before if pair[1] == world.longest and world.answers(pair)]
        if longest and not any(pair in after and world.answers(pair) for pair in longest):
            others = [pair for pair in after - before if pair[1] == world.longest and world.answers(pair)]
            ready = [
                worker
                for worker, info in world.infos.items()
                if info.state == "ready" and worker not in world.hangs and world.now_s - world.born_s[worker] > 1.0
            ]
            if not others and len(ready) > 1:
                world.broken.append(f"the longest runtime went: {sorted(before)} -> {sorted(after)}")
        for pair in before - after:
            world.draining[pair] = world.now_s + world.rng.choice((0.0, 0.03, 0.2))
        for pair in after:
            world.draining.pop(pair, None)
        world.deployment.CopyFrom(deployment)
        await world.point()
        return proto.message("ApplyReply")(version=deployment.version, changed=True)

    async def stats(self) -> Any:
        await self._reach()
        return self.stats_now()

    def stats_now(self) -> Any:
        """What a stream of statistics would bring now."""
        world = self._world
        stats = proto.message("Stats")(started_at_ms=1, uptime_ns=round(world.now_s * 1e9))
        for item in world.deployment.instances:
            active = world.answers((item.worker, item.runtime), item.endpoint)
            state = "STATE_ACTIVE" if active else "STATE_EJECTED"
            stats.instances.add(id=item.id, worker=item.worker, runtime=item.runtime, state=state)
        for (worker, runtime), until_s in world.draining.items():
            if until_s > world.now_s:
                stats.instances.add(id=f"{worker}.{runtime}", worker=worker, runtime=runtime, state="STATE_DRAINING")
        return stats

    async def watch_stats(self, *, interval_ms: int = 1000) -> AsyncIterator[Any]:
        while True:
            yield await self.stats()
            await asyncio.sleep(interval_ms / 1000)
