"""A vision transformer at several token counts, served: real Triton, unchanged clients, a burst in a steady stream."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from arlo.client import AsyncClient, ClientError
from arlo.clock import monotonic_s
from arlo.errors import EnvironmentProblem

PHASES = ((0.4, 8.0), (1.25, 6.0), (0.4, 8.0))  # share of what all tokens carry, seconds
OUTPUTS = ["logits", "tokens"]
NAME, PIXELS = "vit-s-14", "pixel_values"  # the model, its input


@contextlib.contextmanager
def served(config: Path) -> Iterator[dict[str, Any]]:
    """`arlo serve` of a file; what it says when it is ready."""
    line = [sys.executable, "-m", "arlo.cli", "serve", str(config), "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready:
                raise EnvironmentProblem(f"`{' '.join(line)}` did not come up; it says why above")
            yield json.loads(ready)
        finally:
            process.terminate()
            process.wait()


@dataclasses.dataclass
class Phase:
    """What became of the pictures of one part of the stream."""

    rate: float
    sent: int = 0
    answered: int = 0
    right: int = 0
    tokens: Counter[int] = dataclasses.field(default_factory=Counter)
    failures: Counter[str] = dataclasses.field(default_factory=Counter)
    ms: list[float] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For the result."""
        mean = sum(count * rows for count, rows in self.tokens.items()) / max(1, self.answered)
        return {
            "rate": self.rate,
            "sent": self.sent,
            "answered": self.answered,
            "failures": dict(self.failures),
            "right": self.right / max(1, self.answered),
            "mean_tokens": mean,
            "tokens": {str(count): rows for count, rows in sorted(self.tokens.items())},
            "p50_ms": float(np.median(self.ms)) if self.ms else None,
        }


async def stream(
    address: str, rows: NDArray[np.float32], truths: Mapping[str, NDArray[np.int64]], capacity: float
) -> list[dict[str, Any]]:
    """Pictures at random moments, in three phases, each of one of the tasks; each is answered once, or refused with a
    reason.

    truths: of each task the class of each picture. capacity: rows a second with all tokens.
    """
    draws = np.random.default_rng(3)
    phases = [Phase(rate=round(share * capacity, 1)) for share, _ in PHASES]
    async with AsyncClient(address, model=NAME, timeout_s=60) as client:

        async def ask(number: int, phase: Phase, utility: float, task: str) -> None:
            begun = monotonic_s()
            wishes: dict[str, float | str] = {"utility": utility, "task": task}
            try:
                answer = await client.infer(rows[number], outputs=OUTPUTS, parameters=wishes)
            except ClientError as error:
                phase.failures[type(error).__name__] += 1
                return
            phase.ms.append(1000 * (monotonic_s() - begun))
            phase.answered += 1
            phase.right += int(np.argmax(answer["logits"])) == truths[task][number]
            phase.tokens[int(answer["tokens"])] += 1

        tasks, due = [], monotonic_s()
        for phase, (_, seconds) in zip(phases, PHASES, strict=True):
            until = due + seconds
            while (due := due + draws.exponential(1 / phase.rate)) < until:
                await asyncio.sleep(max(0.0, due - monotonic_s()))
                number, utility = int(draws.integers(len(rows))), float(draws.choice([1.0, 0.3, 0.1]))
                phase.sent += 1
                task = str(draws.choice(list(truths)))
                tasks.append(asyncio.create_task(ask(number, phase, utility, task)))
            due = until
        await asyncio.gather(*tasks)
    return [phase.as_dict() for phase in phases]


def tritons_client(address: str, rows: NDArray[np.float32], task: str) -> dict[str, NDArray[Any]]:
    """What unchanged tritonclient gets for several pictures in one request."""
    with triton.InferenceServerClient(address) as client:
        given = triton.InferInput(PIXELS, list(rows.shape), "FP32")
        given.set_data_from_numpy(rows)
        wanted = [triton.InferRequestedOutput(each) for each in OUTPUTS]
        answer = client.infer(NAME, [given], outputs=wanted, parameters={"task": task})
        return {each: answer.as_numpy(each) for each in OUTPUTS}
