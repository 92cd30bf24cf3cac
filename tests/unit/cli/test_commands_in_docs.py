"""Every `arlo ...` command and option in the documents, and in texts of the program, is one that the program has."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from arlo.cli.app import build_parsers
from arlo.cli.commands import BY_NAME, nested

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FOLDERS = (
    "arlo",
    "compile",
    "simulator",
    "traces",
    "triton_repo",
    "src",
    "proto",
    "deploy",
    "examples",
    "benchmarks",
    "tools",
)
KINDS = {".py", ".h", ".cc", ".proto", ".toml", ".yaml", ".yml", ".md", ".txt"}


def commands(page: str) -> Iterator[str]:
    """Command lines that begin with arlo: in backticks, which may go over a line's end, and in blocks."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", page, flags=re.M | re.S):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if found := re.match(r"\s*(?:\$ )?arlo (?!\S*[=:])(.*)", line):
                yield re.split(r"\s#|\s{3,}", found[1])[0]
    prose = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    yield from re.findall(r"`arlo\s+([^`]+)`", prose)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {
        option for each in (parser, *nested(parser)) for action in each._actions for option in action.option_strings
    }


def wrong_in(command: str, known: dict[str, argparse.ArgumentParser]) -> list[str]:
    """Words of a command line that the program does not have."""
    words = re.sub(r"\s+", " ", re.split(r"\s(?:[|;&>]|-- )", command)[0]).replace("[", " ").replace("]", " ").split()
    name = words[0].strip(",.)") if words else ""
    if not re.fullmatch(r"[a-z][a-z-]*", name):
        return []  # COMMAND, --help, ...
    if name not in known:
        return [name]
    name = next((each for each in (" ".join([name, *words[1:2]]).strip(",.)"),) if each in known), name)
    parser, words = known[name], words[name.count(" ") :]
    wrong = []
    choices = {c for action in parser._actions if action.dest in ("action", "what") for c in action.choices or ()}
    if choices and len(words) > 1 and re.fullmatch(r"[a-z][a-z-]*", words[1]) and words[1] not in choices:
        wrong.append(f"{name} {words[1]}")
    options = options_of(parser)
    given = {re.split(r"[=,)/]", word)[0] for word in words if word.startswith("--")}
    return wrong + sorted(f"{name} {option}" for option in given if option not in options)


@pytest.fixture(scope="module")
def known() -> dict[str, argparse.ArgumentParser]:
    found = {}
    for name in BY_NAME:
        parser = build_parsers(name).command
        assert parser is not None
        found[name] = parser
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_and_options_exist(page: Path, known: dict[str, argparse.ArgumentParser]) -> None:
    text = page.read_text()
    wrong = [each for command in commands(text) for each in wrong_in(command, known)]
    assert not wrong


@pytest.mark.parametrize("folder", FOLDERS)
def test_commands_in_texts_exist(folder: str, known: dict[str, argparse.ArgumentParser]) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in KINDS and path.is_file()]
    assert files
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in files
        if (found := [e for c in re.findall(r"`arlo\s+([^`]+)`", path.read_text()) for e in wrong_in(c, known)])
    }
    assert wrong == {}


def test_what_does_not_exist_is_found(known: dict[str, argparse.ArgumentParser]) -> None:
    page = "by `arlo bench`, `arlo compile --signals\nimportance` and\n```sh\narlo config nothing x --json # a\n```\n"
    wrong = [each for command in commands(page) for each in wrong_in(command, known)]
    assert wrong == ["config nothing", "bench", "compile --signals"]
