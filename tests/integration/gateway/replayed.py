"""Cascades whose stages say again what was recorded: what each row must come to is computed here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from tritonclient.grpc import service_pb2

from arlo.cascade.manifest import CascadeManifest, Point, Stage, repository_hash
from arlo.cascade.prune import Vocabulary
from arlo.cascade.spec import Calibrator, Rule
from arlo.catalog.manifest import LatencyPoint, Manifest
from arlo.workers.emulated.repository import EmulatedRuntime, runtime_name
from tests.fakes.odd_worker import OddWorker, tensors_of
from tests.fakes.replayed import write_replayed_repository
from tests.fakes.triton_workers import Workers

RECORDS, LABELS, TOKENS = 1000, 4, 64
BATCHES = {"policy": "late", "batching": "deadline"}
EVERYWHERE = {"small": (0, 1), "middle": (2,), "large": (3,)}  # stage -> workers
STAGES = ("small", "middle", "large")
CLS = 101  # the first token of every row; the second one names its record
LENGTHS = (32, 64)
MS = {"small": 1, "middle": 2, "large": 4}
REASONS = ("confident", "final", "client_limit", "deadline", "load", "stage_absent", "stage_failed")


def recorded(stage: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits [records, labels] and importance [records, tokens] of a stage."""
    random = np.random.default_rng(STAGES.index(stage))
    logits = random.normal(0, 2, (RECORDS, LABELS)).astype(np.float32)
    importance = random.gamma(1.0, 1.0, (RECORDS, TOKENS)).astype(np.float32)
    importance[:, :2] = 100  # the record's name must not be left out
    return logits, importance


def write_stages(path: Path, *, apart: bool = False) -> dict[str, Manifest]:
    """The stages' repositories, all in `path` or each in a folder of its name; the last one has no importance."""
    manifests = {}
    for stage in STAGES:
        runtimes = [
            EmulatedRuntime(
                name=runtime_name(stage, length),
                max_length=length,
                max_batch=8,
                dynamic=False,
                latency=tuple(
                    LatencyPoint(length=length, batch=batch, latency_us=1000 * MS[stage] * (length // 32) * spread)
                    for batch, spread in ((1, 1), (8, 2))
                ),
            )
            for length in LENGTHS
        ]
        logits, importance = recorded(stage)
        manifests[stage] = write_replayed_repository(
            path / stage if apart else path,
            model=stage,
            runtimes=runtimes,
            logits=logits,
            importance=None if stage == STAGES[-1] else importance,
        )
    return manifests


TEMPERATURES = (1.5, 0.8, 1.0)
RULES = (
    Rule(t=((20, 0.55), (1 << 20, 0.7))),  # by length
    Rule(kind="soft", c=0.4, k=10.0),
)


def write_cascade(folder: Path) -> CascadeManifest:
    """Repositories and cascade.json in a folder: two points of three stages."""
    write_stages(folder, apart=True)
    stages = tuple(
        Stage(
            name=stage,
            repository=stage,
            manifest_sha256=repository_hash(folder / stage),
            calibrator=Calibrator(t=t),
        )
        for stage, t in zip(STAGES, TEMPERATURES, strict=True)
    )
    point = {"search": "by hand", "objective": "mean", "accuracy": None, "agreement": 1.0, "mean_ms": 1.0}
    manifest = CascadeManifest(
        name="kinds",
        task="emulated",
        labels=tuple(f"label{i}" for i in range(LABELS)),
        stages=stages,
        vocabularies=(Vocabulary(special=(CLS,)),),
        points=tuple(
            Point(name=name, rules=(rules,), reach=(1.0, 0.5, 0.3), **{**point, "agreement": agreement})  # type: ignore[arg-type]
            for name, rules, agreement in (
                ("usual", RULES, 0.98),
                ("safe", (Rule(t=((1 << 20, 0.95),)), RULES[1]), 0.99),
            )
        ),
        default_point="usual",
    )
    manifest.save(folder)
    return manifest


@dataclasses.dataclass(frozen=True)
class Plan:
    """A cascade's rules: hard thresholds, for every price; and where rows are pruned, how."""

    thresholds: Sequence[Sequence[float]] = ((0.7, 0.6),)  # [price][stage but the last]
    alpha: float = 0.0
    alpha_max: float = 0.0
    ensemble: str = "none"
    skip: Sequence[Sequence[float]] = ()
    accuracy: float | None = None


def cascade_deployment(
    workers: Workers,
    placement: Mapping[str, Sequence[int]],
    plans: Mapping[str, Plan] | None = None,
    *,
    version: int = 1,
    slo_ms: int = 1000,
    default_timeout_ms: int = 5000,
    **fields: Any,
) -> Any:
    """`placement`: stage -> workers that hold all its lengths; those of a stage without workers are known all the same.
    `plans`: the operating points by name, the first one in force."""
    plans = plans or {"usual": Plan()}
    whole = None
    for stage in (s for s in STAGES if s in placement):
        one = workers.deployment(
            stage,
            [(worker, length) for worker in placement[stage] or (0,) for length in LENGTHS],
            version=version,
            slo_ms=slo_ms,
            default_timeout_ms=default_timeout_ms,
            inflight_limit=2,
        )
        for runtime in one.runtimes:
            runtime.model = stage
        one.bundles.add(name=f"{stage}-all", runtimes=[runtime.name for runtime in one.runtimes])
        first = {instance.worker: instance for instance in reversed(one.instances)}
        del one.instances[:]
        for worker, instance in sorted(first.items()):
            if placement[stage]:
                instance.id, instance.runtime = f"{worker}.{stage}", f"{stage}-all"
                one.instances.append(instance)
        if whole is None:
            whole = one
        else:
            whole.more_models.append(one.model)
            for field in ("runtimes", "bundles", "instances"):
                getattr(whole, field).extend(getattr(one, field))
    assert whole is not None
    cascade = whole.cascades.add(
        name="kinds",
        slo_ms=slo_ms,
        default_timeout_ms=default_timeout_ms,
        logits="logits",
        labels=[f"label{i}" for i in range(LABELS)],
        point=next(iter(plans)),
        **{"answer_margin_ms": 2, **fields},
    )
    cascade.words.add(special=[CLS])
    for stage in (s for s in STAGES if s in placement):
        item = cascade.stages.add(model=stage, score="max", over="min", weight=1.0)
        item.calibrator.kind, item.calibrator.t = "temperature", 1.0
    for name, plan in plans.items():
        prune = {"alpha": plan.alpha, "alpha_max": plan.alpha_max, "most_removed": 0.9}
        point = cascade.points.add(name=name, prune={**prune, "to_level": True, "min_words": 4}, ensemble=plan.ensemble)
        if plan.accuracy is not None:
            point.accuracy = plan.accuracy
        for thresholds in plan.thresholds:
            price = point.prices.add()
            for t in thresholds:
                price.rules.add(rule="hard").below.add(length=512, value=t)
        for cuts in plan.skip:
            point.skip.add(cuts=cuts)
    return whole


def rows_of(records: Sequence[int], lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Token ids of rows; what follows the record's name are words of one token."""
    return [
        np.array([CLS, record, *range(2000, 2000 + length - 2)], np.int64)
        for record, length in zip(records, lengths, strict=True)
    ]


def request_of(
    records: Sequence[int],
    lengths: Sequence[int] | None = None,
    *,
    outputs: Sequence[str] = ("logits", "probabilities", "cascade_stage", "cascade_confidence", "cascade_reason"),
    **parameters: Any,
) -> Any:
    """The ModelInferRequest of rows of the cascade."""
    return request_of_rows("kinds", rows_of(records, lengths or [16] * len(records)), outputs, **parameters)


def request_of_rows(model: str, rows: Sequence[ArrayLike], outputs: Sequence[str] = (), **parameters: Any) -> Any:
    """The ModelInferRequest of rows of token ids."""
    lengths = [np.size(row) for row in rows]
    ids, mask = np.zeros((len(rows), max(lengths)), np.int64), np.zeros((len(rows), max(lengths)), np.int64)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        ids[i, :length], mask[i, :length] = row, 1
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        request.inputs.add(name=name, datatype="INT64", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    for name in outputs:
        request.outputs.add(name=name)
    for key, value in parameters.items():
        kind = {str: "string_param", float: "double_param", int: "int64_param"}[type(value)]
        setattr(request.parameters[key], kind, value)
    return request


async def ask(gateway: Any, records: Sequence[int], lengths: Sequence[int] | None = None, **how: Any) -> Any:
    """The answer to rows of the cascade."""
    return await gateway.infer(request_of(records, lengths, **how), timeout=20)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


def said_otherwise(change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Any:
    """An odd worker's answers: what a stage's engine says, but with other logits [records, labels]."""

    async def answer_of(worker: OddWorker, request: Any) -> bytes:
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1")
        logits, importance = recorded(request.model_name.split("_")[0])
        ids = tensors_of(request)["input_ids"]
        arrays = {"logits": change(logits.copy())[ids[:, 1]], "importance": importance[ids[:, 1], : ids.shape[1]]}
        for name in [output.name for output in request.outputs] or ["logits"]:
            answer.outputs.add(name=name, datatype="FP32", shape=arrays[name].shape)
            answer.raw_output_contents.append(np.ascontiguousarray(arrays[name], "<f4").tobytes())
        return bytes(answer.SerializeToString())

    return answer_of


def arrays_of(answer: Any) -> dict[str, NDArray[Any]]:
    """The outputs of an answer by name."""
    return {
        tensor.name: np.frombuffer(raw, {"FP32": "<f4", "INT32": "<i4"}[tensor.datatype]).reshape(tuple(tensor.shape))
        for tensor, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def parameters_of(answer: Any) -> dict[str, int]:
    return {key: value.int64_param for key, value in answer.parameters.items()}


@dataclasses.dataclass(frozen=True)
class Expected:
    """What rows come to, [rows]."""

    stage: NDArray[np.int64]
    reason: list[str]
    confidence: NDArray[np.float64]
    logits: NDArray[np.float32]


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    e = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def expected(
    records: Sequence[int], thresholds: Sequence[float] = (0.7, 0.6), stages: Sequence[str] = STAGES
) -> Expected:
    """With all stages present, one price and no skips."""
    said = [recorded(stage)[0][list(records)] for stage in stages]
    sure = [softmax(logits).max(-1) for logits in said]
    stage = np.full(len(records), len(stages) - 1)
    for s in range(len(stages) - 2, -1, -1):
        stage[sure[s] >= thresholds[s]] = s
    rows = range(len(records))
    return Expected(
        stage,
        ["final" if s == len(stages) - 1 else "confident" for s in stage],
        np.array([sure[stage[i]][i] for i in rows]),
        np.stack([said[stage[i]][i] for i in rows]),
    )
