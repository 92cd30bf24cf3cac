"""Step 3, export, for an ONNX file: the same graph in the form that the other steps expect.

Inputs INT64 [rows, tokens], outputs FP32 with the wanted one first, both axes named, an opset that the tools read, and
half precision on request. The given file is not changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.compile.engines.interface import Precision
from arlo.compile.layers import graph_layers
from arlo.compile.pooling import pool_graph
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.spec import GRAPH, ROWS, TOKENS
from arlo.compile.steps.cleanup import Graph, write_with_weights
from arlo.compile.steps.export import describe_output
from arlo.compile.steps.resolve import POOLER, SourceModel
from arlo.compile.steps.resolve_onnx import ANSWER_SPAN, Described, describe
from arlo.compile.verify.answers import plain_rows
from arlo.errors import CompileError

if TYPE_CHECKING:
    import onnx
    import onnx_ir

SENTENCE = "sentence_embedding"
_OLDEST_OPSET, _CONVERTED_OPSET = 13, 18  # the passes of onnxscript write operators as they are since opset 13
_IR_VERSION = 10  # newer versions add nothing for such graphs, and engines reject versions that they do not know
# Sums of squares, which half precision overflows: layer norms as older exporters wrote them.
_KEEP_FLOAT32 = (
    *("LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"),
    *("Pow", "ReduceMean", "ReduceL2", "Sqrt"),
)


def normalise_onnx(model: SourceModel, precision: Precision, folder: Path) -> list[dict[str, Any]]:
    """Write GRAPH and WEIGHTS for the ONNX file of `model` into `folder`; returns the fields of the outputs."""
    assert model.onnx is not None
    found = describe(model.onnx)
    graph = Graph(model.onnx)
    if found.opset < (_CONVERTED_OPSET if model.pooling else _OLDEST_OPSET):  # the pooling is written in the newer one
        graph.model = _whole(_newer(_proto(graph.model), model.onnx))
    if precision == "fp16" and found.precision == "fp32":
        graph.model = _whole(_half(_proto(graph.model), model.onnx))
    _name_inputs(graph.model, model)
    names = _choose_outputs(model, found)
    _keep_outputs(graph.model, names)
    if model.pooling:
        _append_pooling(graph.model, model, names[-1])
        names.insert(0, SENTENCE)
    graph.model.ir_version = min(graph.model.ir_version or _IR_VERSION, _IR_VERSION)
    write_with_weights(graph.model, folder)
    return _name_axes(folder / GRAPH, model, names, found.fixed_rows, found.fixed_tokens)


def _proto(model: onnx_ir.Model) -> onnx.ModelProto:
    """The model with its weights inline, as the converters require."""
    import onnx_ir

    return onnx_ir.serde.serialize_model(model)


def _whole(proto: onnx.ModelProto) -> onnx_ir.Model:
    import onnx_ir

    return onnx_ir.serde.deserialize_model(proto)


def _newer(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    import onnx.version_converter

    try:
        return onnx.version_converter.convert_version(proto, _CONVERTED_OPSET)
    except Exception as error:  # C++ code that raises its own kinds
        raise CompileError(
            f"export: {path} cannot be converted to opset {_CONVERTED_OPSET} ({error}): export it again with that opset"
        ) from error


def _half(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    with known_noise_silenced():  # a line for each weight that is cut to the range of half precision
        from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

        try:
            converted: onnx.ModelProto = convert_float_to_float16(
                proto, keep_io_types=True, op_block_list=[*DEFAULT_OP_BLOCK_LIST, *_KEEP_FLOAT32]
            )
        except Exception as error:  # numpy, onnx and the converter raise their own kinds
            raise CompileError(
                f"export: {path} cannot be converted to fp16 ({error}): export the model itself in fp16, or give its "
                "Hugging Face folder"
            ) from error
    # It casts a weight back for each of the nodes that share it, under one name.
    made: set[str] = set()
    nodes = list(converted.graph.node)
    del converted.graph.node[:]
    for node in nodes:
        if node.op_type != "Cast" or node.output[0] not in made:
            converted.graph.node.append(node)
        made.update(node.output)
    return converted


def _name_inputs(model: onnx_ir.Model, source: SourceModel) -> None:
    """The inputs of the manifest, in its order, INT64 with named axes; a Cast follows where the graph wants INT32."""
    import onnx_ir

    graph = model.graph
    by_name = {value.name: value for value in graph.inputs}
    for name, value in by_name.items():
        if name not in {tensor.name for tensor in source.inputs}:  # an initialiser that is listed as an input
            graph.inputs.remove(value)
    for tensor in reversed(source.inputs):
        value = by_name[tensor.name]
        graph.inputs.remove(value)
        graph.inputs.insert(0, value)
        if tensor.role == "tensor":  # it stays of its type
            old = list(value.shape or ())
            value.shape = onnx_ir.Shape([old[0] if isinstance(old[0], int) else ROWS, *tensor.dims])
            continue
        axes = [
            axis if isinstance(axis, int) else name
            for axis, name in zip(value.shape or (), (ROWS, TOKENS), strict=True)
        ]
        value.shape = onnx_ir.Shape(axes)
        if value.dtype == onnx_ir.DataType.INT64:
            continue
        wanted = value.dtype
        assert wanted is not None
        attribute = onnx_ir.AttrInt64("to", int(wanted))
        node = onnx_ir.Node("", "Cast", [None], [attribute], name=f"cast_{value.name}")
        cast = node.outputs[0]
        cast.name, cast.dtype = f"{value.name}_{wanted.name.lower()}", wanted
        value.replace_all_uses_with(cast)
        node.replace_input_with(0, value)
        value.dtype = onnx_ir.DataType.INT64
        graph.insert_before(graph[0], node)


def _choose_outputs(source: SourceModel, found: Described) -> list[str]:
    """The outputs that are served, the wanted one first: that of the task, then the hidden states of the tokens."""
    if source.task == "question-answering":
        return list(ANSWER_SPAN)
    if source.task not in ("embedding", "classification"):
        return ["logits"]
    if source.row_length is not None:
        return sorted(found.outputs, key=lambda name: name != "logits")
    by_tokens = [name for name, axes in found.outputs.items() if len(axes) == 3]
    by_row = [name for name, axes in found.outputs.items() if len(axes) == 2 and name != POOLER]
    return ([] if source.pooling else sorted(by_row, key=lambda name: name != SENTENCE)[:1]) + by_tokens[:1]


def _keep_outputs(model: onnx_ir.Model, names: list[str]) -> None:
    """Keep only these outputs, in this order, in float32."""
    import onnx_ir

    graph, tape = model.graph, onnx_ir.tape.Tape(model.graph)
    by_name = {value.name: value for value in graph.outputs}
    graph.outputs.clear()
    for name in names:
        value = by_name[name]
        if value.dtype == onnx_ir.DataType.FLOAT:
            graph.outputs.append(value)
            continue
        value.name = f"{name}_before_cast"
        cast = tape.op("Cast", [value], {"to": int(onnx_ir.DataType.FLOAT)})
        cast.name, cast.dtype, cast.shape = name, onnx_ir.DataType.FLOAT, value.shape
        graph.outputs.append(cast)


def _append_pooling(model: onnx_ir.Model, source: SourceModel, hidden_name: str) -> None:
    """Pool the tokens' hidden states into a new first output, for a graph that ends with them."""
    import onnx_ir

    graph = model.graph
    for value in (value for node in graph for value in node.outputs):
        if value.name == SENTENCE:
            value.name = f"{SENTENCE}_inside"
    hidden = next(value for value in graph.outputs if value.name == hidden_name)
    mask = next(value for value in graph.inputs if value.name == "attention_mask")
    tape = onnx_ir.tape.Tape(graph)
    pooled = pool_graph(tape, hidden, mask, source.pooling, normalize=False)
    pooled = graph_layers(tape, pooled, source.layers, normalize=source.normalize)
    pooled.name, pooled.dtype = SENTENCE, onnx_ir.DataType.FLOAT
    graph.outputs.insert(0, pooled)


def _name_axes(
    path: Path, source: SourceModel, names: list[str], rows: int | None, tokens: int | None
) -> list[dict[str, Any]]:
    """Write the outputs' shapes observed in a run; CompileError if the graph does not run, or fixes an axis."""
    import onnx

    first, second = ((rows or count, tokens or length) for count, length in ((2, 9), (3, 7)))
    seen, again = _shapes(path, source, *first), _shapes(path, source, *second)
    described = []
    proto = onnx.load(str(path), load_external_data=False)
    for value, name in zip(proto.graph.output, names, strict=True):
        output = describe_output(name, seen[name])
        token_level = output["token_level"]
        for (row_count, length), shape in ((first, seen[name]), (second, again[name])):
            if shape[: 1 + token_level] != (row_count, length)[: 1 + token_level]:
                raise CompileError(
                    f"export: {source.onnx} gives {name} as {list(shape)} for {row_count} rows of {length} tokens: it "
                    "was exported for one shape; export it again with free axes (dynamic_axes)"
                )
        axes = [rows or ROWS, *([tokens or TOKENS] if token_level else []), *output["dims"]]
        value.CopyFrom(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, axes))
        described.append(output)
    proto.graph.ClearField("value_info")
    path.write_bytes(proto.SerializeToString())
    return described


def _shapes(path: Path, source: SourceModel, rows: int, tokens: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the outputs for an input of that size, as ONNX Runtime computes them."""
    from arlo.templates.onnxruntime.session import open_session

    feed = plain_rows(source.inputs, (tokens,) * rows)
    try:
        session = open_session(path, 1)
        answers = session.run(None, feed)
    except Exception as error:  # ONNX Runtime raises its own kinds
        raise CompileError(
            f"export: ONNX Runtime cannot run {source.onnx} with {rows} rows of {tokens} tokens ({error}): export it "
            "again with free axes (dynamic_axes) and a released opset"
        ) from error
    return {output.name: answer.shape for output, answer in zip(session.get_outputs(), answers, strict=True)}
