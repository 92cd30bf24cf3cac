"""Command-line flags for configuration keys: their help is made from the declaration of the key."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from arlo.config.field import Doc, Flag, hints

Kind = Literal["int", "float", "spec", "text", "ints", "path"]  # spec: a number, or words with a colon in them


@dataclasses.dataclass(frozen=True, slots=True)
class KeyFlag:
    """An option that sets `section`.`key`."""

    section: str
    key: str
    flag: Flag
    kind: Kind
    help: str

    @property
    def option(self) -> str:
        """The option as the user types it."""
        return "--" + (self.flag.name or self.key).replace("_", "-")

    @property
    def name(self) -> str:
        """The attribute in the parsed arguments."""
        return self.option.removeprefix("--").replace("-", "_")

    def add_to(self, group: argparse._ActionsContainer) -> None:
        """Add the option to a parser or a group. Its text is kept as typed: None if it was not given."""
        group.add_argument(self.option, metavar=self.flag.metavar, help=self.help)


def flags_of(name: str, section: type[Any]) -> Iterator[KeyFlag]:
    """The flags of all keys of a section that were declared with one."""
    for field in dataclasses.fields(section):
        doc: Doc = field.metadata["doc"]
        if doc.flag is not None:
            kind = _kind(hints(section)[field.name])
            yield KeyFlag(name, field.name, doc.flag, kind, flag_help(section, field.name, doc.flag.brief))


def flag_help(section: type[Any], key: str, brief: str, *, default: Any = dataclasses.MISSING) -> str:
    """`brief`, then the allowed words unless it has them, and the default (of the key, or another that a command
    has)."""
    field = section.__dataclass_fields__[key]
    doc: Doc = field.metadata["doc"]
    words = choices(section, key)
    text = brief if all(word in brief for word in words) else f"{brief}: {', '.join(words)}"
    value = field.default if default is dataclasses.MISSING else default
    if value is None or value == ():
        return f"{text} (default: {doc.left_out.replace('`', '')})" if doc.left_out else text
    return f"{text} (default: {value:g})" if isinstance(value, float) else f"{text} (default: {value})"


def choices(section: type[Any], key: str) -> tuple[str, ...]:
    """The words that a key accepts, empty if it is something else."""
    return next((get_args(part) for part in _parts(hints(section)[key]) if get_origin(part) is Literal), ())


def _parts(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (types.UnionType, typing.Union):
        return tuple(part for part in get_args(annotation) if part is not type(None))
    return (annotation,)


def _kind(annotation: Any) -> Kind:
    parts = _parts(annotation)
    if parts == (float, str):
        return "spec"
    kinds: dict[Any, Kind] = {int: "int", float: "float", Path: "path", tuple[int, ...]: "ints"}
    return kinds.get(parts[0], "text")
