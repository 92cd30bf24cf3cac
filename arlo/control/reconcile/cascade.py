"""Converts a cascade for the gateway: cascade.json and [cascade] as an arlo.v1.Cascade."""

from __future__ import annotations

import base64
from typing import Any

from arlo.cascade.drift import allowed
from arlo.cascade.manifest import CascadeManifest, Point, Stage, check_judged
from arlo.catalog.manifest import Manifest
from arlo.config.flows import CascadeConfig
from arlo.config.stages import cascade_manifest, cascade_name, stage_name
from arlo.errors import ConfigError

ANSWER_MARGIN_MS = 2  # how long before its deadline a row ends with the answer that it has
SHADOW_MAX_BUSY = 0.7  # no row is asked again while a larger share of the last stage's instances is busy
LOGITS = {"question-answering": ("start_logits", "end_logits")}


def fill_cascade(
    message: Any, config: CascadeConfig, stages: tuple[Manifest, ...], *, point_name: str | None = None
) -> None:
    """`stages`: the repositories', in the order of cascade.json; `point_name`: a point other than the configuration's.
    ConfigError where they do not fit together."""
    manifest = cascade_manifest(config.manifest)
    message.name = cascade_name(config)
    message.slo_ms = config.slo_ms
    message.default_timeout_ms = config.timeout_ms
    message.answer_margin_ms = min(ANSWER_MARGIN_MS, config.timeout_ms - 1)
    message.expire = config.on_deadline == "expire"
    message.fail = config.on_failure == "error"
    message.auto_price = config.price == "auto"
    message.logits, message.end_logits = LOGITS.get(manifest.task, ("logits", ""))
    if manifest.task not in ("token-classification", "question-answering"):
        message.labels.extend(manifest.labels)
    for words in manifest.vocabularies:
        message.words.add(
            word_start=base64.b64decode(words.word_start), special=sorted(words.special), keep=sorted(words.keep)
        )
    point = manifest.point(point_name or config.point)
    message.shadow_share, message.shadow_max_busy = config.shadow_share, SHADOW_MAX_BUSY
    message.drift_epsilon = allowed(point, manifest.data) if config.drift != "off" else 0.0
    message.point = point.name
    weights = point.ensemble.weights or (1.0,) * len(manifest.stages)
    for stage, one, weight in zip(manifest.stages, stages, weights, strict=True):
        _check(stage, one, manifest)
        _fill_stage(message.stages.add(model=stage_name(config, stage.name), weight=weight), stage)
    for each in manifest.points:
        # One file may hold ensembles with several weights; a row's answer is mixed with those of the point in force.
        _fill_point(message.points.add(name=each.name), each)


def safer_point(manifest: CascadeManifest, now: str) -> Point | None:
    """The point with the next higher agreement with the last stage; None if there is none."""
    floor = manifest.point(now).agreement
    safer = [point for point in manifest.points if point.agreement > floor]
    return min(safer, key=lambda point: (point.agreement, point.name), default=None)


def kept_point(config: CascadeConfig | None, deployment: Any) -> str | None:
    """The point in a deployment that an earlier control plane has raised, for a later one to keep; None if the
    deployment has no raised point."""
    if config is None or config.drift != "raise":
        return None
    manifest = cascade_manifest(config.manifest)
    agreement = {point.name: point.agreement for point in manifest.points}
    floor = manifest.point(config.point).agreement
    for cascade in deployment.cascades:
        if cascade.name == cascade_name(config) and agreement.get(cascade.point, 0.0) > floor:
            return str(cascade.point)
    return None


def _check(stage: Stage, one: Manifest, manifest: CascadeManifest) -> None:
    if one.task not in (manifest.task, "emulated"):
        raise ConfigError(f"stage {stage.name!r} is of task {one.task}, and the cascade of {manifest.task}")
    check_judged(f"stage {stage.name!r}", one)
    if one.labels and set(one.labels) != set(manifest.labels):
        raise ConfigError(f"stage {stage.name!r} has other labels than the cascade")


def _fill_stage(message: Any, stage: Stage) -> None:
    message.score, message.over, message.squared = stage.score, stage.over, stage.scale == "prob2"
    message.label_order.extend(stage.label_order)
    message.tokenizer_group = stage.tokenizer_group
    by, to = stage.calibrator, message.calibrator
    to.kind, to.t = by.kind, by.t
    for length, t in by.by_length:
        to.by_length.add(length=length, value=t)
    to.scale.extend(by.scale)
    to.bias.extend(by.bias)
    to.curve_from.extend(x for x, _ in by.curve)
    to.curve_to.extend(y for _, y in by.curve)


def _fill_point(message: Any, point: Point) -> None:
    for rules in point.rules:
        price = message.prices.add()
        for rule in rules:
            item = price.rules.add(rule=rule.kind, c=rule.c, k=rule.k)
            for length, threshold in rule.t if rule.kind == "hard" else ():
                item.below.add(length=length, value=threshold)
    for cuts in point.skip:
        message.skip.add(cuts=cuts)
    prune, to = point.prune, message.prune
    to.alpha, to.to_level, to.min_words = prune.alpha, prune.to_level, prune.min_words
    to.mean_over_all = prune.mean_over == "all"
    to.alpha_max, to.most_removed = prune.alpha_max, prune.most_removed
    message.ensemble, message.start = point.ensemble.kind, point.start
    if point.accuracy is not None:
        message.accuracy = point.accuracy[0]
