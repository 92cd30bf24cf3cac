"""Records of texts shortened in other ways than by the product's rule, to compare with: `plain`, all words that Eq. 5
names, on the runtime that the rest needs; `random` and `first`, random words and the first ones, as many tokens as the
product keeps.

    python -m benchmarks.papers.tabi.words CASCADE --data FILE --alphas 0.8
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.manifest import CascadeManifest
from arlo.cascade.prune import Vocabulary
from arlo.cascade.records import Records, read_data
from arlo.cli.fit.common import folder_of
from arlo.cli.fit.record import Stages
from arlo.cli.text import listed


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """The words of a row in order, as arrays [words]; `word` [tokens] is each token's word, -1 for special tokens."""

    word: NDArray[np.int64]
    segment: NDArray[np.int64]  # what lies between special tokens
    size: NDArray[np.int64]  # tokens
    always: NDArray[np.bool_]  # on the keep list


def words_of(vocabulary: Vocabulary, ids: ArrayLike) -> Words:
    """Split ids [tokens] into words."""
    tokens = np.asarray(ids, np.int64)
    special, starts = np.isin(tokens, vocabulary.special), np.unpackbits(vocabulary.bits, bitorder="little") > 0
    segment = np.cumsum(special)
    known = (tokens >= 0) & (tokens < len(starts))
    begins = ~known | starts[np.where(known, tokens, 0)] if len(starts) else ~known
    after_special = np.concatenate([[True], special[:-1]])
    begins = ~special & (begins | after_special)
    word = np.where(special, -1, np.cumsum(begins) - 1)
    count = int(begins.sum())
    always = np.zeros(count, np.bool_)
    always[word[~special & np.isin(tokens, vocabulary.keep)]] = True
    return Words(word, segment[begins], np.bincount(word[~special], minlength=count), always)


def random_words(vocabulary: Vocabulary, ids: ArrayLike, tokens: int, seed: int) -> NDArray[np.int64]:
    """Baseline: words in random order, as many as `tokens` tokens hold; places that are kept."""
    words = words_of(vocabulary, ids)
    return _take(words, np.random.default_rng(seed).permutation(len(words.size)), tokens)


def first_words(vocabulary: Vocabulary, ids: ArrayLike, tokens: int) -> NDArray[np.int64]:
    """Baseline: the first words of the row, as many as `tokens` tokens hold; places that are kept."""
    words = words_of(vocabulary, ids)
    return _take(words, np.arange(len(words.size)), tokens)


def _take(words: Words, order: NDArray[np.int64], tokens: int) -> NDArray[np.int64]:
    room = tokens - int((words.word < 0).sum())
    held = np.cumsum(words.size[order]) <= room
    kept = np.zeros(len(words.size), np.bool_)
    kept[order[held]] = True
    special = words.word < 0
    special[~special] = kept[words.word[~special]]
    return np.nonzero(special)[0]


def _first(vocabulary: Vocabulary, ids: ArrayLike, tokens: int, _: int) -> NDArray[np.int64]:
    return first_words(vocabulary, ids, tokens)


def main(argv: list[str] | None = None) -> int:
    """Record the shortened texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("cascade", type=Path, help="a cascade.json whose texts are recorded with --alphas")
    add("--data", type=Path, required=True, metavar="FILE", help="texts, JSON lines")
    add("--records", type=Path, metavar="DIR", help="where records are (default: records beside the cascade)")
    add("--alphas", type=listed(0.01, 100), required=True, metavar="A,...", help="of Eq. 5")
    args = parser.parse_args(argv)
    cascade, folder, data = CascadeManifest.load(args.cascade), folder_of(args.cascade), read_data(args.data)
    stages = Stages(cascade, folder, data, Records(args.records or folder / "records", data))
    for alpha in args.alphas:
        for s in range(1, len(cascade.stages)):
            work = [
                stages.pruned(s, alpha, "plain", to_level=False),
                stages.pruned(s, alpha, "random", cut=random_words),
                stages.pruned(s, alpha, "first", cut=_first),
            ]
            stages.run(work, threads=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
