"""The models of a cascade's stages, as those of a configuration."""

from __future__ import annotations

import functools
from pathlib import Path

from arlo.cascade.manifest import CascadeManifest
from arlo.config.cascade import CascadeConfig
from arlo.config.field import FieldError
from arlo.config.model import ModelConfig
from arlo.errors import ConfigError


@functools.lru_cache(maxsize=8)
def cascade_manifest(path: Path) -> CascadeManifest:
    """cascade.json, read once: what is served does not change under our feet. ConfigError."""
    return CascadeManifest.load(path)


def cascade_name(config: CascadeConfig) -> str:
    """What clients ask for."""
    return config.name or cascade_manifest(config.manifest).name


def stage_name(config: CascadeConfig, stage: str) -> str:
    """Name of the model of a stage, which clients do not see."""
    return f"{cascade_name(config)}.{stage}"


def stage_models(config: CascadeConfig) -> tuple[ModelConfig, ...]:
    """A [[model]] for each stage. FieldError, ConfigError."""
    manifest = cascade_manifest(config.manifest)
    try:
        manifest.point(config.point)
    except ConfigError as error:
        raise FieldError("cascade", "point", f"is unknown: {error}") from None
    if config.workers and len(config.workers) != len(manifest.stages):
        raise FieldError(
            "cascade", "workers", f"are {len(config.workers)} numbers for {len(manifest.stages)} stages: one for each"
        )
    first = manifest.stages[0]
    for stage in manifest.stages:
        if stage.tokenizer_group != first.tokenizer_group:
            raise FieldError(
                "cascade",
                "manifest",
                f"has stages of different vocabularies, {first.name!r} and {stage.name!r}: a later one cannot take the "
                "tokens of an earlier one. Serve stages that were compiled with one tokenizer",
            )
    folder = config.manifest if config.manifest.is_dir() else config.manifest.parent
    return tuple(
        ModelConfig(
            repository=(folder / stage.repository).resolve(),
            slo_ms=config.slo_ms,
            name=stage_name(config, stage.name),
            default_timeout_ms=config.timeout_ms,
            workers=config.workers[number] if config.workers else None,
        )
        for number, stage in enumerate(manifest.stages)
    )
