"""Debian: tell from the description of a package which section it stands in, as games, science or python.

    python -m benchmarks.cascade.sections [--refresh]

32,000 descriptions in 37 classes, half of them longer than 76 tokens and a few of thousands: a long tail of lengths.
The lists of packages are fetched by apt into a folder of our own, without root. They follow the distribution's
releases, so what is read is not pinned: the sha256 of both lists is part of the key and is printed.
"""

from __future__ import annotations

import argparse
import collections
import os
import pwd
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from arlo.compile.cache import Entry, link_out
from arlo.errors import ArloError, EnvironmentProblem
from benchmarks.cascade.cached import cache_root, open_cache, source_hash
from benchmarks.cascade.debian import run
from benchmarks.cascade.examples import Example, write_splits

NAME = "sections"
FEWEST = 100  # packages of a class that is taken
# They say how a package came to be, not what it is about.
LEFT_OUT = frozenset({"misc", "metapackages", "oldlibs", "debug"})
_EMPTY = ("transitional", "dummy package")  # packages that only pull in others
_APT_HELPER = "/usr/lib/apt/apt-helper"


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of a control file: field -> value, further lines kept with their line ends."""
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith((" ", "\t")) and name:
                fields[name] += f"\n{line}"
            else:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if block.strip():
            yield fields


def read_sections(packages: str, translations: str, *, fewest: int = FEWEST) -> list[Example]:
    """The first binary package of each source package, with its English description and its section.

    packages, translations: the text of a `Packages` list and of `Translation-en`, joined on Description-md5. The group
    is the source package: what is built from one source is described alike.
    """
    texts = {each["Description-md5"]: each.get("Description-en", "") for each in stanzas(translations)}
    found: dict[str, Example] = {}
    for each in stanzas(packages):
        source = (each.get("Source") or each["Package"]).partition(" ")[0]
        section = each.get("Section", "").rpartition("/")[2]
        text = plain(texts.get(each.get("Description-md5", ""), ""))
        empty = not text or any(words in text.lower() for words in _EMPTY)
        if section and not empty and section not in LEFT_OUT and source not in found:
            found[source] = Example(text, section, source)
    counts = collections.Counter(example.label for example in found.values())
    return [example for example in found.values() if counts[example.label] >= fewest]


def plain(description: str) -> str:
    """One paragraph; a line with a single dot is an empty one."""
    lines = (line.strip() for line in description.splitlines())
    return " ".join(line for line in lines if line not in ("", "."))


def lists_of(folder: Path, *, refresh: bool) -> tuple[Path, Path]:
    """The lists of packages and of English descriptions of the base suite. EnvironmentProblem when apt has none."""
    if refresh:
        shutil.rmtree(folder, ignore_errors=True)
    found = _find(folder)
    if found is None:
        (folder / "partial").mkdir(parents=True, exist_ok=True)
        user = pwd.getpwuid(os.getuid()).pw_name
        options = {
            "Acquire::Languages": "en",
            "Dir::State::lists": folder,
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": user,
        }
        flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        run(["apt-get", "update", *flags], "the lists of packages cannot be fetched")
        found = _find(folder)
    if found is None:
        raise EnvironmentProblem("apt knows no Debian main archive for amd64 with English descriptions")
    return found


def _find(folder: Path) -> tuple[Path, Path] | None:
    endings = ("binary-amd64_Packages*", "i18n_Translation-en*")
    lists = [sorted(folder.glob(f"*_main_{ending}"), key=lambda path: len(path.name)) for ending in endings]
    return (lists[0][0], lists[1][0]) if all(lists) else None  # the base suite has the shortest name


def text_of(path: Path) -> str:
    return run([_APT_HELPER, "cat-file", str(path)], f"{path.name} cannot be read")


def sections_step(root: Path, *, refresh: bool = False) -> Entry:
    """Entry with the four splits; meta: `rows` of each, `lists`: their sha256. EnvironmentProblem as of `lists_of`."""
    cache = open_cache(root)
    lists = lists_of(root / "cascade" / "archives" / "lists", refresh=refresh)
    hashes = [cache.hash(path) for path in lists]

    def make(folder: Path) -> dict[str, object]:
        rows = write_splits(folder, read_sections(*map(text_of, lists)))
        return {"rows": rows, "lists": hashes}

    parts = {"lists": hashes, "fewest": FEWEST, "code": source_hash("sections", "examples")}
    return cache.step("cascade-sections", parts, make)


def lines_of(entry: Entry) -> Iterable[str]:
    """What there is to say about the splits."""
    yield f"{NAME}: " + ", ".join(f"{name} {count:,}" for name, count in entry.meta["rows"].items())
    yield "lists: " + ", ".join(f"sha256 {digest}" for digest in entry.meta["lists"])


def main() -> int:
    """Write the splits and say where they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=cache_root(), help="default: $ARLO_CACHE, or ~/.cache/arlo")
    parser.add_argument("--refresh", action="store_true", help="fetch the lists again")
    args = parser.parse_args()
    try:
        entry = sections_step(args.cache, refresh=args.refresh)
    except ArloError as error:
        print(f"cascade: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines_of(entry)))
    print(f"-> {link_out(entry, args.cache / 'cascade' / NAME)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
