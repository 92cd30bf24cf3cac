"""One worker of a Ray pool, from the pool's view: its actor, the actor's last report, and its life."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import arlo
from arlo.clock import monotonic_s
from arlo.errors import WorkerError
from arlo.workers.pool import StuckError, WorkerInfo, WorkerState
from arlo.workers.ray.actor import ActorSpec, TritonActor
from arlo.workers.ray.cluster import RayCluster, import_ray

log = logging.getLogger("arlo.workers.ray")

REPORT_S = 2.0  # a report without news takes so long
SILENT_S = 3.0  # beyond that a worker does not answer
RETRY_S = 0.25  # between reports that fail at once
BACKOFF_S = (0.5, 10.0)  # of an actor that keeps dying for good: first, longest
SLACK_S = 2.0  # for a call's way there and back, beyond its own timeout
HELD = "another control plane commands this worker"


class RayWorker:
    """One worker, from `create` or `adopt` to `end`. A task keeps one report call pending; `info()` is the last report.

    starting: Ray has not placed the actor yet, or Triton starts. ready. failed: Triton is away (the actor restarts it),
    or the actor is (Ray restarts it, on a node that has the resource), or it does not answer. Single event loop.
    """

    def __init__(self, worker_id: str, cluster: RayCluster, spec: ActorSpec, owner: str) -> None:
        self.id = worker_id
        self.restarts = 0
        self.held = False
        self.changed = asyncio.Event()  # set at each change
        self._cluster = cluster
        self._spec = dataclasses.replace(spec, id=worker_id)
        self._owner = owner
        self._handle: Any = None
        self._state: WorkerState = "starting"
        self._error: str | None = None
        self._report: dict[str, Any] | None = None  # the newest, of the present incarnation or a lost one
        self._seen: dict[str, Any] | None = None  # the info in it; None while the actor is away
        self._base = 0  # restarts in incarnations before the present one
        self._poll: asyncio.Task[None] | None = None
        self._commands = 0  # that changed the loaded runtimes
        self.placed = False  # reported at least once

    # --- life ---

    async def create(self) -> None:
        """Ask Ray for the actor; it comes when a node has room."""
        fields = dataclasses.asdict(self._spec) | {"fingerprint": self._spec.fingerprint}
        self._handle = await self._cluster.create(TritonActor, self.id, fields, detached=self._spec.linger_s > 0)

    async def adopt(self) -> bool:
        """Find the actor of an earlier control plane; False when there is none."""
        self._handle = await self._cluster.find(self.id)
        return self._handle is not None

    def watch(self) -> None:
        """Start the task that keeps a report call pending."""
        self._poll = asyncio.create_task(self._watch(), name=f"poll of worker {self.id}")

    async def end(self, *, kill: bool = True) -> None:
        """Stop Triton, which answers its accepted requests, then the actor. With `kill` false, only stop watching.

        An actor that another control plane commands is left alone.
        """
        if self._poll is not None:
            self._poll.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poll
            self._poll = None
        if self._handle is not None and kill:
            # An actor that is away has no Triton to stop; one that does not answer in time is killed all the same.
            if self._seen is not None:
                with contextlib.suppress(WorkerError):
                    await self._call("stop", "stop", timeout_s=self._spec.exit_timeout_s + 8.0)
            if not self.held:
                await self._cluster.kill(self._handle, restart=False)
        self._handle = None
        self._seen = None
        self._set("stopped", None)

    def info(self) -> WorkerInfo:
        last = (self._report or {}).get("info") or {}
        seen = self._seen or {}
        address = (self._report or {}).get("address")
        log_path = last.get("log")
        return WorkerInfo(
            id=self.id,
            endpoint=last.get("endpoint") or "",
            metrics_url=seen.get("metrics_url"),
            state=self._state,
            pid=seen.get("pid"),
            restarts=self.restarts,
            runtimes=tuple(seen.get("runtimes") or ()) if self._state == "ready" else (),
            log=f"{address}:{log_path}" if log_path and address else log_path,
            error=self._error,
        )

    @property
    def ready(self) -> bool:
        return self._state == "ready"

    @property
    def alike(self) -> bool:
        """True when the actor serves with this pool's version and settings."""
        report = self._report or {}
        return (report.get("version"), report.get("fingerprint")) == (arlo.__version__, self._spec.fingerprint)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a change after which `condition` holds; False when it does not in time."""
        deadline_s = monotonic_s() + timeout_s
        while not condition():
            left_s = deadline_s - monotonic_s()
            if left_s <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), left_s)
        return True

    async def wait_ready(self, *, place_timeout_s: float) -> None:
        """Wait until it is ready. WorkerError when Ray does not place it in time, or Triton does not start."""

        def settled() -> bool:
            return self._state == "ready" or self.held or (self._state == "failed" and self.placed)

        if not await self.until(lambda: self.placed or settled(), place_timeout_s):
            why = await self._cluster.why_waiting(None, None)
            raise WorkerError(
                f"Ray has not placed worker {self.id} within {place_timeout_s:g} s, which takes {self._cluster.need} "
                f"of a node: {why}. Add nodes, ask for fewer workers, or change workers.ray_resource or ray_amount"
            )
        if not await self.until(settled, self._spec.start_timeout_s + 10.0):
            raise WorkerError(f"worker {self.id} did not become ready: {self._error or 'it is still starting'}")
        if self._state != "ready":
            raise WorkerError(f"worker {self.id} did not start: {self._error}")

    # --- commands ---

    async def load(self, runtime: str, *, timeout_s: float) -> None:
        await self._ready_call("load", f"load {runtime}", runtime, timeout_s=timeout_s)

    async def unload(self, runtime: str, *, timeout_s: float) -> None:
        await self._ready_call("unload", f"unload {runtime}", runtime, timeout_s=timeout_s)

    async def restart(self, *, place_timeout_s: float) -> None:
        """Restart Triton with no runtime loaded. Ray recreates an actor that does not answer."""
        timeout_s = self._spec.exit_timeout_s + self._spec.start_timeout_s + 10.0
        if self._seen is not None and self._state != "failed":
            await self._call("restart", "restart", timeout_s=timeout_s)
        elif self._handle is not None:
            incarnation = (self._report or {}).get("incarnation")
            await self._cluster.kill(self._handle, restart=True)
            await self.until(lambda: (self._report or {}).get("incarnation") != incarnation, place_timeout_s)
        if not await self.until(lambda: self._state == "ready", timeout_s):
            raise WorkerError(f"worker {self.id} is not ready again: {self._error or 'it is still starting'}")

    async def _ready_call(self, method: str, what: str, *arguments: Any, timeout_s: float) -> None:
        deadline_s = monotonic_s() + timeout_s
        if not await self.until(lambda: self._state in ("ready", "stopped"), timeout_s):
            reason = self._error or "it is still starting"
            raise WorkerError(f"worker {self.id} could not {what} within {timeout_s:g} s: {reason}")
        if self._state == "stopped":
            raise WorkerError(f"worker {self.id} could not {what}: it is stopped")
        left_s = max(0.1, deadline_s - monotonic_s())
        await self._call(method, what, *arguments, left_s, timeout_s=left_s + SLACK_S)

    async def _call(self, method: str, what: str, *arguments: Any, timeout_s: float) -> None:
        """Send one command to the actor; the report in its answer is newer than any report requested before."""
        ray = import_ray()
        reference = getattr(self._handle, method).remote(self._owner, *arguments)
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(reference.future()), timeout_s)
        except (TimeoutError, asyncio.CancelledError) as error:
            with contextlib.suppress(Exception):
                ray.cancel(reference)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise WorkerError(f"worker {self.id} could not {what} within {timeout_s:g} s: no answer") from None
        except ray.exceptions.RayError as error:
            raise WorkerError(f"worker {self.id} could not {what}: {lost_because(error)}") from None
        self._commands += 1
        self.held = answer.get("held", False)
        if answer.get("info"):
            self._take(answer)
        if answer["error"]:
            raise (StuckError if answer.get("stuck") else WorkerError)(f"{answer['error']}")

    # --- reports ---

    async def _watch(self) -> None:
        """Keep a report call pending; ends by cancellation only."""
        ray = import_ray()
        backoff_s = BACKOFF_S[0]
        while True:
            commands = self._commands
            try:
                report = await self._ask()
            except ray.exceptions.ActorDiedError as error:
                self._lose(f"its actor has ended: {lost_because(error)}")
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S[1])
                await self._make_again()
            except ray.exceptions.RayError as error:
                self._lose(lost_because(error))
                await self._explain()
                await asyncio.sleep(RETRY_S)
            else:
                backoff_s = BACKOFF_S[0]
                if report["held"]:
                    self.held = True
                    self._set("failed", HELD)
                    await asyncio.sleep(RETRY_S)
                elif commands == self._commands:
                    self.held = False
                    self._take(report)

    async def _ask(self) -> dict[str, Any]:
        """Request one report. If it takes too long, find the reason; a hanging actor is killed for Ray to restart."""
        reference = self._handle.report.remote(self._owner, self._seen, REPORT_S)
        answer = asyncio.wrap_future(reference.future())
        asked_s = monotonic_s()
        killed = False
        try:
            while not (await asyncio.wait([answer], timeout=REPORT_S + SILENT_S if self._seen else RETRY_S * 4))[0]:
                silent_s = monotonic_s() - asked_s
                if self._seen is None or killed:
                    await self._explain()
                    continue
                self._set("failed", f"its actor has not answered for {silent_s:.0f} s")
                if silent_s > self._spec.hang_timeout_s:
                    killed = True
                    self._lose(f"its actor has not answered for {silent_s:.0f} s; Ray is asked to end it")
                    with contextlib.suppress(WorkerError):
                        await self._cluster.kill(self._handle, restart=True)
            report: dict[str, Any] = answer.result()
            return report
        finally:
            answer.cancel()

    def _take(self, report: dict[str, Any]) -> None:
        """Take a report as the worker's present state."""
        before = self._report or {}
        info = report["info"]
        if before.get("incarnation") not in (None, report["incarnation"]):
            self._base += (before.get("info") or {}).get("restarts", 0) + 1
            log.info("worker %s: Ray has made its actor again, on node %s", self.id, report["address"])
        self.placed = True
        self._report, self._seen = report, info
        self.restarts = self._base + info["restarts"]
        self._set(info["state"], info["error"])

    def _lose(self, why: str) -> None:
        self._seen = None
        self._set("failed", why)

    async def _explain(self) -> None:
        """Find out from the cluster why the actor is away."""
        report = self._report or {}
        why = await self._cluster.why_waiting(report.get("node"), report.get("address"))
        self._set("failed" if self.placed else "starting", why)

    async def _make_again(self) -> None:
        """Replace an actor that has ended for good (it was killed, or its lease ran out)."""
        try:
            await self.create()
        except WorkerError as error:
            self._set("failed", str(error))

    def _set(self, state: WorkerState, error: str | None) -> None:
        self._state, self._error = state, error
        self.changed.set()
        self.changed = asyncio.Event()


def lost_because(error: BaseException) -> str:
    """Ray's message on a lost actor, without its trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("The actor is dead because", "ModuleNotFoundError"))]
    text = telling[-1] if telling else lines[0] if lines else type(error).__name__
    if "No module named 'arlo" in str(error):
        return "Arlo is not installed on its node: install the same version on every node of the Ray cluster"
    return text
