"""Real English text of an exact number of tokens.

The prose is Python's own documentation (`pydoc_data.topics`, in every Python). Whole words are taken from it, as
many as make the length asked for; the result is tokenised again to be sure.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from arlo.errors import ConfigError, EnvironmentProblem

_TRIES = 1000  # start words tried for one text; a few are enough for any real tokenizer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One input: ids int64[length], special tokens included, and the text that tokenises to exactly these.

    text is None below the number of special tokens, where no text can be that short.
    """

    ids: NDArray[np.int64]
    text: str | None


def prose() -> str:
    """The English paragraphs of Python's documentation, one after another; tables, code and grammar left out."""
    from pydoc_data.topics import topics

    paragraphs = []
    for topic in sorted(topics):
        for paragraph in topics[topic].split("\n\n"):
            flat = " ".join(paragraph.split())
            indented = paragraph.startswith(" ")
            if not indented and len(flat) > 80 and re.match(r'["“A-Z]', flat) and flat.endswith((".", ":", ")")):
                paragraphs.append(flat)
    return " ".join(paragraphs)


class TextSource:
    """Cuts texts of exact token lengths out of a long one. Deterministic: the same length and key give the same row."""

    def __init__(self, tokenizer: Path, text: str | None = None, max_chars: int = 400_000) -> None:
        """`tokenizer`: a tokenizer.json, or a folder that holds one."""
        path = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        if not path.is_file():
            raise EnvironmentProblem(f"there is no tokenizer at {path}: name a tokenizer.json or its folder")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception for files it cannot read
            raise EnvironmentProblem(f"{path} is not a tokenizer: {error}") from None
        # Many files come with truncation or padding switched on; both would hide the true length.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special = int(self._tokenizer.num_special_tokens_to_add(False))
        self._text = (prose() if text is None else " ".join(text.split()))[:max_chars]
        starts, ends = _words(self._text)
        offsets = self._tokenizer.encode(self._text, add_special_tokens=False).offsets
        token_start = np.array([a for a, _ in offsets], np.int64)
        # tokens_before[w]: tokens that start before word w. A word's tokens all start inside it.
        self._word_start, self._word_end = starts, ends
        self._tokens_before = np.searchsorted(token_start, np.append(starts, len(self._text)))
        if len(starts) < 2:
            raise ConfigError("the text to cut from has fewer than two words")

    @property
    def longest(self) -> int:
        """The longest row that can be cut, in tokens."""
        return int(self._tokens_before[-1] - self._tokens_before[0]) + self._special

    def row(self, length: int, key: int) -> Row:
        """A row of exactly `length` tokens; different keys begin at different words. ConfigError if it is too long."""
        if length < 1 or length > self.longest:
            raise ConfigError(f"a text of {length} tokens cannot be cut: lengths from 1 to {self.longest} can")
        if length <= self._special:
            ids = self._tokenizer.encode("").ids[:length]
            return Row(ids=np.array(ids, np.int64), text="" if length == self._special else None)
        wanted = length - self._special
        last_start = int(np.searchsorted(self._tokens_before, self._tokens_before[-1] - wanted, side="right"))
        first = int(np.random.default_rng([key, length]).integers(0, last_start))
        for step in range(min(_TRIES, last_start)):
            word = (first + step) % last_start
            target = self._tokens_before[word] + wanted
            end = int(np.searchsorted(self._tokens_before, target))
            if end >= len(self._tokens_before) or self._tokens_before[end] != target:
                continue  # a word of several tokens lies across the end
            text = self._text[self._word_start[word] : self._word_end[end - 1]]
            ids = self._tokenizer.encode(text).ids
            if len(ids) == length:
                return Row(ids=np.array(ids, np.int64), text=text)
        raise ConfigError(f"found no text of exactly {length} tokens for this tokenizer; give token ids instead")


def _words(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and end (exclusive) of every run of non-spaces, int64[words] each."""
    spans = np.array([m.span() for m in re.finditer(r"\S+", text)], np.int64).reshape(-1, 2)
    return spans[:, 0], spans[:, 1]
