"""Converts a pipeline for the gateway: a flow file and [pipeline] as an arlo.v1.Pipeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo import proto
from arlo.cascade.manifest import check_judged
from arlo.cascade.prune import vocabulary_of
from arlo.catalog.files import read_tokenizer
from arlo.catalog.flow import Flow, FlowEdge, FlowVariant
from arlo.catalog.flow_accuracy import path_accuracy
from arlo.catalog.flow_exits import gain
from arlo.catalog.flow_outcomes import RowOutcomes, records_of
from arlo.catalog.manifest import Manifest
from arlo.config.flows import PipelineConfig
from arlo.config.stages import pipeline_name, served_flow, timeout_ms, variant_model
from arlo.errors import ConfigError
from arlo.planning.flows.live import StageCounts, VariantCounts
from arlo.planning.flows.numbers import Numbers
from arlo.planning.flows.problem import FlowPlan

LOGITS = "logits"  # the output that guards judge
IMPORTANCE = "importance"  # the output that says which tokens matter
SCORES: dict[str, str] = {"calibrated_max": "max", "margin": "margin", "entropy": "entropy"}
LOOKED_AT = 12  # batches; planning them takes a few hundred microseconds at worst
SOON_US = 100_000  # waiting rows should end in this time, or a quarter of the SLO; not less than two full batches


def fill_pipeline(
    message: Any,
    config: PipelineConfig,
    variants: tuple[Manifest, ...],
    plan: Any | None = None,
    *,
    late: bool = True,
) -> None:
    """`variants`: the repositories', in the order of variant_models(); `plan`: an arlo.v1.PipelinePlan; `late`: the
    gateway forms batches, and can choose their token counts. ConfigError where a flow cannot be served."""
    if plan is not None:
        message.plan.CopyFrom(plan)
    flow = served_flow(config)
    by_tokens = all(variant.tokens is not None for stage in flow.stages for variant in stage.variants)
    message.name = pipeline_name(config)
    message.slo_ms = max(round(flow.slo_ms), 1)
    message.default_timeout_ms = timeout_ms(config)
    message.router, message.drop = flow.router, flow.drop
    message.partial = flow.on_drop == "partial"
    message.max_children = flow.max_children
    message.max_bytes = config.max_bytes
    message.pool = config.pool == "mean"
    message.audit = config.audit
    for name, part in config.tenants.items():
        message.tenants.add(name=name, share=part)
    if config.window:
        message.chunks.window = config.window
        message.chunks.stride = config.stride or config.window - 2
    manifests = iter(variants)
    labels: dict[str, tuple[str, ...]] = {}
    judged = {e.tail for e in flow.edges if e.weights or e.when.at_least is not None or e.when.below is not None}
    for s in flow.order:
        stage = flow.stages[s]
        item = message.stages.add(name=stage.name, first=stage.fire == "first", told=stage.told)
        for v, variant in enumerate(stage.variants):
            one = next(manifests)
            if any(output.name == LOGITS and not output.token_level for output in one.outputs):
                item.logits = LOGITS
            if stage.name in judged:
                check_judged(f"variant {variant.name!r} of stage {stage.name!r}", one)
            if v and labels[stage.name] != tuple(one.labels):
                raise ConfigError(f"variant {variant.name!r} of stage {stage.name!r} has other labels than the first")
            labels[stage.name] = tuple(one.labels)
            served = item.variants.add(
                model=variant_model(config, stage.name, variant.name),
                accuracy=stage.accuracy(v),
                work_s=stage.work_ns(v) / 1e9,
                least_us=max(round(stage.least_ns(v) / 1000), 1),
                tokens=variant.tokens if by_tokens else None,
                energy=flow.joule * variant.watts,
            )
            if variant.bins != stage.variants[0].bins:
                raise ConfigError(f"variant {variant.name!r} of stage {stage.name!r} has other bins than the first")
            if v == 0:
                item.bins.extend(variant.bins)
            served.kind_accuracy.extend(variant.bin_accuracy)
            if variant.task_accuracy:
                by_task = dict(variant.task_accuracy)
                if by_task.keys() != one.tasks.keys():
                    raise ConfigError(
                        f"variant {variant.name!r} of stage {stage.name!r}: task_accuracy is of "
                        f"{', '.join(by_task)}, and its tasks are {', '.join(one.tasks) or 'none'}"
                    )
                served.kind_accuracy.extend(value for task in one.tasks for value in by_task[task])
            if variant.temperature != 1:
                served.calibrator.kind, served.calibrator.t = "temperature", variant.temperature
        if by_tokens and len(stage.variants) > 1 and late and not config.workers:
            _fill_rule(item.tokens, config.tokens, flow.slo_ms, stage.variants)
            item.tokens.shadow = config.audit
    if by_tokens and len(message.stages) == 1:
        items = message.stages[0].variants
        values = [each.accuracy - each.energy * each.work_s for each in items]
        first = first_price(values, [each.work_s for each in items])
        message.plan.price = max(message.plan.price, first)
    place = {flow.stages[s].name: number for number, s in enumerate(flow.order)}
    records = records_of(flow)
    message.accuracy.extend(path_accuracy(flow, stage, prefix, records) for stage, prefix in Numbers(flow).node)
    for e in flow.in_order:
        edge, spec = message.edges.add(), flow.edges[e]
        _fill_edge(edge, flow, e, place, labels[spec.tail])
        if spec.when.follows:
            _fill_gain(edge.guard, flow, e, records)
        if spec.combine == "weighted" and spec.head is not None and labels[spec.head] != labels[spec.tail]:
            raise ConfigError(f"edge {spec.name}: answers are mixed that have the same labels")


def _fill_rule(rule: Any, name: str, slo_ms: float, variants: Sequence[FlowVariant]) -> None:
    """The rule of OTAS's section V, with times scaled to the SLO: it has 0.5 s and 2 s for SLOs of 0.6 and 1 s."""
    slo_us = max(round(1000 * slo_ms), 1)
    batch = min(each.max_batch for each in variants)
    longest_us = max(each.latency_ns(batch, len(each.max_lengths) - 1) for each in variants) // 1000
    rule.rule = name
    rule.batch = batch
    rule.delta_us = rule.eta_us = slo_us // 2
    rule.mu = rule.kappa = 0.8
    rule.beta = 5
    rule.initial_us = 2 * slo_us
    rule.window_us = max(10 * slo_us, 2_000_000)
    rule.horizon_us = max(min(slo_us // 4, SOON_US), 2 * longest_us, 1)
    rule.looked_at = LOOKED_AT


def first_price(values: Sequence[float], works_s: Sequence[float]) -> float:
    """The value of a worker-second where the variant of the greatest value (accuracy less its energy) first gives way
    to a quicker one: a plan's price at a load just above that variant's capacity. 0 where no other one is quicker."""
    best = max(range(len(works_s)), key=lambda v: (values[v], -works_s[v]))
    return min(
        (
            (values[best] - value) / (works_s[best] - work_s)
            for value, work_s in zip(values, works_s, strict=True)
            if work_s < works_s[best]
        ),
        default=0.0,
    )


def plan_message(numbers: Numbers, plan: FlowPlan, *, shared: bool) -> Any:
    """The arlo.v1.PipelinePlan of a plan. `shared`: every worker holds all variants."""
    values = numbers.values(plan, shared=shared)
    return proto.message("PipelinePlan")(
        price=values.price,
        demand=values.demand,
        share=values.share,
        rate=values.rate,
        budget_us=[ns // 1000 for ns in values.budget_ns],
        feasible=map(bool, values.feasible),
        time_us=[max(ns // 1000, 1) for ns in values.time_ns],
        planner=plan.planner,
        step=plan.step,
        served=plan.served,
        accuracy=plan.accuracy,
        workers=plan.workers,
        reason=plan.reason,
        utilisation=plan.utilisation,
        note=plan.note,
    )


def kept_plan(config: PipelineConfig | None, current: Any) -> Any | None:
    """The plan of a deployment in force, an arlo.v1.Deployment, if it is for the same flow."""
    for pipeline in current.pipelines:
        if config is None or pipeline.name != pipeline_name(config) or not pipeline.plan.planner:
            continue
        numbers = Numbers(served_flow(config))
        if len(pipeline.plan.share) == len(numbers.node) and len(pipeline.plan.rate) == len(numbers.variant):
            return pipeline.plan
    return None


def traffic_counts(stats: Any) -> list[StageCounts]:
    """Counts of a pipeline's arlo.v1.Stats, stage by stage."""
    return [
        StageCounts(
            stage.arrived, tuple(VariantCounts(one.answered, one.ended, tuple(one.made)) for one in stage.variants)
        )
        for stage in stats.pipeline
    ]


def _fill_edge(item: Any, flow: Flow, number: int, place: dict[str, int], labels: tuple[str, ...]) -> None:
    edge = flow.edges[number]
    setattr(item, "from", place[edge.tail])
    item.to = -1 if edge.head is None else place[edge.head]
    item.hop_us = round(edge.hop_ms * 1000)
    if edge.head is not None:
        tail = flow.index[edge.tail]
        item.factor.extend(flow.factor(number, v) for v in range(len(flow.stages[tail].variants)))
    item.falls_back = edge.falls_back
    item.weights.extend(edge.weights)
    _fill_guard(item.guard, edge, labels)
    if edge.join:
        item.join = place[edge.join]
    if edge.expand.kind == "chunks":
        item.chunks.window = edge.expand.window
        item.chunks.stride = edge.expand.stride or edge.expand.window - 2
    elif edge.expand.kind == "prune":
        head = flow.stages[flow.index[edge.head or ""]].variants[0]
        _fill_prune(item.prune, edge, Path(flow.stages[flow.index[edge.tail]].variants[0].repository), head)
    elif edge.expand.kind != "same":
        item.expand.kind, item.expand.output, item.expand.max = edge.expand.kind, edge.expand.output, edge.expand.max
    if edge.expand.inputs:
        item.expand.kind = item.expand.kind or "tensor"
        item.expand.max = edge.expand.max
        for name, source in edge.expand.inputs:
            item.expand.inputs.add(**{"input": name, "from": source})


def _fill_guard(item: Any, edge: FlowEdge, labels: tuple[str, ...]) -> None:
    guard = edge.when
    item.rule = guard.follows or "hard"
    if guard.score:
        item.score = SCORES[guard.score]
    if isinstance(guard.at_least, float | int):
        item.at_least = guard.at_least
    if isinstance(guard.below, float | int) and guard.below > 0:
        item.below.add(length=1, value=guard.below)  # for rows of any length
    for label in guard.label_in:
        if label not in labels:
            raise ConfigError(f"edge {edge.name}: {edge.tail!r} has no label {label!r}; known: {', '.join(labels)}")
        item.labels.append(labels.index(label))


def _fill_gain(item: Any, flow: Flow, number: int, records: RowOutcomes | None) -> None:
    edge = flow.edges[number]
    tail = flow.stages[flow.index[edge.tail]]
    if edge.when.score != "calibrated_max" and records is None:
        raise ConfigError(f"edge {edge.name}: what a row gains by its {edge.when.score} is counted: flow.records")
    for k in range(len(tail.variants)):
        points = gain(flow.stages, flow.edges, number, k, records)
        item.gain.add(score=[x for x, _ in points], gain=[y for _, y in points])


def _fill_prune(item: Any, edge: FlowEdge, repository: Path, head: FlowVariant) -> None:
    manifest = Manifest.load(repository)
    raw = read_tokenizer(repository, manifest)
    words = vocabulary_of(json.loads(raw) if raw else None)
    item.output = IMPORTANCE
    item.alpha, item.min_words, item.to_level = edge.expand.alpha, edge.expand.min_words, edge.expand.to_level
    item.levels.extend(head.max_lengths)
    item.vocabulary.word_start = words.bits.tobytes()
    item.vocabulary.special.extend(words.special)
    item.vocabulary.keep.extend(words.keep)
