"""Latency profiles of models: estimated from the paper, derived from published tables, or measured.

profile = load_profile("bert-base")                      # docs/profiles.md lists the names
profile.static_ms(512), profile.dynamic_ms(87)           # 4.86, 2.73
profile.static_runtimes(max_lengths(8))                  # for a Scenario
load_profile("model_repository")                         # what `arlo compile profile` measured
"""

from __future__ import annotations

from pathlib import Path

from arlo.catalog.manifest import FILE_NAME
from arlo.config.load import nearest
from arlo.errors import ConfigError
from arlo.simulator.profiles import estimated, inflation, measured, tables
from arlo.simulator.profiles.model import Point, Profile, capacity, latency_ms
from arlo.simulator.profiles.noise import lognormal_quantiles, wrong

__all__ = [
    "Point",
    "Profile",
    "capacity",
    "dynamic_variants",
    "latency_ms",
    "load_profile",
    "lognormal_quantiles",
    "profile_names",
    "wrong",
]


def profile_names() -> tuple[str, ...]:
    """Names that load_profile() knows; the last one needs a file that is not part of the package (ARLO_TRACES)."""
    return ("bert-base", "bert-large", *measured.names(), *tables.names(), tables.DENSE)


def dynamic_variants() -> tuple[str, ...]:
    """Names of the models of dynamic-shape latency; the first is the default of estimated and derived profiles."""
    return inflation.variants()


def load_profile(name_or_path: str | Path, *, dynamic: str | None = None, scale: str | float | None = None) -> Profile:
    """The profile of a name, or of a model repository (its folder or its arlo.json).

    `dynamic` names a model of dynamic shapes (None: the default, or the measured one). `scale` sets BERT-large's
    latency at 512 tokens: a name of estimated.SCALES, or milliseconds. ConfigError for an unknown name, with the
    nearest match.
    """
    name = str(name_or_path)
    if scale is not None and name != "bert-large":
        raise ConfigError(f"scale is for bert-large, whose absolute latency the paper does not state, not for {name}")
    variant = inflation.DEFAULT if dynamic is None else dynamic
    if name == "bert-base":
        return estimated.bert_base(variant)
    if name == "bert-large":
        return estimated.bert_large(variant, "tables" if scale is None else scale)
    if name == tables.DENSE:
        if dynamic is not None:
            raise ConfigError(
                f"profile {name} is that of a dynamic-shape engine already: leave dynamic={dynamic!r} out"
            )
        return tables.dense()
    if name in measured.names():
        return measured.from_manifest(measured.SHIPPED / name, dynamic)
    if name in tables.names():
        return tables.from_table(name, variant)
    path = Path(name_or_path)
    if path.is_dir() or path.name == FILE_NAME:
        return measured.from_manifest(path, dynamic)
    raise ConfigError(
        f"there is no latency profile {name!r}, and no model repository (a folder with {FILE_NAME}) of that name"
        f"{nearest(name, profile_names())}"
    )
