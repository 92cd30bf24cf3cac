"""Workers with Triton's Python backend: this environment's packages, thread share, nothing left after a crash."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton

from arlo.clock import monotonic_s
from arlo.workers import LocalPool

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

MODEL = """
import json, os, sys, time
import numpy as np
import tritonclient
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(sum(pb_utils.get_input_tensor_by_name(r, "x").as_numpy().item() for r in requests) / 1000)
        facts = {"pid": os.getpid(), "prefix": sys.prefix, "version": sys.version_info[:2], "numpy": np.__file__,
                 "client": tritonclient.__file__, "threads": os.environ["ARLO_THREADS"],
                 "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}
        answer = np.array([[json.dumps(facts).encode()]], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("facts", answer)]) for _ in requests]
"""
CONFIG = """
name: "facts"
backend: "python"
max_batch_size: 1
input [ { name: "x" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "facts" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalPool]:
    repository = tmp_path_factory.mktemp("repository")
    (repository / "facts" / "1").mkdir(parents=True)
    (repository / "facts" / "1" / "model.py").write_text(MODEL)
    (repository / "facts" / "config.pbtxt").write_text(CONFIG)
    run_dir = tmp_path_factory.mktemp("run")
    async with LocalPool(repository, workers=1, run_dir=run_dir, threads=3, gpus=["5", "6"], metrics=False) as pool:
        await pool.load("w0", "facts")
        yield pool
    assert shared_memory() == []


def shared_memory() -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"arlo_{os.getpid()}_*")]


async def ask(pool: LocalPool, caller: Any, *, takes_ms: int = 0) -> dict[str, Any]:
    client = caller.client((await pool.workers())[0].endpoint)
    tensor = triton.InferInput("x", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.full((1, 1), takes_ms, np.int32))
    result = await client.infer("facts", [tensor])
    return dict(json.loads(result.as_numpy("facts")[0, 0]))


async def test_the_model_sees_this_environment(pool: LocalPool, caller: Any) -> None:
    facts = await ask(pool, caller)
    assert facts["version"] == list(sys.version_info[:2])
    assert facts["prefix"] == sys.prefix
    for name in ("numpy", "client"):
        assert facts[name].startswith(sys.prefix)
    assert facts["threads"] == "3"
    assert facts["gpu"] == "5"
    assert shared_memory() != []


async def test_unloading_takes_no_second(pool: LocalPool, caller: Any, alive: Callable[[int], bool]) -> None:
    """Left to itself, Triton's Python backend sleeps for one. What runs and what waits is answered first."""
    endpoint = (await pool.workers())[0].endpoint
    files = shared_memory()
    count = (await caller.statistics(endpoint, "facts")).execution_count
    asked = [asyncio.create_task(ask(pool, caller, takes_ms=200)) for _ in range(3)]
    while (await caller.statistics(endpoint, "facts")).execution_count == count:
        await asyncio.sleep(0.01)
    began_s = monotonic_s()
    await pool.unload("w0", "facts")
    assert monotonic_s() - began_s < 0.9
    facts = await asyncio.wait_for(asyncio.gather(*asked), 0.15)
    assert not alive(facts[0]["pid"])
    await pool.load("w0", "facts")
    assert (await ask(pool, caller))["pid"] != facts[0]["pid"]
    assert len(shared_memory()) == len(files)


async def test_a_crash_leaves_no_stub_and_no_shared_memory(
    pool: LocalPool, caller: Any, alive: Callable[[int], bool], eventually: Callable[..., Awaitable[None]]
) -> None:
    stub = (await ask(pool, caller))["pid"]
    before = shared_memory()
    server = (await pool.workers())[0].pid
    assert server is not None
    os.kill(server, signal.SIGKILL)

    async def back() -> bool:
        worker = (await pool.workers())[0]
        return worker.runtimes == ("facts",) and worker.pid != server

    await eventually(back, "the worker is back")
    assert not alive(stub)
    assert (await ask(pool, caller))["pid"] != stub
    assert len(shared_memory()) == len(before)


async def test_a_worker_whose_stub_died_is_restarted(
    pool: LocalPool, caller: Any, eventually: Callable[..., Awaitable[None]]
) -> None:
    """Triton itself would keep the runtime "ready" and fail its requests for ever."""
    before = (await pool.workers())[0]
    os.kill((await ask(pool, caller))["pid"], signal.SIGKILL)

    async def back() -> bool:
        worker = (await pool.workers())[0]
        return worker.restarts == before.restarts + 1 and worker.runtimes == ("facts",)

    await eventually(back, "the worker is restarted")
    assert (await ask(pool, caller))["version"] == list(sys.version_info[:2])
