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
from tests.fakes.serving import PORTS, Serving

CODE = Path(__file__).parent / "stage_models.py"
Tensor = tuple[object, ...]  # name, datatype, dims, flags


def _stage(kind: str, model: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """A file for `arlo compile wrap`; `name` and `code` are filled in with str.format."""
    text = (
        f'[model]\nname = "{{name}}"\nfiles = {{{{"model.py" = "{{code}}"}}}}\n{model}\n[parameters]\nkind = "{kind}"\n'
    )
    for side, tensors in (("input", inputs), ("output", outputs)):
        for name, datatype, dims, *flags in tensors:
            text += f'[[{side}]]\nname = "{name}"\ndatatype = "{datatype}"\ndims = {dims}\n'
            text += "".join(f"{flag} = true\n" for flag in flags)
    return text


PAGE = ("page", "BYTES", [1])
PLACE = ("place", "INT32", [1])
TOTAL = ("total", "INT64", [1])
ECHO = ("echo", "BYTES", [1])
BY_PAGE = "max_batch = 4\nlatency = [[1, 1, 5], [1, 4, 10]]"
CUT = _stage(
    "cut",
    f'{BY_PAGE}\ncounts = "count"',
    [PAGE],
    [
        ("count", "INT32", [1], "on_request"),
        ("strips", "BYTES", [1], "of_children"),
        (*PLACE, "of_children"),
        ("scores", "FP32", [4]),
    ],
)
SUM = _stage(
    "sum",
    'max_batch = 8\nmax_length = 16\nlabels = ["even", "odd"]\nlatency = [[16, 1, 5], [16, 8, 10]]',
    [("strip", "UINT8", [-1, 2]), PLACE, PAGE],
    [TOTAL, ECHO, ("logits", "FP32", [2], "on_request")],
)
BEST = _stage(
    "best",
    "max_batch = 8\nlatency = [[1, 1, 5]]",
    [("label", "INT32", [1]), ("score", "FP32", [1])],
    [("said", "FP32", [2])],
)
SIZE = _stage("size", BY_PAGE, [PAGE], [TOTAL, ECHO])
ALL = _stage(
    "all",
    "max_batch = 4\nmax_length = 64\nlatency = [[64, 1, 5], [64, 4, 10]]",
    [("total", "INT64", [-1, 1]), ECHO],
    [("lines", "INT32", [1]), ("sum", "INT64", [1]), ("text", "BYTES", [1])],
)

SERVE = f"""\
[pipeline]
flow = "flow.toml"
max_bytes = 100000
[workers]
count = 2
{PORTS}"""


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
