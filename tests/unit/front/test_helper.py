"""The helper that makes token ids: what it looks at of a text that is cut."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import tokenizers

from arlo.front.helper import LONGEST_TEXT, LONGEST_WORD, MOST_BYTES, MOST_CHARACTERS, RefusalError, encode, load

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


@pytest.mark.parametrize("keep_end", [False, True])
def test_spaces_do_not_make_a_text_too_long(file: bytes, keep_end: bool) -> None:
    loaded = load(file)
    for text in ("a" + " " * 3000, " " * 3000 + "a", "a" + " " * 3000 + "b"):
        answer, ids = encode(loaded, *asked([text, "b" * 3000 + " a"], 8, keep_end=keep_end))
        assert (answer["counts"], answer["cut"]) == ([len(text.split()), 2], [0, 0])
        assert array("i", ids[:4]).tolist() == [1]
    answer, _ = encode(loaded, *asked(["a" + " " * 3000, " " * 3000 + "b "], 8, pairs=True))
    assert (answer["counts"], answer["cut"]) == ([2], [0])


def test_a_text_of_which_the_gateway_sends_a_part_is_too_long(file: bytes) -> None:
    loaded = load(file)
    for spaces, cut in ((MOST_BYTES * 8 - 1, 0), (MOST_BYTES * 8, 1)):
        answer, _ = encode(loaded, *asked([" " * spaces + "a"], 8))
        assert (answer["counts"], answer["cut"]) == ([1], [cut])


def test_the_longer_of_a_pair_is_cut(file: bytes) -> None:
    answer, _ = encode(load(file), *asked(["a", "b " * 5000], 8, pairs=True))
    assert (answer["counts"], answer["cut"]) == ([8], [1])


def test_what_is_not_cut_is_read_whole(file: bytes) -> None:
    answer, _ = encode(load(file), *asked(["a " * 5000], 0))
    assert (answer["counts"], answer["cut"]) == ([5000], [0])


def test_texts_that_would_take_too_long_are_refused_by_row(file: bytes) -> None:
    loaded = load(file)
    word, text = "a" * (LONGEST_WORD + 1), "a " * (LONGEST_TEXT // 2 + 1)
    for wrong, why in ((word, f"a word of {len(word)} characters"), (text, f"the text has {len(text)} characters")):
        with pytest.raises(RefusalError, match=f"row 7: .*{why}"):
            encode(loaded, *asked(["a", wrong], 0, first=6))
        with pytest.raises(RefusalError, match=f"row 2: .*{why}"):
            encode(loaded, *asked(["a", "b", "a", "b", "a", wrong], 0, pairs=True))
    # What is cut away is not looked at, and words of a long text count by themselves.
    assert encode(loaded, *asked([word], 8))[0]["cut"] == [1]
    assert encode(loaded, *asked([f"{'a' * LONGEST_WORD} b"], 0))[0]["counts"] == [2]


def test_tokens_that_are_written_have_an_end(file: bytes) -> None:
    with pytest.raises(RefusalError, match="more than 8 tokens"):
        encode(load(file), *asked(["a", "a " * 9], 8, written=True))
    answer, _ = encode(load(file), *asked(["a", "a " * 8], 8, written=True))
    assert answer["counts"] == [1, 8]
