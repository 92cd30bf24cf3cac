"""Which ids begin a word, held against the words of the tokenizers themselves on real text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from arlo.catalog.words import OUTSIDE, Words
from arlo.compile.signals.words import words_of
from arlo.compile.steps.resolve import demo_model_path
from arlo.compile.texts import prose
from arlo.errors import EnvironmentProblem
from tests.fakes.tiny_model import write_tokenizer

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TEXTS = [prose()[start : start + 300] for start in range(0, 60_000, 997)]
ODD = ["", "don't you?!", "naïve café 東京 \U0001f600", "a\tb\n\nc  d", "x" * 300, "[MASK] <s> 3.14e-5 e-mail"]


@pytest.fixture(scope="module")
def minilm() -> Path:
    try:
        return demo_model_path() / "tokenizer.json"
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))


def trained(folder: Path, kind: str) -> Path:
    """A small tokenizer of the given kind, with the special tokens of its family."""
    if kind == "byte-level":
        tokenizer: Any = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        )
        trainer = trainers.UnigramTrainer(
            vocab_size=600, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator(TEXTS, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def encoder(path: Path) -> Any:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def known(path: Path) -> Words:
    words = words_of(path)
    assert words is not None
    return words


def same_words(words: Words, found: Any) -> bool:
    theirs = [OUTSIDE if word is None else word for word in found.word_ids]
    return bool(words.of_tokens(found.ids).tolist() == theirs)


def test_wordpiece_words_are_those_of_the_tokenizer(minilm: Path, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    for path in (minilm, tmp_path / "tokenizer.json"):
        words, tokenizer = known(path), encoder(path)
        assert words.kind == "wordpiece"
        for text in TEXTS:
            assert same_words(words, tokenizer.encode(text)), text


def test_odd_texts_too(minilm: Path) -> None:
    words, tokenizer = known(minilm), encoder(minilm)
    for text in ODD[:-1]:  # special tokens that a text spells out are special here, and words there
        assert same_words(words, tokenizer.encode(text)), text
    pair = tokenizer.encode("not one", "but twofold")
    assert words.of_tokens(pair.ids).tolist() == [-1, 0, 1, -1, 2, 3, 3, -1]


def test_the_bits_of_bert_take_4_kb(minilm: Path) -> None:
    words = known(minilm)
    assert words.vocabulary == 30522
    assert len(words.starts) < 5200
    assert words.special == (0, 101, 102, 103)  # the unknown word, 100, is a word


@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
def test_words_of_others_are_never_cut(tmp_path: Path, kind: str) -> None:
    """Theirs are finer, as "(the" is one word here: where ours change, theirs do."""
    path = trained(tmp_path, kind)
    words, tokenizer = known(path), encoder(path)
    assert words.kind == kind
    for text in map(str.strip, [*TEXTS[:20], *ODD[:-1]]):
        found = tokenizer.encode(text)
        ours, theirs = words.of_tokens(found.ids), found.word_ids
        assert [word == OUTSIDE for word in ours] == [word is None for word in theirs]
        for left in range(len(ours) - 1):
            if theirs[left] == theirs[left + 1]:
                assert ours[left] == ours[left + 1], text
        inside = " ".join(text.split()).count(" ")
        if text and "\n" not in text and "  " not in text and "\t" not in text:
            assert len(set(ours.tolist()) - {OUTSIDE}) == inside + 1, text


def test_words_survive_the_manifest() -> None:
    starts = np.random.default_rng(2).random(1001) < 0.6
    words = Words.of("wordpiece", starts, [3, 1])
    assert words.table().tolist() == starts.tolist()
    assert words.special == (1, 3)
    assert words.of_tokens([10_000, 1, -5]).tolist() == [0, OUTSIDE, 1]


def test_a_tokenizer_that_marks_nothing_has_no_words(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert words_of(tmp_path / "tokenizer.json") is None
    assert words_of(None) is None
