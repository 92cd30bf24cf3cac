"""Stand-ins for the four real workers, in this process: for a gateway built with sanitizers.

They answer as the emulated engine does, in its time, one request after the other for each runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.catalog.manifest import Manifest
from arlo.workers import LocalPool
from tests.fakes.odd_worker import Behaviour, OddWorker, tensors_of
from tests.fakes.triton_workers import Workers

Recorded = tuple[NDArray[np.float32], NDArray[np.float32]]  # logits [records, labels], importance [records, tokens]


class _NoPool:
    """Tests of processes that are killed or runtimes that are unloaded are for the real workers."""

    def __getattr__(self, name: str) -> Any:
        pytest.skip("the workers are stand-ins in this process: no Triton to act on")


class SmallWorkers(Workers):
    """Four servers that each have every runtime of every model."""

    def __init__(self, manifests: Mapping[str, Manifest], servers: list[OddWorker]) -> None:
        super().__init__(cast("LocalPool", _NoPool()), manifests)
        self.endpoints = [server.endpoint for server in servers]
        self._servers = servers

    async def executions(self, worker: int, runtime: str) -> int:
        return sum(request.model_name == runtime for request in self._servers[worker].requests)


@contextlib.asynccontextmanager
async def small_workers(
    manifests: Mapping[str, Manifest], recorded: Mapping[str, Recorded] | None = None
) -> AsyncIterator[SmallWorkers]:
    """Four of them, started. `recorded`: of models that replay records, logits and importance."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(OddWorker(_engine(manifests, recorded or {}))) for _ in range(4)]
        yield SmallWorkers(manifests, servers)


def _engine(manifests: Mapping[str, Manifest], recorded: Mapping[str, Recorded]) -> Behaviour:
    """The emulated engine of one worker."""
    runtimes = {
        runtime.name: (manifest, runtime.latency[-1].latency_us / 1e6)
        for manifest in manifests.values()
        for runtime in manifest.runtimes
    }
    turns = {name: asyncio.Lock() for name in runtimes}

    async def behave(worker: OddWorker, request: Any) -> bytes:
        manifest, takes_s = runtimes[request.model_name]
        async with turns[request.model_name]:
            await asyncio.sleep(takes_s)
        return _answer(manifest, request, recorded.get(manifest.model))

    return behave


def _answer(manifest: Manifest, request: Any, recorded: Recorded | None) -> bytes:
    tensors = tensors_of(request)
    ids, mask = tensors["input_ids"], tensors["attention_mask"]
    response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    wanted = [output.name for output in request.outputs]
    for output in manifest.outputs:
        if wanted and output.name not in wanted:
            continue
        if recorded is not None:
            logits, importance = recorded
            array = importance[ids[:, 1], : ids.shape[1]] if output.token_level else logits[ids[:, 1]]
        else:
            values = ids if output.token_level else (ids * mask).sum(1)
            array = np.repeat(values[..., None].astype("<f4"), output.dims[0], axis=-1)
        response.outputs.add(name=output.name, datatype="FP32", shape=array.shape)
        response.raw_output_contents.append(array.tobytes())
    return bytes(response.SerializeToString())
