"""Run clang-tidy on our C++ sources, several at a time; what was clean is not run again until something changes.

usage: tools/clang_tidy.py [--build FOLDER] [--jobs N] [FILE...]     (no FILE: all that the build folder compiles)

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = ("src", "tests", "benchmarks")
BINDINGS = ROOT / "src" / "bindings"
GCC_HEADER = re.compile(r" -Winvalid-pch| -include \S*cmake_pch\.hxx")
# The commands are g++'s; clang knows fewer warnings by name. Path analysis of a function ends at 20,000 nodes, not at
# 225,000: a function that takes more says the same after it, in several times the time.
EXTRA = ["--extra-arg=-Wno-unknown-warning-option", "--quiet"] + [
    f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=20000")
]
# Path analysis of GoogleTest's macros takes most of the time and finds nothing; nor is speed what tests are about.
NOT_SERVING = ["--checks=-clang-analyzer-*,-performance-*"]


def compiled_files(build: Path) -> dict[Path, str]:
    """Our source files in the compilation database, each with its command."""
    database = build / "compile_commands.json"
    if not database.exists():
        sys.exit(f"{database} is missing: run `make lint-cpp`, or configure with `cmake --preset dev`")
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
    installed = next(iter(sorted((ROOT / "build").glob("cp3*-*"))), ROOT / "build" / "dev")
    parser.add_argument("--build", type=Path, default=installed, help="folder with compile_commands.json")
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
    cache = arguments.build / "clang-tidy"
    shared = headers_digest()

    def check(path: Path) -> tuple[Path, bool, str]:
        options = EXTRA if path.is_relative_to(ROOT / "src") else EXTRA + NOT_SERVING
        key = hashlib.sha256(
            f"{version}\0{options}\0{shared}\0{commands[path]}\0".encode() + path.read_bytes()
        ).hexdigest()
        stamp = cache / (str(path.relative_to(ROOT)).replace("/", "__") + ".clean")
        if stamp.exists() and stamp.read_text() == key:
            return path, True, ""
        result = subprocess.run(
            [tool, "-p", str(cache), *options, str(path)], capture_output=True, text=True, check=False
        )
        if result.returncode == 0:
            stamp.write_text(key)
            return path, True, "checked"
        return path, False, result.stdout + result.stderr

    failed = checked = 0
    with ThreadPoolExecutor(max_workers=max(1, arguments.jobs)) as pool:
        for path, clean, output in pool.map(check, sorted(commands)):
            checked += output == "checked" or not clean
            if not clean:
                failed += 1
                print(f"-- {path.relative_to(ROOT)}\n{output}", flush=True)
    print(f"clang-tidy: {len(commands)} files, {checked} run, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
