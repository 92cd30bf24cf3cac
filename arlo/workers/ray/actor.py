"""The Ray actor of one worker: it owns one Triton process on its node.

The actor runs in a Ray worker process. It exchanges plain values, so that a pool can still detect that an actor is of
another version of Arlo. When its process or its node is lost, Ray recreates the actor on any node that has the
resource; the new one starts with no runtime loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import stat
import tempfile
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import arlo
from arlo.clock import monotonic_s
from arlo.errors import ArloError, EnvironmentProblem, WorkerError
from arlo.workers.local.server import LocalSettings
from arlo.workers.local.worker import LocalWorker
from arlo.workers.pool import StuckError
from arlo.workers.triton.server import environment, find_triton, prepare_backends

LOOK_S = 0.1  # between looks at the worker while a report waits for a change
OWNER_SILENT_S = 1.0  # an owner without a pending report for so long is gone: a living one always has one pending
BACKOFF_S = (0.5, 10.0)  # of a start that keeps failing: first, longest
MANIFEST = "arlo.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec:
    """The settings of an actor. They are sent as `dataclasses.asdict`."""

    id: str
    version: str  # of Arlo
    namespace: str
    repository: str  # the same path on every node
    manifest: str  # digest of the repository's manifest; a node with another one has another model
    run_dir: str  # for the log, on the node
    threads: int
    metrics: bool
    admin_key: str | None
    start_timeout_s: float
    exit_timeout_s: int
    hang_timeout_s: float
    backoff_first_s: float
    linger_s: float  # without an owner for so long it ends itself; 0: Ray ends it with its owner

    @property
    def fingerprint(self) -> str:
        """A value that is equal for actors that serve alike; it leaves out the key and the id."""
        fields = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in ("id", "admin_key", "start_timeout_s", "run_dir", "backoff_first_s")
        }
        return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:16]


def manifest_digest(repository: Path) -> str:
    """Digest of the repository's manifest; "" when there is none."""
    try:
        return hashlib.sha256((repository / MANIFEST).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


class TritonActor:
    """The actor; Ray creates it on its event loop. The pool that last reported (`owner`) commands it, others may not.

    A report call returns once there is news. It is the pool's poll and the owner's sign of life, and its failure is the
    first sign of this process's death. Errors are returned as text, not raised: Ray would add its own traces.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        import ray

        # Ray runs its workers at low priority, and their children inherit it. Without the right to raise it, it stays.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._fields = dict(fields)
        self._id = str(fields["id"])
        self._incarnation = uuid.uuid4().hex
        self._node = ray.get_runtime_context().get_node_id()
        self._address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._worker: LocalWorker | None = None
        self._problem: str | None = None  # why the last attempt to start failed
        self._attempts = 0  # that failed
        self._stopped = False
        self._owner: str | None = None
        self._reports = 0  # under way
        self._heard_s = monotonic_s()
        self._starting = asyncio.get_running_loop().create_task(self._start(), name=f"start of worker {self._id}")
        self._lease: asyncio.Task[None] | None = None
        if fields["linger_s"] > 0:
            self._lease = asyncio.get_running_loop().create_task(self._watch_lease(), name=f"lease of {self._id}")

    # --- for the pool ---

    async def report(self, owner: str, known: Mapping[str, Any] | None, wait_s: float) -> dict[str, Any]:
        """The observed state, once it differs from `known` or after `wait_s`. `held` when another pool commands it."""
        if not self._take(owner):
            return self._head() | {"held": True}
        self._reports += 1
        try:
            until_s = monotonic_s() + wait_s
            while (info := self._info()) == known and monotonic_s() < until_s:
                await asyncio.sleep(LOOK_S)
            return self._head() | {"held": self._owner != owner, "info": info}
        finally:
            self._reports -= 1
            self._heard_s = monotonic_s()

    async def load(self, owner: str, runtime: str, timeout_s: float) -> dict[str, Any]:
        return await self._command(owner, f"load {runtime}", lambda w: w.load(runtime, timeout_s=timeout_s))

    async def unload(self, owner: str, runtime: str, timeout_s: float) -> dict[str, Any]:
        return await self._command(owner, f"unload {runtime}", lambda w: w.unload(runtime, timeout_s=timeout_s))

    async def restart(self, owner: str) -> dict[str, Any]:
        return await self._command(owner, "restart", lambda w: w.restart())

    async def stop(self, owner: str) -> dict[str, Any]:
        """Stop Triton, which answers its accepted requests first. The pool ends the actor afterwards."""
        if not self._take(owner):
            return self._refusal("stop")
        try:
            await self._stop()
        except ArloError as error:
            return self._head() | {"error": str(error)}
        return self._head() | {"error": None, "info": self._info()}

    # --- ownership ---

    def _take(self, owner: str) -> bool:
        """True when `owner` is in command from now on: it was already, there was no owner, or the old one is gone."""
        now_s = monotonic_s()
        free = self._owner is None or (self._reports == 0 and now_s - self._heard_s > OWNER_SILENT_S)
        if self._owner != owner and not free:
            return False
        self._owner = owner
        self._heard_s = now_s
        return True

    async def _watch_lease(self) -> None:
        """End this actor for good when no pool has called for `linger_s`."""
        import ray

        linger_s = float(self._fields["linger_s"])
        myself = ray.get_runtime_context().current_actor
        while True:
            await asyncio.sleep(min(1.0, linger_s / 4))
            if self._reports == 0 and monotonic_s() - self._heard_s > linger_s:
                with contextlib.suppress(ArloError):
                    await self._stop()
                # The call waits for Ray's head; this loop must go on. Without an answer it is tried again.
                threading.Thread(target=ray.kill, args=(myself,), kwargs={"no_restart": True}, daemon=True).start()

    # --- the worker ---

    async def _command(self, owner: str, what: str, action: Any) -> dict[str, Any]:
        if not self._take(owner):
            return self._refusal(what)
        worker = self._worker
        if worker is None:
            reason = "it is stopped" if self._stopped else self._problem or "it is still starting"
            return self._head() | {"error": f"worker {self._id} could not {what}: {reason}"}
        try:
            await action(worker)
        except ArloError as error:
            return self._head() | {
                "error": str(error),
                "stuck": isinstance(error, StuckError),
                "info": self._info(),
            }
        return self._head() | {"error": None, "info": self._info()}

    async def _start(self) -> None:
        """Retry until Triton runs. From then on LocalWorker restarts it."""
        backoff_s = BACKOFF_S[0]
        while True:
            worker = None
            try:
                settings = self._settings()
                worker = LocalWorker(self._id, settings, self._folder())
                await worker.start()
                self._worker, self._problem = worker, None
                return
            except (ArloError, OSError) as error:
                self._problem = f"node {self._address}: {error}"
                self._attempts += 1
            finally:
                if worker is not None and self._worker is None:
                    await worker.stop()
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S[1])

    async def _stop(self) -> None:
        self._stopped = True
        self._starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._starting
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    def _settings(self) -> LocalSettings:
        """The settings of the local worker; raises an error that names this node's fault."""
        fields = self._fields
        if fields["version"] != arlo.__version__:
            raise EnvironmentProblem(
                f"it has Arlo {arlo.__version__}, the control plane {fields['version']}: install the same on every node"
            )
        repository = Path(fields["repository"])
        if not repository.is_dir():
            raise WorkerError(
                f"the model repository {repository} is not there: every node must see it under the same path "
                "(a shared file system, or a copy on each)"
            )
        if manifest_digest(repository) != fields["manifest"]:
            raise WorkerError(
                f"the model repository {repository} has another {MANIFEST} than the control plane's: copy it again"
            )
        server = find_triton()
        return LocalSettings(
            server=server,
            backends=prepare_backends(server),
            repository=repository,
            environment=environment(server, threads=int(fields["threads"])),
            address=self._address,
            metrics=bool(fields["metrics"]),
            admin_key=fields["admin_key"],
            start_timeout_s=float(fields["start_timeout_s"]),
            exit_timeout_s=int(fields["exit_timeout_s"]),
            hang_timeout_s=float(fields["hang_timeout_s"]),
            backoff_first_s=float(fields["backoff_first_s"]),
        )

    def _folder(self) -> Path:
        """The log folder: in the run folder if the node can write there, else in the temporary folder."""
        folder = Path(self._fields["run_dir"]) / "ray"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
        try:
            return private_folder(self._fields["namespace"])
        except OSError as error:
            raise WorkerError(f"no folder for its log can be made: neither {folder} nor elsewhere ({error})") from None

    # --- reports ---

    def _head(self) -> dict[str, Any]:
        return {
            "incarnation": self._incarnation,
            "version": arlo.__version__,
            "fingerprint": self._fields["fingerprint"],
            "node": self._node,
            "address": self._address,
            "actor_pid": os.getpid(),
        }

    def _refusal(self, what: str) -> dict[str, Any]:
        return self._head() | {
            "held": True,
            "error": f"worker {self._id} could not {what}: another control plane commands it",
        }

    def _info(self) -> dict[str, Any]:
        worker = self._worker
        if worker is None:
            state = "stopped" if self._stopped else "failed" if self._problem else "starting"
            return {
                "state": state,
                "endpoint": None,
                "metrics_url": None,
                "pid": None,
                "restarts": self._attempts,
                "runtimes": [],
                "log": None,
                "error": self._problem,
            }
        seen = dataclasses.asdict(worker.info())
        return seen | {
            "runtimes": list(seen["runtimes"]),
            "restarts": self._attempts + worker.restarts,
        }


def private_folder(name: str) -> Path:
    """A private folder in the temporary folder: the one of this name if it is ours alone, else a new one.

    Other users can write there as well, so a folder under a guessable name may be a trap.
    """
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))
