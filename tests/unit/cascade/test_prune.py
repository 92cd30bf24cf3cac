"""Pruning: whole words, to a level."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from arlo.cascade.prune import Rewording, Vocabulary, prune, vocabulary_of, word_starts
from arlo.cascade.spec import Prune
from benchmarks.papers.tabi.words import first_words, random_words, words_of

PIECES = ["[CLS]", "[SEP]", "without", "this", "paper", "is", "beauti", "##fully", "written", "and", "enjoy", "##able"]
WORDS = ["this", "paper", "is", "beauti", "##fully", "written", "and", "enjoy", "##able"]
IMPORTANCE = [0.60, 1.20, 0.45, 2.20, 0.40, 0.80, 0.30, 1.85, 1.20]
VOCABULARY = Vocabulary.of(word_starts(PIECES), special=(0, 1))
IDS = [PIECES.index(word) for word in WORDS]


def text(places: np.ndarray, ids: list[int]) -> str:
    return " ".join(PIECES[ids[at]] for at in places).replace(" ##", "")


@pytest.mark.parametrize(
    ("alpha", "left"),
    [
        (0.5, "this paper beautifully written enjoyable"),
        (0.7, "paper beautifully written enjoyable"),
        (0.9, "paper beautifully enjoyable"),
        (1.25, "beautifully enjoyable"),
    ],
)
def test_whole_words_by_importance(alpha: float, left: str) -> None:
    kept = prune(Prune(alpha=alpha, min_words=1, to_level=False), VOCABULARY, IDS, IMPORTANCE)
    assert text(kept, IDS) == left


@pytest.mark.parametrize(("alpha", "sent", "added"), [(0.5, 11, "and"), (0.7, 8, ""), (0.9, 8, "written")])
def test_to_a_level(alpha: float, sent: int, added: str) -> None:
    ids, importance = [0, *IDS, 1], [5.0, *IMPORTANCE, 3.0]
    kept = prune(Prune(alpha=alpha, min_words=1), VOCABULARY, ids, importance, levels=(8, 16))
    assert len(kept) == sent
    assert added in text(kept, ids)
    assert {0, len(ids) - 1} <= set(kept.tolist())


def test_special_tokens_may_count_in_the_mean() -> None:
    ids, importance = [0, *IDS, 1], [50.0, *IMPORTANCE, 30.0]
    kept = prune(Prune(alpha=0.2, mean_over="all", min_words=1, to_level=False), VOCABULARY, ids, importance)
    assert text(kept, ids) == "[CLS] beautifully enjoyable [SEP]"


def test_some_words_and_a_word_of_each_segment_stay() -> None:
    ids = [0, *IDS[:5], 1, 9, 5, 1]
    importance = [9, 5, 5, 5, 5, 5, 9, 0.1, 0.2, 9]
    kept = prune(Prune(alpha=0.9, min_words=1, to_level=False), VOCABULARY, ids, importance)
    assert 8 in kept.tolist()
    assert 7 not in kept.tolist()
    kept = prune(Prune(alpha=3, to_level=False), VOCABULARY, IDS, IMPORTANCE)
    assert text(kept, IDS) == "paper beautifully written enjoyable"


def test_words_of_the_keep_list_stay() -> None:
    kept = prune(
        Prune(alpha=1.25, min_words=1, to_level=False),
        dataclasses.replace(VOCABULARY, keep=(9,)),
        IDS,
        IMPORTANCE,
    )
    assert text(kept, IDS) == "beautifully and enjoyable"


def test_nothing_is_pruned_of_what_says_nothing() -> None:
    spec = Prune(alpha=0.9, min_words=1, to_level=False)
    assert len(prune(spec, VOCABULARY, IDS, [np.nan, *IMPORTANCE[1:]])) == len(IDS)
    assert len(prune(Prune(), VOCABULARY, IDS, IMPORTANCE)) == len(IDS)
    assert len(prune(spec, VOCABULARY, [0, 1], [1.0, 1.0])) == 2
    assert len(prune(spec, VOCABULARY, [], [])) == 0


def test_without_levels_a_small_saving_is_not_worth_it() -> None:
    ids = [IDS[0]] * 99 + [9]
    importance = [1.0] * 99 + [0.01]
    assert len(prune(Prune(alpha=0.5), VOCABULARY, ids, importance)) == 100
    assert len(prune(Prune(alpha=0.5, to_level=False), VOCABULARY, ids, importance)) == 99


PIECES_THERE = ["<s>", "</s>", "th", "##is", "paper", "is", "beautifully", "writ", "##ten", "and", "enjoyable"]
THERE = Vocabulary.of(word_starts(PIECES_THERE), special=(0, 1))


def test_words_of_another_vocabulary() -> None:
    """Chosen by what the words mean to the stage before, counted as the next one has them."""
    ids, importance = [0, *IDS, 1], [5.0, *IMPORTANCE, 3.0]
    there = [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1]
    to = Rewording(THERE, there)

    def kept(spec: Prune, levels: tuple[int, ...] = ()) -> str:
        places = prune(spec, VOCABULARY, ids, importance, levels, to=to)
        return " ".join(PIECES_THERE[there[at]] for at in places).replace(" ##", "")

    assert kept(Prune(alpha=0.7, min_words=1, to_level=False)) == "<s> paper beautifully written enjoyable </s>"
    # Five tokens, with room for `written` in two and `is` in one.
    assert kept(Prune(alpha=0.9, min_words=1), (8, 16)) == "<s> paper is beautifully written enjoyable </s>"
    # Where the words are others, all of the text goes on.
    to = Rewording(THERE, [*there[:-1], 9, 1])
    assert len(prune(Prune(alpha=0.9, min_words=1), VOCABULARY, ids, importance, (8,), to=to)) == 12
    to = Rewording(THERE, [0, 2, 3, 4, 5, 6, 1, 7, 8, 9, 10, 1])
    assert len(prune(Prune(alpha=0.9, min_words=1), VOCABULARY, ids, importance, (8,), to=to)) == 12


def test_harder_where_there_is_no_time() -> None:
    ids, importance = [0, *IDS, 1], [5.0, *IMPORTANCE, 3.0]
    levels = (4, 6, 8, 16)

    def kept(spec: Prune, under: int) -> str:
        return text(prune(spec, VOCABULARY, ids, importance, levels, under=under), ids)

    spec = Prune(alpha=0.5, min_words=1, alpha_max=1.25, most_removed=0.6)
    assert kept(spec, 0) == text(np.arange(11), ids)
    assert kept(spec, 16) == "[CLS] paper beautifully written enjoyable [SEP]"
    assert kept(spec, 8) == "[CLS] beautifully enjoyable [SEP]"
    assert kept(spec, 6) == text(np.arange(11), ids)  # what is above alpha_max stays
    assert kept(dataclasses.replace(spec, most_removed=0.3), 8) == text(np.arange(11), ids)
    assert kept(dataclasses.replace(spec, alpha_max=0.0), 16) == text(np.arange(11), ids)


def test_unknown_words_are_words() -> None:
    vocabulary = vocabulary_of(
        {
            "model": {"vocab": {"[CLS]": 0, "[UNK]": 1, "a": 2}, "unk_token": "[UNK]"},
            "added_tokens": [
                {"content": "[CLS]", "id": 0, "special": True},
                {"content": "[UNK]", "id": 1, "special": True},
            ],
        }
    )
    assert vocabulary.special == (0,)
    assert words_of(vocabulary, [0, 1, 2, 1]).word.tolist() == [-1, 0, 1, 2]


def test_baselines() -> None:
    ids = [0, *IDS, 1]
    assert text(first_words(VOCABULARY, ids, 7), ids) == "[CLS] this paper is beautifully [SEP]"
    kept = random_words(VOCABULARY, ids, 7, seed=3)
    assert 2 < len(kept) <= 7
    words = words_of(VOCABULARY, ids).word
    assert all(set(np.nonzero(words == words[at])[0]) <= set(kept.tolist()) for at in kept if words[at] >= 0)


def test_words_of_byte_pairs() -> None:
    assert word_starts(["Ġa", "b", "Ġc"]).tolist() == [True, False, True]
