"""Labelled texts for the demos, and where they lie: `python -m benchmarks.demos.data nouns|sections [--refresh]`.

nouns     predict from the definition of a noun its WordNet lexicographer file, such as noun.artifact or noun.food:
          82,000 definitions in 24 classes, most of them shorter than 64 tokens, from Debian's package wordnet-base.
          WordNet 3.0 is free to use with its notice, which the package carries
sections  predict from the description of a Debian package its section, such as games, science or python: 32,000
          descriptions in 37 classes, half of them longer than 76 tokens and a few of thousands. apt fetches the lists
          of packages into our own folder, without root; they follow the distribution's releases, so the input is not
          pinned: the sha256 of both lists is part of the key and is printed

None of the data is committed. Each set has four splits: train, fit (calibration), select (thresholds), test. A hash of
a text's *group* picks its split, so that similar texts share a split, and a new version of the data moves no text from
one split to another.

<cache>/compile/cascade-*/<key>/    the output of a step, keyed by all of its inputs
<cache>/cascade/nouns/*.jsonl       the splits, hard-linked
<cache>/cascade/nouns-l6/           a model folder, hard-linked
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from arlo.compile.cache import Cache, Entry, Hasher, link_out
from arlo.errors import ArloError, ConfigError, EnvironmentProblem

# Shares of the groups. Thresholds that are chosen on few rows do not hold on others, so `select` is the largest.
SHARES = {"test": 0.05, "fit": 0.045, "select": 0.07}
SPLITS = ("train", *SHARES)
FEWEST = {"nouns": 300, "sections": 100}  # rows of a class that is taken
PACKAGE, VERSION = "wordnet-base", "1:3.0-37"
SHA256 = "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752"
# Lexicographer files are numbered; wordnet-base's manual page lexnames(5WN) has the names.
_FIRST = 3
_NAMES = """
    Tops act animal artifact attribute body cognition communication event feeling food group location motive object
    person phenomenon plant possession process quantity relation shape state substance time
"""
LEXNAMES = {number: f"noun.{name}" for number, name in enumerate(_NAMES.split(), start=_FIRST)}
# These sections describe the origin of a package, not its subject.
LEFT_OUT = frozenset({"misc", "metapackages", "oldlibs", "debug"})
_EMPTY = ("transitional", "dummy package")  # packages that only pull in others
_APT_HELPER = "/usr/lib/apt/apt-helper"


def cache_root() -> Path:
    """The cache of `arlo compile`: `$ARLO_CACHE`, else `~/.cache/arlo`."""
    named = os.environ.get("ARLO_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "arlo"


def open_cache(root: Path) -> Cache:
    """The steps below `root`."""
    return Cache(root, Hasher())


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A text, the name of its class, and the group from which it must not be separated."""

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


def classes_of(examples: Iterable[Example], name: str) -> list[Example]:
    """The examples of classes with enough rows."""
    rows = list(examples)
    counts = collections.Counter(example.label for example in rows)
    return [example for example in rows if counts[example.label] >= FEWEST[name]]


def read_glosses(lines: Iterable[str]) -> list[Example]:
    """Definitions of a `data.noun`, in its order.

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
    return classes_of(found, "nouns")


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


def read_sections(packages: str, translations: str) -> list[Example]:
    """The first binary package of each source package, with its English description and its section.

    packages, translations: the text of a `Packages` list and of `Translation-en`, joined on Description-md5. The group
    is the source package: packages built from one source have similar descriptions.
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
    return classes_of(found.values(), "sections")


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


def fetched(package: str, version: str, sha256: str, archives: Path) -> Path:
    kept = archives / f"{package}.deb"
    if kept.is_file() and _digest(kept) == sha256:
        return kept
    with TemporaryDirectory() as folder:
        # apt drops its rights where it is root, and must be able to write here then.
        Path(folder).chmod(0o777)
        wanted = f"{package}={version}"
        run(["apt-get", "download", wanted], f"{wanted} cannot be fetched; `apt-get update` may help", cwd=Path(folder))
        fetched = next(Path(folder).glob("*.deb"))
        if _digest(fetched) != sha256:
            raise EnvironmentProblem(f"{wanted} is not the file that was expected: its sha256 is {_digest(fetched)}")
        archives.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".part")
        shutil.copyfile(fetched, partial)
        partial.rename(kept)
    return kept


def run(command: list[str], problem: str, *, cwd: Path | None = None) -> str:
    """The output of a command. EnvironmentProblem with its last line if it is missing or fails."""
    try:
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, errors="replace").stdout
    except FileNotFoundError:
        raise EnvironmentProblem(f"{problem}: {command[0]} is not here, which Debian and its like have") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or "nothing said").splitlines()[-1]
        raise EnvironmentProblem(f"{problem} ({command[0]}: {said})") from None


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def splits_of(name: str, root: Path, *, refresh: bool = False) -> Entry:
    """Entry with the four splits; meta: `rows` of each, `lists`: sha256 of their sources.
    EnvironmentProblem if the data is not available."""
    cache, archives = open_cache(root), root / "cascade" / "archives"
    sources = lists_of(archives / "lists", refresh=refresh) if name == "sections" else ()
    hashes = [cache.hash(path) for path in sources] or [SHA256]

    def make(folder: Path) -> dict[str, object]:
        if name == "sections":
            return {"rows": write_splits(folder, read_sections(*map(text_of, sources))), "lists": hashes}
        with TemporaryDirectory() as files:
            package = str(fetched(PACKAGE, VERSION, SHA256, archives))
            run(["dpkg-deb", "-x", package, files], f"{PACKAGE} cannot be unpacked")
            with (Path(files) / "usr/share/wordnet/data.noun").open(encoding="utf-8", errors="replace") as stream:
                return {"rows": write_splits(folder, read_glosses(stream)), "lists": hashes}

    parts = {"lists": hashes, "fewest": FEWEST[name], "code": Hasher().file(Path(__file__))[:16]}
    return cache.step(f"cascade-{name}", parts, make)


def main() -> int:
    """Write the splits and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=tuple(FEWEST))
    parser.add_argument("--refresh", action="store_true", help="fetch the lists of packages again")
    args = parser.parse_args()
    try:
        entry = splits_of(args.name, cache_root(), refresh=args.refresh)
    except ArloError as error:
        print(f"data: {error}", file=sys.stderr)
        return 1
    print(f"{args.name}: " + ", ".join(f"{split} {count:,}" for split, count in entry.meta["rows"].items()))
    print("made from: " + ", ".join(f"sha256 {digest}" for digest in entry.meta["lists"]))
    print(f"-> {link_out(entry, cache_root() / 'cascade' / args.name)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
