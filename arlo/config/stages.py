"""The models of a cascade's stages and of a pipeline's variants, in the form of configured models."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from arlo.cascade.manifest import CascadeManifest
from arlo.catalog.files import read_tokenizer
from arlo.catalog.flow import Flow
from arlo.catalog.flow_file import load_flow
from arlo.catalog.manifest import Manifest
from arlo.config.field import FieldError
from arlo.config.flows import CascadeConfig, PipelineConfig
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


@functools.lru_cache(maxsize=8)
def flow_of(path: Path) -> Flow:
    """The flow of a file, read once, so that the served flow does not change at run time. ConfigError."""
    return load_flow(path)


def served_flow(config: PipelineConfig) -> Flow:
    """The served flow: that of the file, or with the one variant that `tokens = "fixed:N"` leaves. ConfigError,
    FieldError."""
    flow = flow_of(config.flow)
    wanted = config.fixed_tokens
    if wanted is None:
        return flow
    known = [variant.tokens for variant in flow.stages[0].variants]
    if len(flow.stages) > 1 or wanted not in known:
        said = ", ".join(str(count) for count in known if count is not None) or "none"
        raise FieldError(
            "pipeline", "tokens", f"= {config.tokens!r} names a variant by its tokens, of a flow of one stage: {said}"
        )
    kept = tuple(variant for variant in flow.stages[0].variants if variant.tokens == wanted)
    return dataclasses.replace(flow, stages=(dataclasses.replace(flow.stages[0], variants=kept),))


def pipeline_name(config: PipelineConfig) -> str:
    """The name that clients use."""
    return config.name or flow_of(config.flow).name


def timeout_ms(config: PipelineConfig) -> int:
    """default_timeout_ms, or its value when left out."""
    return config.default_timeout_ms or max(round(10 * flow_of(config.flow).slo_ms), 1000)


def variant_model(config: PipelineConfig, stage: str, variant: str) -> str:
    """The name of a variant's model, which clients do not see."""
    return f"{pipeline_name(config)}.{stage}.{variant}"


def variant_models(config: PipelineConfig) -> tuple[ModelConfig, ...]:
    """A [[model]] for each variant, stage by stage in the flow's order. Raises FieldError or ConfigError."""
    flow = served_flow(config)
    if config.default_timeout_ms is not None and config.default_timeout_ms < flow.slo_ms:
        raise FieldError("pipeline", "default_timeout_ms", f"must be at least flow.slo_ms ({flow.slo_ms:g})")
    pairs = [(flow.stages[s], variant) for s in flow.order for variant in flow.stages[s].variants]
    if config.workers and len(config.workers) != len(pairs):
        raise FieldError(
            "pipeline", "workers", f"are {len(config.workers)} numbers for {len(pairs)} variants: one for each"
        )
    for name in {stage.name: 0 for stage, _ in pairs} if config.workers else ():
        if not sum(n for n, (stage, _) in zip(config.workers, pairs, strict=True) if stage.name == name):
            raise FieldError("pipeline", "workers", f"leave stage {name!r} without any: give one of its variants one")
    for stage, variant in pairs:
        if not variant.repository:
            raise FieldError(
                "pipeline",
                "flow",
                f"has numbers only for variant {variant.name!r} of stage {stage.name!r}: name its repository there",
            )
    return tuple(
        ModelConfig(
            repository=Path(variant.repository).resolve(),
            slo_ms=max(round(flow.slo_ms), 1),
            name=variant_model(config, stage.name, variant.name),
            default_timeout_ms=timeout_ms(config),
            workers=config.workers[number] if config.workers else None,
        )
        for number, (stage, variant) in enumerate(pairs)
    )
