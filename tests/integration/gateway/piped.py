"""Pipelines whose stages say again what was recorded: deployments, requests, and what answers must come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from arlo.control.reconcile.pipeline import first_price
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.replayed import CLS, MS, STAGES, cascade_deployment, recorded, request_of_rows, softmax

SEP = 102
BATCHES = {"policy": "late", "batching": "deadline"}
NAME = "pipe"
ACCURACY = {"small": 0.8, "middle": 0.9, "large": 0.95}
SURE = 0.7  # from which rows of `topic` end there
TYPES = {"FP32": "<f4", "INT32": "<i4"}
TOKENS = {"large": 0, "middle": -8, "small": -16}
ROWS = 8  # of a batch
_ITEMS = [(ACCURACY[variant], MS[variant] / 4000) for variant in TOKENS]
PLAN = {"price": first_price(*zip(*_ITEMS, strict=True))}


def pipeline_deployment(
    workers: Workers,
    placement: Mapping[str, Sequence[int]],
    stages: Mapping[str, Sequence[str]],
    edges: Sequence[Mapping[str, Any]] = (),
    *,
    version: int = 1,
    slo_ms: int = 1000,
    default_timeout_ms: int = 5000,
    tokens: Mapping[str, int] | None = None,
    rule: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """`placement`: variant -> workers that hold it; `stages`: name -> variants, the entry first; `edges`: as
    arlo.v1.PipelineEdge; `tokens`: of each variant; `rule`: as arlo.v1.TokenRule, of all stages."""
    whole = cascade_deployment(
        workers, placement, version=version, slo_ms=slo_ms, default_timeout_ms=default_timeout_ms
    )
    del whole.cascades[:]
    pipeline = whole.pipelines.add(
        name=NAME,
        slo_ms=slo_ms,
        default_timeout_ms=default_timeout_ms,
        **{"router": "price", "drop": "slack", "max_children": 256, "max_bytes": 1 << 20, **fields},
    )
    for stage, variants in stages.items():
        item = pipeline.stages.add(name=stage, logits="logits", tokens=rule)
        for variant in variants:
            item.variants.add(
                model=variant,
                accuracy=ACCURACY[variant],
                work_s=MS[variant] / 4000,
                least_us=MS[variant] * 1000,
                tokens=None if tokens is None else tokens.get(variant),
            )
    for edge in edges:
        pipeline.edges.add(**edge)
    return whole


def by_tokens(workers: Workers, *, rule: str = "price", slo_ms: int = 200, **fields: Any) -> Any:
    """Token counts that are chosen when a batch begins; one worker holds all of them."""
    times = {
        "window_us": max(10_000 * slo_ms, 2_000_000),
        "horizon_us": min(250 * slo_ms, 100_000),
        "initial_us": 2000 * slo_ms,
    }
    how = {"rule": rule, "batch": ROWS, "delta_us": 500 * slo_ms, "eta_us": 500 * slo_ms, "mu": 0.8, "kappa": 0.8}
    chosen = {**how, **times, "beta": 5, "looked_at": 12, "shadow": 0.5}
    whole = pipeline_deployment(
        workers,
        dict.fromkeys(TOKENS, (0,)),
        {"tokens": tuple(TOKENS)},
        slo_ms=slo_ms,
        **{"tokens": TOKENS, "plan": PLAN, "rule": chosen, **fields},
    )
    del whole.bundles[:], whole.instances[1:]
    whole.bundles.add(name="all", runtimes=[runtime.name for runtime in whole.runtimes])
    one = whole.instances[0]
    one.id, one.runtime, one.inflight_limit = f"{one.worker}.all", "all", 1
    return whole


def cascade_like(workers: Workers, placement: Mapping[str, Sequence[int]], **fields: Any) -> Any:
    """`topic`, which ends what it is sure of, and `tags` for the rest."""
    edges = ({"from": 0, "to": -1, "guard": {"at_least": SURE}}, {"from": 0, "to": 1, "factor": [0.5, 0.5]})
    return pipeline_deployment(workers, placement, {"topic": ("small", "middle"), "tags": ("large",)}, edges, **fields)


def request_of(rows: Sequence[Sequence[int]], outputs: Sequence[str] = (), **parameters: Any) -> Any:
    """The ModelInferRequest of rows of token ids."""
    request = request_of_rows(NAME, rows, outputs, **parameters)
    request.id = "one"
    return request


def short(record: int, length: int = 16) -> list[int]:
    """A row that names a record, in one piece."""
    return [CLS, record, *range(2000, 2000 + length - 3), SEP]


def long(records: Sequence[int], stride: int) -> list[int]:
    """A row whose pieces, `stride` tokens apart, name these records."""
    return [CLS, *(token for record in records for token in (record, *range(2000, 2000 + stride - 1))), SEP]


def arrays_of(answer: Any) -> dict[str, Any]:
    """The outputs of an answer by name; BYTES as a list of strings."""
    found: dict[str, Any] = {}
    for tensor, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        if tensor.datatype == "BYTES":
            texts, at = [], 0
            while at < len(raw):
                size = int.from_bytes(raw[at : at + 4], "little")
                texts.append(raw[at + 4 : at + 4 + size].decode())
                at += 4 + size
            found[tensor.name] = texts
        else:
            found[tensor.name] = np.frombuffer(raw, TYPES[tensor.datatype]).reshape(tuple(tensor.shape))
    return found


SAID: dict[str, NDArray[np.float32]] = {stage: recorded(stage)[0] for stage in STAGES}
CONFIDENCE = {stage: softmax(said).max(-1) for stage, said in SAID.items()}
WISHED = ("topic.logits", "topic.row", "tags.logits", "tags.row", "route", "accuracy_expected", "children", "reason")


def _bare(model: str, prefixes: Sequence[str]) -> str:
    """The name of a model without what a configuration puts before it."""
    for prefix in prefixes:
        model = model.removeprefix(prefix)
    return model


def check_cascade_like(answer: Any, records: Sequence[int], prefixes: Sequence[str] = ()) -> list[str]:
    """Every row ended once and where its confidence says, with the answer of the models on its route, which is
    returned. `prefixes`: of the models' names."""
    outputs = arrays_of(answer)
    assert outputs["children"].tolist() == [1] * len(records)
    at = {(stage, row): i for stage in ("topic", "tags") for i, row in enumerate(outputs[f"{stage}.row"].tolist())}
    assert len(at) == len(records)
    for row, (record, route) in enumerate(zip(records, outputs["route"], strict=True)):
        first, *rest = (_bare(model, prefixes) for model in route.split(">"))
        assert rest == ([] if CONFIDENCE[first][record] >= SURE else ["large"])
        stage, last = ("tags", "large") if rest else ("topic", first)
        np.testing.assert_array_equal(outputs[f"{stage}.logits"][at[stage, row]], SAID[last][record])
        expected = ACCURACY[first] * (ACCURACY["large"] if rest else 1)
        np.testing.assert_allclose(outputs["accuracy_expected"][row], expected, rtol=1e-6)
    return list(outputs["route"])


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), raised.value.details()
