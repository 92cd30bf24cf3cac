"""One task per worker that moves it, with retries after failures. One event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from arlo.clock import monotonic_s, unix_s
from arlo.control.events import emit
from arlo.control.http.status import WorkerStep
from arlo.control.reconcile.deployments import Deployments
from arlo.errors import ArloError

log = logging.getLogger("arlo.control")

BACKOFF_S = (0.2, 10.0)  # first and longest wait for a worker that misses its target
REPLACE_BACKOFF_S = (1.0, 120.0)  # the same for a worker that serves another runtime: each try may cost capacity


@dataclasses.dataclass(slots=True)
class Trouble:
    """A worker that missed its target, and when to retry."""

    target: str | None
    error: str
    delay_s: float
    again_s: float
    attempts: int


class Jobs:
    """`tasks` and `steps` by worker; `replacing`: workers whose task takes capacity away.

    `failed_with` gets each error and returns whether it has handled it; `ended` is called after each task.
    """

    def __init__(
        self,
        deployments: Deployments,
        counters: Counter[str],
        *,
        failed_with: Callable[[str, str | None, Exception], bool],
        ended: Callable[[], None],
    ) -> None:
        self._deployments = deployments
        self._counters = counters
        self._failed_with = failed_with
        self._ended = ended
        self._steps: dict[str, tuple[WorkerStep, int]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.replacing: set[str] = set()
        self.troubles: dict[str, Trouble] = {}

    def start(
        self,
        worker: str,
        job: Coroutine[Any, Any, None],
        target: str | None,
        *,
        settles: bool = True,
        replaces: bool = False,
    ) -> None:
        """Run a job that moves a worker to `target`; `settles`: the worker is at the target when the job is done."""
        if replaces:
            self.replacing.add(worker)
        guarded = self._guarded(worker, job, target, settles=settles)
        self.tasks[worker] = asyncio.create_task(guarded, name=f"move of {worker}")

    async def stop(self) -> None:
        """Cancel all running tasks. Idempotent."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.tasks.clear()

    def trouble(self, worker: str, target: str | None) -> Trouble | None:
        """The failure that kept a worker from this target; forgotten when the target changes."""
        trouble = self.troubles.get(worker)
        if trouble is not None and trouble.target != target:
            del self.troubles[worker]
            return None
        return trouble

    def failed(self, worker: str, target: str | None, error: str) -> None:
        """Record that a worker missed its target; each retry comes later."""
        before = self.troubles.get(worker)
        serves = bool(self._deployments.instances.get(worker))
        first_s, longest_s = REPLACE_BACKOFF_S if serves else BACKOFF_S
        attempts, delay_s = 1, first_s
        if before is not None and before.target == target:
            attempts, delay_s = before.attempts + 1, max(first_s, min(2 * before.delay_s, longest_s))
        self.troubles[worker] = Trouble(target, error, delay_s, monotonic_s() + delay_s, attempts)
        self._counters["replacement_failures" if worker in self.replacing else "repair_failures"] += 1
        self.set_step(worker, "failed")
        emit(
            log,
            "worker_not_moved",
            level=logging.ERROR,
            worker=worker,
            target=target,
            again_in_s=round(delay_s, 2),
            error=error,
        )

    def step(self, worker: str) -> tuple[WorkerStep, int]:
        """The step that a worker is at, and since when (Unix milliseconds)."""
        return self._steps.get(worker, ("waiting", 0))

    def set_step(self, worker: str, step: WorkerStep) -> None:
        """Record the step that a worker is at."""
        if worker not in self._steps or self._steps[worker][0] != step:
            self._steps[worker] = (step, round(unix_s() * 1000))
            emit(log, "worker_step", level=logging.DEBUG, worker=worker, step=step)

    def forget(self, worker: str) -> None:
        """Forget a worker that has gone."""
        self._steps.pop(worker, None)
        self.troubles.pop(worker, None)

    async def _guarded(self, worker: str, job: Coroutine[Any, Any, None], target: str | None, *, settles: bool) -> None:
        try:
            await job
        except Exception as error:
            if not isinstance(error, ArloError):  # a fault of ours: the other workers are kept, this one is retried
                log.exception("a move failed unexpectedly")
            if not self._failed_with(worker, target, error):
                self.failed(worker, target, str(error) if isinstance(error, ArloError) else repr(error))
        else:
            if settles:
                self.troubles.pop(worker, None)
        finally:
            self.replacing.discard(worker)
            self.tasks.pop(worker, None)
            self._ended()
