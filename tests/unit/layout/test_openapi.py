"""The description of the HTTP API: no name in it leads nowhere, and none is left over."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
FRONT = ROOT / "src" / "gateway" / "front"


def described() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("openapi", FRONT / "pages" / "openapi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    document: dict[str, Any] = module.document()
    return document


def test_references_lead_somewhere_and_all_parts_are_used() -> None:
    document = described()
    text = str(document)
    used = set(re.findall(r"#/components/(\w+)/([\w-]+)", text))
    there = {(kind, name) for kind, parts in document["components"].items() for name in parts}
    there -= {("securitySchemes", "bearer")}
    assert used <= there
    assert {name for kind, name in there - used if kind != "responses"} == set()
