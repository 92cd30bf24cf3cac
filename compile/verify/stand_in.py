"""Run an engine's graph if the engine itself cannot run: ONNX Runtime on the CPU, rounding as the engine does.

ONNX Runtime's CPU has no kernels for bfloat16 and few for float16: for the latter it computes in float32 and drops
roundings between neighbours, which would hide an overflow. So every number of a half precision is computed in float32
and rounded to that precision after each operation, like a device that accumulates in float32. TensorRT fuses operations
and then rounds less often, so this check is a little too strict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from arlo.compile.cache import tool_versions
from arlo.compile.engines.interface import SessionRunner
from arlo.compile.spec import WEIGHTS
from arlo.errors import CompileError


def stand_in_versions() -> dict[str, str]:
    """Packages that the answers depend on."""
    return tool_versions("onnx", "onnxruntime")


def open_stand_in(graph: Path, weights: Path, *, threads: int) -> SessionRunner:
    """Open a specialised graph, whose weights are the file `weights`, somewhere else. CompileError when it cannot."""
    import onnx

    from arlo.templates.onnxruntime.session import open_session

    assert weights.name == WEIGHTS
    proto = rounded_after_each_node(onnx.load(str(graph), load_external_data=False)).SerializeToString()
    place = {"session__model_external_initializers_file_folder_path": str(weights.parent)}
    try:
        session = open_session(proto, threads, **place)
    except Exception as error:  # ONNX Runtime raises its own kinds
        raise CompileError(f"verify: ONNX Runtime does not open the graph in place of the engine ({error})") from error
    return SessionRunner(session)


def rounded_after_each_node(proto: Any) -> Any:
    """The graph with every tensor of a half precision as float32, rounded to that precision where it is made.

    `proto` is changed. CompileError for graphs with subgraphs in half precision, which encoders do not have.
    """
    from onnx import TensorProto, helper, numpy_helper

    halves = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    graph = proto.graph
    types = _types(proto)
    if not halves & set(types.values()):
        return proto
    if any(attribute.HasField("g") for node in graph.node for attribute in node.attribute):
        raise CompileError("verify: a graph with branches in half precision cannot be run in place of the engine")

    nodes: list[Any] = []

    def rounded(source: str, target: str, kind: int) -> None:
        nodes.append(helper.make_node("Cast", [source], [f"{target}:rounded"], to=kind))
        nodes.append(helper.make_node("Cast", [f"{target}:rounded"], [target], to=TensorProto.FLOAT))

    # Weights stay unchanged in their file; their readers get them as float32.
    widened = {tensor.name: f"{tensor.name}:float" for tensor in graph.initializer if tensor.data_type in halves}
    nodes.extend(helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT) for name, wide in widened.items())
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = widened.get(name, name)
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in halves:
                attribute.i = TensorProto.FLOAT
            elif attribute.HasField("t") and attribute.t.data_type in halves:
                values = numpy_helper.to_array(attribute.t).astype(np.float32)
                attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))
        made = [(index, name) for index, name in enumerate(node.output) if types.get(name) in halves]
        for index, name in made:
            node.output[index] = f"{name}:exact"
        nodes.append(node)
        for _, name in made:
            rounded(f"{name}:exact", name, types[name])
    del graph.node[:]
    graph.node.extend(nodes)
    graph.ClearField("value_info")
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in halves:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return proto


def _types(proto: Any) -> dict[str, int]:
    """Element type by tensor name."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(proto).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    types = {value.name: int(value.type.tensor_type.elem_type) for value in values}
    types.update((tensor.name, int(tensor.data_type)) for tensor in graph.initializer)
    return types
