"""The site's page of the HTTP API: it has all that the OpenAPI document has, and its links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[3] / "tools" / "site" / "api_page.py"


@pytest.fixture(scope="module")
def module() -> Any:
    spec = importlib.util.spec_from_file_location("api_page", PAGE)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_every_path_field_and_schema_is_on_the_page(module: Any) -> None:
    document = module.document()
    text = module.page(document)
    operations = {f"### `{method.upper()} {path}`" for path, methods in document["paths"].items() for method in methods}
    lines = text.splitlines()
    assert operations == {line for line in lines if line.startswith("### `")}
    anchors = set(re.findall(r"\{#([A-Za-z-]+)\}", text))
    assert set(re.findall(r"\(#((?:schema|parameter)-[A-Za-z]+)\)", text)) <= anchors
    named = {name.rpartition("/")[2] for name in re.findall(r'"#/components/schemas/[A-Za-z]+', json.dumps(document))}
    assert {f"schema-{name}" for name in named} <= anchors
    for name, schema in document["components"]["schemas"].items():
        section = text.partition(f"{{#schema-{name}}}")[2].partition("\n### ")[0]
        fields = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
        options = [schema, *schema.get("anyOf", ())]
        assert fields == {field for option in options for field in option.get("properties", ())}


def test_a_field_says_its_type_and_whether_it_must_be_there(module: Any) -> None:
    text = module.page(module.document())
    section = text.partition("{#schema-RerankRequest}")[2].partition("\n### ")[0]
    assert "| `query` | [Text](#schema-Text) | required |" in section
    assert "| `top_n` | integer (≥ 0) or null | 0, or left out: all. |" in section
