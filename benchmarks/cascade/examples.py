"""Labelled texts in four splits: train, fit (calibration), select (thresholds), test.

A text goes to a split by a hash of its *group*, so that texts that are alike never lie in two, and so that a new
version of the data moves no text from one split to another.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from arlo.errors import ConfigError

# Shares of the groups. Thresholds that are chosen on few rows do not hold on others, so `select` is the largest.
SHARES = {"test": 0.05, "fit": 0.045, "select": 0.07}
SPLITS = ("train", *SHARES)


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A text, the name of its class, and what it must not be separated from."""

    text: str
    label: str
    group: str


def split_of(group: str) -> str:
    """The split of all texts of a group."""
    at = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") / 2**64
    for name, share in SHARES.items():
        if at < share:
            return name
        at -= share
    return "train"


def write_splits(folder: Path, examples: Iterable[Example]) -> dict[str, int]:
    """Write `<split>.jsonl`, a JSON object with text, label and group in each line; returns the rows of each.

    The order within a split is that of another hash: any first part of it is a sample of the whole.
    """
    by_split: dict[str, list[Example]] = {name: [] for name in SPLITS}
    for example in examples:
        by_split[split_of(example.group)].append(example)
    for name, rows in by_split.items():
        rows.sort(key=lambda row: (hashlib.sha256(f"order {row.group} {row.text}".encode()).digest(), row.text))
        lines = (json.dumps(dataclasses.asdict(row), ensure_ascii=False) for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {name: len(rows) for name, rows in by_split.items()}


def read_split(path: Path, *, rows: int | None = None) -> list[Example]:
    """The first `rows` examples of a file (None: all). ConfigError when it is missing or not of this form."""
    found: list[Example] = []
    try:
        with path.open(encoding="utf-8") as stream:
            for line in stream:
                if rows is not None and len(found) == rows:
                    break
                found.append(Example(**json.loads(line)))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: `make cascade-models` writes it") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not made of lines with text, label and group ({error})") from None
    return found


def labels_of(examples: Sequence[Example]) -> list[str]:
    """The names of the classes, sorted: a class's number is its place here."""
    return sorted({example.label for example in examples})
