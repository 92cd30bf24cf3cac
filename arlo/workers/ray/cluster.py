"""The connection to a Ray cluster: it keeps Ray's blocking calls off the event loop, and Ray's output in our log."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from arlo.clock import monotonic_s
from arlo.errors import EnvironmentProblem, WorkerError

log = logging.getLogger("arlo.workers.ray")

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0  # of one call to Ray's head
VIEW_S = 1.0  # how long a view of the nodes is good for


def import_ray() -> Any:
    """The Ray package. EnvironmentProblem when it is not installed."""
    try:
        import ray
    except ImportError:
        raise EnvironmentProblem(
            "workers of kind \"ray\" need the package ray: pip install 'arlo-serve[ray]', here and on every node"
        ) from None
    return ray


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The resources that one worker takes of its node."""

    resource: str  # GPU, or a custom resource
    amount: float

    def options(self) -> dict[str, Any]:
        """The need as Ray actor options. The actor's own process computes nothing, so it takes no CPU."""
        if self.resource == "GPU":
            return {"num_cpus": 0, "num_gpus": self.amount}
        if self.resource == "CPU":
            return {"num_cpus": self.amount}
        return {"num_cpus": 0, "resources": {self.resource: self.amount}}

    def __str__(self) -> str:
        return f"{self.amount:g} {self.resource}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The cluster as Ray's head sees it."""

    alive: frozenset[str]  # node ids
    nodes: tuple[tuple[str, float], ...]  # of the live nodes: address, how much of the resource they have in all
    free: float  # of the resource, in the whole cluster


class RayCluster:
    """One connection, of this process; Ray has no more than one. Use it from one event loop."""

    def __init__(self, address: str | None, namespace: str, need: Need) -> None:
        self.address = address or "auto"
        self.namespace = namespace
        self.need = need
        self._ours = False
        self._view: View | None = None
        self._viewed_s = 0.0
        self._looking: asyncio.Task[View] | None = None

    async def connect(self, *, timeout_s: float) -> None:
        """Connect, or use the process's present connection. WorkerError when there is no cluster at the address."""
        ray = import_ray()
        if ray.is_initialized():
            return
        await self._probe(timeout_s)
        # Ray would make the process exit on SIGTERM, where ours drains first; off the main thread it does not.
        handler = signal.getsignal(signal.SIGTERM)
        _tame(ray)

        def init() -> None:
            ray.init(
                address=self.address,
                namespace=self.namespace,
                log_to_driver=False,
                configure_logging=False,
            )

        try:
            await in_thread(init, timeout_s=max(timeout_s, CALL_TIMEOUT_S))
        except TimeoutError:
            raise WorkerError(
                f"the Ray cluster at {self.address} did not answer within {timeout_s:g} s: check `ray status` there"
            ) from None
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise WorkerError(
                f"no connection to a Ray cluster at {self.address}: {_first_line(error)}. Start one (`ray start "
                "--head`), join this machine to it (`ray start --address=HOST:6379`), or set workers.ray_address"
            ) from None
        self._ours = True
        # Ray's C++ part prints a stack trace at SIGTERM before it calls Python's handler; resetting ours avoids that.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
            signal.siginterrupt(signal.SIGTERM, False)  # as asyncio does

    async def close(self) -> None:
        """End the connection if it was made here. Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._ours:
            self._ours = False
            ray = import_ray()
            with contextlib.suppress(TimeoutError):
                await in_thread(ray.shutdown)

    async def _probe(self, timeout_s: float) -> None:
        """Check that the head accepts connections: Ray waits minutes for a missing one, a refusal comes at once."""
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or "/" in host:
            return
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), min(timeout_s, 10.0))
        except (OSError, TimeoutError) as error:
            raise WorkerError(
                f"nothing answers at workers.ray_address = {self.address!r} ({error or 'timeout'}): it is the address "
                "that `ray start --head` prints, port 6379 by default"
            ) from None
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    # --- actors ---

    async def named(self) -> list[str]:
        """Names of the actors in our namespace that are not dead."""
        ray = import_ray()
        found = await self.call(lambda: ray.util.list_named_actors(all_namespaces=True), "list the workers")
        return [entry["name"] for entry in found if entry["namespace"] == self.namespace]

    async def find(self, name: str) -> Any | None:
        """The actor of this name, None when there is none."""
        ray = import_ray()

        def get() -> Any | None:
            try:
                return ray.get_actor(name, namespace=self.namespace)
            except ValueError:
                return None

        return await self.call(get, f"find worker {name}")

    async def create(self, cls: type, name: str, fields: dict[str, Any], *, detached: bool) -> Any:
        """Create an actor; Ray places it when a node has its resources. WorkerError when the name is taken."""
        ray = import_ray()

        def make() -> Any:
            options: dict[str, Any] = self.need.options()
            if detached:
                options["lifetime"] = "detached"
            remote = ray.remote(cls).options(
                name=name,
                namespace=self.namespace,
                max_restarts=-1,
                max_task_retries=0,  # the caller retries, after a look at the loaded runtimes
                scheduling_strategy="SPREAD",
                **options,
            )
            try:
                return remote.remote(fields)
            except ValueError as error:
                raise WorkerError(f"Ray does not make worker {name}: {_first_line(error)}") from None

        return await self.call(make, f"make worker {name}")

    async def kill(self, handle: Any, *, restart: bool) -> None:
        """End an actor's process, for good or for Ray to recreate it."""
        ray = import_ray()
        await self.call(lambda: ray.kill(handle, no_restart=not restart), "end a worker")

    async def call(self, function: Callable[[], T], what: str) -> T:
        """Call Ray's head. WorkerError when the call fails or is not answered."""
        ray = import_ray()
        try:
            return await in_thread(function)
        except TimeoutError:
            raise WorkerError(f"Ray's head did not answer within {CALL_TIMEOUT_S:g} s: could not {what}") from None
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise WorkerError(f"Ray could not {what}: {_first_line(error)}") from None

    # --- the cluster ---

    async def view(self) -> View:
        """The present view of the cluster, at most VIEW_S old."""
        if self._view is None or monotonic_s() - self._viewed_s > VIEW_S:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(), name="view of the Ray cluster")
            return await asyncio.shield(self._looking)
        return self._view

    async def _look(self) -> View:
        ray = import_ray()
        nodes, free = await self.call(lambda: (ray.nodes(), ray.available_resources()), "list its nodes")
        alive = [node for node in nodes if node["Alive"]]
        resource = self.need.resource
        self._view = View(
            alive=frozenset(node["NodeID"] for node in alive),
            nodes=tuple((node["NodeManagerAddress"], float(node["Resources"].get(resource, 0))) for node in alive),
            free=float(free.get(resource, 0)),
        )
        self._viewed_s = monotonic_s()
        return self._view

    async def why_waiting(self, node: str | None, address: str | None) -> str:
        """Why a worker that was last on `node` is not running now, in words."""
        try:
            view = await self.view()
        except WorkerError as error:
            return str(error)
        lost = f"its node {address} is gone; " if node is not None and node not in view.alive else ""
        if max((amount for _, amount in view.nodes), default=0) < self.need.amount:
            return f"{lost}no node of the Ray cluster has {self.need}; {self.describe(view)}"
        if view.free < self.need.amount:
            return f"{lost}Ray has no free {self.need.resource} for it; {self.describe(view)}"
        return f"{lost}Ray is starting it" if lost or node is None else "its process ended; Ray is starting it again"

    def describe(self, view: View) -> str:
        """The cluster's amount of the resource, in words."""
        having = [amount for _, amount in view.nodes if amount]
        each = f" ({', '.join(f'{amount:g}' for amount in having)})" if having else ""
        return (
            f"the cluster has {sum(having):g} {self.need.resource} on {len(having)} of its {len(view.nodes)} node(s)"
            f"{each}, {view.free:g} free"
        )


async def in_thread(function: Callable[[], T], *, timeout_s: float = CALL_TIMEOUT_S) -> T:
    """Run a blocking function in a separate thread. One that never returns delays neither us nor our exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as problem:
            error = problem
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to wake
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="arlo ray call", daemon=True).start()
    return await asyncio.wait_for(future, timeout_s)


def _tame(ray: Any) -> None:
    """Send Ray's messages to our log. Ray prints nodes' reports to standard output, even without `log_to_driver`."""
    logger = logging.getLogger("ray")
    logger.setLevel(logging.ERROR)
    logger.propagate = True
    worker = ray._private.worker
    if hasattr(worker, "print_to_stdstream"):

        def to_log(data: dict[str, Any], *_: Any, **__: Any) -> None:
            text = "\n".join(str(line) for line in data.get("lines", ())).strip()
            log.info("Ray: %s", text.partition("\n")[0])

        worker.print_to_stdstream = to_log


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
