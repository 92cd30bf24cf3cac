"""One variant: the model with its merges and its head for one length, in torch and as an ONNX file."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import AdaptationKind, InputTensor
from arlo.catalog.schedule import clamped, merge_schedule, merged_multiplications
from arlo.catalog.tasks import NO_CLASS, TASK, task_input
from arlo.compile.adapt.merge import FAMILIES, PROTECTED, merging_body, pool_merged, spread
from arlo.compile.original import load_original
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.spec import ROWS
from arlo.compile.steps.export import traced
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import ConfigError

if TYPE_CHECKING:
    import torch

PROMPTED: tuple[AdaptationKind, ...] = ("prompt", "prefix")
KEPT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """A linear classifier on the pooled embedding: weight [classes, width], bias [classes]."""

    labels: tuple[str, ...]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class Heads:
    """The classifiers of several tasks on one body, by number; in the graph they are one table that the input `task`
    indexes (arlo.catalog.tasks). room: classes per task in the table, so that tasks may be added later."""

    of: Mapping[str, Head]
    room: int

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """The labels of each task."""
        return {name: head.labels for name, head in self.of.items()}

    def tables(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weights [tasks, room, width] and biases [tasks, room]."""
        heads = list(self.of.values())
        weight = np.zeros((len(heads), self.room, heads[0].weight.shape[1]), np.float32)
        bias = np.full((len(heads), self.room), NO_CLASS, np.float32)
        for number, head in enumerate(heads):
            weight[number, : len(head.labels)] = head.weight
            bias[number, : len(head.labels)] = head.bias
        return weight, bias


def inputs_of(model: SourceModel, head: Head | Heads | None) -> tuple[InputTensor, ...]:
    """Inputs of the model's variants: those of the model, and `task` if it has several."""
    return model.inputs + ((task_input(len(head.of)),) if isinstance(head, Heads) else ())


def torch_head(head: Head | Heads) -> Any:
    """A torch module from pooled [rows, width], and `task` [rows, 1] of several, to logits [rows, classes]."""
    import torch

    if isinstance(head, Head):
        linear = torch.nn.Linear(head.weight.shape[1], head.weight.shape[0])
        linear.weight.data, linear.bias.data = torch.from_numpy(head.weight), torch.from_numpy(head.bias)
        return linear
    weight, bias = map(torch.from_numpy, head.tables())

    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)

        def forward(self, pooled: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
            of = task[:, 0]
            logits: torch.Tensor = (self.weight[of] @ pooled.unsqueeze(-1)).squeeze(-1) + self.bias[of]
            return logits

    return Chosen()


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The merges of one variant, or its prompts."""

    length: int
    merge: int  # tokens a layer
    schedule: tuple[int, ...]
    multiplications: float  # of the layers, a row
    kind: AdaptationKind = "merge"

    @property
    def count_name(self) -> str:
        """The short name of the token count: `m4`, or `p4` with prompts."""
        return f"{'p' if self.prompted else 'm'}{self.merge}"

    @property
    def name(self) -> str:
        """The short name of the variant, such as `m4-128`."""
        return f"{self.count_name}-{self.length}"

    @property
    def prompted(self) -> bool:
        """Whether it has prompts."""
        return self.kind in PROMPTED

    @property
    def tokens(self) -> int:
        """Tokens that each layer adds (above 0) or merges away (below 0)."""
        return self.merge if self.prompted else -self.merge

    @property
    def adaptation(self) -> AdaptationKind:
        """The adaptation's name in manifests."""
        return self.kind if any(self.schedule) else "none"


def shape_of(model: SourceModel) -> tuple[int, int]:
    """Layers of an encoder, and their width."""
    config = json.loads((model.folder / "config.json").read_text())
    return int(config["num_hidden_layers"]), int(config["hidden_size"])


def plan_variant(model: SourceModel, length: int, merge: int, kind: AdaptationKind = "merge") -> Plan:
    """Plan a variant. merge: tokens merged per layer, or its prompts, whose work the caller knows.

    ConfigError if a layer would have too few tokens left, because accuracy drops there.
    """
    layers, width = shape_of(model)
    if kind in PROMPTED:
        if model.task != "embedding":
            raise ConfigError("--prompts are trained on a body that gives embeddings")
        return Plan(length, merge, (merge,) * layers, 0.0, kind)
    return merge_plan(length, merge, layers, width, PROTECTED)


def merge_plan(length: int, merge: int, layers: int, width: int, protected: int) -> Plan:
    """The variant that merges `merge` tokens a layer. ConfigError if a layer has too few for that."""
    if clamped(length, layers, merge, protected=protected):
        raise ConfigError(
            f"--merge {merge}: {length} tokens are too few to merge {merge} away in each of {layers} layers: "
            "merge fewer, or name a greater length (of pictures: take larger ones)"
        )
    schedule = merge_schedule(length, layers, merge, protected=protected)
    return Plan(length, merge, tuple(schedule), merged_multiplications(length, schedule, width=width))


def check_family(model: SourceModel) -> None:
    """Raise ConfigError for a model that cannot be adapted."""
    if model.onnx is not None:
        raise ConfigError("arlo adapt needs a model folder: the layers of an ONNX file cannot be told apart")
    if model.layers:
        raise ConfigError(
            f"arlo adapt takes no model with Dense or LayerNorm behind the pooling, as {model.source} has"
        )
    if model.model_type not in FAMILIES:
        raise ConfigError(
            f"arlo adapt cannot merge tokens of the family {model.model_type!r}, whose positions are not in the tokens "
            f"or whose layers are other: it takes {', '.join(FAMILIES)}"
        )
    if model.task not in ("embedding", "sequence-classification", "reranker", "token-classification"):
        raise ConfigError(f"arlo adapt cannot serve {model.task}: merged tokens are no places where an answer begins")


def torch_variant(
    model: SourceModel, plan: Plan, head: Head | Heads | None = None, prompts: Callable[[Any], Any] | None = None
) -> Any:
    """A torch module from the variant's inputs by position, [rows, length] each, and `task` [rows, 1] of several, to
    [rows, answer]; of a token classifier to [rows, length, labels]. prompts: makes the body with prompts of the plain
    one."""
    with known_noise_silenced():
        import torch

        original = load_original(model, attention="eager")
    body = getattr(original, original.base_model_prefix, original)
    merging = prompts(body) if prompts is not None else merging_body(body, plan.schedule)
    names = [tensor.name for tensor in inputs_of(model, head)]

    class Variant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.merging = merging
            self.original: Any = original if model.task != "embedding" else None
            self.head: Any = None if head is None else torch_head(head)

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            given = dict(zip(names, tensors, strict=True))
            if model.task == "token-classification":
                left, places = self.merging.unmerged(
                    given["input_ids"], given["attention_mask"], given.get("token_type_ids")
                )
                said: torch.Tensor = spread(self.original.classifier(left), places)
                return said
            tasks = (given[TASK],) if TASK in given else ()
            hidden, size = self.merging(
                given["input_ids"], given["attention_mask"], given.get("token_type_ids"), *(tasks if prompts else ())
            )
            if self.original is not None:
                pooler = getattr(self.merging.body, "pooler", None)
                logits: torch.Tensor = self.original.classifier(hidden if pooler is None else pooler(hidden))
                return logits
            pooled = pool_merged(hidden, size, model.pooling, normalize=model.normalize)
            return pooled if self.head is None else self.head(pooled, *tasks)

    return Variant().eval()


def export_variant(
    model: SourceModel, head: Head | Heads | None, variant: Any, given: Mapping[str, NDArray[Any]], folder: Path
) -> Path:
    """Write `model.onnx` for any number of rows, with its accompanying files next to it. given: the inputs of two rows.
    CompileError when torch cannot export it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    with known_noise_silenced():
        import torch

        axes = {0: torch.export.Dim(ROWS)}
        tensors = [torch.from_numpy(array) for array in given.values()]
        outputs = ["logits" if head is not None or model.task != "embedding" else "sentence_embedding"]
        problem = f"adapt: torch.onnx cannot export {folder.name}"
        program = traced(variant, tensors, list(given), outputs, axes=axes, problem=problem)
        program.save(str(path), external_data=False)
    config = json.loads((model.folder / "config.json").read_text())
    labels = head.labels if isinstance(head, Head) else model.labels
    if isinstance(head, Heads):
        config["arlo_tasks"] = head.labels
    elif labels:
        config["id2label"] = dict(enumerate(labels))
        config["label2id"] = {label: number for number, label in enumerate(labels)}
    if head is not None or labels:  # the fitted head is of one label a row
        for field in ("problem_type", "sentence_transformers", "sbert_ce_default_activation_function"):
            config.pop(field, None)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in KEPT_FILES:
        if (model.tokenizer_folder / name).is_file():
            shutil.copyfile(model.tokenizer_folder / name, folder / name)
    return path
