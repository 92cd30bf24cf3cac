"""The models of a cascade's stages, in the form of configured models."""

from __future__ import annotations

import functools
from pathlib import Path

from arlo.cascade.manifest import CascadeManifest
from arlo.catalog.files import read_tokenizer
from arlo.catalog.manifest import Manifest
from arlo.config.cascade import CascadeConfig
from arlo.config.field import FieldError
from arlo.config.model import ModelConfig
from arlo.errors import ConfigError


@functools.lru_cache(maxsize=8)
def cascade_manifest(path: Path) -> CascadeManifest:
    """cascade.json, read once, so that the served cascade does not change at run time. ConfigError."""
    return CascadeManifest.load(path)


def cascade_name(config: CascadeConfig) -> str:
    """The name that clients use."""
    return config.name or cascade_manifest(config.manifest).name


def stage_name(config: CascadeConfig, stage: str) -> str:
    """The name of a stage's model, which clients do not see."""
    return f"{cascade_name(config)}.{stage}"


def stage_models(config: CascadeConfig) -> tuple[ModelConfig, ...]:
    """A [[model]] for each stage. Raises FieldError or ConfigError."""
    manifest = cascade_manifest(config.manifest)
    try:
        manifest.point(config.point)
    except ConfigError as error:
        raise FieldError("cascade", "point", f"is unknown: {error}") from None
    try:
        if config.price_floor_point is not None:
            manifest.point(config.price_floor_point)
    except ConfigError as error:
        raise FieldError("cascade", "price_floor_point", f"is unknown: {error}") from None
    if config.workers and len(config.workers) != len(manifest.stages):
        raise FieldError(
            "cascade", "workers", f"are {len(config.workers)} numbers for {len(manifest.stages)} stages: one for each"
        )
    folder = config.manifest if config.manifest.is_dir() else config.manifest.parent
    _check_vocabularies(manifest, folder)
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


def _check_vocabularies(manifest: CascadeManifest, folder: Path) -> None:
    """Check that stages of different vocabularies each have a tokenizer, for they take text. The gateway checks whether
    it supports that tokenizer."""
    if len({stage.tokenizer_group for stage in manifest.stages}) == 1:
        return
    for stage in manifest.stages:
        repository = folder / stage.repository
        if not read_tokenizer(repository, Manifest.load(repository)):
            raise FieldError(
                "cascade",
                "manifest",
                f"has stages of different vocabularies, so clients send text, and stage {stage.name!r} has no "
                "tokenizer that makes its tokens: compile it from a folder that has one",
            )
