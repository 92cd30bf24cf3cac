"""The text of data files: TOML that Arlo writes, JSON that it reads as frozen dataclasses, and files written whole."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from arlo.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


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


def read(kind: Any, raw: Any, where: str) -> Any:
    """JSON as a value of a type made of frozen dataclasses, tuples, literals and plain types. Strict: a field that is
    unknown, missing or of another type is a ConfigError that says where."""
    at = where or "the file"
    if dataclasses.is_dataclass(kind):
        if not isinstance(raw, dict):
            raise ConfigError(f"{at} must be an object")
        hints = typing.get_type_hints(kind)
        for name in raw:
            if name not in hints:
                near = difflib.get_close_matches(name, hints, n=1)
                raise ConfigError(f"{at} has an unknown field {name!r}" + (f": is it {near[0]!r}?" if near else ""))
        missing = [
            field.name
            for field in dataclasses.fields(kind)
            if field.name not in raw
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise ConfigError(f"{at} lacks the field {missing[0]!r}")
        values = {name: read(hints[name], value, f"{where}.{name}".lstrip(".")) for name, value in raw.items()}
        try:
            return typing.cast(Any, kind)(**values)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}" if where else str(error)) from None
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if raw is None else read(next(a for a in arguments if a is not type(None)), raw, where)
    if origin is tuple:
        if raw is None:
            return ()
        repeated = arguments[-1] is Ellipsis
        if not isinstance(raw, list) or not (repeated or len(raw) == len(arguments)):
            raise ConfigError(f"{at} must be a list" + ("" if repeated else f" of {len(arguments)}"))
        of = [arguments[0]] * len(raw) if repeated else arguments
        return tuple(read(each, value, f"{where}[{i}]") for i, (each, value) in enumerate(zip(of, raw, strict=True)))
    if origin is dict:
        if not isinstance(raw, dict):
            raise ConfigError(f"{at} must be an object")
        return {str(name): read(arguments[1], value, f"{where}.{name}") for name, value in raw.items()}
    if origin is Literal:
        if raw not in arguments:
            raise ConfigError(f"{at} must be one of {', '.join(map(str, arguments))}, not {raw!r}")
        return raw
    right = isinstance(raw, int | float) if kind is float else isinstance(raw, kind)
    if not right or (isinstance(raw, bool) and kind is not bool):
        raise ConfigError(f"{at} must be {_WORDS[kind]}, not {raw!r}")
    return float(raw) if kind is float else raw


def not_a_number(text: str) -> float:
    """Refuse NaN and infinity, as `parse_constant` of json.loads."""
    raise ValueError(f"{text} is no number")


def write_whole(path: Path, content: str | bytes, remedy: str = "") -> None:
    """Write a file, and the folder that it is in: readers see the old file or the new one, whole. ConfigError if it
    cannot be written."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}){remedy}") from None
