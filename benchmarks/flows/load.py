"""Texts sent to a served flow, and what came back of them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.client import AsyncClient
from arlo.client.errors import ClientError
from arlo.clock import monotonic_s

Judge = Callable[[dict[str, Any], Mapping[str, Any]], Mapping[str, float]]  # (text, answer) -> figures, to be summed


async def send(
    client: AsyncClient, texts: Sequence[dict[str, Any]], rate: float, outputs: Sequence[str], judge: Judge
) -> dict[str, Any]:
    """Texts at random moments, on average `rate` a second; 0: one after the other. `sums`: of what `judge` says of
    each answer."""
    gaps = np.random.default_rng(1).exponential(1 / rate, len(texts)) if rate else np.zeros(len(texts))
    times: list[float] = []
    sums: defaultdict[str, float] = defaultdict(float)
    failed: Counter[str] = Counter()

    async def ask(one: dict[str, Any], at: float) -> None:
        await asyncio.sleep(max(0.0, at - monotonic_s()))
        begun = at if rate else monotonic_s()
        try:
            answer = await client.infer_batch([one["text"]], outputs=list(outputs))
        except ClientError as error:
            failed[type(error).__name__] += 1
            return
        times.append(1000 * (monotonic_s() - begun))
        for name, value in judge(one, answer.outputs).items():
            sums[name] += value

    moments = zip(texts, monotonic_s() + np.cumsum(gaps), strict=True)
    if rate:
        await asyncio.gather(*(ask(one, at) for one, at in moments))
    else:
        for one, at in moments:
            await ask(one, at)
    values = np.asarray(times or [float("nan")])
    return {
        "rate": rate,
        "roots": len(texts),
        "answered": len(times),
        "failed": sum(failed.values()),
        "failures": dict(failed),
        "sums": dict(sums),
        "mean_ms": float(values.mean()),
        "p98_ms": float(np.quantile(values, 0.98)),
    }


def client_of(address: str, model: str, repository: Path) -> AsyncClient:
    """A client of a flow whose entry is this repository."""
    return AsyncClient(address, model=model, tokenizer=repository / "tokenizer.json")
