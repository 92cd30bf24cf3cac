"""The data of the cascades: how glosses are read, and how texts are split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arlo.errors import ConfigError, EnvironmentProblem
from benchmarks.cascade.cached import cache_root
from benchmarks.cascade.debian import run
from benchmarks.cascade.examples import SPLITS, Example, labels_of, read_split, split_of, write_splits
from benchmarks.cascade.glosses import LEXNAMES, NAME, read_glosses
from benchmarks.cascade.sections import read_sections
from benchmarks.cascade.train import batches_of

DATA_NOUN = """\
  1 This software and database is being provided to you | the licence
00001740 03 n 01 entity 0 003 ~ 00001930 n 0000 | that which is perceived to have its own distinct existence
02084071 05 n 03 dog 0 001 @ 02083346 n 0000 | a member of the genus Canis; "the dog barked all night"
02084999 05 n 01 hound 0 001 @ 02083346 n 0000 | A member of the genus Canis; "hounds bay"
03000000 06 n 01 chair 0 001 @ 02083346 n 0000 | a seat for one person
"""


def test_glosses_are_read_with_their_lexicographer_file() -> None:
    found = read_glosses(DATA_NOUN.splitlines(keepends=True), fewest=1)
    assert [(each.label, each.group) for each in found] == [
        ("noun.Tops", "00001740"),
        ("noun.animal", "02084071"),
        ("noun.animal", "02084071"),  # the same definition: with its twin
        ("noun.artifact", "03000000"),
    ]
    assert found[1].text == 'a member of the genus Canis; "the dog barked all night"'
    assert found[3].text == "a seat for one person"
    assert [each.label for each in read_glosses(DATA_NOUN.splitlines(), fewest=2)] == ["noun.animal"] * 2


def test_lexicographer_files_are_numbered_as_in_the_manual() -> None:
    assert (LEXNAMES[3], LEXNAMES[5], LEXNAMES[13], LEXNAMES[28]) == (
        "noun.Tops", "noun.animal", "noun.food", "noun.time"
    )  # fmt: skip


def test_a_group_stays_together_and_stays_where_it_is(tmp_path: Path) -> None:
    examples = [Example(f"text {n} of {group}", "ab"[group % 2], str(group)) for group in range(3000) for n in (0, 1)]
    rows = write_splits(tmp_path, examples)
    assert sum(rows.values()) == len(examples)
    assert [round(rows[name] / len(examples), 2) for name in SPLITS] == pytest.approx(
        [0.835, 0.05, 0.045, 0.07], abs=0.015
    )
    seen = {name: read_split(tmp_path / f"{name}.jsonl") for name in SPLITS}
    for name, found in seen.items():
        assert {split_of(example.group) for example in found} == {name}
    assert labels_of(seen["train"]) == ["a", "b"]
    assert read_split(tmp_path / "train.jsonl", rows=7) == seen["train"][:7]
    write_splits(tmp_path, reversed(examples))
    assert read_split(tmp_path / "train.jsonl") == seen["train"]  # whatever order they come in
    assert split_of("00001740") == "train"


def test_what_is_no_split_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make cascade-models"):
        read_split(tmp_path / "train.jsonl")
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    with pytest.raises(ConfigError, match="lines with text, label and group"):
        read_split(tmp_path / "train.jsonl")


def test_what_a_command_lacks_is_said() -> None:
    with pytest.raises(EnvironmentProblem, match="no-such-program is not here"):
        run(["no-such-program"], "it cannot be fetched")
    with pytest.raises(EnvironmentProblem, match=r"it failed \(sh: why\)"):
        run(["sh", "-c", "echo why >&2; exit 3"], "it failed")


def test_batches_hold_every_row_once_and_like_lengths() -> None:
    rows = [([0] * (1 + number * 7 % 60), number) for number in range(1000)]
    batches = list(batches_of(rows, 32, seed=1))
    assert sorted(number for batch in batches for _, number in batch) == list(range(1000))
    assert batches == list(batches_of(rows, 32, seed=1)) != list(batches_of(rows, 32, seed=2))
    padding = sum(max(len(ids) for ids, _ in batch) * len(batch) for batch in batches)
    assert padding < 1.1 * sum(len(ids) for ids, _ in rows)


PACKAGES = """\
Package: gdal-bin
Source: gdal (3.6.2+dfsg-1)
Description-md5: a1
Section: science

Package: libgdal32
Source: gdal
Description-md5: a2
Section: libs

Package: old-one
Description-md5: a3
Section: science

Package: nonfree
Description-md5: a2
Section: contrib/science

Package: untold
Section: science
"""
TRANSLATIONS = """\
Package: gdal-bin
Description-md5: a1
Description-en: Geospatial library: utility programs
 GDAL reads rasters.
 .
 This package has programs.

Package: libgdal32
Description-md5: a2
Description-en: Geospatial library

Package: old-one
Description-md5: a3
Description-en: Transitional package
 It can be removed.
"""


def test_descriptions_are_joined_with_their_sections() -> None:
    found = read_sections(PACKAGES, TRANSLATIONS, fewest=1)
    assert found == [
        Example(
            "Geospatial library: utility programs GDAL reads rasters. This package has programs.", "science", "gdal"
        ),
        Example("Geospatial library", "science", "nonfree"),
    ]
    assert read_sections(PACKAGES, TRANSLATIONS, fewest=3) == []


def test_the_nouns_are_what_they_were() -> None:
    """The real package, where `make cascade-models` fetched it."""
    folder = cache_root() / "cascade" / NAME
    if not (folder / "test.jsonl").is_file():
        pytest.skip("wordnet-base is not in the cache: `make cascade-models` fetches it")
    found = {name: read_split(folder / f"{name}.jsonl") for name in SPLITS}
    assert {name: len(rows) for name, rows in found.items()} == {
        "train": 68595, "test": 4078, "fit": 3723, "select": 5626
    }  # fmt: skip
    assert all(len(labels_of(rows)) == 24 for rows in found.values())
    groups = [{example.group for example in rows} for rows in found.values()]
    assert sum(map(len, groups)) == len(set().union(*groups))
