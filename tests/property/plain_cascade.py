"""A plain reading of a cascade's rules: one row at a time, in plain Python and NumPy."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arlo.cascade.decide import REASONS
from arlo.cascade.prune import Rewording, Vocabulary
from arlo.cascade.spec import Prune, Rule, Rules, threshold
from benchmarks.papers.tabi.words import Words, words_of

LEAST_SAVING = 0.03  # if time depends on tokens, saving less than this share of them is not worth the loss
MASK = 2**64 - 1


def hash01(seed: int, row: int, stage: int) -> float:
    return float(_mix(_mix(seed & MASK) ^ ((row * 8 + stage) & MASK)) >> 11) * 2.0**-53


def _mix(x: int) -> int:
    """A step of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def decide(
    rules: Rules,
    stage: int,
    confidence: float,
    *,
    row: int = 0,
    length: int = 0,
    seed: int = 0,
    price: int = 0,
    last: int = 7,
    least: float = -1.0,
    present: int = 255,
) -> tuple[int, int]:
    """The next stage, -1 for exit; the reason, -1 for none."""
    count = len(rules.prices[0]) + 1
    limit = min(count - 1, last)

    def ends(reason: str) -> tuple[int, int]:
        return -1, REASONS.index(reason)

    def goes_on(rule: Rule) -> bool:
        if least >= 0:
            return confidence < least
        if rule.kind == "hard":
            return confidence < threshold(rule, length)
        if rule.c >= 1 or confidence <= rule.c:
            return True
        norm = (confidence - rule.c) / (1 - rule.c) - 0.5
        return hash01(seed, row, stage) < 1 / (1 + math.exp(rule.k * norm))

    if stage >= count - 1:
        return ends("final")
    if not goes_on(rules.prices[min(price, len(rules.prices) - 1)][stage]):
        return ends("load" if price > 0 and goes_on(rules.prices[0][stage]) else "confident")
    if stage >= limit:
        return ends("client_limit")
    cuts = rules.skip[stage] if stage < len(rules.skip) else ()
    target = min(stage + 1 + sum(cut > confidence for cut in cuts), limit)
    for to in (*range(target, limit + 1), *range(target - 1, stage, -1)):  # the first from there on, else the nearest
        if present >> to & 1:
            return to, -1
    return ends("stage_absent")


def prune(
    spec: Prune,
    vocabulary: Vocabulary,
    ids: NDArray[np.int64],
    importance: NDArray[np.float32],
    levels: Sequence[int] = (),
    *,
    to: Rewording | None = None,
    under: int = 0,
) -> NDArray[np.int64]:
    """Positions of the kept tokens; see arlo.cascade.prune.prune."""
    target = ids if to is None else np.asarray(to.ids)
    whole = np.arange(len(target))
    weight = importance.astype(np.float64)
    stairs = spec.to_level and len(levels) > 0
    ideal = _level(levels, len(target))
    words = words_of(vocabulary, ids)
    there = words if to is None else words_of(to.vocabulary, target)
    if (stairs and (ideal == levels[0] or 0 < under <= levels[0])) or not len(words.size):
        return whole
    if (under and (not stairs or spec.alpha_max < spec.alpha)) or not _same_words(words, there):
        return whole
    counted = weight if spec.mean_over == "all" else weight[words.word >= 0]
    limit = (spec.alpha_max if under else spec.alpha) * (np.add.accumulate(counted)[-1] / len(counted))
    heaviest = np.array([weight[words.word == at].max() for at in range(len(words.size))])
    kept = words.always | (heaviest > limit)
    order = np.argsort(-heaviest, kind="stable")
    seen = set(words.segment[kept].tolist())
    for at in order[~kept[order]]:
        if kept.sum() < spec.min_words or words.segment[at] not in seen:
            kept[at] = True
            seen.add(words.segment[at])
    size = len(target) - int(there.size[~kept].sum())
    if size == len(target):
        return whole
    if stairs:
        level = levels[bisect.bisect_left(levels, under) - 1] if under else _level(levels, size)
        if level is None or level == ideal or size > level:
            return whole
        for at in order[~kept[order]]:
            if size + there.size[at] <= level:
                kept[at] = True
                size += int(there.size[at])
        if under and _removed(words, weight, kept) > spec.most_removed:
            return whole
    elif spec.to_level and size > (1 - LEAST_SAVING) * len(target):
        return whole
    return np.nonzero((there.word < 0) | kept[there.word])[0]


def _removed(words: Words, weight: NDArray[np.float64], kept: NDArray[np.bool_]) -> float:
    """Share of the words' importance that is left out; summed in order, as the gateway does."""
    every, left = (
        float(np.add.accumulate(np.where(which, weight, 0.0))[-1])
        for which in (words.word >= 0, (words.word >= 0) & ~kept[words.word])
    )
    return left / every if every > 0 else 1.0


def _same_words(a: Words, b: Words) -> bool:
    return len(a.size) == len(b.size) and np.array_equal(np.diff(a.segment) > 0, np.diff(b.segment) > 0)


def _level(levels: Sequence[int], tokens: int) -> int | None:
    at = bisect.bisect_left(levels, tokens)
    return levels[at] if at < len(levels) else None
