"""ONNX files brought to the form of the other steps: names, types and precision, with the answers as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from arlo.compile import CompileOptions
from arlo.compile.cache import Cache, Entry, Hasher
from arlo.compile.engines.interface import Precision
from arlo.compile.pooling import pool_numpy
from arlo.compile.spec import GRAPH, WEIGHTS
from arlo.compile.steps.cleanup import cleanup_step
from arlo.compile.steps.export import export_step, outputs_of
from arlo.compile.steps.resolve import resolve
from arlo.errors import CompileError
from tests.fakes.tiny_model import DIM, LABELS, write_onnx

IDS = np.array([[7, 9, 11, 5, 8], [6, 10, 0, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])


def export(path: Path, tmp_path: Path, precision: Precision = "fp32", **options: Any) -> Entry:
    hasher = Hasher()
    asked = {"source": path, "out": tmp_path / "out", "lengths": (16,), "precision": precision} | options
    return export_step(Cache(tmp_path / "cache", hasher), resolve(CompileOptions(**asked), hasher), precision)


def answers(path: Path, dtype: Any = np.int64, **more: Any) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {"input_ids": IDS.astype(dtype), "attention_mask": MASK.astype(dtype)} | more
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feed), strict=True))


def signature(path: Path) -> dict[str, tuple[int, list[int | str]]]:
    graph = onnx.load(str(path), load_external_data=False).graph
    return {
        value.name: (
            value.type.tensor_type.elem_type,
            [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim],
        )
        for value in (*graph.input, *graph.output)
    }


@pytest.mark.parametrize("external", [False, True])
def test_names_and_types(tmp_path: Path, external: bool) -> None:
    path = write_onnx(
        tmp_path / "model.onnx",
        outputs=("pooler_output", "last_hidden_state", "sentence_embedding"),
        inputs=("attention_mask", "token_type_ids", "input_ids"),
        int32=True,
        external=external,
    )
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    entry = export(path, tmp_path)
    assert signature(entry.folder / GRAPH) == {
        "input_ids": (onnx.TensorProto.INT64, ["rows", "tokens"]),
        "attention_mask": (onnx.TensorProto.INT64, ["rows", "tokens"]),
        "token_type_ids": (onnx.TensorProto.INT64, ["rows", "tokens"]),
        "sentence_embedding": (onnx.TensorProto.FLOAT, ["rows", DIM]),
        "last_hidden_state": (onnx.TensorProto.FLOAT, ["rows", "tokens", DIM]),
    }
    assert [(o.name, o.dims, o.token_level) for o in outputs_of(entry)] == [
        ("sentence_embedding", (DIM,), False),
        ("last_hidden_state", (DIM,), True),
    ]
    theirs = answers(path, np.int32, token_type_ids=np.zeros_like(IDS, np.int32))
    for name, got in answers(entry.folder / GRAPH, token_type_ids=np.zeros_like(IDS)).items():
        np.testing.assert_array_equal(got, theirs[name])
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_opsets_and_half_precision(tmp_path: Path, opset: int, precision: Precision) -> None:
    path = write_onnx(tmp_path / "model.onnx", outputs=("logits",), opset=opset)
    entry = export(path, tmp_path, precision)
    proto = onnx.load(str(entry.folder / GRAPH), load_external_data=False)
    assert proto.opset_import[0].version == (18 if opset == 11 else opset)
    assert (entry.meta["outputs"][0]["name"], entry.meta["outputs"][0]["dims"]) == ("logits", [LABELS])
    wanted, got = answers(path)["logits"], answers(entry.folder / GRAPH)["logits"]
    np.testing.assert_allclose(got, wanted, atol=1e-6 if precision == "fp32" else 2e-2)
    table = next(tensor for tensor in proto.graph.initializer if "table" in tensor.name)
    assert table.data_type == (onnx.TensorProto.FLOAT if precision == "fp32" else onnx.TensorProto.FLOAT16)
    assert (entry.folder / WEIGHTS).stat().st_size >= table.dims[0] * table.dims[1] * (4 if precision == "fp32" else 2)


def test_a_file_in_half_precision_answers_in_float32(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "model.onnx", outputs=("logits",), half=True)
    entry = export(path, tmp_path, "fp16")
    got = answers(entry.folder / GRAPH)["logits"]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, answers(path)["logits"].astype(np.float32), atol=1e-2)


def test_a_graph_without_pooling_gets_it(tmp_path: Path) -> None:
    """Exported by torch, as that of folders, and joined to the file's graph, here one of an older opset."""
    path = write_onnx(tmp_path / "model.onnx", opset=14)
    entry = export(path, tmp_path)
    assert [o.name for o in outputs_of(entry)] == ["sentence_embedding", "last_hidden_state"]
    cleaned = cleanup_step(Cache(tmp_path / "cache", Hasher()), entry)
    hidden = answers(path)["last_hidden_state"]
    for folder in (entry.folder, cleaned.folder):
        got = answers(folder / GRAPH)
        np.testing.assert_array_equal(got["last_hidden_state"], hidden)
        for row, tokens in enumerate(MASK.sum(1)):
            pooled = pool_numpy(hidden[row, :tokens], ("mean",), normalize=False)
            np.testing.assert_allclose(got["sentence_embedding"][row], pooled, atol=1e-6)
        assert signature(folder / GRAPH)["sentence_embedding"][1] == ["rows", DIM]


def test_a_file_of_one_shape(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "model.onnx", outputs=("token_logits",), axes=(1, 5))
    entry = export(path, tmp_path, lengths=(5,), dynamic=False)
    shapes = {name: axes for name, (_, axes) in signature(entry.folder / GRAPH).items()}
    assert shapes == {"input_ids": [1, 5], "attention_mask": [1, 5], "logits": [1, 5, LABELS]}


def test_a_shape_that_is_fixed_inside(tmp_path: Path) -> None:
    """The axes are free by name only, as after a trace with an example: found by running it twice."""
    path = write_onnx(tmp_path / "model.onnx", outputs=("token_logits",))
    proto = onnx.load(str(path))
    graph = proto.graph
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 9, DIM]), "shape"))
    product = next(node for node in graph.node if node.output[0] == "last_hidden_state")
    product.output[0] = "product"
    position = list(graph.node).index(product) + 1
    graph.node.insert(position, onnx.helper.make_node("Reshape", ["product", "shape"], ["last_hidden_state"]))
    onnx.save(proto, str(path))
    with pytest.raises(CompileError, match=r"(?s)cannot run .* with 3 rows of 7 tokens .*free axes"):
        export(path, tmp_path)


def test_norms_that_share_a_weight_in_half_precision(tmp_path: Path) -> None:
    """What stays in float32 has the weight cast back, once."""
    path = write_onnx(tmp_path / "model.onnx", outputs=("last_hidden_state",))
    model = onnx.load(str(path))
    graph = model.graph
    said = graph.output[0].name
    graph.initializer.append(onnx.numpy_helper.from_array(np.full(DIM, 2, np.float32), "scale"))
    for node in graph.node:
        node.output[:] = ["plain" if name == said else name for name in node.output]
    for at, (source, to) in enumerate((("plain", "once"), ("once", said))):
        graph.node.append(onnx.helper.make_node("LayerNormalization", [source, "scale"], [to], name=f"norm{at}"))
    onnx.save(model, str(path))
    entry = export(path, tmp_path, "fp16")
    got = answers(entry.folder / GRAPH)["last_hidden_state"]
    np.testing.assert_allclose(got, answers(path)["last_hidden_state"], atol=1e-2)
