"""What the worker tests share: waiting for a condition, a call to a Triton model, statistics."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray

from arlo.clock import monotonic_s

Array = NDArray[Any]


@dataclasses.dataclass
class Caller:
    """Calls Triton models through tritonclient, one connection per endpoint."""

    clients: dict[str, Any] = dataclasses.field(default_factory=dict)

    def client(self, endpoint: str) -> Any:
        if endpoint not in self.clients:
            self.clients[endpoint] = triton.InferenceServerClient(endpoint)
        return self.clients[endpoint]

    async def infer(
        self, endpoint: str, model: str, ids: Array, mask: Array | None = None, outputs: Sequence[str] = ()
    ) -> dict[str, Array]:
        """The outputs by name; all of them, or those asked for."""
        inputs = []
        for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids) if mask is None else mask)):
            tensor = triton.InferInput(name, array.shape, "INT64")
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        wanted = [triton.InferRequestedOutput(name) for name in outputs] or None
        result = await self.client(endpoint).infer(model, inputs, outputs=wanted)
        return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}

    async def statistics(self, endpoint: str, model: str, *, requests: int = 0) -> Any:
        """Triton's own statistics of a model, once they count `requests` (they follow the answers)."""
        while True:
            statistics = (await self.client(endpoint).get_inference_statistics(model)).model_stats[0]
            if statistics.inference_stats.success.count >= requests:
                return statistics
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller() -> AsyncIterator[Caller]:
    caller = Caller()
    yield caller
    await caller.close()


async def _eventually(condition: Callable[[], Any], what: str, timeout_s: float = 20.0) -> None:
    deadline_s = monotonic_s() + timeout_s
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert monotonic_s() < deadline_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """await eventually(condition, "what it says"): returns as soon as the condition, plain or async, is true."""
    return _eventually


def _alive(pid: int) -> bool:
    """True while a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="session")
def alive() -> Callable[[int], bool]:
    return _alive
