"""Stages of tensors for tests: what `arlo compile wrap` is told of them, and requests for them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton

from arlo.control.gateway.admin import AdminClient
from tests.fakes.processes import until
from tests.fakes.serving import Serving

CODE = Path(__file__).parent / "stage_models.py"
CUT = """\
[model]
name = "{name}"
files = {{"model.py" = "{code}"}}
max_batch = 4
counts = "count"
latency = [[1, 1, 5], [1, 4, 10]]
[parameters]
kind = "cut"
[[input]]
name = "page"
datatype = "BYTES"
dims = [1]
[[output]]
name = "count"
datatype = "INT32"
dims = [1]
on_request = true
[[output]]
name = "strips"
datatype = "BYTES"
dims = [1]
of_children = true
[[output]]
name = "place"
datatype = "INT32"
dims = [1]
of_children = true
[[output]]
name = "scores"
datatype = "FP32"
dims = [4]
"""
SUM = """\
[model]
name = "{name}"
files = {{"model.py" = "{code}"}}
max_batch = 8
max_length = 16
labels = ["even", "odd"]
latency = [[16, 1, 5], [16, 8, 10]]
[parameters]
kind = "sum"
[[input]]
name = "strip"
datatype = "UINT8"
dims = [-1, 2]
[[input]]
name = "place"
datatype = "INT32"
dims = [1]
[[input]]
name = "page"
datatype = "BYTES"
dims = [1]
[[output]]
name = "total"
datatype = "INT64"
dims = [1]
[[output]]
name = "echo"
datatype = "BYTES"
dims = [1]
[[output]]
name = "logits"
datatype = "FP32"
dims = [2]
on_request = true
"""
BEST = """\
[model]
name = "best"
files = {{"model.py" = "{code}"}}
max_batch = 8
latency = [[1, 1, 5]]
[parameters]
kind = "best"
[[input]]
name = "label"
datatype = "INT32"
dims = [1]
[[input]]
name = "score"
datatype = "FP32"
dims = [1]
[[output]]
name = "said"
datatype = "FP32"
dims = [2]
"""
SIZE = """\
[model]
name = "size"
files = {{"model.py" = "{code}"}}
max_batch = 4
latency = [[1, 1, 5], [1, 4, 10]]
[parameters]
kind = "size"
[[input]]
name = "page"
datatype = "BYTES"
dims = [1]
[[output]]
name = "total"
datatype = "INT64"
dims = [1]
[[output]]
name = "echo"
datatype = "BYTES"
dims = [1]
"""
ALL = """\
[model]
name = "all"
files = {{"model.py" = "{code}"}}
max_batch = 4
max_length = 64
latency = [[64, 1, 5], [64, 4, 10]]
[parameters]
kind = "all"
[[input]]
name = "total"
datatype = "INT64"
dims = [-1, 1]
[[input]]
name = "echo"
datatype = "BYTES"
dims = [1]
[[output]]
name = "lines"
datatype = "INT32"
dims = [1]
[[output]]
name = "sum"
datatype = "INT64"
dims = [1]
[[output]]
name = "text"
datatype = "BYTES"
dims = [1]
"""

SERVE = """\
[pipeline]
flow = "flow.toml"
max_bytes = 100000
[workers]
count = 2
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[control]
http_address = "127.0.0.1:0"
"""


def inputs_of(pages: Sequence[bytes]) -> list[Any]:
    one = triton.InferInput("page", [len(pages), 1], "BYTES")
    one.set_data_from_numpy(np.asarray([*pages, b""], np.object_)[:-1].reshape(-1, 1))
    return [one]


async def nothing_left(served: Serving, models: Sequence[str]) -> None:
    """No row of these waits or runs any more."""

    async def idle() -> bool:
        for model in models:
            async with AdminClient(served.ready["admin"], model=model) as admin:
                stats = await admin.stats()
                if stats.queued or stats.in_flight:
                    return False
        return True

    await until(idle, "nothing left")


async def leave_under_way(served: Serving, ask: Callable[[], Coroutine[Any, Any, Any]], *, stage: int) -> None:
    """Twelve clients ask, and go when more than 30 rows of theirs have come to a stage."""
    tasks = [asyncio.create_task(ask()) for _ in range(12)]
    async with AdminClient(served.ready["admin"], model="pages") as admin:

        async def under_way() -> bool:
            return bool((await admin.stats()).pipeline[stage].visits > 30)

        await until(under_way, "visits under way")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def kill_under_load(served: Serving, ask: Callable[[list[bytes]], Awaitable[None]]) -> None:
    """Four clients ask for pages of random parts, and a worker is killed under them (SIGKILL)."""
    stop = asyncio.Event()
    answered = 0

    async def load(seed: int) -> None:
        nonlocal answered
        random = np.random.default_rng(seed)
        while not stop.is_set():
            parts = [
                [bytes(random.integers(97, 123, random.integers(1, 12)).tolist()) for _ in range(n)]
                for n in random.integers(0, 12, 3)
            ]
            await ask([b"|".join(each) for each in parts])
            answered += 1

    tasks = [asyncio.create_task(load(seed)) for seed in range(4)]

    async def more(count: int) -> None:
        wanted = answered + count
        await until(lambda: answered >= wanted or any(task.done() for task in tasks), f"{count} more answers")

    try:
        await more(20)
        os.kill(served.worker_pid(), signal.SIGKILL)
        await more(60)
    finally:
        stop.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result for result in results if result is not None] == []
