"""The server's description of a model, as value objects, and the client's reading of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from tritonclient.grpc import model_config_pb2

from arlo.client.errors import InvalidRequestError

Role = Literal["ids", "mask", "other"]
T = TypeVar("T")
IDS_DATATYPES = ("INT64", "INT32")
TEXT = "text"  # the input that replaces all others
TASK = "task"  # the input, and the parameter, that gives a row's task


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One input or output. `shape` is rows first, -1 where any size goes; `datatype` a KServe v2 name ("INT64")."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model as its server describes it.

    `max_length` is the longest row in tokens, None when the server does not say. `token_level` names the outputs of
    shape [rows, tokens, ...]; None means that the shapes must tell.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    max_length: int | None = None
    token_level: frozenset[str] | None = None
    labels: tuple[str, ...] = ()  # of a classifier, if the server names them
    label_activation: str = ""  # turns its logits into probabilities; empty: softmax, of one label sigmoid
    tasks: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )  # by their numbers, with their labels

    def is_token_level(self, output: TensorInfo) -> bool:
        """True when the output's second dimension is the row's tokens."""
        if self.token_level is not None:
            return output.name in self.token_level
        return len(output.shape) >= 3 or (len(output.shape) == 2 and output.shape[1] == -1)

    def sentence_output(self) -> str:
        """Name of the one output with a vector per row. InvalidRequestError when there is none, or a choice."""
        names = [t.name for t in self.outputs if not self.is_token_level(t)]
        if len(names) > 1:
            named = [n for n in names if "embed" in n]
            names = named if len(named) == 1 else names
        if len(names) != 1:
            what = f"several outputs with one vector per row ({', '.join(names)})" if names else "no such output"
            known = ", ".join(t.name for t in self.outputs) or "none"
            raise InvalidRequestError(f"model {self.name} has {what}: pass output=, one of {known}")
        return names[0]


def from_server(metadata: Any, config: Any | None) -> ModelInfo:
    """ModelInfo from a ModelMetadataResponse and, if the server has one, a ModelConfigResponse.

    The longest row comes from the configuration's parameter `max_length`, else from a fixed second dimension of the
    inputs. `token_level_outputs` (names joined by commas), `labels` (a JSON list) and `label_activation` are optional.
    """
    parameters = {k: v.string_value for k, v in config.config.parameters.items()} if config is not None else {}
    optional = {t.name for t in config.config.input if t.optional} if config is not None else set()
    inputs = tuple(
        TensorInfo(name=t.name, datatype=t.datatype, shape=tuple(t.shape), optional=t.name in optional)
        for t in metadata.inputs
    )
    outputs = tuple(TensorInfo(name=t.name, datatype=t.datatype, shape=tuple(t.shape)) for t in metadata.outputs)
    fixed = [t.shape[1] for t in inputs if t.datatype != "BYTES" and len(t.shape) == 2 and t.shape[1] > 0]
    text = parameters.get("max_length", "")
    max_length = int(text) if text.isdecimal() and int(text) > 0 else min(fixed, default=None)
    named = parameters.get("token_level_outputs")
    token_level = None if named is None else frozenset(filter(None, (n.strip() for n in named.split(","))))
    return ModelInfo(
        name=metadata.name,
        inputs=inputs,
        outputs=outputs,
        max_length=max_length,
        token_level=token_level,
        labels=tuple(map(str, _read(parameters.get("labels", ""), list))),
        label_activation=parameters.get("label_activation", ""),
        tasks={name: tuple(map(str, labels)) for name, labels in _read(parameters.get("tasks", ""), dict).items()},
    )


def _read(text: str, kind: type[T]) -> T:
    """A JSON value of this kind; anything else is an empty one."""
    try:
        found = json.loads(text)
    except ValueError:
        return kind()
    return found if isinstance(found, kind) else kind()


def to_server(info: ModelInfo) -> tuple[dict[str, Any], Any]:
    """The reverse, for the mock: the fields of a ModelMetadataResponse, and a model_config_pb2.ModelConfig."""
    config = model_config_pb2.ModelConfig(name=info.name)
    for tensor in info.inputs:
        config.input.add(name=tensor.name, optional=tensor.optional)
    if info.max_length is not None:
        config.parameters["max_length"].string_value = str(info.max_length)
    if info.token_level is not None:
        config.parameters["token_level_outputs"].string_value = ",".join(sorted(info.token_level))
    if info.labels:
        config.parameters["labels"].string_value = json.dumps(list(info.labels))
    if info.label_activation:
        config.parameters["label_activation"].string_value = info.label_activation
    if info.tasks:
        config.parameters["tasks"].string_value = json.dumps(info.tasks)

    def tensors(items: tuple[TensorInfo, ...]) -> list[dict[str, Any]]:
        return [{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in items]

    fields = {"name": info.name, "versions": ["1"], "platform": "mock"}
    return {**fields, "inputs": tensors(info.inputs), "outputs": tensors(info.outputs)}, config


def takes_only_text(inputs: tuple[TensorInfo, ...]) -> bool:
    """Whether the server tokenises and accepts text alone: a cascade of stages with different vocabularies."""
    return any(t.name == TEXT and not t.optional for t in inputs) and all(t.datatype == "BYTES" for t in inputs)


def sized_inputs(inputs: tuple[TensorInfo, ...]) -> list[TensorInfo]:
    """The inputs of a fixed size per row: all of a model without token ids; otherwise those that accompany the ids."""
    inputs = tuple(t for t in inputs if t.datatype != "BYTES")
    of_tokens = [t for t in inputs if t.datatype in IDS_DATATYPES and len(t.shape) == 2]
    if len(of_tokens) == len(inputs) and all(t.shape[1] > 0 for t in inputs):  # a Triton model of one length
        return []
    return [t for t in inputs if all(size > 0 for size in t.shape[1:])]


def roles(inputs: tuple[TensorInfo, ...], model: str) -> dict[str, Role]:
    """The inputs that hold the token ids and the attention mask. InvalidRequestError when no input can be the ids.

    The protocol has no field for this, so names decide, the way encoder exports name them: a name with "mask" is the
    mask; "input_ids" is the ids, else the only input left, else the first whose name ends in "ids" and is not a type
    or position.
    """
    inputs = tuple(t for t in inputs if not (t.optional and t.datatype == "BYTES"))  # text, instead of ids
    masks = [t.name for t in inputs if "mask" in t.name]
    rest = [t.name for t in inputs if t.name not in masks]
    ids = [n for n in rest if n == "input_ids"] or (rest if len(rest) == 1 else [])
    if not ids:
        ids = [n for n in rest if n.endswith("ids") and "type" not in n and "position" not in n]
    if not ids or len(masks) > 1:
        names = ", ".join(t.name for t in inputs) or "none"
        raise InvalidRequestError(f"model {model} does not look like a text encoder (inputs: {names})")
    return {n: "ids" if n == ids[0] else "mask" if n in masks else "other" for n in (t.name for t in inputs)}
