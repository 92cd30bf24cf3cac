"""The helper that makes token ids: what it looks at of a text that is cut."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import tokenizers

from arlo.front.helper import MOST_CHARACTERS, encode, load

WORDS = {"[UNK]": 0, "a": 1, "b": 2}


def asked(texts: list[str], most: int, **more: Any) -> tuple[dict[str, Any], bytes]:
    told = {"sizes": [len(text.encode()) for text in texts], "pairs": False, "most": most, "special": True}
    return {**told, "keep_end": False, "written": False, **more}, "".join(texts).encode()


@pytest.fixture(scope="module")
def file() -> bytes:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return made.to_str().encode()


@pytest.mark.parametrize("keep_end", [False, True])
def test_a_long_text_is_cut_before_it_is_read(file: bytes, keep_end: bool) -> None:
    loaded, most = load(file), 8
    whole = "a " * 400 * MOST_CHARACTERS + "b " * 400 * MOST_CHARACTERS
    seen: list[int] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(loaded.tokenizer, name)

        def encode_batch(self, rows: list[str], **how: Any) -> Any:
            seen.extend(map(len, rows))
            return loaded.tokenizer.encode_batch(rows, **how)

    watched = type(loaded)(Watched(), loaded.before, loaded.behind)
    answer, ids = encode(watched, *asked([whole, "a b"], most, keep_end=keep_end))
    assert seen == [MOST_CHARACTERS * most, 3]
    assert (answer["counts"], answer["cut"]) == ([most, 2], [1, 0])
    assert array("i", ids[: 4 * (most + 2)]).tolist() == [2 if keep_end else 1] * most + [1, 2]


def test_a_text_that_is_cut_says_so_though_few_tokens_are_left(file: bytes) -> None:
    answer, _ = encode(load(file), *asked([" " * 250 * 8 + "a"], 8))
    assert (answer["counts"], answer["cut"]) == ([0], [1])


def test_the_longer_of_a_pair_is_cut(file: bytes) -> None:
    answer, _ = encode(load(file), *asked(["a", "b " * 5000], 8, pairs=True))
    assert (answer["counts"], answer["cut"]) == ([8], [1])


def test_what_is_not_cut_is_read_whole(file: bytes) -> None:
    answer, _ = encode(load(file), *asked(["a " * 5000], 0))
    assert (answer["counts"], answer["cut"]) == ([5000], [0])
