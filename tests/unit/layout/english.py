"""Habits of English that a native engineer would not have, counted over documents, comments and strings."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HABITS = {
    "of its own": r"\bof (?:its|their|our|your|his|one's) own\b",
    "anew": r"\banew\b",
    "nobody, somebody": r"\b(?:nobody|somebody)\b",
    "is told, is said": r"\b(?:is|are|was|were|be|been) (?:told|said)\b",
    "what is, what has, what can": r"\bwhat (?:is|are|was|has|have|had|can|could)\b",
    "beside": r"\bbeside\b",
}
OPENING = "docstrings that begin with Of, To, That, For, As"
_OPENING = re.compile(r'\s*[rf]?"""(?:Of|To|That|For|As)\b')
_STRING = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"')
_GENERATED = {"cli.md", "configuration.md", "scenario.md", "metrics.md"}  # of texts that are counted where they stand


def read_by_people() -> list[Path]:
    """Documents and sources outside the tests, without the history of changes and what is generated."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name and not name.startswith(("tests/", "CHANGELOG"))]
    wanted = {".md", ".py", ".cc", ".h", ".proto"}
    return [path for path in paths if path.suffix in wanted and path.name not in _GENERATED and path.is_file()]


def texts(path: Path) -> Iterator[str]:
    """The whole of a document; comments and strings of a source."""
    source = path.read_text()
    if path.suffix == ".md":
        yield source
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.string
    else:
        yield from _STRING.findall(source)


def habits() -> dict[str, int]:
    """How often each stands there."""
    found = Counter(dict.fromkeys([*HABITS, OPENING], 0))
    for path in read_by_people():
        said = re.sub(r"\s+(?:#|//)?\s*", " ", " ".join(texts(path)))
        for name, pattern in HABITS.items():
            found[name] += len(re.findall(pattern, said, re.IGNORECASE))
        if path.suffix == ".py":
            found[OPENING] += sum(bool(_OPENING.match(text)) for text in _docstrings(path.read_text()))
    return dict(found)


def _docstrings(source: str) -> Iterator[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield f'"""{text}'
