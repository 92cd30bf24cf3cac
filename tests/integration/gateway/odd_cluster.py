"""A gateway in front of odd workers, and requests with a token that they cannot bear."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from tests.fakes.gateway import Gateway
from tests.fakes.odd_worker import Behaviour, OddWorker
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import example, request_of

POISON = 30_666  # which rows_of() never draws: no other request has it, however many are sent


def poisoned(*lengths: int, model: str = "emu") -> Any:
    """A request whose last row holds the token."""
    request = request_of(example(*lengths, outputs=("embedding",)), model=model)
    ids = np.frombuffer(request.raw_input_contents[0], "<i8").copy()
    ids.reshape(len(lengths), -1)[-1, 0] = POISON
    request.raw_input_contents[0] = ids.tobytes()
    return request


@contextlib.asynccontextmanager
async def odd_cluster(
    workers: Workers, start: Any, *behaviours: Behaviour, model: str = "emu", inflight_limit: int = 2, **changes: Any
) -> AsyncIterator[tuple[Gateway, list[OddWorker]]]:
    """A gateway in front of a worker for each behaviour, all of one runtime, with room for `inflight_limit` batches."""
    async with contextlib.AsyncExitStack() as stack:
        odd = [await stack.enter_async_context(OddWorker(behave)) for behave in behaviours]
        deployment = workers.deployment(
            model,
            [(index, 64) for index in range(len(odd))],
            endpoints=[worker.endpoint for worker in odd],
            inflight_limit=inflight_limit,
        )
        yield await stack.enter_async_context(start(deployment, **changes)), odd
