"""Token schedules: how many tokens each layer of an encoder computes when a fixed number is merged away or added.

OTAS (arXiv 2401.05031), section III-B: `change` tokens a layer, merged between attention and MLP (below 0), or added as
prompts before the layer (above 0), where they stay. Merging pairs every second token with one of the others, so a layer
can lose at most half of those that are not protected.
"""

from __future__ import annotations

from collections.abc import Sequence


def merge_schedule(tokens: int, layers: int, merge: int, *, protected: int = 1) -> list[int]:
    """The tokens that each layer merges away: `merge`, or fewer if no more are left to pair. Shape [layers]."""
    found = []
    for _ in range(layers):
        found.append(max(0, min(merge, (tokens - protected) // 2)))
        tokens -= found[-1]
    return found


def clamped(tokens: int, layers: int, merge: int, *, protected: int = 1) -> bool:
    """Whether some layer has too few tokens for its share; accuracy drops sharply there."""
    return merge_schedule(tokens, layers, merge, protected=protected) != [merge] * layers


def usual_merges(tokens: int, layers: int, *, protected: int = 1) -> list[int]:
    """The merges per layer that remove 0, 15, 30, 45 and 60 % of the tokens that all layers compute, ascending, as long
    as every layer has enough tokens."""
    found = {round(share * 2 * tokens / (layers + 1)) for share in (0, 0.15, 0.3, 0.45, 0.6)}
    return sorted(merge for merge in found if not clamped(tokens, layers, merge, protected=protected))


def tokens_after(tokens: int, layers: int, change: int, *, protected: int = 1) -> list[int]:
    """Tokens after each layer's change, shape [layers]."""
    if change >= 0:
        return [tokens + change * (layer + 1) for layer in range(layers)]
    found = []
    for merged in merge_schedule(tokens, layers, -change, protected=protected):
        tokens -= merged
        found.append(tokens)
    return found


def multiplications(tokens: int, layers: int, change: int, *, width: int, protected: int = 1) -> float:
    """Multiply-adds of the layers for one row.

    4 n d^2 + 2 n^2 d for attention over the n tokens that a layer computes it on, 8 n' d^2 for the MLP on those left.
    """
    after = tokens_after(tokens, layers, change, protected=protected)
    return (
        merged_multiplications(tokens, [0] * layers, width=width)
        if change == 0
        else _sum(after if change > 0 else [tokens, *after[:-1]], after, width)
    )


def merged_multiplications(tokens: int, merged: Sequence[int], *, width: int) -> float:
    """Multiply-adds for an explicit schedule of merged tokens, [layers]."""
    before, after = [], []
    for count in merged:
        before.append(tokens)
        tokens -= count
        after.append(tokens)
    return _sum(before, after, width)


def _sum(attention: Sequence[int], mlp: Sequence[int], width: int) -> float:
    return float(
        sum(4 * n * width**2 + 2 * n**2 * width + 8 * m * width**2 for n, m in zip(attention, mlp, strict=True))
    )
