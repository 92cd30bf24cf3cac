"""Which part may use which: the arrows of docs/architecture.md, read from the imports and includes themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Part of the Python package -> other parts that it may import. `cli` may import all of them.
PYTHON_ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "front": set(),
    "catalog": {"errors"},
    "proto": {"errors"},
    "report": {"errors"},
    "cascade": {"errors", "catalog", "_core"},
    "client": {"errors", "proto", "clock"},
    "planning": {"errors", "catalog", "clock", "_core"},
    "config": {"errors", "catalog", "cascade", "proto"},
    "workers": {"errors", "clock", "catalog", "proto", "config"},
    "compile": {
        "errors",
        "clock",
        "catalog",
        "config",
        "workers",
        "planning",
        "profiler",
        "traces",
        "templates",
        "report",
    },
    "traces": {"errors", "clock"},
    "replay": {"errors", "clock", "catalog", "cascade", "proto", "config", "client", "traces", "report"},
    "control": {
        "errors",
        "clock",
        "catalog",
        "cascade",
        "proto",
        "config",
        "workers",
        "planning",
        "profiler",
        "traces",
    },
    "profiler": {"errors", "clock", "catalog", "config", "workers", "planning"},
    "simulator": {"errors", "clock", "catalog", "cascade", "planning", "config", "traces", "report", "_core"},
    "templates": set(),
    "_core": set(),
}
FREE = {"cli", "__init__", "__main__"}

# Imported only where they are used, inside a function: they are extras, and slow to load.
HEAVY = {
    "torch",
    "tensorrt",
    "tensorrt_rtx",
    "tensorrt_rtx_bindings",
    "cuda",
    "onnxruntime",
    "gurobipy",
    "highspy",
    "ray",
    "plotly",
    "transformers",
    "pytriton",
    "scipy",
}

# Folder under src/ -> other folders that it may include.
CPP_ARROWS: dict[str, set[str]] = {
    "base": set(),
    "dispatch": {"base"},
    "flow": {"dispatch", "base"},
    "rewrite": {"text", "base"},
    "transport": {"base"},
    "gateway": {"flow", "rewrite", "dispatch", "solve", "text", "transport", "base"},
    "loadgen": {"base"},
    "plugins": {"dispatch", "rewrite", "base"},
    "solve": {"dispatch", "base"},
    "text": {"base"},
    "simulate": {"flow", "dispatch", "solve", "base"},
    "bindings": {"flow", "dispatch", "solve", "simulate", "text", "base"},
}
# The core decides and does nothing else: `now` is an argument, threads and sockets belong to its callers.
IMPURE = re.compile(
    r"grpc|google/protobuf|\.pb\.h|kserve|^(thread|mutex|shared_mutex|condition_variable|atomic|future|stop_token|chrono"
    r"|ctime|time\.h|sys/.*|unistd\.h|random|iostream|cstdio|fstream|filesystem|pthread\.h)$"
)


def part_folders() -> dict[str, Path]:
    """Each part of the package; some are links to top-level folders."""
    parts = {path.stem: path for path in (ROOT / "arlo").iterdir() if path.suffix in {".py", ".pyi"} or path.is_dir()}
    return {name: path for name, path in parts.items() if name not in {"__pycache__", "templates"}}


def python_files(part: Path) -> list[Path]:
    return [part] if part.is_file() else sorted(part.rglob("*.py"))


def imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[ast.stmt, str]]:
    """Every module that a file imports, absolute. `package` is the file's own package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from arlo import errors` names a part only in its list of names.
            if module == "arlo":
                for alias in node.names:
                    yield node, f"arlo.{alias.name}"
            else:
                yield node, module


def type_checking_only(tree: ast.Module) -> set[int]:
    """Ids of the statements under `if TYPE_CHECKING:`; they are not run."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            found |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    return found


def package_of(part: str, base: Path, path: Path) -> list[str]:
    """The dotted package of a file, as it is installed."""
    return ["arlo"] if base.is_file() else ["arlo", part, *path.relative_to(base).parent.parts]


def arrows_broken(part: str, base: Path) -> list[str]:
    allowed = PYTHON_ARROWS.get(part, set()) | {part}
    broken = []
    for path in python_files(base):
        for node, module in imported(ast.parse(path.read_text()), package_of(part, base, path)):
            pieces = module.split(".")
            if pieces[0] == "arlo" and len(pieces) > 1 and pieces[1] not in allowed | {"__version__"}:
                broken.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {module}; {part} may import {allowed}")
    return broken


@pytest.mark.parametrize("part", sorted(part_folders()))
def test_python_arrows(part: str) -> None:
    if part in FREE:
        return
    assert part in PYTHON_ARROWS, f"say here and in docs/architecture.md what arlo.{part} may import"
    assert arrows_broken(part, part_folders()[part]) == []


def reached(uses: dict[str, set[str]], start: str) -> set[str]:
    """All that it uses, by way of others too."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        for target in uses[todo.pop()] - seen:
            seen.add(target)
            todo.append(target)
    return seen


def test_python_arrows_are_acyclic_and_keep_the_promises() -> None:
    for part in PYTHON_ARROWS:
        assert part not in reached(PYTHON_ARROWS, part), f"{part} reaches itself"
    for part in ("client", "compile", "planning", "traces"):
        assert "control" not in reached(PYTHON_ARROWS, part)
    assert reached(PYTHON_ARROWS, "client") <= {"errors", "proto", "clock"}


def test_arrows_are_of_folders_that_exist() -> None:
    assert set(PYTHON_ARROWS) | FREE >= part_folders().keys() >= set(PYTHON_ARROWS) - {"templates"}
    assert (ROOT / "triton_repo/templates").is_dir()  # installed as arlo.templates
    assert {folder.name for folder in (ROOT / "src").iterdir() if folder.is_dir()} == set(CPP_ARROWS)
    for arrows in (PYTHON_ARROWS, CPP_ARROWS):
        assert set().union(*arrows.values()) <= arrows.keys(), "an arrow leads to a folder that does not exist"


def test_heavy_packages_are_imported_where_used() -> None:
    found = []
    for part, base in part_folders().items():
        for path in python_files(base):
            tree = ast.parse(path.read_text())
            skipped = type_checking_only(tree)
            inside = {
                id(inner)
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                for inner in ast.walk(node)
            }
            for node, module in imported(tree, package_of(part, base, path)):
                if module.split(".")[0] in HEAVY and id(node) not in skipped | inside:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {module} at the top")
    assert found == []


def cpp_files(folder: str) -> list[Path]:
    return sorted(p for p in (ROOT / "src" / folder).rglob("*") if p.suffix in {".cc", ".h"})


def includes(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, name, and whether it was quoted (ours) of every include."""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', line)
        if match:
            yield number, match[1] or match[2], match[1] is not None


@pytest.mark.parametrize("folder", sorted(p.name for p in (ROOT / "src").iterdir() if p.is_dir()))
def test_cpp_arrows(folder: str) -> None:
    assert folder in CPP_ARROWS, f"say here and in docs/architecture.md what src/{folder} may include"
    ours = set(CPP_ARROWS)
    broken = []
    for path in cpp_files(folder):
        for number, name, quoted in includes(path):
            where = f"{path.relative_to(ROOT)}:{number}"
            first = name.split("/")[0]
            if first in ours and first not in CPP_ARROWS[folder] | {folder}:
                broken.append(f"{where} includes {name}; {folder} may include {CPP_ARROWS[folder]}")
            if quoted and "/" not in name and (path.parent / name).exists():
                broken.append(f"{where} includes {name}: name it from src/, as {folder}/{name}")
    assert broken == []


def test_the_request_scheduler_is_in_layers() -> None:
    """A source file with its header, or a folder with all that it has, uses what lies below it only."""
    base = ROOT / "src" / "dispatch"

    def room(name: str) -> str:
        return Path(name).parts[1].split(".")[0]

    uses: dict[str, set[str]] = {}
    for path in cpp_files("dispatch"):
        own = room(str(path.relative_to(base.parent)))
        ours = {room(name) for _, name, quoted in includes(path) if quoted and name.startswith("dispatch/")}
        uses.setdefault(own, set()).update(ours - {own})
    assert [name for name in uses if name in reached(uses, name)] == []
    assert "scheduler" not in set().union(*uses.values()), "the face of it all is its callers'"
    assert reached({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, "a") == {"a", "b", "c"}


@pytest.mark.parametrize("folder", ["dispatch", "solve", "simulate", "text"])
def test_the_core_is_pure(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number} includes {name}"
        for path in cpp_files(folder)
        for number, name, _ in includes(path)
        if IMPURE.search(name)
    ]
    assert found == []


def test_the_checks_see_what_they_should(tmp_path: Path) -> None:
    """The scanners above, on code that breaks the rules: a check that finds nothing anywhere proves nothing."""
    bad = "import torch\nfrom arlo import control\nfrom ..cli import main\nfrom arlo.client.mock import Mock\n"
    modules = [module for _, module in imported(ast.parse(bad), ["arlo", "client"])]
    assert modules == ["torch", "arlo.control", "arlo.cli", "arlo.client.mock"]
    header = tmp_path / "bad.h"
    header.write_text('#include <chrono>\n  # include "gateway/wire.h"\n// #include <mutex>\n#include <vector>\n')
    assert [(number, name) for number, name, _ in includes(header)] == [
        (1, "chrono"),
        (2, "gateway/wire.h"),
        (4, "vector"),
    ]
    impure = ["chrono", "grpcpp/grpcpp.h", "arlo/v1/admin.pb.h", "vector", "string_view"]
    assert [name for name in impure if IMPURE.search(name)] == impure[:3]


@pytest.mark.parametrize("folder", ["simulator", "arlo/cli/simulate"])
def test_the_simulator_names_no_planner(folder: str) -> None:
    """What plans in a simulation is what serves: it comes from planner_for, of which it knows no class."""
    for path in python_files(ROOT / folder):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("arlo.planning"):
                named = [alias.name for alias in node.names if alias.name.endswith("Planner")]
                assert not named, f"{path.relative_to(ROOT)}:{node.lineno} names {named}: ask arlo.planning.serving"
