"""How much a body's answers change when one layer merges tokens, and what that says of all layers together.

What counts is the Kullback-Leibler divergence of a row's classes from those with all tokens: it needs no labels, and
sees a change before the label does. It is measured on rows that are not measured otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)  # of the tokens that a layer can merge


def tried(tokens: int, protected: int) -> list[int]:
    """Merges that a layer is tried with when `tokens` come to it, ascending; below them there is 0."""
    most = (tokens - protected) // 2
    return sorted({round(share * most) for share in SHARES} - {0})


def divergences(
    variant: Any, batches: Sequence[Mapping[str, NDArray[Any]]], schedules: Sequence[Sequence[int]]
) -> list[float]:
    """Of each schedule the mean divergence, nats, of the answers to all rows (of a token classifier: to all tokens)
    from those without merges.

    variant: a torch module that merges, from inputs by position to logits [rows, classes] or [rows, tokens, classes].
    """
    import torch

    layers, total, count = len(variant.merging.schedule), np.zeros(len(schedules)), 0

    def said(given: Sequence[torch.Tensor], schedule: Sequence[int]) -> torch.Tensor:
        variant.merging.schedule = tuple(schedule)
        return variant(*given).double().log_softmax(-1)  # type: ignore[no-any-return]

    with torch.inference_mode():
        for batch in batches:
            given = [torch.from_numpy(array) for array in batch.values()]
            plain = said(given, (0,) * layers)
            real = torch.ones(plain.shape[:-1])
            if plain.dim() == 3:
                real = torch.from_numpy(batch["attention_mask"])
            count += int(real.sum())
            for number, schedule in enumerate(schedules):
                each = (plain.exp() * (plain - said(given, schedule))).sum(-1)
                total[number] += float((each * real).sum())
    return [max(0.0, float(each)) for each in np.round(total / count, 12)]  # less is rounding


def modelled(measured: NDArray[np.float64], counts: Sequence[int], tokens: int) -> list[NDArray[np.float64]]:
    """Losses as `best_schedule` takes them, [layers, tokens + 1, most + 1], by two models of how layers add up.

    measured: [layers, counts], the divergence when that layer alone merges `counts` of all tokens. By the first model
    a layer's loss is that of as many merges, whatever is left; by the second it is what they add to those that the
    layers before made, as if this layer had made all of them: so padding that is gone cannot go once more.
    """
    before, merged = np.arange(tokens + 1)[:, None], np.arange(counts[-1] + 1)[None, :]
    gone = tokens - before
    # More merges never cost less, whatever chance has it; beyond the last count it goes on as it went up to it.
    known = np.maximum.accumulate(np.c_[np.zeros(len(measured)), measured], 1)
    at = np.array([0, *counts])

    def loss(layer: int, count: NDArray[np.int64]) -> NDArray[np.float64]:
        slope = (known[layer, -1] - known[layer, -2]) / (at[-1] - at[-2])
        found: NDArray[np.float64] = np.interp(count, at, known[layer]) + slope * np.maximum(0, count - at[-1])
        return found

    layers = range(len(measured))
    alone = np.stack([np.broadcast_to(loss(layer, merged), (tokens + 1, merged.size)) for layer in layers])
    together = np.stack([loss(layer, gone + merged) - loss(layer, gone) for layer in layers])
    return [alone, together]
