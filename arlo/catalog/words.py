"""Which token ids begin a word, so that whole words can be removed from a text that is known only by its ids.

Words are those of the tokenizer's pre-tokenisation: WordPiece marks the continuation of a word (`##ing`), byte-level
BPE and SentencePiece its beginning (`Ġnot`, `▁not`). With the latter "don't," is one word, removed as a whole.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

OUTSIDE = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The word beginnings of a vocabulary. An id outside it is a word by itself."""

    kind: str  # wordpiece, byte-level or metaspace
    vocabulary: int  # ids are 0 to this - 1
    starts: str  # base64 of a bit for each id, lowest bit first: 1 where it begins a word; 3.8 KB for BERT's
    special: tuple[int, ...]  # ids that are not text, such as CLS and SEP; they stand between words

    @classmethod
    def of(cls, kind: str, starts: NDArray[np.bool_], special: Sequence[int]) -> Words:
        """The word beginnings from a truth value for each id, shape [vocabulary]."""
        bits = base64.b64encode(np.packbits(starts, bitorder="little").tobytes()).decode()
        return cls(kind=kind, vocabulary=len(starts), starts=bits, special=tuple(sorted(special)))

    def table(self) -> NDArray[np.bool_]:
        """Whether each id begins a word, shape [vocabulary]. ValueError if the bits do not match the vocabulary."""
        packed = np.frombuffer(base64.b64decode(self.starts, validate=True), np.uint8)
        if len(packed) != (self.vocabulary + 7) // 8:
            raise ValueError(f"words: {len(packed)} bytes for a vocabulary of {self.vocabulary}")
        return np.unpackbits(packed, count=self.vocabulary, bitorder="little").astype(np.bool_)

    def of_tokens(self, ids: Sequence[int]) -> NDArray[np.int32]:
        """The number of each token's word, from 0, shape [tokens]; OUTSIDE for special tokens.

        A token after a special token begins a word, marked or not: the first word of a text has no space before it.
        """
        starts, special = self.table(), frozenset(self.special)
        words = np.full(len(ids), OUTSIDE, np.int32)
        word, inside = -1, False
        for place, token in enumerate(ids):
            if token in special:
                inside = False
                continue
            word += not inside or not 0 <= token < len(starts) or bool(starts[token])
            words[place], inside = word, True
        return words
