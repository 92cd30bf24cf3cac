"""WordNet: tell from the definition of a noun which lexicographer file it stands in, as noun.artifact or noun.food.

    python -m benchmarks.cascade.glosses

82,000 definitions in 24 classes, most of them shorter than 64 tokens, out of Debian's package wordnet-base. WordNet 3.0
is free to use with its notice, which the package carries; nothing of it is committed.
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Iterable
from pathlib import Path

from arlo.compile.cache import Entry, link_out
from arlo.errors import ArloError
from benchmarks.cascade.cached import cache_root, open_cache, source_hash
from benchmarks.cascade.debian import unpacked
from benchmarks.cascade.examples import Example, write_splits

NAME = "nouns"
PACKAGE, VERSION = "wordnet-base", "1:3.0-37"
SHA256 = "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752"
FEWEST = 300  # definitions of a class that is taken

# Lexicographer files are numbered; wordnet-base's manual page lexnames(5WN) has the names.
_FIRST = 3
_NAMES = """
    Tops act animal artifact attribute body cognition communication event feeling food group location motive object
    person phenomenon plant possession process quantity relation shape state substance time
"""
LEXNAMES = {number: f"noun.{name}" for number, name in enumerate(_NAMES.split(), start=_FIRST)}


def read_glosses(lines: Iterable[str], *, fewest: int = FEWEST) -> list[Example]:
    """Definitions of a `data.noun`, in its order, of classes with at least `fewest`.

    The group is the offset of the synset that has the same definition first: twins must not be separated. Lines that
    begin with two spaces are the licence.
    """
    found: list[Example] = []
    first: dict[str, str] = {}
    for line in lines:
        head, bar, gloss = line.partition(" | ")
        if line.startswith("  ") or not bar:
            continue
        offset, number = head.split()[:2]
        text = gloss.strip()
        definition = text.partition('; "')[0].lower()
        found.append(Example(text, LEXNAMES[int(number)], first.setdefault(definition, offset)))
    counts = collections.Counter(example.label for example in found)
    return [example for example in found if counts[example.label] >= fewest]


def glosses_step(root: Path) -> Entry:
    """Entry with the four splits; meta: `rows` of each. EnvironmentProblem when the package cannot be had."""

    def make(folder: Path) -> dict[str, object]:
        with unpacked(PACKAGE, VERSION, SHA256, archives=root / "cascade" / "archives") as files:
            path = files / "usr/share/wordnet/data.noun"
            with path.open(encoding="utf-8", errors="replace") as stream:
                return {"rows": write_splits(folder, read_glosses(stream))}

    parts = {"sha256": SHA256, "fewest": FEWEST, "code": source_hash("glosses", "examples")}
    return open_cache(root).step("cascade-glosses", parts, make)


def main() -> int:
    """Write the splits and say where they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=cache_root(), help="default: $ARLO_CACHE, or ~/.cache/arlo")
    args = parser.parse_args()
    try:
        entry = glosses_step(args.cache)
    except ArloError as error:
        print(f"cascade: {error}", file=sys.stderr)
        return 1
    folder = link_out(entry, args.cache / "cascade" / NAME)
    rows = ", ".join(f"{name} {count:,}" for name, count in entry.meta["rows"].items())
    print(f"{NAME}: {rows}{' (cached)' if entry.cached else ''} -> {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
