"""A small encoder as an ONNX graph, written by hand: real arithmetic in real engines in milliseconds, no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import InputTensor, OutputTensor
from arlo.compile.spec import GRAPH, ROWS, TOKENS, WEIGHTS, RuntimeSpec

WORDS, DIM = 50, 8

INPUTS = (
    InputTensor(name="input_ids", datatype="INT64", role="ids"),
    InputTensor(name="attention_mask", datatype="INT64", role="mask"),
    InputTensor(name="token_type_ids", datatype="INT64", role="other", optional=True),
)
OUTPUTS = (
    OutputTensor(name="sentence_embedding", datatype="FP32", token_level=False, dims=(DIM,)),
    OutputTensor(name="last_hidden_state", datatype="FP32", token_level=True, dims=(DIM,)),
)


def write_graph(folder: Path, spec: RuntimeSpec, *, precision: str = "fp32") -> tuple[Path, Path]:
    """Write model.onnx, its axes fixed as `spec` says, and weights.bin; returns both paths.

    last_hidden_state = tanh((words[ids] + types[type_ids]) @ W); sentence_embedding = its mean where the mask is 1.
    """
    import onnx
    from onnx import TensorProto, helper

    element = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[precision]
    axes: list[Any] = [spec.fixed.get(ROWS, ROWS), spec.fixed.get(TOKENS, TOKENS)]
    blob, initializers = b"", []
    for name, array in _weights().items():
        tensor = helper.make_tensor(name, element, array.shape, array.ravel().tolist())
        raw = onnx.numpy_helper.to_array(tensor).tobytes()
        external = TensorProto(name=name, data_type=element, dims=array.shape, data_location=TensorProto.EXTERNAL)
        for key, value in {"location": WEIGHTS, "offset": len(blob), "length": len(raw)}.items():
            external.external_data.add(key=key, value=str(value))
        blob += raw
        initializers.append(external)
    initializers.append(helper.make_tensor("last", TensorProto.INT64, [1], [-1]))
    initializers.append(helper.make_tensor("middle", TensorProto.INT64, [1], [1]))
    float32 = TensorProto.FLOAT
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["types", "token_type_ids"], ["type"]),
        helper.make_node("Add", ["word", "type"], ["sum"]),
        helper.make_node("MatMul", ["sum", "kernel"], ["product"]),
        helper.make_node("Tanh", ["product"], ["hidden"]),
        helper.make_node("Cast", ["hidden"], ["last_hidden_state"], to=float32),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=float32),
        helper.make_node("Unsqueeze", ["mask", "last"], ["weight"]),
        helper.make_node("Mul", ["last_hidden_state", "weight"], ["real"]),
        helper.make_node("ReduceSum", ["real", "middle"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "middle"], ["count"], keepdims=1),
        helper.make_node("Div", ["total", "count"], ["sentence_embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(tensor.name, TensorProto.INT64, axes) for tensor in INPUTS],
        [
            helper.make_tensor_value_info(out.name, float32, [*axes, DIM] if out.token_level else [axes[0], DIM])
            for out in OUTPUTS
        ],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GRAPH).write_bytes(model.SerializeToString())
    (folder / WEIGHTS).write_bytes(blob)
    return folder / GRAPH, folder / WEIGHTS


def expected(tensors: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
    """What the graph computes, in float32, by NumPy."""
    weights = _weights()
    types = tensors.get("token_type_ids", np.zeros_like(tensors["input_ids"]))
    hidden = np.tanh((weights["words"][tensors["input_ids"]] + weights["types"][types]) @ weights["kernel"])
    mask = tensors["attention_mask"].astype(np.float32)[..., None]
    return {"last_hidden_state": hidden, "sentence_embedding": (hidden * mask).sum(1) / mask.sum(1)}


def rows_of(rows: int, tokens: int, *, real: int | None = None) -> dict[str, NDArray[np.int64]]:
    """The two required inputs [rows, tokens], of which `real` tokens are not padding; different in every row."""
    ids = np.random.default_rng([rows, tokens]).integers(1, WORDS, (rows, tokens))
    mask = np.zeros((rows, tokens), np.int64)
    mask[:, : tokens if real is None else real] = 1
    return {"input_ids": ids * mask, "attention_mask": mask}


def _weights() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(11)
    shapes = {"words": (WORDS, DIM), "types": (2, DIM), "kernel": (DIM, DIM)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
