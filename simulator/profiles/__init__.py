"""Latency profiles of models: estimated from the paper, derived from published tables, or measured.

profile = load_profile("bert-base")                      # docs/profiles.md lists the names
profile.static_ms(512), profile.dynamic_ms(87)           # 4.86, 2.73
profile.static_runtimes((128, 512))                      # for a Scenario
load_profile("model_repository")                         # what `arlo compile profile` measured
"""

from __future__ import annotations

from pathlib import Path

from arlo.catalog.manifest import FILE_NAME
from arlo.config.load import nearest
from arlo.errors import ConfigError
from arlo.simulator.profiles import estimated, inflation, measured, tables
from arlo.simulator.profiles.model import Point, Profile, capacity, latency_ms
from arlo.simulator.profiles.noise import lognormal_quantiles

__all__ = [
    "Point",
    "Profile",
    "capacity",
    "latency_ms",
    "load_profile",
    "lognormal_quantiles",
    "profile_names",
]


ESTIMATED = {"bert-base": estimated.bert_base, "bert-large": estimated.bert_large}


def profile_names() -> tuple[str, ...]:
    """Names that load_profile() knows."""
    return (*ESTIMATED, *measured.names(), *tables.names())


def load_profile(name_or_path: str | Path, *, dynamic: str | None = None) -> Profile:
    """The profile of a name, or of a model repository (its folder or its arlo.json).

    `dynamic` names a model of dynamic shapes (None: the default, or the measured one). ConfigError for an unknown name,
    with the nearest match.
    """
    name, path = str(name_or_path), Path(name_or_path)
    if name in ESTIMATED:
        return ESTIMATED[name](dynamic or inflation.DEFAULT)
    if name in tables.names():
        return tables.from_table(name, dynamic or inflation.DEFAULT)
    if name in measured.names():
        return measured.from_manifest(measured.SHIPPED / name, dynamic)
    if path.is_dir() or path.name == FILE_NAME:
        return measured.from_manifest(path, dynamic)
    raise ConfigError(
        f"there is no latency profile {name!r}, and no model repository (a folder with {FILE_NAME}) of that name"
        f"{nearest(name, profile_names())}"
    )
