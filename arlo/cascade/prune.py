"""The tokens of a row that the next stage receives: the twin of src/flow/cascade/prune.h.

Importance is the attention that a token receives, summed over layers, heads and real queries (Tabi section 2.3). The
mean of Eq. 5 is over tokens that are not special: otherwise CLS alone takes a third of it, and the pruned shares do not
match those printed in the paper.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.spec import Prune

NEGATIONS = {"not", "no", "never", "none", "nor", "neither", "nothing", "without", "cannot", "n't", "t"}

LEAST_SAVING = 0.03  # if time depends on tokens, saving less than this share of them is not worth the loss


@dataclasses.dataclass(frozen=True, slots=True)
class Vocabulary:
    """The word boundaries of a vocabulary. Ids beyond `word_start` begin a word."""

    word_start: NDArray[np.bool_]  # [ids]
    special: frozenset[int] = frozenset()  # ids that are no words
    keep: frozenset[int] = frozenset()  # ids whose words are always kept


def word_starts(pieces: Sequence[str]) -> NDArray[np.bool_]:
    """Which pieces of a vocabulary, by id, begin a word: those without `##` (WordPiece), or with `Ġ` or `▁` where the
    vocabulary has such (BPE, SentencePiece; a piece after an apostrophe then belongs to the word before it)."""
    for mark in ("Ġ", "▁"):
        if sum(piece.startswith(mark) for piece in pieces) > len(pieces) // 20:
            return np.asarray([piece.startswith(mark) for piece in pieces])
    return np.asarray([not piece.startswith("##") for piece in pieces])


def vocabulary_of(tokenizer: dict[str, Any] | None) -> Vocabulary:
    """The word boundaries in a tokenizer.json; None: all ids begin a word."""
    if tokenizer is None:
        return Vocabulary(np.zeros(0, np.bool_))
    raw = tokenizer["model"]["vocab"]
    ids = raw if isinstance(raw, dict) else {entry[0]: i for i, entry in enumerate(raw)}
    added = {each["content"]: each["id"] for each in tokenizer.get("added_tokens", []) if each.get("special")}
    model = tokenizer["model"]
    unknown = added.get(model.get("unk_token"), model.get("unk_id"))  # which stands for a word
    pieces = [""] * (1 + max(0, *ids.values(), *added.values()))
    for piece, number in ids.items():
        pieces[number] = piece
    keep = {number for piece, number in ids.items() if piece.lstrip("Ġ▁").lower() in NEGATIONS}
    return Vocabulary(word_starts(pieces), frozenset(added.values()) - {unknown}, frozenset(keep))


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """The words of a row in order, as arrays [words]; `word` [tokens] is each token's word, -1 for special tokens."""

    word: NDArray[np.int64]
    segment: NDArray[np.int64]  # what lies between special tokens
    size: NDArray[np.int64]  # tokens
    always: NDArray[np.bool_]  # on the keep list


def words_of(vocabulary: Vocabulary, ids: ArrayLike) -> Words:
    """Split ids [tokens] into words."""
    tokens = np.asarray(ids, np.int64)
    special = np.isin(tokens, list(vocabulary.special))
    segment = np.cumsum(special)
    known = (tokens >= 0) & (tokens < len(vocabulary.word_start))
    begins = ~known | vocabulary.word_start[np.where(known, tokens, 0)] if len(vocabulary.word_start) else ~known
    after_special = np.concatenate([[True], special[:-1]])
    begins = ~special & (begins | after_special)
    word = np.where(special, -1, np.cumsum(begins) - 1)
    count = int(begins.sum())
    always = np.zeros(count, np.bool_)
    always[word[~special & np.isin(tokens, list(vocabulary.keep))]] = True
    return Words(word, segment[begins], np.bincount(word[~special], minlength=count), always)


@dataclasses.dataclass(frozen=True, slots=True)
class Rewording:
    """The same text in the tokens of another vocabulary."""

    vocabulary: Vocabulary
    ids: ArrayLike  # [its tokens]


def prune(
    spec: Prune,
    vocabulary: Vocabulary,
    ids: ArrayLike,
    importance: ArrayLike,
    levels: Sequence[int] = (),
    *,
    to: Rewording | None = None,
    under: int = 0,
) -> NDArray[np.int64]:
    """The positions of one row's kept tokens, ascending; all positions if nothing is pruned.

    `ids`, `importance`: [tokens]. `levels`: maximum lengths of the runtimes that may run the row next, ascending; none:
    time depends on tokens. Words are pruned whole (section 4.2); special tokens, words of the keep list, `min_words`
    words and the weightiest word of each segment stay. With `to_level`, words come back, the weightiest first, while
    the runtime stays the same; a word that does not fit is skipped. `to`: the row in the next stage's vocabulary, if
    that differs, which the positions then refer to; nothing is pruned unless the words of both match. `under`: for a
    row without time for its runtime, target the longest level below it, as `alpha_max` and `most_removed` allow.
    """
    tokens = np.asarray(ids, np.int64)
    target = tokens if to is None else np.asarray(to.ids, np.int64)
    whole = np.arange(len(target))
    weight = np.asarray(importance, np.float64)
    if spec.alpha <= 0 or not len(tokens) or len(weight) != len(tokens) or not np.isfinite(weight).all():
        return whole
    stairs = spec.to_level and len(levels) > 0
    ideal = _level(levels, len(target))
    words = words_of(vocabulary, tokens)
    if (stairs and (ideal == levels[0] or 0 < under <= levels[0])) or not len(words.size):
        return whole
    if under and (not stairs or spec.alpha_max < spec.alpha):
        return whole
    there = words if to is None else words_of(to.vocabulary, target)
    if not _same_words(words, there):
        return whole
    counted = weight if spec.mean_over == "all" else weight[words.word >= 0]
    alpha = spec.alpha_max if under else spec.alpha
    limit = alpha * (np.add.accumulate(counted)[-1] / len(counted))  # summed in order, as the gateway does
    heaviest = np.full(len(words.size), -np.inf)
    np.maximum.at(heaviest, words.word[words.word >= 0], weight[words.word >= 0])
    kept = words.always | (heaviest > limit)
    order = np.argsort(-heaviest, kind="stable")
    seen = set(words.segment[kept].tolist())
    some = int(kept.sum())
    for at in order[~kept[order]]:
        if some < spec.min_words or words.segment[at] not in seen:
            kept[at] = True
            seen.add(words.segment[at])
            some += 1
    size = len(target) - int(there.size[~kept].sum())
    if size == len(target):
        return whole
    if stairs:
        level = levels[bisect.bisect_left(levels, under) - 1] if under else _level(levels, size)
        if level is None or level == ideal or size > level:
            return whole
        room = level - size
        for at in order[~kept[order]]:
            if there.size[at] <= room:
                kept[at] = True
                room -= int(there.size[at])
        if under and _removed(words, weight, kept) > spec.most_removed:
            return whole
    elif spec.to_level and size > (1 - LEAST_SAVING) * len(target):
        return whole
    return np.nonzero((there.word < 0) | kept[there.word])[0]


def _removed(words: Words, weight: NDArray[np.float64], kept: NDArray[np.bool_]) -> float:
    """Share of the words' importance that is left out; summed in order, as the gateway does."""
    of_words = np.where(words.word >= 0, weight, 0.0)
    left = np.where((words.word >= 0) & ~kept[words.word], weight, 0.0)
    every = float(np.add.accumulate(of_words)[-1])
    return float(np.add.accumulate(left)[-1]) / every if every > 0 else 1.0


def _same_words(a: Words, b: Words) -> bool:
    """Whether both have equally many words, split into segments at the same places."""
    return len(a.size) == len(b.size) and np.array_equal(np.diff(a.segment) > 0, np.diff(b.segment) > 0)


def _level(levels: Sequence[int], tokens: int) -> int | None:
    """The shortest level that takes so many tokens; None if none does."""
    at = bisect.bisect_left(levels, tokens)
    return levels[at] if at < len(levels) else None
