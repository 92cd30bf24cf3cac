"""Text to token ids, through the `tokenizers` package."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from arlo.client.errors import InvalidRequestError
from arlo.errors import EnvironmentProblem

FILE_NAME = "tokenizer.json"

Text = str | tuple[str, str]  # one text, or a pair (query, passage)

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """One text as tokens: `ids` and `type_ids` (None: all 0), both int64 of shape [tokens]."""

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64] | None


class Tokenizer:
    """A tokenizer without the padding and truncation that its file may ask for: those are the caller's choice here.

    Never changed after it is made, so it may be shared by threads and clients.
    """

    def __init__(self, source: str | Path) -> None:
        """`source`: a tokenizer.json, a folder that holds one, or a Hugging Face hub id.

        Raises EnvironmentProblem when there is no such file or it cannot be read.
        """
        path = _find(source)
        try:
            inner: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise EnvironmentProblem(f"{path} is not a tokenizer.json that can be read: {error}") from None
        self._from_left = bool(inner.truncation) and inner.truncation["direction"] == "left"
        named = (inner.token_to_id(t) for t in ("[PAD]", "<pad>"))
        padding = inner.padding
        self.pad_id: int = padding["pad_id"] if padding else next((i for i in named if i is not None), 0)
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner

    def encode(self, texts: Sequence[Text], *, cut_to: int | None = None) -> list[Encoded]:
        """Tokenise, special tokens included. A text of more than `cut_to` tokens is cut as the tokenizers package
        would: the special tokens stay, and of a pair the longer text is cut first.
        """
        for text in texts:
            _check(text)
        if len(texts) == 1:  # the batch call wakes a thread pool
            text = texts[0]
            found = [self._inner.encode(*text) if isinstance(text, tuple) else self._inner.encode(text)]
        else:
            found = self._inner.encode_batch_fast(list(texts))
        return [
            self._arrays(e if cut_to is None or len(e) <= cut_to else self._cut(text, cut_to), isinstance(text, tuple))
            for e, text in zip(found, texts, strict=True)
        ]

    def _cut(self, text: Text, limit: int) -> Any:
        # Not enable_truncation(): it changes the shared tokenizer under other threads.
        pair = isinstance(text, tuple)
        room = limit - self._inner.num_special_tokens_to_add(pair)
        if room < (2 if pair else 1):
            raise InvalidRequestError(f"max_length {limit} leaves no room for text beside the special tokens")
        direction = "left" if self._from_left else "right"
        parts = [self._inner.encode(t, add_special_tokens=False) for t in (text if pair else (text,))]
        for part, keep in zip(parts, _shares([len(p) for p in parts], room), strict=True):
            part.truncate(keep, direction=direction)
        return self._inner.post_process(*parts)

    @staticmethod
    def _arrays(encoding: Any, pair: bool) -> Encoded:
        ids = np.array(encoding.ids, np.int64)
        return Encoded(ids, np.array(encoding.type_ids, np.int64) if pair else None)


def _check(text: object) -> None:
    if isinstance(text, str):
        return
    if isinstance(text, tuple) and len(text) == 2 and all(isinstance(t, str) for t in text):
        return
    raise InvalidRequestError(f"a text is a str or a pair (str, str), not {type(text).__name__}")


def _shares(lengths: list[int], room: int) -> list[int]:
    """The tokens to keep of each of one or two texts: "longest first", as in the tokenizers package."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    if sum(lengths) <= room:
        return lengths
    short, long = sorted(lengths)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    return [short, long] if lengths[0] <= lengths[1] else [long, short]


def _find(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / FILE_NAME).is_file():
            return path / FILE_NAME
        raise EnvironmentProblem(f"{path} holds no {FILE_NAME}: pass the folder of a model with a fast tokenizer")
    if isinstance(source, Path) or not _HUB_ID.fullmatch(source) or source.endswith(".json"):
        raise EnvironmentProblem(f"{path} does not exist: pass a {FILE_NAME}, a folder that holds one, or a hub id")
    return _download(source)


def _download(hub_id: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(hub_id, FILE_NAME))
    except (OSError, ValueError) as error:  # no network, no such model, no permission, not a valid id
        reason = str(error).splitlines()[0]
        raise EnvironmentProblem(
            f"no tokenizer {hub_id!r}: there is no such file or folder, and the hub says: {reason}"
        ) from None
