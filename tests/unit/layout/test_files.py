"""Rules for the files themselves: the top-level layout, their length, their words, the links between documents."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAX_LINES = 600

TOP_LEVEL_FOLDERS = {
    ".ci", "arlo", "benchmarks", "cmake", "compile", "deploy", "docs", "examples", "proto", "simulator", "src", "tests",
    "tools", "traces", "triton_repo",
}  # fmt: skip
TEXT = {".py", ".pyi", ".cc", ".h", ".md", ".toml", ".proto", ".cmake", ".txt", ".sh", ".yml", ".yaml", ".json", ""}
CODE = {".py", ".pyi", ".cc", ".h", ".proto", ".cmake", ".sh"}

# Word (as a pattern) -> why it has no place. The word table stands in docs/glossary.md.
BANNED = {
    r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b": "finish it, or say in plain words what is missing",
    r"\bdrop" + r"ped (request|row)s?\b": "an outcome is on_time, late, rejected, expired, cancelled or failed",
    r"(?<![\w./}-])/(home|Users|work|root)/": "a path of one machine",
    r"""(\.\./|["'])shared["'/]""": "nothing lies beside a checkout: ARLO_TRACES names development data",
}
# Words that only some folders must avoid.
BANNED_IN = {
    "compile": {
        r"\bprofile\b(?<!latency.profile)(?<!optimi.ation profile)(?<!arlo compile profile)(?!=serving)": (
            "say latency profile"
        )
    }
}


@cache
def tracked() -> list[Path]:
    """Files of the project: what git tracks, or everything outside build folders where there is no git."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        names = [name for name in listing.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        hidden = {".git", ".venv", "build", "__pycache__"}
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file() and not hidden & set(p.parts)]
    return [path for path in (ROOT / name for name in names) if path.is_file()]


def text_files(suffixes: set[str]) -> list[Path]:
    corpus = ROOT / "tests" / "cpp" / "corpus"  # any bytes, for the fuzzers
    return [path for path in tracked() if path.suffix in suffixes and corpus not in path.parents]


def test_top_level_layout() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if len(path.relative_to(ROOT).parts) > 1}
    assert folders <= TOP_LEVEL_FOLDERS, "a new top-level folder needs a line here and in docs/architecture.md"


def test_files_are_short() -> None:
    """Pages that the program writes, and the stub of the binding, are as long as what they have to say."""
    long = {
        str(path.relative_to(ROOT)): lines
        for path in text_files((CODE | {".md"}) - {".pyi"})
        if (lines := len((text := path.read_text()).splitlines())) >= MAX_LINES and "<!-- Written by `make" not in text
    }
    assert long == {}


def banned_in(path: Path, rules: dict[str, str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number} {line.strip()!r}: {why}"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for pattern, why in rules.items()
        if re.search(pattern, line)
    ]


def test_no_banned_words() -> None:
    found = []
    for path in text_files(TEXT):
        if path == Path(__file__) or path.name == "LICENSE":
            continue
        rules = BANNED | BANNED_IN.get(path.relative_to(ROOT).parts[0], {})
        found += banned_in(path, rules)
    assert found == []


SAMPLES = [
    ("// TO" + "DO: later", "mastodon"),
    ("3 drop" + "ped requests", "never a lost request"),
    ("see /ho" + "me/me/x", "docs/work/x"),
    ('Path("sha' + 'red/traces")', "src/shared/x"),
]


@pytest.mark.parametrize(("pattern", "sample"), list(zip(BANNED, SAMPLES, strict=True)))
def test_the_patterns_match_what_they_should(pattern: str, sample: tuple[str, str]) -> None:
    bad, good = sample
    assert re.search(pattern, bad)
    assert not re.search(pattern, good)


def imported_tests(tree: ast.Module) -> list[str]:
    """Test modules that a file imports, by name."""
    names = [
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return [name for name in names if re.search(r"(^|\.)test_\w+", name)]


def test_no_test_imports_another() -> None:
    """What two tests need lies in tests/fakes, in a conftest.py or in a module that holds no tests."""
    found = {
        str(path.relative_to(ROOT)): names
        for path in text_files({".py"})
        if path.relative_to(ROOT).parts[0] in {"tests", "benchmarks"}
        and (names := imported_tests(ast.parse(path.read_text())))
    }
    assert found == {}


def test_what_imports_a_test_is_seen() -> None:
    bad = "from tests.unit.test_a import helper\nimport tests.golden.test_b\nfrom tests.unit import test_c, story\n"
    assert imported_tests(ast.parse(bad)) == ["tests.unit.test_a.helper", "tests.golden.test_b", "tests.unit.test_c"]


STEP = re.compile(r'^"""Step (\d+), (\w+)')


def test_the_steps_of_compile_are_numbered_once_and_in_order() -> None:
    """A step may have several modules; it has one number, that of its line in docs/compile.md."""
    numbered = {
        (int(match[1]), match[2])
        for path in (ROOT / "compile/steps").glob("*.py")
        if (match := STEP.match(path.read_text()))
    }
    lines = re.findall(r"^\| (\d+) \| (\w+) \|", (ROOT / "docs/compile.md").read_text(), flags=re.M)
    assert [int(number) for number, _ in lines] == list(range(1, len(lines) + 1))
    assert numbered == {(int(number), name) for number, name in lines}


def test_no_generated_files_are_committed() -> None:
    endings = ("_pb2.py", "_pb2_grpc.py", ".pb.cc", ".pb.h", ".onnx", ".so")
    assert [path for path in tracked() if path.name.endswith(endings)] == []


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown page gives its headings, by the usual rule: lower case, dashes, no punctuation."""
    headings = re.findall(r"^#+\s+(.*?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(str(p.relative_to(ROOT)) for p in text_files({".md"})))
def test_relative_links_resolve(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    broken = []
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            broken.append(f"{target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            broken.append(f"{target}: no such heading")
    assert broken == []


NAMED = re.compile(
    r"(?<![\w/])((?:tests|src|arlo|compile|simulator|benchmarks|tools|deploy|examples)/[\w./-]+\.(?:py|cc|h|toml|sh|yaml|yml))"
)


@pytest.mark.parametrize(
    "page", sorted(str(p.relative_to(ROOT)) for p in text_files({".md"}) if p.name != "CHANGELOG.md")
)
def test_files_that_pages_name_exist(page: str) -> None:
    named = set(NAMED.findall((ROOT / page).read_text()))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
