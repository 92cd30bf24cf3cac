"""Real English prose cut to exact token lengths: what verification and measurement run on.

The text is `pydoc_data.topics`, which every Python carries: 700 KB about the language.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import numpy as np


@functools.cache
def prose() -> str:
    """The whole text, paragraphs joined to lines, in a fixed order."""
    from pydoc_data import topics

    return " ".join(" ".join(topics.topics[name].split()) for name in sorted(topics.topics))


def prose_hash() -> str:
    """Changes with the Python version, as the text does."""
    return hashlib.sha256(prose().encode()).hexdigest()[:16]


class Texts:
    """Rows of token ids. With no tokenizer they are pseudo-random ids, the same ones each time."""

    def __init__(self, tokenizer: Path | None, *, first_id: int = 5, last_id: int = 100) -> None:
        self._tokenizer = None
        if tokenizer is not None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._ids = (first_id, last_id)

    def ids(self, tokens: int, *, sample: int = 0) -> list[int]:
        """`tokens` ids of sample number `sample`, special tokens included, as a client that truncates would send."""
        if self._tokenizer is None:
            return [int(i) for i in np.random.default_rng([sample, tokens]).integers(*self._ids, size=tokens)]
        # Ten characters a token is more than prose needs; samples start far apart so that they differ.
        text = prose()
        start = text.index(" ", (sample * 7919 + tokens * 101) % (len(text) // 2)) + 1
        found: list[int] = []
        size = 10 * tokens + 100
        if tokens > self._tokenizer.num_special_tokens_to_add(False):
            self._tokenizer.enable_truncation(max_length=tokens)
        while len(found) < tokens and size < 4 * len(text):  # a tokenizer of another language may need more text
            found = self._tokenizer.encode(text[start : start + size]).ids
            size *= 4
        return list((found * tokens)[:tokens])
