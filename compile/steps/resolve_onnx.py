"""Step 1, resolve, for an ONNX file: its inputs, its outputs, and the parts that cannot be served.

The file is one that `optimum`, `sentence-transformers` or `torch.onnx` wrote: inputs [rows, tokens] named as in
transformers, free axes. The config.json, modules.json and tokenizer files of the model may lie next to it, or in the
parent of a folder called `onnx`; `options.tokenizer` names another folder for these.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.manifest import InputTensor
from arlo.catalog.tasks import TASK
from arlo.compile.cache import Hasher, tool_versions
from arlo.compile.options import CompileOptions
from arlo.compile.spec import axes_of
from arlo.compile.steps.resolve_tensors import tensor_inputs
from arlo.errors import ConfigError

if TYPE_CHECKING:
    import onnx

ANSWER_SPAN = ("start_logits", "end_logits")
"""Outputs of question answering, [rows, tokens] each."""
ROLES = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "other"}
# Of ONNX Runtime 1.31; TensorRT-RTX 1.7 reads all of these. What is below 13 is converted by the export.
OPSETS = range(7, 27)
_INTEGERS = {6: "INT32", 7: "INT64"}  # by TensorProto.DataType
_FLOATS = {1: "fp32", 10: "fp16", 16: "bf16"}
_DECODER_INPUT = re.compile(
    r"^(past_key_values|past\.|past_|decoder_|encoder_hidden_states|use_cache_branch|cache_position)"
)
_WHOLE_PROTO_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """The description of an ONNX file."""

    inputs: dict[str, str]  # name -> INT64 or INT32; in the order of ROLES
    outputs: dict[str, list[int | str]]  # floating-point outputs: name -> axes; a free axis by name, or ""
    precision: str  # of its weights: fp32, fp16, bf16
    fixed_tokens: int | None  # it takes this length only
    fixed_rows: int | None
    opset: int
    external: tuple[Path, ...]  # files of its weights
    weight_bytes: int
    tensors: tuple[InputTensor, ...] = ()  # in place of inputs
    by_task: bool = False  # it has the input that chooses among tasks


def describe(path: Path) -> Described:
    """Read the graph, without the weights. ConfigError when it cannot be served."""
    proto = _load(path)
    opset = max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    _check_opset(path, opset)
    names = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in names]
    by_task = any(value.name == TASK for value in inputs)
    inputs = [value for value in inputs if value.name != TASK]
    tensors: tuple[InputTensor, ...] = ()
    if any(len(axes_of(value)) > 2 for value in inputs) and all(value.name not in ROLES for value in inputs):
        tensors = tensor_inputs(path, inputs)
    else:
        _check_inputs(path, [value.name for value in inputs])
    by_name = {value.name: value for value in inputs}
    kinds, rows, tokens = {}, set(), set()
    for name in (name for name in ROLES if name in by_name):
        kind = by_name[name].type.tensor_type
        axes = axes_of(by_name[name])
        if kind.elem_type not in _INTEGERS or len(axes) != 2:
            raise ConfigError(f"{path}: {name} must be INT64 or INT32 of the shape [rows, tokens], not {axes}")
        kinds[name] = _INTEGERS[kind.elem_type]
        rows.add(axes[0])
        tokens.add(axes[1])
    external, bytes_outside = _external(path, proto)
    outputs = _outputs(path, proto)
    if tensors:
        rows = {axes_of(value)[0] for value in inputs}
        outputs = {name: axes for name, axes in outputs.items() if len(axes) == 2}
        if not outputs:
            raise ConfigError(f"{path} has no output of the shape [rows, numbers]: of tensors, only rows are answered")
    return Described(
        inputs=kinds,
        outputs=outputs,
        precision=_precision(proto),
        fixed_tokens=next((axis for axis in tokens if isinstance(axis, int)), None),
        fixed_rows=next((axis for axis in rows if isinstance(axis, int)), None),
        opset=opset,
        external=external,
        weight_bytes=bytes_outside or path.stat().st_size,
        tensors=tensors,
        by_task=by_task,
    )


def metadata_folders(path: Path, options: CompileOptions) -> list[Path]:
    """Where config.json, modules.json and the tokenizer may lie, most wanted first."""
    beside = [path.parent] + ([path.parent.parent] if path.parent.name == "onnx" else [])
    if options.tokenizer is None:
        return beside
    if not options.tokenizer.is_dir():
        raise ConfigError(f"tokenizer {options.tokenizer} is not a folder: give the one that holds tokenizer.json")
    return [options.tokenizer, *beside]


def task_of(path: Path, options: CompileOptions, found: Described) -> str:
    """The requested task, or the one that the outputs imply; ConfigError if these conflict.

    `logits` [rows, 1]: reranker; [rows, labels]: sequence classification; [rows, tokens, labels]: token classification;
    `start_logits` and `end_logits`: question answering; neither: embedding.
    """
    if found.tensors:
        if options.task not in ("auto", "embedding"):
            raise ConfigError(f"{path} takes no token ids: leave --task out")
        return "classification" if "logits" in found.outputs and options.task == "auto" else "embedding"
    logits = found.outputs.get("logits")
    span = [found.outputs.get(name) for name in ANSWER_SPAN]
    if options.task == "question-answering" or (options.task == "auto" and all(span)):
        if any(axes is None or len(axes) != 2 for axes in span):
            raise ConfigError(
                f"{path} has no outputs {' and '.join(ANSWER_SPAN)} [rows, tokens]: choose another --task"
            )
        return "question-answering"
    if options.task == "embedding" or (options.task == "auto" and logits is None):
        return "embedding"
    if logits is None:
        raise ConfigError(f"{path} has no output `logits`, only {_listed(found.outputs)}: choose --task embedding")
    token_level = len(logits) == 3
    if options.task == "auto":
        return "token-classification" if token_level else "reranker" if logits[-1] == 1 else "sequence-classification"
    if token_level != (options.task == "token-classification"):
        raise ConfigError(f"{path}: logits {logits} are not those of {options.task}: choose another --task")
    return options.task


def check_shape(path: Path, options: CompileOptions, found: Described) -> None:
    """ConfigError when the file fixes an axis that the build needs free."""
    tokens, rows = found.fixed_tokens, found.fixed_rows
    if tokens is not None and (options.lengths != (tokens,) or options.dynamic or options.profiles):
        raise ConfigError(
            f"{path} takes {tokens} tokens and no other number: export it again with free axes (dynamic_axes), or ask "
            f"for that one length without a dynamic runtime: --lengths {tokens} --no-dynamic"
        )
    if rows is not None and (rows != 1 or options.max_batch != 1):
        raise ConfigError(
            f"{path} takes batches of {rows} rows and no others: export it again with free axes (dynamic_axes)"
            + (", or ask for --max-batch 1" if rows == 1 else "")
        )


def check_precision(path: Path, options: CompileOptions, found: Described) -> None:
    """ConfigError when the file cannot be brought to the precision that is asked for."""
    if options.precision == found.precision or (options.precision, found.precision) == ("fp16", "fp32"):
        return
    if found.precision == "fp32":
        raise ConfigError(
            f"{path} computes in fp32 and a file is converted to fp16 only: ask for --precision fp16, "
            "or give the Hugging Face folder, which is exported in any precision"
        )
    raise ConfigError(f"{path} computes in {found.precision}: ask for --precision {found.precision}")


def hashes_of(path: Path, found: Described, hasher: Hasher) -> dict[str, str]:
    """Name -> sha256 of the file and of its weights."""
    return {file.name: hasher.file(file) for file in (path, *found.external)}


def _load(path: Path) -> onnx.ModelProto:
    tool_versions("onnx")
    import onnx

    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf and onnx raise their own kinds
        raise ConfigError(
            f"{path} is not an ONNX file ({error}): give a model exported to ONNX, or its folder"
        ) from None
    if not proto.graph.node or not proto.graph.output:
        raise ConfigError(
            f"{path} is not an ONNX model (it has no graph): give a model exported to ONNX, or its folder"
        )
    return proto


def _check_opset(path: Path, opset: int) -> None:
    if opset in OPSETS:
        return
    if opset < OPSETS.start:
        advice = "convert it with onnx.version_converter.convert_version(model, 18), or export it again with opset 18"
    else:
        advice = f"export it again with an opset of {OPSETS.stop - 1} at most, such as 18"
    raise ConfigError(
        f"{path} has opset {opset or 'none'} and the engines take {OPSETS.start} to {OPSETS.stop - 1}: {advice}"
    )


def _check_inputs(path: Path, names: list[str]) -> None:
    if any(map(_DECODER_INPUT.search, names)):
        raise ConfigError(
            f"{path} is the graph of a decoder (it takes {_listed(names)}): Arlo serves encoders such as BERT"
        )
    for name in ("input_ids", "attention_mask"):
        if name not in names:
            raise ConfigError(
                f"{path} has no input {name}, only {_listed(names)}: export it again with the inputs of transformers; "
                "without a mask, padding would change the answers"
            )
    unknown = [name for name in names if name not in ROLES]
    if unknown:
        raise ConfigError(
            f"{path} takes {_listed(unknown)}, which the gateway cannot make: export it again without; it may take "
            f"{_listed(list(ROLES))}"
        )


def _outputs(path: Path, proto: onnx.ModelProto) -> dict[str, list[int | str]]:
    """Floating-point outputs of a row or of its tokens, with the shapes that can be inferred."""
    import onnx

    if proto.ByteSize() < _WHOLE_PROTO_BYTES:  # the weights may lie in it, and the inference copies them
        proto = onnx.shape_inference.infer_shapes(proto)
    found = {
        value.name: axes_of(value)
        for value in proto.graph.output
        if value.type.tensor_type.elem_type in _FLOATS and len(axes_of(value)) in (2, 3)
    }
    if not found:
        raise ConfigError(
            f"{path} has no output of the shape [rows, numbers] or [rows, tokens, numbers] in floating point, only "
            f"{_listed([value.name for value in proto.graph.output])}: give an encoder"
        )
    return found


def _precision(proto: onnx.ModelProto) -> str:
    """The floating-point type that most weights have."""
    counts = dict.fromkeys(_FLOATS, 0)
    for tensor in proto.graph.initializer:
        if tensor.data_type in counts:
            size = 1
            for axis in tensor.dims:
                size *= axis
            counts[tensor.data_type] += size
    return _FLOATS[max(counts, key=lambda kind: counts[kind])]


def _external(path: Path, proto: onnx.ModelProto) -> tuple[tuple[Path, ...], int]:
    """Weight files next to the graph, all complete, and their bytes."""
    ends: dict[str, int] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            place = {entry.key: entry.value for entry in tensor.external_data}
            end = int(place.get("offset", 0)) + int(place.get("length", 0))
            ends[place["location"]] = max(end, ends.get(place["location"], 0))
    files: dict[Path, int] = {}
    for location, end in ends.items():
        file = path.parent / location
        if Path(location).is_absolute() or ".." in Path(location).parts:
            raise ConfigError(f"{path} names weights outside its folder ({location}): save it again beside its weights")
        if not file.is_file():
            raise ConfigError(f"{path} lacks its weights ({location}): copy that file beside it")
        if file.stat().st_size < end:
            raise ConfigError(
                f"{file} has {file.stat().st_size} bytes where {end} are named by {path.name}: copy it again"
            )
        files[file] = file.stat().st_size
    return tuple(files), sum(files.values())


def _listed(names: Any) -> str:
    shown = list(names)
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
