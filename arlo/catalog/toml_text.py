"""TOML that Arlo writes for people and for `tomllib` to read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(document: Mapping[str, Any], comment: str = "") -> str:
    """Tables by name as TOML. A list of mappings becomes an array of tables, also within a table; any other mapping
    within a table becomes inline. None is left out."""
    parts = [text for name, value in document.items() for text in _tables(name, value)]
    return "\n".join([*([f"# {comment}\n"] if comment else []), *parts])


def _tables(name: str, value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[str]:
    if isinstance(value, Mapping):
        return _table(f"[{name}]", name, value)
    return [text for each in value for text in _table(f"[[{name}]]", name, each)]


def _table(head: str, name: str, values: Mapping[str, Any]) -> list[str]:
    within = {key: value for key, value in values.items() if _is_tables(value)}
    own = {key: value for key, value in values.items() if value is not None and key not in within}
    lines = [head, *(f"{_key(key)} = {literal(value)}" for key, value in own.items())]
    parts = [text for key, value in within.items() for text in _tables(f"{name}.{_key(key)}", value)]
    return ["\n".join(lines) + "\n", *parts]


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def literal(value: Any) -> str:
    """The TOML of a value, for the right side of a key."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(key))} = {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    return repr(value)
