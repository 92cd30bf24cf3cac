"""The arithmetic of the backend benchmark, and the models that it serves beside the demo's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from arlo.compile.engines.interface import get_engine
from arlo.compile.spec import RuntimeSpec
from benchmarks.backend_cpu import (
    CONCURRENCY,
    DIM,
    INPUTS,
    OUTPUT,
    Parts,
    break_even_us,
    level_shares,
    payload,
    rows,
    summary,
    write_small_graph,
)

PARTS = Parts(python=1400.0, graph=820.0, emulated=200.0, compute=600.0, graph_compute=20.0)


def test_parts_add_up() -> None:
    assert PARTS.backend == 800
    assert PARTS.floor == 800
    assert PARTS.ratio == pytest.approx(800 / 1400)
    assert PARTS.ratio_measured == pytest.approx(800 / 1400)


def test_the_ratio_is_a_half_at_the_break_even() -> None:
    compute = break_even_us(PARTS.backend, PARTS.emulated)
    assert compute == 400
    assert dataclasses.replace(PARTS, compute=compute).ratio == pytest.approx(0.5)
    assert dataclasses.replace(PARTS, compute=compute - 1).ratio < 0.5 < PARTS.ratio


def test_a_request_goes_to_the_shortest_level_that_fits() -> None:
    shares = level_shares(np.array([1, 128, 129, 512], np.int32), (128, 256, 512))
    assert shares == {128: 0.5, 256: 0.25, 512: 0.25}


def test_the_demo_traffic_is_weighted_by_its_shares() -> None:
    long = dataclasses.replace(PARTS, compute=3000.0)
    parts = {128: dict.fromkeys(CONCURRENCY, PARTS), 256: dict.fromkeys(CONCURRENCY, long)}
    figures = summary(parts, {128: 0.75, 256: 0.25})["concurrency_1"]
    traffic = figures["demo_traffic"]
    assert traffic["floor_us"] == pytest.approx(0.75 * 800 + 0.25 * 3200)
    assert traffic["ratio"] == pytest.approx(1400 / 2000)
    assert figures["lengths_that_halve"] == []
    assert "demo_traffic" not in summary({128: parts[128]}, {128: 0.75, 256: 0.25})["concurrency_1"]


def test_the_small_graph_has_the_tensors_of_the_model(tmp_path: Path) -> None:
    write_small_graph(tmp_path / "model.onnx", 16)
    spec = RuntimeSpec(name="small", max_length=16, max_batch=1, shape="static")
    row = rows(16)
    assert list(row) == list(INPUTS)
    answers = get_engine("onnxruntime").open(tmp_path, spec, threads=1).run(row, [OUTPUT, "last_hidden_state"])
    total = np.float32(row["input_ids"].sum() + 16)
    assert np.array_equal(answers[OUTPUT], np.full((1, DIM), total, np.float32))
    assert answers["last_hidden_state"].shape == (1, 16, DIM)


def test_requests_are_full_rows() -> None:
    request = service_pb2.ModelInferRequest.FromString(payload("python_len16", 16))
    assert [(tensor.name, tuple(tensor.shape)) for tensor in request.inputs] == [(name, (1, 16)) for name in INPUTS]
    assert [len(raw) for raw in request.raw_input_contents] == [16 * 8] * 3
    assert [output.name for output in request.outputs] == [OUTPUT]
