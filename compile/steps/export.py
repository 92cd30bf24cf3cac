"""Step 3, export: the original model becomes one ONNX graph with free axes `rows` and `tokens`.

Input: the source folder. Output: `model.onnx` (the graph) and `weights.bin` (all weights, shared by every length).
Cache key: config and weight hashes, task, pooling, versions of the exporters, this code.
Check: the graph has the promised inputs and outputs, with both axes free.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.manifest import InputTensor, OutputTensor
from arlo.compile.cache import Cache, Entry, code_version, tool_versions
from arlo.compile.engines.interface import Precision
from arlo.compile.layers import torch_layers
from arlo.compile.original import load_original
from arlo.compile.pooling import pool_torch
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.spec import GRAPH, ROWS, TOKENS, axes_of
from arlo.compile.steps.cleanup import write_with_weights
from arlo.compile.steps.export_precision import prepare_model
from arlo.compile.steps.resolve import SourceModel
from arlo.compile.steps.resolve_onnx import ANSWER_SPAN
from arlo.compile.verify.answers import plain_rows
from arlo.errors import CompileError

if TYPE_CHECKING:
    import torch

OPSET = 18
PICTURE = "embedding"
"""The output of a vision transformer without a head: its class token, after the last norm."""
_CODE = (
    "steps/export",
    "steps/export_precision",
    "steps/export_onnx",
    "steps/cleanup",
    "pooling",
    "layers",
    "original",
    "steps/resolve_onnx",
)


def tools_of(model: SourceModel) -> tuple[str, ...]:
    """The packages that export `model`; an ONNX file needs no torch."""
    return ("onnx", "onnxscript") if model.onnx is not None else ("torch", "transformers", "onnx", "onnxscript")


def export_step(cache: Cache, model: SourceModel, precision: Precision) -> Entry:
    """Entry with the graph and its weights in `precision`; meta: `outputs` (as OutputTensor fields) and `notes`.

    For every precision, the inputs are INT64 and the outputs FP32.
    """
    parts = {
        "hashes": model.hashes,
        "task": model.task,
        "inputs": [tensor.name for tensor in model.inputs],
        "pooling": model.pooling,
        "layers": [layer.kind for layer in model.layers],
        "normalize": model.normalize,
        "positions": model.positions,
        "precision": precision,
        "opset": OPSET,
        "tools": tool_versions(*tools_of(model)),
        "code": code_version(*_CODE),
    }
    return cache.step("export", parts, lambda folder: _export(model, precision, folder))


def outputs_of(entry: Entry) -> tuple[OutputTensor, ...]:
    """The outputs that the export found."""
    return tuple(OutputTensor(**{**fields, "dims": tuple(fields["dims"])}) for fields in entry.meta["outputs"])


def _export(model: SourceModel, precision: Precision, folder: Path) -> dict[str, Any]:
    if model.onnx is not None:
        from arlo.compile.steps.export_onnx import normalise_onnx

        return {"outputs": normalise_onnx(model, precision, folder), "notes": []}
    with known_noise_silenced() as notes:
        import torch
        from onnx_ir.passes.common import ClearMetadataAndDocStringPass

        # Plain ("eager") attention exports to a smaller graph that ONNX Runtime runs faster than that of the fused one.
        original = load_original(model, attention="eager")
        prepare_model(original, precision)
        wrapper = _wrap(model, original)
        # Two rows of nine tokens, one padded: sizes that no other axis of the model has by chance.
        inputs = [torch.from_numpy(array) for array in plain_rows(model.inputs, (9, 6)).values()]
        axes: dict[int, Any] = {0: torch.export.Dim(ROWS)}
        if model.row_length is None:
            axes[1] = torch.export.Dim(TOKENS, max=model.positions)
        program = traced(
            wrapper,
            inputs,
            wrapper.input_names,
            wrapper.output_names,
            axes=axes,
            problem=f"export: torch.onnx cannot export models of the type {model.model_type}: choose a model of "
            "another family (docs/models.md lists those that work), or give an ONNX file of it",
        )
        with torch.inference_mode():
            shapes = [tuple(answer.shape) for answer in wrapper(*inputs)]
        ClearMetadataAndDocStringPass()(program.model)  # debug data is nine tenths of the graph
        write_with_weights(program.model, folder)
        del program, wrapper, original
    outputs = [describe_output(name, shape) for name, shape in zip(_output_names(model), shapes, strict=True)]
    _check_graph(folder / GRAPH, model.inputs, [output["name"] for output in outputs])
    return {"outputs": outputs, "notes": notes}


def traced(
    module: Any,
    given: Sequence[torch.Tensor],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    axes: Mapping[int, Any],
    problem: str,
) -> Any:
    """The ONNX program of a torch module, which takes its inputs as one variable list of arguments.

    given: an example of each input, whose `axes` are free. CompileError, `problem` and its cause, when torch fails.
    """
    import torch

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where it fails, torch prints the whole graph
            program = torch.onnx.export(
                module,
                tuple(given),
                dynamo=True,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=(tuple(dict(axes) for _ in given),),
                verbose=False,
            )
    except Exception as failure:  # the exporter raises many kinds, pages long; the first line of the innermost says it
        error: BaseException = failure
        while error.__cause__ is not None:
            error = error.__cause__
        cause = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        raise CompileError(f"{problem} ({cause})") from failure
    assert program is not None
    return program


def _output_names(model: SourceModel) -> list[str]:
    if model.row_length is not None:
        return [PICTURE if model.task == "embedding" else "logits"]
    if model.task == "embedding":
        return ["sentence_embedding", "last_hidden_state"]
    return list(ANSWER_SPAN) if model.task == "question-answering" else ["logits"]


def _wrap(model: SourceModel, original: Any) -> Any:
    """A torch module that takes the inputs by position and gives the outputs of the task, by position."""
    import torch

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.original = original
            self.input_names = [tensor.name for tensor in model.inputs]
            self.output_names = _output_names(model)
            self.layers = torch_layers(model.layers, normalize=model.normalize)

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            named = dict(zip(self.input_names, tensors, strict=True))
            answer = self.original(**named)
            if model.task != "embedding":
                return tuple(answer[name].float() for name in self.output_names)
            hidden = answer.last_hidden_state.float()
            if model.row_length is not None:
                return (hidden[:, 0],)
            return self.layers(pool_torch(hidden, named["attention_mask"], model.pooling)), hidden

    return Wrapper().eval()


def describe_output(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """The fields of OutputTensor for an output whose shape for two rows this is."""
    token_level = len(shape) == 3 or name in ANSWER_SPAN
    return {
        "name": name,
        "datatype": "FP32",
        "token_level": token_level,
        "dims": list(shape[2 if token_level else 1 :]),
    }


def _check_graph(path: Path, inputs: Sequence[InputTensor], outputs: list[str]) -> None:
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    for wanted, values in (([tensor.name for tensor in inputs], graph.input), (outputs, graph.output)):
        if [value.name for value in values] != wanted:
            raise CompileError(f"export: the graph has {[value.name for value in values]} where {wanted} were expected")
    for tensor, value in zip(inputs, graph.input, strict=True):
        if axes_of(value) != [ROWS, *(tensor.dims if tensor.role == "tensor" else [TOKENS])]:
            raise CompileError(
                f"export: the axes of {value.name} came out as {axes_of(value)}: the model fixes its input shape"
            )
