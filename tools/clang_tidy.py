"""Run clang-tidy on our C++ sources, several at a time; clean files are skipped until something changes.

usage: tools/clang_tidy.py [--build FOLDER] [--jobs N] [FILE...]     (no FILE: all that the build folder compiles)

Files of one folder with the same flags are parsed together, a third of the work: most of each file is headers. If that
reports a finding, each file is run alone, which shows its own findings, or that only their names clash.

gcc's precompiled headers are left out of the commands: clang cannot read them. A file counts as unchanged when its
compile command, .clang-tidy, and every header under src/ and tests/ are the same as when it was last clean. Results lie
in BUILD/clang-tidy/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = ("src", "tests", "benchmarks")
BINDINGS = ROOT / "src" / "bindings"
GCC_HEADER = re.compile(r" -Winvalid-pch| -include \S*cmake_pch\.hxx")
# The commands are g++'s; clang knows fewer warnings by name. Path analysis of a function ends at 20,000 nodes, not at
# 225,000: for larger functions the full analysis reports the same, in several times the time.
EXTRA = ["--extra-arg=-Wno-unknown-warning-option", "--quiet"] + [
    f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=20000")
]
# Path analysis of GoogleTest's macros takes most of the time and finds nothing; performance does not matter in tests.
NOT_SERVING = "-clang-analyzer-*,-performance-*"
TOGETHER = 16
# The first concerns the sources that make up the file; findings of the second depend on which sources those are.
NOT_TOGETHER = "-bugprone-suspicious-include,-bugprone-exception-escape"
# Path analysis looks into sources that a file of this name includes; into those of any other it does not.
UNIFIED = "UnifiedSource-{}.cc"


def compiled_files(build: Path) -> dict[Path, str]:
    """Our source files in the compilation database, each with its command."""
    database = build / "compile_commands.json"
    if not database.exists():
        sys.exit(f"{database} is missing: run `make lint-cpp`")
    found: dict[Path, str] = {}
    entries: list[dict[str, str]] = []
    for entry in json.loads(database.read_text()):
        path = Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in OURS and path.is_file():
            if path.is_relative_to(BINDINGS):  # nanobind's macros
                continue
            found[path] = GCC_HEADER.sub("", entry["command"])
            entries.append({"directory": entry["directory"], "file": str(path), "command": found[path]})
    cache = build / "clang-tidy"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "compile_commands.json").write_text(json.dumps(entries, indent=1))
    return found


def headers_digest() -> str:
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    for folder in OURS:
        for path in sorted((ROOT / folder).rglob("*.h")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "dev", help="folder with compile_commands.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()

    tool = Path(sys.executable).with_name("clang-tidy")  # of the same environment, pinned in constraints.txt
    if not tool.exists():
        sys.exit(f"{tool} is missing: run `make setup`")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    commands = compiled_files(arguments.build)
    if arguments.files:
        # A file the build folder does not compile (the Python binding, a fuzz target) has no command to check it with.
        commands = {p: commands[p] for p in (f.resolve() for f in arguments.files) if p in commands}
    state = f"{version}\0{EXTRA}\0{NOT_SERVING}\0{headers_digest()}"
    tidy = Tidy(tool, arguments.build / "clang-tidy", state, commands)

    failed = 0
    groups = tidy.groups()
    with ThreadPoolExecutor(max_workers=max(1, arguments.jobs)) as pool:
        for findings in pool.map(tidy.check, groups):
            for path, output in findings.items():
                failed += 1
                print(f"-- {path.relative_to(ROOT)}\n{output}", flush=True)
    print(f"clang-tidy: {len(commands)} files, {sum(map(len, groups))} run, {failed} with findings")
    return 1 if failed else 0


class Tidy:
    """Runs the tool on groups of files. `commands`: how each is compiled; `state`: other inputs of a result."""

    def __init__(self, tool: Path, cache: Path, state: str, commands: dict[Path, str]) -> None:
        self._tool = tool
        self._cache = cache
        self._state = state
        self._commands = commands

    def groups(self) -> list[list[Path]]:
        """The files to run, grouped if they can be parsed together, the largest groups first."""
        alike: dict[tuple[Path, str], list[Path]] = defaultdict(list)
        for path, command in sorted(self._commands.items()):
            stamp = self._stamp(path)
            if not stamp.exists() or stamp.read_text() != self._key(path):
                program = path if path.stem.endswith("_bench") else path.parent  # each has its own main
                alike[program, command.partition(" -o ")[0]].append(path)
        found = []
        for paths in alike.values():
            parts = -(-len(paths) // TOGETHER)
            found += [paths[part::parts] for part in range(parts)]
        return sorted(found, key=len, reverse=True)

    def check(self, paths: list[Path]) -> dict[Path, str]:
        """Run clang-tidy on the files; returns the findings by file."""
        if len(paths) > 1:
            if not self._together(paths):
                return {}
            findings: dict[Path, str] = {}
            for path in paths:
                findings |= self.check([path])
            if not findings:
                print(f"-- clean, but not together: {', '.join(str(path.relative_to(ROOT)) for path in paths)}")
            return findings
        path = paths[0]
        output = self._run(path, self._cache, path)
        if not output:
            self._stamp(path).write_text(self._key(path))
        return {path: output} if output else {}

    def _together(self, paths: list[Path]) -> str:
        one = paths[0]
        name = hashlib.sha256("\0".join(map(str, paths)).encode()).hexdigest()[:12]
        folder = self._cache / name
        folder.mkdir(exist_ok=True)
        file = folder / UNIFIED.format(name)
        file.write_text("".join(f'#include "{path}"\n' for path in paths))
        command = self._commands[one].replace(str(one), str(file))
        entry = {"directory": str(ROOT), "file": str(file), "command": command}
        (folder / "compile_commands.json").write_text(json.dumps([entry]))
        output = self._run(file, folder, one)
        if not output:
            for path in paths:
                self._stamp(path).write_text(self._key(path))
        return output

    def _run(self, file: Path, folder: Path, like: Path) -> str:
        """The tool's findings in `file`, by the rules for `like`; empty if it is clean."""
        checks = [NOT_TOGETHER] if file != like else []
        if not like.is_relative_to(ROOT / "src"):
            checks.append(NOT_SERVING)
        options = [*EXTRA, f"--config-file={ROOT / '.clang-tidy'}", f"--checks={','.join(checks)}"]
        result = subprocess.run(
            [self._tool, "-p", str(folder), *options, str(file)], capture_output=True, text=True, check=False
        )
        return (result.stdout + result.stderr or "failed") if result.returncode else ""

    def _key(self, path: Path) -> str:
        return hashlib.sha256(f"{self._state}\0{self._commands[path]}\0".encode() + path.read_bytes()).hexdigest()

    def _stamp(self, path: Path) -> Path:
        return self._cache / (str(path.relative_to(ROOT)).replace("/", "__") + ".clean")


if __name__ == "__main__":
    sys.exit(main())
