"""Scenario files: TOML <-> ScenarioConfig. build.py makes the Scenario of it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from arlo.catalog import toml_text
from arlo.config.field import FieldError
from arlo.config.load import line_of, nearest, read_section, read_text, read_toml, renamed, toml_key
from arlo.errors import ConfigError
from arlo.simulator.profiles import profile_names
from arlo.simulator.scenario import served
from arlo.simulator.scenario.file import ARRAYS, SECTIONS, ScenarioConfig


def load(path: Path) -> ScenarioConfig:
    """Read and check a scenario file, or what cluster.serves names. ConfigError says what to change and where."""
    if kind := served.kind_of(path):
        return served.alone(path, kind)
    text = read_text(path, "scenario")
    return parse(text, base=path.absolute().parent, source=str(path))


def parse(text: str, *, base: Path, source: str = "scenario") -> ScenarioConfig:
    """Check TOML text; relative paths are taken from `base`, errors name `source` and the line."""
    raw = read_toml(text, source)
    lines = text.splitlines()
    known = [*SECTIONS, *ARRAYS]
    for name in raw:
        if name not in known:
            where = line_of(lines, name, None)
            raise ConfigError(f"{source}:{where}: unknown section [{name}]{nearest(name, known)}")
    occurrence = 0
    try:
        parts: dict[str, Any] = {}
        for name, cls in SECTIONS.items():
            parts[name] = read_section(cls, name, raw.get(name, {}), base)
        for name, cls in ARRAYS.items():
            tables, made = raw.get(name, []), []
            if not isinstance(tables, list):
                raise FieldError(name, "", f"is written [[{name}]], once for each")
            for occurrence, table in enumerate(tables):  # noqa: B007  # the handler names the table it stopped at
                made.append(read_section(cls, name, table, base))
            parts[name] = tuple(made)
            occurrence = 0
        return _with_profile_path(ScenarioConfig(**parts), base)
    except FieldError as error:
        where = line_of(lines, error.section, toml_key(error.key), occurrence)
        raise ConfigError(f"{source}:{where}: {renamed(str(error))}") from None


def _with_profile_path(config: ScenarioConfig, base: Path) -> ScenarioConfig:
    def named(section: Any) -> Any:
        return (
            section
            if section.profile is None
            else dataclasses.replace(section, profile=profile_path(section.profile, base))
        )

    return dataclasses.replace(
        config,
        cluster=named(config.cluster),
        model=tuple(map(named, config.model)),
    )


def profile_path(profile: str, base: Path) -> str:
    """A latency profile's path, relative to `base`, made absolute; names of built-in profiles are unchanged."""
    if not is_path(profile) and (profile in profile_names() or not (base / profile).exists()):
        return profile
    return os.path.normpath(base / Path(profile).expanduser())


def is_path(profile: str) -> bool:
    """Whether a latency profile is named by its path rather than by its name."""
    return "/" in profile or profile.endswith(".json") or profile.startswith(".")


def to_toml(config: ScenarioConfig, *, base: Path | None = None) -> str:
    """The scenario as TOML; parse() gives the same back. Sections that say nothing but defaults are left out, all
    others are complete. Paths below `base` are relative to it."""
    said: dict[str, Any] = {}
    for name, cls in SECTIONS.items():
        section = getattr(config, name)
        if name in ("run", "workload", "cluster") or section != cls():
            said[name] = _said(section, base)
    return toml_text.to_toml(said | {name: [_said(part, base) for part in getattr(config, name)] for name in ARRAYS})


def _said(section: Any, base: Path | None) -> dict[str, Any]:
    """The keys of a section that have a value."""
    said = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if value is None or value in ((), ""):
            continue
        if isinstance(value, Path) or (field.name == "profile" and is_path(value)):
            value = _from_base(Path(value), base)
        said[toml_key(field.name)] = value
    return said


def _from_base(path: Path, base: Path | None) -> str:
    if base is None or not path.is_absolute() or not path.is_relative_to(base):
        return str(path)
    return f"./{path.relative_to(base)}"
