"""JSON and TOML as dataclasses: the fields' annotations say what a key may hold. Pure."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from arlo.errors import ConfigError

_WORDS = {str: "a string", float: "a number", int: "a whole number", bool: "true or false"}


def structured(kind: Any, raw: Any, *, ignore_unknown: bool = False) -> Any:
    """JSON values as a value of a type made of dataclasses, tuples, lists, tables and plain types, which go unchecked.
    KeyError, TypeError or AttributeError if a field is unknown, missing, or of another shape."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        given = {name: value for name, value in raw.items() if name in hints or not ignore_unknown}
        read = functools.partial(structured, ignore_unknown=ignore_unknown)
        return kind(**{name: read(hints[name], value) for name, value in given.items()})
    if origin in (types.UnionType, typing.Union):
        return None if raw is None else structured(parts[0], raw, ignore_unknown=ignore_unknown)
    if origin in (tuple, list):
        return origin(structured(parts[0], item, ignore_unknown=ignore_unknown) for item in raw)
    if origin is dict:
        return {key: structured(parts[1], item, ignore_unknown=ignore_unknown) for key, item in raw.items()}
    return raw


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def values_of(
    kind: Any,
    raw: Any,
    where: str,
    *,
    also: Collection[str] = (),
    but: Collection[str] = (),
    required: Collection[str] = (),
) -> dict[str, Any]:
    """The values of a table whose keys are a dataclass's fields, by name.

    `also`: further keys, which the caller reads; `but`: fields that are no keys. ConfigError for a key that is unknown,
    with the nearest, missing or of another type.
    """
    fields = {name: hint for name, hint in _hints(kind).items() if name not in but}
    check_known(table(raw, where), {*fields, *also}, where)
    if missing := [key for key in required if key not in raw]:
        raise ConfigError(f"{where}: {missing[0]} is missing")
    given = {key: value for key, value in raw.items() if key in fields and key not in also}
    return {key: plain(value, fields[key], f"{where}: {key}") for key, value in given.items()}


def plain(raw: Any, kind: Any, where: str) -> Any:
    """A value of a plain type, a union of such, or a tuple of them. ConfigError if it is of another one."""
    if typing.get_origin(kind) is tuple:
        if not isinstance(raw, list) or not raw:
            raise ConfigError(f"{where} must be an array, not {raw!r}")
        return tuple(plain(each, typing.get_args(kind)[0], where) for each in raw)
    kinds = list(dict.fromkeys(_plain(kind)))
    if isinstance(raw, float) and not math.isfinite(raw):
        raise ConfigError(f"{where} must be finite, not {raw}")
    if float in kinds and isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    if any(isinstance(raw, one) and (one is bool or not isinstance(raw, bool)) for one in kinds):
        return raw
    raise ConfigError(f"{where} must be {' or '.join(_WORDS[one] for one in kinds)}, not {raw!r}")


def _plain(kind: Any) -> list[type]:
    if typing.get_origin(kind) is typing.Literal:
        return [type(value) for value in typing.get_args(kind)]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return [one for part in typing.get_args(kind) if part is not types.NoneType for one in _plain(part)]
    return [kind]


def table(raw: Any, where: str) -> Mapping[str, Any]:
    """A table. ConfigError if it is none."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{where} must be a table, not {raw!r}")
    return raw


def check_known(raw: Iterable[str], known: Collection[str], where: str) -> None:
    """ConfigError, with the nearest known key, for another one."""
    for key in raw:
        if key not in known:
            match = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f": did you mean {match[0]!r}?" if match else f"; known: {', '.join(sorted(known)) or 'none'}"
            raise ConfigError(f"{where}: {key!r} is not a key here{hint}")
