"""How large the parts of the house are: lines of folders, of classes over all their files, of functions.

test_budget.py holds the tree to budget.toml. `python -m tests.unit.layout.sizes` lowers its numbers to those of today;
`--raise` raises them, too, which is for a change whose growth was agreed on.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.unit.layout.english import habits

ROOT = Path(__file__).resolve().parents[3]
BUDGET = Path(__file__).with_name("budget.toml")
PRODUCT = ("arlo", "compile", "proto", "simulator", "src", "traces", "triton_repo")
SUFFIXES = {".py", ".pyi", ".cc", ".h", ".proto", ".html"}
CLASS_LINES, FUNCTION_LINES, FOLDER_FILES = 300, 70, 20


def sources(*tops: str) -> list[Path]:
    """Source files below these folders of the tree, as paths from its root."""
    listed = subprocess.run(["git", "ls-files", "-z", *tops], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (Path(name) for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.suffix in SUFFIXES and (ROOT / path).is_file()]


def part_of(path: Path) -> str:
    """`src/gateway` or `arlo/cli`, for folders of parts; else the top folder."""
    return "/".join(path.parts[: 2 if path.parts[0] in ("arlo", "src") and len(path.parts) > 2 else 1])


def lines_of(path: Path) -> int:
    return len((ROOT / path).read_text().splitlines())


def folders() -> dict[str, int]:
    """Lines of each part of the product, of the tests and the benchmarks, and of the product as a whole."""
    found: Counter[str] = Counter()
    for path in sources(*PRODUCT, "tests", "benchmarks"):
        found[part_of(path)] += lines_of(path)
        if path.parts[0] in PRODUCT:
            found["product"] += lines_of(path)
    return dict(found)


def classes() -> dict[str, int]:
    """Lines of the classes of the product that have more than CLASS_LINES, by part and name: those of their bodies, and
    of the functions that are defined outside of these."""
    found: Counter[str] = Counter()
    for path in sources(*PRODUCT):
        for kind, name, lines in _pieces(path):
            owner = name if kind == "class" else name.rpartition("::")[0]
            if owner:
                found[f"{part_of(path)} {owner}"] += lines
    return {name: lines for name, lines in found.items() if lines > CLASS_LINES}


def functions() -> dict[str, int]:
    """Lines of the functions of the product that have more than FUNCTION_LINES, by file and name."""
    found: dict[str, int] = {}
    for path in sources(*PRODUCT):
        for kind, name, lines in _pieces(path):
            if kind != "class" and lines > FUNCTION_LINES:
                found[f"{path} {name}"] = max(lines, found.get(f"{path} {name}", 0))
    return found


def crowded() -> dict[str, int]:
    """Source files of folders that hold more than FOLDER_FILES themselves."""
    found = Counter(str(path.parent) for path in sources(*PRODUCT))
    return {name: count for name, count in found.items() if count > FOLDER_FILES}


def _pieces(path: Path) -> Iterator[tuple[str, str, int]]:
    """Classes and functions of a file: kind, name, lines. A method in the body of its class has the kind `inner`, and
    its name alone."""
    text = (ROOT / path).read_text()
    if path.suffix == ".py":
        yield from of_python(ast.parse(text))
    elif path.suffix in (".cc", ".h"):
        yield from of_cpp(text)


def of_python(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield "class" if isinstance(node, ast.ClassDef) else "inner", node.name, lines


_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'|^\s*#[^\n]*',
    re.S | re.M,
)
_CLASS = re.compile(
    r"\b(?:class|struct|union)\s+(?:alignas\([^)]*\)\s*)?([\w:]+(?:<[^{;]*?>)?)\s*(?:final\s*)?(?::[^:].*)?$", re.S
)
_START = re.compile(r"(?:\s|(?:public|private|protected)\s*:(?!:))*")
_FUNCTION = re.compile(r"((?:[\w~]+(?:<[^<>()]*>)?::)*(?:operator\W+|[\w~]+))\s*\(")


def of_cpp(text: str) -> Iterator[tuple[str, str, int]]:
    """The same of C++ as this project's formatter leaves it: braces match, and none stand in macros."""
    code = _NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    ends = _matching(code)

    def scan(at: int, end: int, inside: str) -> Iterator[tuple[str, str, int]]:
        head = at
        while at < end:
            if code[at] in ";}":
                head = at + 1
            elif code[at] == "{":
                close = ends[at]
                rest = code[close + 1 : close + 80].lstrip()
                said = code[head:at].strip()
                if "(" in said and rest[:1] in (",", "{"):  # a member's value in front of the constructor's body
                    at = close + 1
                    continue
                begin = _START.match(code, head, at).end()  # type: ignore[union-attr]  # it may match nothing
                lines = code.count("\n", begin, close) + 1
                if re.match(r"(?:inline\s+)?namespace\b|extern\b", said):
                    yield from scan(at + 1, close, inside)
                elif (
                    not said.startswith("enum")
                    and (named := _CLASS.search(said.split("=")[0]))
                    and ")" not in said[named.end(1) :]
                ):
                    name = re.sub(r"<.*>", "", named[1], flags=re.S)
                    yield "class", f"{inside}::{name}" if inside else name, lines
                    yield from scan(at + 1, close, f"{inside}::{name}" if inside else name)
                elif called := _FUNCTION.search(said):
                    name = re.sub(r"<[^<>]*>", "", called[1])
                    yield ("inner", name.rpartition("::")[2], lines) if inside else ("outer", name, lines)
                at = close
                head = close + 1
            at += 1

    yield from scan(0, len(code), "")


def _matching(code: str) -> dict[int, int]:
    ends, open_at = {}, []
    for at, char in enumerate(code):
        if char == "{":
            open_at.append(at)
        elif char == "}" and open_at:
            ends[open_at.pop()] = at
    return ends | dict.fromkeys(open_at, len(code))


def measured() -> dict[str, dict[str, int]]:
    """The sections of budget.toml, as the tree is now."""
    sizes = {"folders": folders(), "classes": classes(), "functions": functions(), "files": crowded()}
    return sizes | {"habits": habits()}


def main() -> None:
    """Write budget.toml."""
    known = tomllib.loads(BUDGET.read_text()) if BUDGET.exists() else {}
    lines = ["# Written by `python -m tests.unit.layout.sizes`. Numbers only fall: test_budget.py says why."]
    for section, now in measured().items():
        before = {} if "--raise" in sys.argv else known.get(section, {})
        lines += ["", f"[{section}]"]
        lines += [f'"{name}" = {min(size, before.get(name, size))}' for name, size in sorted(now.items())]
    BUDGET.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
