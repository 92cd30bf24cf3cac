"""Read a configuration file: TOML -> Config. Errors name all wrong keys, with the nearest that exist."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, get_args, get_origin

from arlo.catalog.manifest import FILE_NAME as MANIFEST
from arlo.config.field import FieldError, first_of, hints, wrong_values
from arlo.config.model import SECTIONS, Config, ModelConfig
from arlo.errors import ConfigError


def load(path: Path) -> Config:
    """Read, check and return the configuration in `path`. ConfigError says what to change and where."""
    return parse(read_text(path, "configuration"), base=path.absolute().parent, source=str(path))


def parse(text: str, *, base: Path, source: str = "configuration") -> Config:
    """Check TOML text; relative paths are taken from `base`, errors name `source` and the line."""
    raw = read_toml(text, source)
    lines = text.splitlines()
    found: list[tuple[int, str]] = []  # line, message
    for name in raw:
        if name not in SECTIONS:
            found.append((line_of(lines, name, None), f"unknown section [{name}]{nearest(name, SECTIONS)}"))

    def wrong(error: FieldError, number: int = 0) -> None:
        for each in (error, *error.also):
            line = line_of(lines, each.section, toml_key(each.key), number or each.number)
            found.append((line, renamed(str(each))))

    def read(name: str, given: Any, number: int = 0) -> Any:
        try:
            return read_section(SECTIONS[name], name, given, base)
        except FieldError as error:
            wrong(error, number)

    sections: dict[str, Any] = {}
    flow = next((name for name in ("cascade", "pipeline") if name in raw), None)
    for name in SECTIONS:
        given = raw.get(name, {})
        if name in ("cascade", "pipeline"):
            if name in raw:
                sections[name] = read(name, given)
        elif name == "model" and flow is not None:
            if name in raw:
                wrong(FieldError("model", "", f"and [{flow}] do not go together: the stages are the models"))
        elif name == "model" and isinstance(given, list) and given:
            models = [read(name, table, number) for number, table in enumerate(given)]
            sections["model"], sections["more_models"] = models[0], tuple(models[1:])
        else:
            sections[name] = read(name, given)
    found.sort()
    if not found:
        try:
            return _config(sections)
        except FieldError as error:
            wrong(error)
            model: ModelConfig | None = None if flow else sections["model"]
            if model is not None and model.source is None and not (model.repository / MANIFEST).is_file():
                where = line_of(lines, "model", "repository")
                problem = f"{model.repository} has no {MANIFEST}: build it with `arlo compile MODEL --out` that folder"
                found.insert(0, (where, f"model.repository {problem}"))
    raise ConfigError("\n".join(f"{source}:{line}: {problem}" for line, problem in found))


def _config(sections: dict[str, Any]) -> Config:
    """All sections as one Config, with the models of a cascade or a pipeline."""
    if "cascade" in sections and "pipeline" in sections:
        raise FieldError("pipeline", "", "and [cascade] do not go together: serve each by itself")
    if "cascade" in sections or "pipeline" in sections:
        from arlo.config.stages import stage_models, variant_models  # it needs the sections

        first, *others = (
            stage_models(sections["cascade"]) if "cascade" in sections else variant_models(sections["pipeline"])
        )
        sections["model"], sections["more_models"] = first, tuple(others)
    return Config(**sections)


def read_text(path: Path, kind: str) -> str:
    """The text of a TOML file of some kind. ConfigError when it cannot be read."""
    try:
        return path.read_text()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give the path of a TOML {kind} file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from None


def read_toml(text: str, source: str) -> dict[str, Any]:
    """The tables in a text; ConfigError names `source`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None


def toml_key(field: str) -> str:
    """The key in the file: a field name that Python reserves has a trailing underscore."""
    return field.rstrip("_")


def renamed(message: str) -> str:
    """A FieldError's message with the key as the file spells it."""
    head, space, rest = message.partition(" ")
    return toml_key(head).rstrip(".") + space + rest


def read_section(cls: type[Any], name: str, raw: Any, base: Path) -> Any:
    """The dataclass of one table of TOML. FieldError when a key is unknown, missing or wrong."""
    if not isinstance(raw, dict):
        raise FieldError(name, "", f"must be a table, written [{name}], not {raw!r}")
    fields = {toml_key(field.name): field for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    errors: list[FieldError] = []
    for key, value in raw.items():
        if key not in fields:
            errors.append(FieldError(name, key, f"is not a key of [{name}]{nearest(key, fields)}"))
            continue
        field = fields[key]
        try:
            values[field.name] = _convert(value, hints(cls)[field.name], base, name, key)
        except FieldError as error:
            errors.append(error)
    for key, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and key not in raw:
            errors.append(FieldError(name, key, f"is missing: {field.metadata['doc'].text}"))
    errors += wrong_values(cls, name, values)
    if errors:
        raise first_of(errors)
    made = cls(**values)
    # Defaults that are paths are relative to the file as well.
    for field in dataclasses.fields(cls):
        if isinstance(getattr(made, field.name), Path) and not getattr(made, field.name).is_absolute():
            made = dataclasses.replace(made, **{field.name: base / getattr(made, field.name)})
    return made


def _convert(value: Any, annotation: Any, base: Path, section: str, key: str) -> Any:
    """The Python value of a field from a TOML value; a wrong type is kept, for the field's own check to reject."""
    if get_origin(annotation) in (types.UnionType, typing.Union):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return _convert(value, parts[0], base, section, key)
    if annotation is Path and isinstance(value, str):
        if not value:
            raise FieldError(section, key, "must be a path, not an empty string: leave it out instead")
        return Path(os.path.normpath(base / Path(value).expanduser()))
    if get_origin(annotation) is tuple and isinstance(value, list):
        return tuple(_convert(item, get_args(annotation)[0], base, section, key) for item in value)
    if get_origin(annotation) is dict and get_args(annotation)[0] is int and isinstance(value, dict):
        if not all(k.isdecimal() for k in value):
            bad = next(k for k in value if not k.isdecimal())
            raise FieldError(section, key, f"has the key {bad!r}: keys are lengths in tokens, for example {{512 = 1}}")
        return {int(k): v for k, v in value.items()}
    return value


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """The hint `: did you mean 'x'?`, or the known names, to append to a message."""
    known = list(known)
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f": did you mean {match[0]!r}?" if match else f"; known: {', '.join(known)}"


def line_of(lines: list[str], section: str, key: str | None, occurrence: int = 0) -> int:
    """The line of a key, of its section if the key is not written out, 1 if neither is.

    `occurrence`: which of the tables of that name, if it is an array of tables.
    """
    header = re.compile(r"^\s*(\[+)\s*([^\]]+?)\s*\]")
    current, section_line, seen = "", 1, 0
    for number, line in enumerate(lines, start=1):
        if match := header.match(line):
            current = match[2].strip("\"'")
            if current == section and match[1] == "[[":
                seen += 1
                if seen <= occurrence:
                    current = ""
                    continue
            if current == section or current.startswith(section + "."):
                if seen > occurrence + 1:
                    break
                section_line = number if section_line == 1 else section_line
                if key is not None and current == f"{section}.{key}":
                    return number
        elif key and current == section and re.match(rf"^\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
        elif not current and re.match(rf"^\s*[\"']?{re.escape(section)}[\"']?\s*[=.]", line):
            section_line = number
    return section_line
