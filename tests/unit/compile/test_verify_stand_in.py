"""The graph of an engine on the CPU, in place of the engine: it rounds after each operation, as torch does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from arlo.compile.spec import GRAPH, WEIGHTS
from arlo.compile.verify.stand_in import open_stand_in

KINDS = {"fp16": (TensorProto.FLOAT16, torch.float16), "bf16": (TensorProto.BFLOAT16, torch.bfloat16)}


def write_graph(folder: Path, kind: int, weights: torch.Tensor, factor: float) -> None:
    """y = float(tanh(half(x) @ w * factor + half(x))), the weights in a file of their own, in another folder."""
    raw = weights.view(torch.int16).numpy().tobytes()
    (folder / "weights").mkdir()
    (folder / "graph").mkdir()
    (folder / "weights" / WEIGHTS).write_bytes(raw)
    weight = TensorProto(name="w", data_type=kind, dims=list(weights.shape), raw_data=raw)
    set_external_data(weight, WEIGHTS, offset=0, length=len(raw))
    weight.ClearField("raw_data")
    scale = helper.make_tensor("scale", kind, [1], [factor])
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=kind),
        helper.make_node("MatMul", ["half", "w"], ["product"]),
        helper.make_node("Constant", [], ["factor"], value=scale),
        helper.make_node("Mul", ["product", "factor"], ["larger"]),
        helper.make_node("Add", ["larger", "half"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["bent"]),
        helper.make_node("Div", ["bent", "factor"], ["smaller"]),
        helper.make_node("Cast", ["smaller"], ["y"], to=TensorProto.FLOAT),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializer=[weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (folder / "graph" / GRAPH).write_bytes(proto.SerializeToString())


def answer(folder: Path, x: NDArray[np.float32]) -> NDArray[np.float32]:
    runner = open_stand_in(folder / "graph" / GRAPH, folder / "weights" / WEIGHTS, threads=1)
    return runner.run({"x": x}, ["y"])["y"]  # type: ignore[dict-item]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_it_rounds_as_torch_does(tmp_path: Path, precision: str) -> None:
    kind, dtype = KINDS[precision]
    generator = torch.Generator().manual_seed(3)
    x, weights = torch.randn(64, 8, generator=generator), torch.randn(8, 8, generator=generator).to(dtype)
    write_graph(tmp_path, kind, weights, 0.25)
    half = x.to(dtype)
    expected = ((torch.tanh((half @ weights) * 0.25 + half)) / 0.25).float().numpy()
    got = answer(tmp_path, x.numpy())
    # The sums of the product may be made in another order, which now and then moves a number to its neighbour.
    assert np.mean(got == expected) > 0.97
    exact = torch.tanh((x @ weights.float()) * 0.25 + x).numpy() / 0.25
    rounding = {"fp16": 2.0**-11, "bf16": 2.0**-8}[precision]
    assert np.abs(got - exact).max() > rounding  # not float32 after all


def test_fp16_overflows_where_bf16_does_not(tmp_path: Path) -> None:
    """The large number is only passed through: computed in float32, nobody would see it."""
    for precision, finite in (("fp16", False), ("bf16", True)):
        kind, dtype = KINDS[precision]
        (tmp_path / precision).mkdir()
        write_graph(tmp_path / precision, kind, torch.eye(8).to(dtype) * 100, 1000.0)
        x = np.full((1, 8), -1.0, np.float32)
        x[0, 0] = 0.0
        runner = open_stand_in(
            tmp_path / precision / "graph" / GRAPH, tmp_path / precision / "weights" / WEIGHTS, threads=1
        )
        assert runner is not None
        proto = onnx.load(str(tmp_path / precision / "graph" / GRAPH), load_external_data=False)
        proto.graph.node[-2].input[0] = "larger"  # 100,000, which FP16 cannot hold, divided by 1,000 again
        (tmp_path / precision / "graph" / GRAPH).write_bytes(proto.SerializeToString())
        got = answer(tmp_path / precision, x)
        assert bool(np.isfinite(got).all()) is finite
        if finite:
            np.testing.assert_allclose(got[0, 1:], -100, rtol=0.02)


def test_a_graph_in_float32_is_left_as_it_is(tmp_path: Path) -> None:
    from arlo.compile.verify.stand_in import rounded_after_each_node

    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    before = proto.SerializeToString()
    assert rounded_after_each_node(proto).SerializeToString() == before
