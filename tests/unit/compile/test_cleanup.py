"""What the clean-up takes out, what it leaves alone, and what specialise folds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from arlo.compile.cache import Cache, Entry, Hasher
from arlo.compile.spec import GRAPH, WEIGHTS
from arlo.compile.steps.cleanup import Graph, check_signature, cleanup_step, signature_of
from arlo.compile.steps.specialise import specialise
from arlo.errors import CompileError

WIDTH = 64


def exported(tmp_path: Path, *, clutter: bool) -> Entry:
    """ids [rows, tokens] -> table rows times a weight, reshaped by way of the shape; with clutter or without."""
    random = np.random.default_rng(1)
    weight = random.normal(size=(WIDTH, WIDTH)).astype(np.float32)
    constants: dict[str, Any] = {
        "table": random.normal(size=(100, WIDTH)).astype(np.float32),
        "weight": weight,
        "end": np.array([8, WIDTH // 8], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "weight"], ["product"]),
        helper.make_node("Shape", ["ids"], ["shape"]),
        helper.make_node("Concat", ["shape", "end"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["product", "wanted"], ["answer"]),
    ]
    if clutter:
        constants |= {"twin": weight, "unused": weight * 2, "turned": np.ascontiguousarray(weight.T)}
        nodes[1:2] = [
            helper.make_node("Identity", ["embedded"], ["same"]),
            helper.make_node("Cast", ["same"], ["single"], to=TensorProto.FLOAT),
            helper.make_node("Transpose", ["turned"], ["straight"], perm=[1, 0]),
            helper.make_node("MatMul", ["single", "weight"], ["one"]),
            helper.make_node("MatMul", ["single", "twin"], ["two"]),
            helper.make_node("MatMul", ["single", "straight"], ["three"]),
            helper.make_node("Sum", ["one", "two", "three"], ["product"]),
            helper.make_node("Tanh", ["one"], ["dead"]),
        ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", "tokens"])],
        [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["rows", "tokens", 8, WIDTH // 8])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )

    def make(folder: Path) -> dict[str, Any]:
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        onnx.save(model, str(folder / GRAPH), save_as_external_data=True, location=WEIGHTS, size_threshold=1024)
        return {}

    return Cache(tmp_path, Hasher()).step("export", {"clutter": clutter}, make)


def cleaned(tmp_path: Path, source: Entry) -> Entry:
    return cleanup_step(Cache(tmp_path, Hasher()), source)


def operators(folder: Path) -> list[str]:
    return [node.op_type for node in onnx.load(str(folder / GRAPH), load_external_data=False).graph.node]


def answer(folder: Path, ids: Any) -> Any:
    session = onnxruntime.InferenceSession(str(folder / GRAPH), providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": ids})[0]


def test_clutter_goes_and_the_answer_stays(tmp_path: Path) -> None:
    source = exported(tmp_path, clutter=True)
    clean = cleaned(tmp_path, source)
    left = operators(clean.folder)
    assert not set(left) & {"Identity", "Cast", "Transpose", "Tanh"}
    assert (clean.meta["nodes_before"], clean.meta["nodes_after"]) == (len(operators(source.folder)), len(left))
    assert left.count("MatMul") == 1  # equal weights are one, and so are products of the same
    assert not clean.meta["weights_linked"]
    matrix = WIDTH * WIDTH * 4
    assert (source.folder / WEIGHTS).stat().st_size >= 4 * matrix + 100 * WIDTH * 4
    assert matrix + 100 * WIDTH * 4 <= (clean.folder / WEIGHTS).stat().st_size < 2 * matrix + 100 * WIDTH * 4
    ids = np.array([[3, 5, 7], [2, 4, 6]])
    np.testing.assert_allclose(answer(clean.folder, ids), answer(source.folder, ids), rtol=1e-4, atol=1e-4)


def test_weights_that_did_not_change_are_linked(tmp_path: Path) -> None:
    source = exported(tmp_path, clutter=False)
    clean = cleaned(tmp_path, source)
    assert clean.meta["weights_linked"]
    assert (clean.folder / WEIGHTS).samefile(source.folder / WEIGHTS)
    ids = np.array([[3, 5, 7]])
    np.testing.assert_array_equal(answer(clean.folder, ids), answer(source.folder, ids))


def test_weights_with_other_links_can_be_read(tmp_path: Path) -> None:
    """As the cache and repositories share them; onnx itself refuses such files."""
    source = exported(tmp_path, clutter=True)
    os.link(source.folder / WEIGHTS, tmp_path / "in a repository")
    with pytest.raises(Exception, match=r"hard ?link"):
        onnx.load(str(source.folder / GRAPH))
    assert cleaned(tmp_path, source).meta["nodes_after"] < len(operators(source.folder))


@pytest.mark.parametrize(
    ("fixed", "shape_nodes"), [({}, True), ({"tokens": 3}, False), ({"tokens": 3, "rows": 2}, False)]
)
def test_specialise_folds_the_arithmetic_of_fixed_axes(
    tmp_path: Path, fixed: dict[str, int], shape_nodes: bool
) -> None:
    clean = cleaned(tmp_path, exported(tmp_path, clutter=False))
    folder = tmp_path / "special"
    folder.mkdir()
    meta = specialise(clean.folder, fixed, folder)
    assert meta["fixed"] == fixed
    assert [path.name for path in folder.iterdir()] == [GRAPH]
    os.link(clean.folder / WEIGHTS, folder / WEIGHTS)
    proto = onnx.load(str(folder / GRAPH), load_external_data=False)
    axes = [axis.dim_value or axis.dim_param for axis in proto.graph.input[0].type.tensor_type.shape.dim]
    assert axes == [fixed.get("rows", "rows"), fixed.get("tokens", "tokens")]
    assert (not shape_nodes) == (operators(folder) == ["Gather", "MatMul", "Reshape"])
    places = {tensor.name for tensor in proto.graph.initializer if tensor.data_location == TensorProto.EXTERNAL}
    assert len(places) == 2  # the table and the weight: neither was taken into the graph
    ids = np.array([[3, 5, 7], [2, 4, 6]])
    np.testing.assert_array_equal(answer(folder, ids), answer(clean.folder, ids))


def test_a_changed_signature_is_an_error(tmp_path: Path) -> None:
    graph = Graph(exported(tmp_path, clutter=False).folder / GRAPH)
    wanted = signature_of(graph.model)
    check_signature(graph.model, wanted, "cleanup")
    graph.model.graph.outputs[0].name = "other"
    with pytest.raises(CompileError, match=r"cleanup: .*changed .*answer.*became.*other"):
        check_signature(graph.model, wanted, "cleanup")
