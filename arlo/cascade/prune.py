"""The tokens of a row that the next stage receives, chosen by src/flow/cascade/prune.h.

Importance is the attention that a token receives, summed over layers, heads and real queries (Tabi section 2.3). The
mean of Eq. 5 is over tokens that are not special: otherwise CLS alone takes a third of it, and the pruned shares do not
match those printed in the paper.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo import _core
from arlo.cascade.decide import core_rules
from arlo.cascade.spec import Prune, Rules, hard
from arlo.errors import ConfigError

NEGATIONS = {"not", "no", "never", "none", "nor", "neither", "nothing", "without", "cannot", "n't", "t"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The words of a tokenizer group's vocabulary, as in cascade.json. Ids beyond `word_start` begin a word."""

    word_start: str = ""  # base64 of a bit for each id, lowest first: it begins a word
    special: tuple[int, ...] = ()  # ids that are no words
    keep: tuple[int, ...] = ()  # ids whose words are never pruned, as negations

    def __post_init__(self) -> None:
        try:
            base64.b64decode(self.word_start, validate=True)
        except ValueError:
            raise ConfigError("word_start must be base64") from None

    @classmethod
    def of(cls, starts: ArrayLike, special: Iterable[int] = (), keep: Iterable[int] = ()) -> Vocabulary:
        """The vocabulary whose ids begin a word where `starts` [ids] is true."""
        bits = np.packbits(np.asarray(starts, np.bool_), bitorder="little").tobytes()
        return cls(word_start=base64.b64encode(bits).decode(), special=tuple(sorted(special)), keep=tuple(sorted(keep)))

    @property
    def bits(self) -> NDArray[np.uint8]:
        """`word_start`, decoded."""
        return np.frombuffer(base64.b64decode(self.word_start), np.uint8)


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
        return Vocabulary()
    raw = tokenizer["model"]["vocab"]
    ids = raw if isinstance(raw, dict) else {entry[0]: i for i, entry in enumerate(raw)}
    added = {each["content"]: each["id"] for each in tokenizer.get("added_tokens", []) if each.get("special")}
    model = tokenizer["model"]
    unknown = added.get(model.get("unk_token"), model.get("unk_id"))  # which stands for a word
    pieces = [""] * (1 + max(0, *ids.values(), *added.values()))
    for piece, number in ids.items():
        pieces[number] = piece
    keep = {number for piece, number in ids.items() if piece.lstrip("Ġ▁").lower() in NEGATIONS}
    return Vocabulary.of(word_starts(pieces), set(added.values()) - {unknown}, keep)


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
    other = None if to is None else (to.vocabulary.bits, to.vocabulary.special, np.asarray(to.ids, np.int64))
    return _core.cascade_prune(
        core_rules(Rules(prices=((hard(0.0),),), prune=spec)),
        vocabulary.bits,
        vocabulary.special,
        vocabulary.keep,
        np.asarray(ids, np.int64),
        np.asarray(importance, np.float32),
        levels,
        other,
        under,
    )
