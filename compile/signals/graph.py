"""Outputs that are added to an exported graph: `importance` and `confidence`.

Attention is recognised by its shape, whichever exporter wrote the graph: a Softmax over the last axis whose result,
perhaps cast or masked, is the left factor of a MatMul. A fused attention kernel (FlashAttention, ONNX Runtime's
Attention) does not expose its softmax; such graphs are rejected, and an engine cannot fuse attention that we read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from arlo.errors import CompileError

if TYPE_CHECKING:
    import onnx_ir

IMPORTANCE, CONFIDENCE = "importance", "confidence"
_MASK = "attention_mask"
_PASSED = frozenset({"Cast", "Dropout", "Identity", "Where", "Mul"})  # between softmax and product, shape unchanged
_AXES_AS_INPUT = 18  # opset since which ReduceMax takes its axes as an input


def attention_of(model: onnx_ir.Model) -> list[onnx_ir.Value]:
    """The attention [rows, heads, queries, keys] of each layer, first to last, as it is multiplied with the values.

    CompileError when the graph exposes none.
    """
    found: list[onnx_ir.Value] = []
    for node in model.graph:
        if node.op_type == "Softmax" and node.domain in ("", "ai.onnx") and _over_last_axis(node):
            weights = _factor(node.outputs[0])
            if weights is not None and all(weights is not other for other in found):
                found.append(weights)
    if not found:
        raise CompileError(
            "signals: no attention is to be seen in the graph (a Softmax whose result is multiplied): export the model "
            "with plain attention (attn_implementation='eager'), or build without --importance"
        )
    return found


def _over_last_axis(node: onnx_ir.Node) -> bool:
    axis = node.attributes.get("axis")
    return axis is None or axis.as_int() in (-1, 3)


def _factor(value: onnx_ir.Value) -> onnx_ir.Value | None:
    """The value derived from `value` that is the left factor of a product, if any."""
    for node, index in value.uses():
        if node.op_type == "MatMul" and index == 0:
            return value
        if node.op_type == "Reshape" and any(user.op_type == "MatMul" for user, _ in node.outputs[0].uses()):
            return value
        if node.op_type in _PASSED and (found := _factor(node.outputs[0])) is not None:
            return found
    return None


def add_importance(model: onnx_ir.Model, *, last: int | None) -> tuple[int, int]:
    """Append the output `importance` FP32 [rows, tokens], 0 at padding; returns the layers summed and all layers.

    A token's importance is the attention that it receives as a key, summed over heads, layers (last: the last so many,
    None: all) and queries other than padding: padding also attends to real tokens, and must not count.
    """
    import onnx_ir

    every = attention_of(model)
    if last is not None and last > len(every):
        raise CompileError(
            f"signals: the model has {len(every)} layers of attention, and the last {last} are asked for"
        )
    graph, summed = model.graph, every[-(last or len(every)) :]
    mask = next(value for value in graph.inputs if value.name == _MASK)
    tape = onnx_ir.tape.Tape(graph)

    def cast(value: onnx_ir.Value, dtype: onnx_ir.DataType) -> onnx_ir.Value:
        return tape.op("Cast", [value], {"to": int(dtype)})

    real = cast(mask, onnx_ir.DataType.FLOAT)
    queries = tape.op("Unsqueeze", [real, _axes(tape, 1, 2)])  # [rows, 1, 1, tokens]
    by_type = {onnx_ir.DataType.FLOAT: queries}
    received = []
    for weights in summed:
        dtype = _type_of(weights)
        if dtype not in by_type:
            by_type[dtype] = cast(queries, dtype)
        # The sum over queries as a product, which reads the attention once and writes next to nothing.
        each = tape.op("MatMul", [by_type[dtype], weights])
        received.append(each if dtype == onnx_ir.DataType.FLOAT else cast(each, onnx_ir.DataType.FLOAT))
    # The sums come one after the other, behind all products: ONNX Runtime orders nodes from the last one backwards. So
    # it runs each product as soon as its layer is ready; else the attention of all layers stays in memory.
    layers = received[0]
    for each in received[1:]:
        layers = tape.op("Add", [layers, each])
    heads = tape.op("ReduceSum", [layers, _axes(tape, 1, 2)], {"keepdims": 0})
    _output(graph, tape.op("Mul", [heads, real]), IMPORTANCE, list(mask.shape or ()))
    return len(summed), len(every)


def _type_of(value: onnx_ir.Value) -> onnx_ir.DataType:
    """The floating-point type of a value, which graphs seldom state: that of the nearest cast or weight before it."""
    import onnx_ir

    kinds = (onnx_ir.DataType.FLOAT, onnx_ir.DataType.FLOAT16, onnx_ir.DataType.BFLOAT16)
    left, seen = [value], set()
    while left:
        at = left.pop()
        node = at.producer()
        if at.const_value is not None:
            found = at.const_value.dtype
        elif node is not None and node.op_type == "Cast":
            found = onnx_ir.DataType(node.attributes["to"].as_int())
        else:
            inputs = [] if node is None or id(node) in seen else [each for each in node.inputs if each is not None]
            seen.add(id(node))
            # The condition of a Where has a different type; after the first input of others come shapes and indices.
            left += inputs[:0:-1] if node is not None and node.op_type == "Where" else inputs[::-1]
            continue
        if found in kinds:
            return found
    return onnx_ir.DataType.FLOAT


def add_confidence(model: onnx_ir.Model, activation: str) -> None:
    """Append the output `confidence` FP32 [rows, 1]: the largest probability, by softmax or sigmoid of `logits`
    [rows, labels].

    Not [rows]: Triton requires an output to have a dimension in addition to the rows.
    """
    import onnx_ir

    graph = model.graph
    logits = next(value for value in graph.outputs if value.name == "logits")
    tape = onnx_ir.tape.Tape(graph)
    shares = tape.op("Sigmoid", [logits]) if activation == "sigmoid" else tape.op("Softmax", [logits], {"axis": -1})
    if model.opset_imports.get("", 0) >= _AXES_AS_INPUT:
        largest = tape.op("ReduceMax", [shares, _axes(tape, -1)], {"keepdims": 1})
    else:
        largest = tape.op("ReduceMax", [shares], {"keepdims": 1, "axes": [-1]})
    _output(graph, largest, CONFIDENCE, [*list(logits.shape or ())[:1], 1])


def _axes(tape: onnx_ir.tape.Tape, *axes: int) -> onnx_ir.Value:
    """Axes, as operators take them since opset 18."""
    import numpy as np
    import onnx_ir

    return tape.op("Constant", [], {"value": onnx_ir.tensor(np.array(axes, np.int64))})


def _output(
    graph: onnx_ir.Graph, value: onnx_ir.Value, name: str, shape: Sequence[int | onnx_ir.SymbolicDim | None]
) -> None:
    """Make a value an output of the graph, FP32."""
    import onnx_ir

    value.name, value.dtype, value.shape = name, onnx_ir.DataType.FLOAT, onnx_ir.Shape(shape)
    graph.outputs.append(value)
