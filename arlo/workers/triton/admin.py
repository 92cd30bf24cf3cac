"""Triton's administration calls: live, repository index, load, unload.

Triton's own behaviour, with explicit model control: a load blocks until the runtime is ready or has failed; an unload
returns at once, and the runtime's memory is free only once the index shows it; a later operation wins over an
unfinished one.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from arlo.clock import monotonic_s
from arlo.errors import WorkerError
from arlo.workers.pool import StuckError
from arlo.workers.triton.server import admin_headers

POLL_S = 0.02
READY = "READY"
BUSY = frozenset({READY, "LOADING", "UNLOADING"})


def until_tick(now_s: float, period_s: float) -> float:
    """Seconds to the next multiple of the period: the checks of all workers share one wake-up, a third less CPU."""
    return period_s - now_s % period_s


class TritonAdmin:
    """One server's administration calls over one channel. Make and use it on one event loop; `close` it."""

    def __init__(self, endpoint: str, *, admin_key: str | None = None) -> None:
        self.endpoint = endpoint
        self._metadata = tuple(admin_headers(admin_key).items())
        # A worker that restarts is reached again at once, not after gRPC's usual seconds.
        self._channel = grpc.aio.insecure_channel(
            endpoint,
            options=[
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 500),
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._ready_index = service_pb2.RepositoryIndexRequest(ready=True)

    async def close(self) -> None:
        """Close the channel; calls under way fail."""
        await self._channel.close()

    async def is_live(self, *, timeout_s: float = 1.0) -> bool:
        """False also when it can't be reached."""
        try:
            answer = await self._invoke(self._stub.ServerLive, service_pb2.ServerLiveRequest(), timeout_s)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError):
            return False
        return bool(answer.live)

    async def index(self, *, ready_only: bool = False, timeout_s: float = 2.0) -> dict[str, tuple[str, str]]:
        """Runtime -> (state, reason); state is "" for one never loaded.

        It covers every model in the repository, for which Triton reads the folder, or, with `ready_only`, ready ones.
        """
        request = service_pb2.RepositoryIndexRequest(ready=ready_only)
        answer = await self._call(self._stub.RepositoryIndex, request, timeout_s, "list its runtimes")
        return {model.name: (model.state, model.reason) for model in answer.models}

    async def ready_runtimes(self, *, timeout_s: float = 2.0) -> tuple[str, ...]:
        """The runtimes that answer requests now, sorted."""
        index = await self.index(ready_only=True, timeout_s=timeout_s)
        return tuple(sorted(name for name, (state, _) in index.items() if state == READY))

    async def check(self, *, timeout_s: float) -> tuple[str, ...] | None:
        """Sign of life and ready runtimes in one cheap call: the runtimes, sorted; None when nothing answers in time.

        WorkerError when the server answers, but with an error: it is alive.
        """
        try:
            answer = await self._invoke(self._stub.RepositoryIndex, self._ready_index, timeout_s)
        except grpc.aio.UsageError:
            return None
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                return None
            raise WorkerError(
                f"worker {self.endpoint} could not list its runtimes: {error.details()} ({error.code().name})"
            ) from None
        return tuple(sorted(model.name for model in answer.models if model.state == READY))

    async def load(self, runtime: str, *, timeout_s: float) -> None:
        """Load a runtime and wait until it is ready. WorkerError with Triton's reason; an abandoned load is undone.

        A ready runtime is reloaded from its files and answers meanwhile; if the reload fails, it stays as it was.
        """
        deadline_s = monotonic_s() + timeout_s
        serves = (await self._state(runtime, deadline_s))[0] == READY
        request = service_pb2.RepositoryModelLoadRequest(model_name=runtime)
        try:
            await self._call(self._stub.RepositoryModelLoad, request, timeout_s, f"load {runtime}")
            while True:
                state, reason = await self._state(runtime, deadline_s)
                if state == READY:
                    return
                if state != "LOADING":
                    raise WorkerError(
                        f"worker {self.endpoint} did not load {runtime}: {reason or f'its state is {state!r}'}"
                    )
                if monotonic_s() > deadline_s:
                    raise WorkerError(f"worker {self.endpoint} did not load {runtime} within {timeout_s:.3g} s")
                await asyncio.sleep(POLL_S)
        except WorkerError:
            if serves:
                raise
            # A later operation wins over an unfinished one, and clears a failed one.
            with contextlib.suppress(WorkerError):
                await self._unload(runtime, timeout_s=2.0)
            raise

    async def unload(self, runtime: str, *, timeout_s: float) -> None:
        """Unload a runtime and wait until Triton has freed it; queued and running requests are answered first."""
        deadline_s = monotonic_s() + timeout_s
        await self._unload(runtime, timeout_s=timeout_s)
        wait_s = 0.002
        while True:
            state, _ = await self._state(runtime, deadline_s)
            if state not in BUSY:
                return
            if monotonic_s() > deadline_s:
                raise StuckError(
                    f"worker {self.endpoint} did not unload {runtime} within {timeout_s:.3g} s: it is still {state}"
                )
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 0.1)

    async def _state(self, runtime: str, deadline_s: float) -> tuple[str, str]:
        index = await self.index(timeout_s=max(0.1, deadline_s - monotonic_s()))
        return index.get(runtime, ("", "it is not in the repository"))

    async def _unload(self, runtime: str, *, timeout_s: float) -> None:
        request = service_pb2.RepositoryModelUnloadRequest(model_name=runtime)
        await self._call(self._stub.RepositoryModelUnload, request, timeout_s, f"unload {runtime}")

    async def _call(self, method: Any, request: Any, timeout_s: float, what: str) -> Any:
        try:
            return await self._invoke(method, request, timeout_s)
        except grpc.aio.UsageError:
            reason = "it was stopped or has ended"
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                reason = f"no answer within {timeout_s:g} s"
            else:
                reason = f"{error.details()} ({error.code().name})"
        raise WorkerError(f"worker {self.endpoint} could not {what}: {reason}")

    async def _invoke(self, method: Any, request: Any, timeout_s: float) -> Any:
        try:
            return await method(request, timeout=timeout_s, metadata=self._metadata)
        except asyncio.CancelledError:
            # gRPC cancels the calls under way when the channel closes; only our own task's cancellation is ours.
            task = asyncio.current_task()
            if task is not None and task.cancelling() > 0:
                raise
            raise grpc.aio.UsageError("the channel was closed") from None
