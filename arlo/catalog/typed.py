"""Files of data: JSON as values of frozen dataclasses, and files that are written whole."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from pathlib import Path
from typing import Any, Literal

from arlo.errors import ConfigError

_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


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
    """For `parse_constant` of json.loads: NaN and infinity are refused."""
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
