"""The Ray worker pool: each worker a Ray actor that owns one Triton process on its node."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any

import arlo
from arlo.errors import ConfigError, WorkerError
from arlo.workers.numbered import NumberedPool, number_of
from arlo.workers.ray.actor import ActorSpec, manifest_digest
from arlo.workers.ray.cluster import Need, RayCluster
from arlo.workers.ray.worker import HELD, RETRY_S, RayWorker

TAKE_OVER_S = 4.0  # within this time the death of a control plane is noticed


class RayPool(NumberedPool[RayWorker]):
    """`workers` Triton servers on the nodes of a Ray cluster, placed and restarted by Ray; implements WorkerPool.

    Workers are called w0, w1, ..., an added one gets the next number; the actors have these names in the Ray namespace
    `namespace`. Each takes `amount` of `resource` of its node (by default a GPU, and it sees no other) and listens on
    its node's address. A Triton that ends or hangs is restarted by its actor, with its runtimes. Ray recreates an actor
    whose process or node is lost where the resource is free: the worker comes back with another endpoint and no
    runtimes, and the caller loads them again. `run_dir` is for the logs, on the nodes.

    With `linger_s`, the workers outlive this process by that long. A pool that starts with the same namespace takes
    over the present ones, with their loaded runtimes, and replaces those of another version or other settings.
    With 0 Ray ends them with this process. `stop` ends them in any case.

    Every node needs the same Arlo, a Triton server, and `repository` under the same path. Use it from one event loop,
    also as `async with RayPool(...)`. This process must run on a node of the cluster.
    """

    def __init__(
        self,
        repository: Path,
        *,
        workers: int,
        run_dir: Path,
        namespace: str,
        address: str | None = None,
        resource: str = "GPU",
        amount: float = 1.0,
        threads: int = 1,
        metrics: bool = True,
        admin_key: str | None = None,
        start_timeout_s: float = 60.0,
        exit_timeout_s: int = 10,
        hang_timeout_s: float = 30.0,
        linger_s: float = 30.0,
        backoff_first_s: float = 0.2,
    ) -> None:
        super().__init__(repository, workers)
        if amount > 1 and amount != int(amount):
            raise ConfigError(f"workers.ray_amount above 1 must be a whole number for Ray, not {amount:g}")
        repository = repository.resolve()
        self._cluster = RayCluster(address, namespace, Need(resource=resource, amount=amount))
        self._owner = uuid.uuid4().hex
        self._spec = ActorSpec(
            id="",
            version=arlo.__version__,
            namespace=namespace,
            repository=str(repository),
            manifest=manifest_digest(repository),
            run_dir=str(run_dir.resolve()),
            threads=threads,
            metrics=metrics,
            admin_key=admin_key,
            start_timeout_s=float(start_timeout_s),
            exit_timeout_s=exit_timeout_s,
            hang_timeout_s=float(hang_timeout_s),
            backoff_first_s=backoff_first_s,
            linger_s=float(linger_s),
        )

    async def start(self) -> None:
        """Adopt the present workers, start the missing ones, and wait until each is live.

        If another worker is ready, start does not wait for an adopted one that is away, such as after a node loss.
        On failure, workers started here are stopped again; adopted ones keep running until their lease ends.
        """
        if self._started:
            raise WorkerError("the pool is started already")
        self._started = True
        created: list[RayWorker] = []
        try:
            await self._cluster.connect(timeout_s=self._spec.start_timeout_s)
            created += await self._adopt()
            missing = [self._make(number) for number in self._missing()]
            created += missing
            self._in_order()
            await _all(*(self._begin(worker) for worker in missing))
            present = any(worker.ready for worker in self._workers.values() if worker not in created)
            await _all(*(self._wait_ready(w) for w in self._workers.values() if w in created or not present))
        except BaseException:
            await self._abandon(created)
            raise

    async def _bring_up(self, worker: RayWorker) -> None:
        await self._begin(worker)
        await self._wait_ready(worker)

    def _end(self, worker: RayWorker) -> Coroutine[Any, Any, None]:
        return worker.end()

    async def restart(self, worker: str) -> None:
        """End its Triton and start it with no runtime loaded; wait until it is live."""
        await self._worker(worker).restart(place_timeout_s=self._spec.start_timeout_s)

    async def _close(self) -> None:
        await self._cluster.close()

    # --- start ---

    async def _adopt(self) -> list[RayWorker]:
        """Take over the actors of an earlier control plane; returns the new ones created in place of unusable ones."""
        names = sorted((name for name in await self._cluster.named() if re.fullmatch(r"w\d+", name)), key=number_of)
        found = []
        for name in names:
            worker = RayWorker(name, self._cluster, self._spec, self._owner)
            if await worker.adopt():
                worker.watch()
                self._workers[name] = worker
                found.append(worker)
        await _all(*(self._take_over(worker) for worker in found))
        others = [worker for worker in found if worker.placed and not worker.alike]
        renewed = []
        for old in others:
            await old.end()
            renewed.append(self._make(number_of(old.id)))
        await _all(*(self._begin(worker) for worker in renewed))
        return renewed

    async def _take_over(self, worker: RayWorker) -> None:
        """Wait until the worker has reported to us, if it can. WorkerError when a living control plane commands it."""
        await worker.until(lambda: worker.placed, TAKE_OVER_S)
        if worker.held:
            raise WorkerError(
                f"{HELD} (worker {worker.id} in the Ray namespace {self._cluster.namespace}): stop that one, or give "
                "this one another workers.run_dir"
            )

    def _make(self, number: int) -> RayWorker:
        return self._made(RayWorker(f"w{number}", self._cluster, self._spec, self._owner))

    async def _begin(self, worker: RayWorker) -> None:
        """Create the worker's actor, with retries: a killed actor's name is free only a little later."""
        for attempt in range(20):
            try:
                await worker.create()
                break
            except WorkerError as error:
                if "already taken" not in str(error) or attempt == 19:
                    raise
                await asyncio.sleep(RETRY_S)
        worker.watch()

    async def _wait_ready(self, worker: RayWorker) -> None:
        await worker.wait_ready(place_timeout_s=self._spec.start_timeout_s)

    async def _abandon(self, created: list[RayWorker]) -> None:
        workers, self._workers = self._workers, {}
        self._started = False
        await asyncio.gather(
            *(worker.end(kill=worker in created) for worker in workers.values()), return_exceptions=True
        )
        await self._cluster.close()


async def _all(*jobs: Awaitable[None]) -> None:
    """Await all of them; raises the first error unchanged, and cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(_run(job))
    except BaseExceptionGroup as problems:
        raise problems.exceptions[0] from None


async def _run(job: Awaitable[None]) -> None:
    await job
