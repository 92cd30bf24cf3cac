"""arlo/_core.pyi has the types of the compiled module, whose docstrings help() shows. `pytest tests/golden
--rewrite-golden` writes it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from nanobind.stubgen import StubGen

from arlo import _core

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "arlo" / "_core.pyi"


def _ruff(text: str, *command: str) -> str:
    arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", "arlo/_core.pyi", "-"]
    return subprocess.run(arguments, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_stub_matches_the_module(rewrite_golden: bool) -> None:
    generator = StubGen(_core, include_docstrings=False)
    generator.put(_core)
    stub = _ruff(_ruff(generator.get(), "check", "--fix-only", "--select", "I"), "format")
    if rewrite_golden:
        STUB.write_text(stub)
    assert stub == STUB.read_text()
