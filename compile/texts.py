"""Real English prose cut to exact token lengths, for verification and measurement.

The text is `pydoc_data.topics`, which every Python carries: 700 KB about the language.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

_SHORTEST_PAIR = 8  # tokens; below, the special tokens leave no room for two texts


@functools.cache
def prose() -> str:
    """The whole text, paragraphs joined to lines, in a fixed order."""
    from pydoc_data import topics

    return " ".join(" ".join(topics.topics[name].split()) for name in sorted(topics.topics))


@functools.cache
def prose_hash() -> str:
    """Changes with the Python version, as the text does."""
    return hashlib.sha256(prose().encode()).hexdigest()[:16]


class Texts:
    """Rows of token ids. With no tokenizer they are pseudo-random ids, the same ones each time."""

    def __init__(self, tokenizer: Path | None, *, first_id: int = 5, last_id: int = 100) -> None:
        self._tokenizer: Any = None
        self._ids = (first_id, last_id)
        self._made_from: list[Any] = [first_id, last_id]
        if tokenizer is not None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(tokenizer))
            self._made_from = [hashlib.sha256(tokenizer.read_bytes()).hexdigest(), prose_hash()]

    def key(self) -> list[Any]:
        """What the rows depend on, for cache keys."""
        return self._made_from

    def ids(self, tokens: int, *, sample: int = 0) -> list[int]:
        """`tokens` ids of sample number `sample`, special tokens included, as a client that truncates would send."""
        if self._tokenizer is None:
            return [int(i) for i in np.random.default_rng([sample, tokens]).integers(*self._ids, size=tokens)]
        self._tokenizer.no_truncation()
        if tokens > self._tokenizer.num_special_tokens_to_add(False):
            self._tokenizer.enable_truncation(max_length=tokens)
        # Ten characters a token is more than prose needs; samples start far apart so that they differ.
        start, size = self._start(sample * 7919 + tokens * 101), 10 * tokens + 100
        found: list[int] = []
        while len(found) < tokens and size < 4 * len(prose()):  # a tokenizer of another language may need more text
            found = self._tokenizer.encode(prose()[start : start + size]).ids
            size *= 4
        return list((found * tokens)[:tokens])

    def pair(self, tokens: int, *, sample: int = 0) -> tuple[list[int], list[int]]:
        """Ids and token types of two texts encoded as a pair: a query, which takes about a quarter, and a passage.

        Where there is no tokenizer, or too little room, it is one text, all of type 0.
        """
        single = self.ids(tokens, sample=sample), [0] * tokens
        if self._tokenizer is None or tokens < _SHORTEST_PAIR:
            return single
        self._tokenizer.no_truncation()
        room = tokens - self._tokenizer.num_special_tokens_to_add(True)
        start = self._start(sample * 104_729 + tokens * 101)
        query = prose()[start : start + 10 * tokens + 100]
        offsets = self._tokenizer.encode(query, add_special_tokens=False).offsets
        query = query[: offsets[min(max(1, room // 4), len(offsets)) - 1][1]]
        start = self._start(sample * 7919 + tokens * 101)
        self._tokenizer.enable_truncation(max_length=tokens, strategy="only_second")
        found = self._tokenizer.encode(query, prose()[start : start + 10 * tokens + 100])
        return (found.ids, found.type_ids) if len(found.ids) == tokens else single

    @staticmethod
    def _start(seed: int) -> int:
        text = prose()
        return text.index(" ", seed % (len(text) // 2)) + 1
