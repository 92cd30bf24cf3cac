"""Pooling of token embeddings to one sentence embedding, twice: in torch for the export, in NumPy as the reference.

The torch form is what sentence-transformers computes, with masks. The NumPy form works on one row without padding, so
it needs no mask at all, and shares no code with the first: `verify` compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


def pool_torch(hidden: torch.Tensor, mask: torch.Tensor, modes: Sequence[str], *, normalize: bool) -> torch.Tensor:
    """Pool `hidden` [rows, tokens, dim] under `mask` [rows, tokens] to [rows, dim * len(modes)]."""
    import torch

    weights = mask.unsqueeze(-1).to(hidden.dtype)
    positions = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    pooled = []
    for mode in modes:
        if mode in ("mean", "mean_sqrt_len_tokens"):
            count = weights.sum(1).clamp(min=1e-9)
            pooled.append((hidden * weights).sum(1) / (count if mode == "mean" else count.sqrt()))
        elif mode == "max":
            pooled.append(hidden.masked_fill(weights == 0, float("-inf")).max(1).values)
        elif mode == "weightedmean":
            # Weights count from the first real token, so that padding on the left changes nothing.
            skipped = mask.to(torch.int32).argmax(1, keepdim=True)
            weighted = weights * (positions.unsqueeze(0) - skipped).unsqueeze(-1).to(hidden.dtype)
            pooled.append((hidden * weighted).sum(1) / weighted.sum(1).clamp(min=1e-9))
        else:  # cls: the first real token; lasttoken: the last one
            marks = mask.to(torch.int32) if mode == "cls" else (mask * positions).to(torch.int32)
            index = marks.argmax(1).reshape(-1, 1, 1).expand(-1, 1, hidden.shape[2])
            pooled.append(hidden.gather(1, index).squeeze(1))
    result = torch.cat(pooled, dim=-1) if len(pooled) > 1 else pooled[0]
    return torch.nn.functional.normalize(result, p=2.0, dim=1) if normalize else result


def pool_numpy(hidden: NDArray[np.float32], modes: Sequence[str], *, normalize: bool) -> NDArray[np.float64]:
    """Pool one row `hidden` [tokens, dim], which has no padding, to [dim * len(modes)] in double precision."""
    row = hidden.astype(np.float64)
    tokens = len(row)
    ranks = np.arange(1, tokens + 1)[:, None]
    by_mode = {
        "cls": lambda: row[0],
        "lasttoken": lambda: row[-1],
        "max": lambda: row.max(0),
        "mean": lambda: row.mean(0),
        "mean_sqrt_len_tokens": lambda: row.sum(0) / np.sqrt(tokens),
        "weightedmean": lambda: (row * ranks).sum(0) / ranks.sum(),
    }
    result: NDArray[np.float64] = np.concatenate([by_mode[mode]() for mode in modes])
    if normalize:
        result /= max(float(np.linalg.norm(result)), 1e-12)
    return result
