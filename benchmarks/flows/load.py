"""Texts sent to a served flow, and what came back of them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

from arlo.client.errors import ClientError
from arlo.clock import monotonic_s

Ask = Callable[[str], Awaitable[Mapping[str, Any]]]  # text -> outputs by name, rows first
Judge = Callable[[dict[str, Any], Mapping[str, Any]], Mapping[str, float]]  # (text, answer) -> figures, to be summed


async def send(ask: Ask, texts: Sequence[dict[str, Any]], rate: float, judge: Judge) -> dict[str, Any]:
    """Texts at random moments, on average `rate` a second; 0: one after the other. `sums`: of what `judge` says of
    each answer."""
    gaps = np.random.default_rng(1).exponential(1 / rate, len(texts)) if rate else np.zeros(len(texts))
    times: list[float] = []
    sums: defaultdict[str, float] = defaultdict(float)
    failed: Counter[str] = Counter()

    async def one_text(one: dict[str, Any], at: float) -> None:
        await asyncio.sleep(max(0.0, at - monotonic_s()))
        begun = at if rate else monotonic_s()
        try:
            answer = await ask(one["text"])
        except ClientError as error:
            failed[type(error).__name__] += 1
            return
        except InferenceServerException as error:
            failed[str(error.status())] += 1
            return
        times.append(1000 * (monotonic_s() - begun))
        for name, value in judge(one, answer).items():
            sums[name] += value

    moments = zip(texts, monotonic_s() + np.cumsum(gaps), strict=True)
    if rate:
        await asyncio.gather(*(one_text(one, at) for one, at in moments))
    else:
        for one, at in moments:
            await one_text(one, at)
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
