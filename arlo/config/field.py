"""Documented configuration fields: a key's meaning, unit, range and relation to others, kept next to its default.

`section` makes a frozen dataclass of fields declared with `option`; its instances are always checked when they are
made. A key that another section also has is declared once, and taken over with `same`. The loader (load.py), the
reference (reference.py) and command-line flags (flag.py) read the same declarations.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar, dataclass_transform, get_args, get_origin

from arlo.errors import ConfigError

T = TypeVar("T")

Format = Literal["address", "admin", "endpoint"]


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """How a key is set on a command line; arlo/config/flag.py makes the option of it."""

    metavar: str
    brief: str  # its help text; its choices and its default are added
    _: dataclasses.KW_ONLY
    name: str | None = None  # of the option, without dashes; None: as the key
    sweep: bool = False  # several values joined by commas make several runs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    """The documentation of one key."""

    text: str
    left_out: str | None = None  # the value that applies when the key is left out, in words
    unit: str | None = None
    minimum: float | None = None
    above: float | None = None  # exclusive lower bound
    maximum: float | None = None
    relation: str | None = None  # to other keys, in words
    format: Format | None = None
    flag: Flag | None = None

    @property
    def range(self) -> str:
        """The range in words, empty when any value goes."""
        low = f"at least {self.minimum:,}" if self.minimum is not None else ""
        low = f"above {self.above:,}" if self.above is not None else low
        high = f"at most {self.maximum:,}" if self.maximum is not None else ""
        return ", ".join(part for part in (low, high) if part)


class FieldError(ConfigError):
    """A value is wrong. `section` and `key` let the loader name the line; `number` selects one of several tables of
    that name."""

    def __init__(self, section: str, key: str, problem: str, number: int = 0) -> None:
        super().__init__(f"{section}.{key} {problem}")
        self.section = section
        self.key = key
        self.number = number
        self.also: list[FieldError] = []  # further ones of the same table


def first_of(errors: list[FieldError]) -> FieldError:
    """The first error, with the others in it."""
    errors[0].also = errors[1:]
    return errors[0]


def option(
    *,
    doc: str,
    default: Any = dataclasses.MISSING,
    factory: Any = dataclasses.MISSING,
    **about: Any,
) -> Any:
    """One key of a section; `about` are fields of Doc. Without default and factory it is required."""
    return _field(Doc(text=doc, **about), default, factory)


def same(of: type[Any], key: str, *, default: Any, but: str = "", **about: Any) -> Any:
    """The key of another section, with its text, unit and range.

    A difference here, the default or a field of Doc in `about`, needs a reason: `but` is the sentence that the
    documentation gives for it. TypeError without one.
    """
    field = of.__dataclass_fields__[key]
    doc: Doc = field.metadata["doc"]
    differs = {name for name, value in about.items() if name != "flag" and value != getattr(doc, name)}
    if (default != field.default or differs) and not (but or "left_out" in about):
        raise TypeError(f"{of.__name__}.{key} differs here ({', '.join(sorted(differs)) or 'default'}): say why")
    text = about.pop("text", doc.text)
    return _field(dataclasses.replace(doc, text=f"{text} {but}".strip(), **about), default, dataclasses.MISSING)


def _field(about: Doc, default: Any, factory: Any) -> Any:
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata={"doc": about})
    return dataclasses.field(default=default, metadata={"doc": about})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, same))
def section(name: str) -> typing.Callable[[type[T]], type[T]]:
    """Class decorator: a frozen, keyword-only dataclass for the TOML table `[name]`, checked in __post_init__."""

    def make(cls: type[T]) -> type[T]:
        relations = getattr(cls, "check_relations", None)

        def check(self: Any) -> None:
            given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
            if errors := wrong_values(made, name, given):
                raise first_of(errors)
            if relations is not None:
                relations(self)

        cls.__post_init__ = check  # type: ignore[attr-defined]
        cls.section_name = name  # type: ignore[attr-defined]
        made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        return made

    return make


def wrong_values(cls: type[Any], section: str, given: dict[str, Any]) -> list[FieldError]:
    """The errors in the values of a section's fields, each checked alone."""
    docs = {field.name: field.metadata["doc"] for field in dataclasses.fields(cls)}
    problems = {
        name: check_type(value, hints(cls)[name]) or check_range(value, docs[name]) for name, value in given.items()
    }
    return [FieldError(section, name, problem) for name, problem in problems.items() if problem]


def hints(cls: type[Any]) -> dict[str, Any]:
    """Resolved annotations of a section."""
    return typing.get_type_hints(cls)


def describe(annotation: Any) -> str:
    """The type of a key in the words of TOML."""
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(f'"{value}"' for value in get_args(annotation))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(describe(part) for part in get_args(annotation) if part is not type(None))
    if origin is tuple:
        return "array of " + _plural(get_args(annotation)[0])
    if origin is dict:
        return (
            "table of "
            + {str: "name = model", int: "length = instances", float: "name = number"}[get_args(annotation)[1]]
        )
    names = {type(None): "nothing", str: "string", int: "integer", float: "number", bool: "true or false", Path: "path"}
    return names.get(annotation) or str(annotation.__name__)


def _plural(annotation: Any) -> str:
    if get_origin(annotation) is tuple:
        return "arrays of " + _plural(get_args(annotation)[0])
    return describe(annotation) + "s"


def check_type(value: Any, annotation: Any) -> str | None:
    """Why the type of a value is wrong, None if it is right."""
    origin = get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        if any(check_type(value, part) is None for part in get_args(annotation)):
            return None
    elif annotation is type(None):
        if value is None:
            return None
    elif origin is Literal:
        if value in get_args(annotation):
            return None
    elif origin is tuple:
        item = get_args(annotation)[0]
        if isinstance(value, tuple) and all(check_type(part, item) is None for part in value):
            return None
    elif origin is dict:
        parts = get_args(annotation)
        if isinstance(value, dict) and all(
            check_type(part, of) is None for item in value.items() for part, of in zip(item, parts, strict=True)
        ):
            return None
    elif annotation is int:
        if _is_int(value):
            return None
    elif annotation is float:
        if _is_int(value) or isinstance(value, float):
            return None
    elif isinstance(value, annotation):
        return None
    kind = describe(annotation)
    article = "" if kind.startswith(('"', "true")) else "an " if kind[0] in "ai" else "a "
    return f"must be {article}{kind}, not {value!r}"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_range(value: Any, doc: Doc) -> str | None:
    """Why the range or the form of a value is wrong, None if it is right. The items of an array are checked."""
    if isinstance(value, tuple) and doc.format is None:
        return next((problem for item in value if (problem := check_range(item, doc))), None)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        too_low = (doc.minimum is not None and value < doc.minimum) or (doc.above is not None and value <= doc.above)
        if too_low or (doc.maximum is not None and value > doc.maximum) or value != value:  # noqa: PLR0124  # NaN
            unit = f" {doc.unit}" if doc.unit else ""
            return f"must be {doc.range}{unit}, not {value}"
    if doc.format is not None and value is not None:
        for text in value if isinstance(value, tuple) else (value,):
            if doc.format == "admin" and len(text) > len("unix:") and text.startswith("unix:"):
                continue
            host, colon, port = text.rpartition(":")
            lowest = 1 if doc.format == "endpoint" else 0
            if not (host and colon and port.isdecimal() and lowest <= int(port) <= 65535):
                return f'must be "host:port" with a port from {lowest} to 65535, not {text!r}'
    return None
