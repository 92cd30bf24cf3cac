"""The gateway's tokenizer makes of every text what the `tokenizers` package makes of it.

Some thousands of texts here; `make test-text TEXTS=1000000` takes as many as are asked for, with a new seed.
"""

from __future__ import annotations

import json
import os
import random
import unicodedata
from typing import Any

import numpy as np
import pytest
import tokenizers

from arlo import _core
from arlo.client.tokenizer import Tokenizer as ClientTokenizer
from tests.property.tokenizer_files import Json, hard_text, public, variants

VARIANTS = variants()
TEXTS = int(os.environ.get("ARLO_FUZZ_TEXTS", "3000")) // len(VARIANTS)
SEED = int(os.environ.get("ARLO_FUZZ_SEED", "1"))


def both(file: Json) -> tuple[_core.Tokenizer, Any]:
    text = json.dumps(file)
    theirs = tokenizers.Tokenizer.from_str(text)
    theirs.no_padding()
    theirs.no_truncation()
    return _core.Tokenizer(text), theirs


@pytest.mark.parametrize("name", VARIANTS)
def test_texts_and_pairs(name: str) -> None:
    ours, theirs = both(VARIANTS[name])
    assert ours.vocabulary_size == theirs.get_vocab_size(with_added_tokens=True)
    drawn = random.Random(f"{name} {SEED}")
    for _ in range(TEXTS):
        text = hard_text(drawn)
        second = hard_text(drawn) if drawn.random() < 0.3 else None
        most = drawn.choice((0, 0, drawn.randrange(6, 40)))
        side = drawn.choice(("left", "right"))
        special = drawn.random() < 0.8
        if most:
            theirs.enable_truncation(most, direction=side)
        else:
            theirs.no_truncation()
        expected = theirs.encode(text, second, add_special_tokens=special)
        ids, types, cut = ours.encode(text, second, most, side == "left", special)
        assert (ids, types) == (expected.ids, expected.type_ids), (text, second, most, side, special)
        assert cut == bool(expected.overflowing)


@pytest.mark.parametrize("name", VARIANTS)
def test_places(name: str) -> None:
    """Where tokens stand in the text."""
    ours, theirs = both(VARIANTS[name])
    drawn = random.Random(f"{name} {SEED} places")
    for _ in range(TEXTS):
        text = hard_text(drawn)
        assert ours.places(text) == theirs.encode(text).offsets, text


def characters() -> tuple[list[str], list[str]]:
    """All there are, and those that something may happen to: they have another form, or are no plain letters."""
    found = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    other = unicodedata.category
    return found, [c for c in found if other(c) not in ("Cn", "Co", "Lo") or unicodedata.normalize("NFD", c) != c]


@pytest.mark.long
@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "rest"),
    [(True, None, True), (False, True, True), (True, False, True), (False, False, False)],
)
def test_every_character(lowercase: bool, strip_accents: bool | None, rest: bool) -> None:
    """Each by itself, within a word, and among marks, which change places with it. The vocabulary has single
    characters, so what is left of each is seen.
    """
    found, lively = characters()
    letters = set("abcdefghijklmnopqrstuvwxyz\u0316\u0301\u0323\u0345")
    letters |= {part for char in lively for part in char + unicodedata.normalize("NFD", char + char.lower())}
    vocab = {"[UNK]": 0}
    for letter in sorted(letters):
        vocab.setdefault(letter, len(vocab))
        vocab.setdefault("##" + letter, len(vocab))
    normalizer = {
        "lowercase": lowercase,
        "strip_accents": strip_accents,
        "clean_text": rest,
        "handle_chinese_chars": rest,
    }
    base = public()
    ours, theirs = both(
        base
        | {"model": base["model"] | {"vocab": vocab}, "normalizer": {"type": "BertNormalizer"} | normalizer}
        | {"added_tokens": [], "post_processor": None}
    )

    def check(of: list[str], form: str, at_a_time: int) -> None:
        for at in range(0, len(of), at_a_time):
            texts = [form.replace("?", char) for char in of[at : at + at_a_time]]
            if ours.encode(" ".join(texts))[0] != theirs.encode(" ".join(texts)).ids:
                wrong = [text for text in texts if ours.encode(text)[0] != theirs.encode(text).ids]
                pytest.fail(f"{[ascii(text) for text in wrong] or texts}")

    check(lively, "ab?a e\u0316\u0301?\u0323\u0345", 64)
    check(found if (lowercase, strip_accents) == (True, None) else lively, "?", 1024)


def test_long_texts_are_cut_as_whole_ones_would_be() -> None:
    """They are normalised in pieces, and only as far as is needed."""
    ours, theirs = both(public())
    drawn = random.Random(5)
    for _ in range(12):
        text = hard_text(drawn, 4000)
        for side in ("left", "right"):
            theirs.enable_truncation(128, direction=side)
            assert ours.encode(text, None, 128, side == "left")[0] == theirs.encode(text).ids
        theirs.no_truncation()
        assert ours.encode(text)[0] == theirs.encode(text).ids


@pytest.mark.long
def test_a_text_of_a_megabyte() -> None:
    ours, theirs = both(public())
    theirs.enable_truncation(512)
    for text in (
        "the embankment, ünbelievable! " * 35_000,
        "e\u0301\u0316" * 200_000,
        "漢字" * 170_000,
        "x" * 1_000_000,
    ):
        assert ours.encode(text, None, 512)[0] == theirs.encode(text).ids


def test_the_sdk_says_the_same(tmp_path: Any) -> None:
    """Text that the gateway tokenises and text that the SDK does give the same request."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(public()))
    ours, sdk = _core.Tokenizer(path.read_text()), ClientTokenizer(path)
    drawn = random.Random(9)
    for _ in range(200):
        pair = (hard_text(drawn), hard_text(drawn))
        (made,) = sdk.encode([pair], cut_to=32)
        ids, types, _ = ours.encode(*pair, most_tokens=32)
        assert made.type_ids is not None
        assert np.array_equal([made.ids, made.type_ids], [ids, types])


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("model", {"type": "Unigram", "vocab": []}, "model 'Unigram'"),
        ("normalizer", {"type": "Sequence", "normalizers": []}, "normalizer 'Sequence'"),
        ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer 'Whitespace'"),
        ("post_processor", {"type": "ByteLevel"}, "post_processor 'ByteLevel'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(part: str, value: Json, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _core.Tokenizer(json.dumps(public() | {part: value}))
