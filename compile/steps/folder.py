"""What a model folder says besides config.json and the weights, read as sentence-transformers and transformers read it.

modules.json makes it a sentence-transformers folder, and then the files of its modules count. Without one that library
starts from the transformer alone: mean pooling, no prompts, the limit of the tokenizer. So does this reader.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path, PurePosixPath
from typing import Any

from arlo.compile.cache import Hasher
from arlo.compile.layers import Layer
from arlo.errors import ConfigError

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
# Older folders name the modes by switches; the order is that in which sentence-transformers concatenates them.
_POOLING_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Files of the module Transformer; the first that says something counts.
_TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_TRANSFORMER_TASKS = ("feature-extraction", "sequence-classification")
_ACTIVATIONS = {
    **{"Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid"},
    "Identity": "",
}
_SUPPORTED = "Transformer, Pooling, Dense, LayerNorm, Normalize and Dropout"
# Of these at least one is in every folder with a tokenizer.
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "merges.txt", "bpe.codes", "*.tiktoken")
_WEIGHTS = (".safetensors", ".bin", ".onnx", ".data", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".npz", ".ckpt")
_NO_LIMIT = 10**20  # as transformers: what is larger stands for no limit
_EMBEDDING = "sentence_embedding"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A model folder; its defaults are those of a folder without modules.json."""

    root: Path
    transformer: Path  # holds config.json, the weights and the tokenizer
    found: bool = False  # there is a modules.json
    pooling: tuple[str, ...] = ("mean",)
    layers: tuple[Layer, ...] = ()  # between the pooling and the last Normalize
    normalize: bool = False
    lower_case: bool = False  # the text, before the tokenizer
    longest: int | None = None  # tokens that a text may have, positions aside
    longest_by: str = ""  # the file and the key that say so
    tokenizer_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # for AutoTokenizer
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""  # name of the prompt of requests that name none; "": none
    dimensions: int = 0  # to which vectors are cut; 0: whole
    saved: dict[str, Any] = dataclasses.field(default_factory=dict)  # config_sentence_transformers.json


def read_folder(root: Path) -> Folder:
    """Read modules.json and what it names. ConfigError for what cannot be served as the folder says."""
    settings = root / "config_sentence_transformers.json"
    folder = Folder(root=root, transformer=root)
    if not (root / "modules.json").is_file():  # then the libraries do not look at the settings either
        return _with_limit(folder)
    saved = read_object(settings) if settings.is_file() else {}
    folder = dataclasses.replace(folder, found=True, pooling=(), saved=saved)
    listed = read_json(root / "modules.json", "it cannot be read")
    for module in listed if isinstance(listed, list) else [None]:
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise ConfigError(f"{root / 'modules.json'} does not list modules: copy the model folder again")
        kind, path = module["type"].rpartition(".")[2], PurePosixPath(str(module.get("path", "")))
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"{root / 'modules.json'} names {path}, which is outside the folder: move it inside")
        if not module["type"].startswith("sentence_transformers."):
            raise ConfigError(
                f"{root / 'modules.json'} has a module of its own code, {module['type']}, which Arlo does not run: "
                "give an ONNX file of the model"
            )
        folder = _with_module(folder, kind, root / path)
    return _with_settings(_with_limit(folder))


def read_json(path: Path, problem: str) -> Any:
    """The content of a JSON file; ConfigError where it is missing (`problem` says what that means) or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path.parent} has no {path.name}: {problem}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): copy the model folder again") from None


def read_object(path: Path, problem: str = "it cannot be read") -> dict[str, Any]:
    """The same of a file that holds an object."""
    found = read_json(path, problem)
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object: copy the model folder again")
    return found


def has_tokenizer(folder: Path) -> bool:
    """Whether there is any file that a tokenizer may be made from."""
    return any(path.is_file() for pattern in _TOKENIZER_FILES for path in folder.glob(pattern))


def small_files(folder: Path, hasher: Hasher) -> dict[str, str]:
    """sha256 of all files in the folder but weights: a tokenizer may be made from any of them."""
    files = [path for path in sorted(folder.glob("*")) if path.is_file() and path.suffix not in _WEIGHTS]
    return {path.name: hasher.file(path) for path in files}


def _with_module(folder: Folder, kind: str, path: Path) -> Folder:
    if kind == "Transformer":
        return _with_transformer(folder, path)
    pooled = bool(folder.pooling)
    if kind == "Pooling" and not pooled:
        return dataclasses.replace(folder, pooling=_pooling(path / "config.json"))
    if kind == "Dropout":
        return folder
    if not pooled or kind not in ("Dense", "LayerNorm", "Normalize"):
        where = "" if pooled or kind not in ("Dense", "LayerNorm", "Normalize") else " before the pooling"
        raise ConfigError(
            f"{folder.root / 'modules.json'} has a module {kind}{where}, which cannot be compiled: supported are "
            f"{_SUPPORTED}, in this order from the pooling on"
        )
    config = read_object(path / "config.json") if (path / "config.json").is_file() else {}
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, _EMBEDDING):
            raise ConfigError(
                f"{path / 'config.json'}: {key} = {config[key]!r} cannot be compiled: only the embedding is changed "
                "behind the pooling"
            )
    if kind == "Normalize":  # one that is followed by others is a layer
        return dataclasses.replace(folder, layers=_closed(folder), normalize=True)
    made = _dense(path, config) if kind == "Dense" else (_layer_norm(path, config),)
    return dataclasses.replace(folder, layers=(*_closed(folder), *made), normalize=False)


def _closed(folder: Folder) -> tuple[Layer, ...]:
    return (*folder.layers, *([Layer("normalize")] if folder.normalize else []))


def _with_transformer(folder: Folder, path: Path) -> Folder:
    name, config = "", {}
    for name in _TRANSFORMER_FILES:
        if (path / name).is_file() and (config := read_object(path / name)):
            break
    task = config.get("transformer_task", _TRANSFORMER_TASKS[0])
    if task not in _TRANSFORMER_TASKS:
        raise ConfigError(
            f"{path / name}: transformer_task {task!r} cannot be served: supported are "
            f"{' and '.join(_TRANSFORMER_TASKS)}"
        )
    modalities = config.get("modality_config") or {}
    outputs = {each.get("method_output_name") for each in modalities.values() if isinstance(each, dict)}
    if "message" in modalities or not outputs <= {"last_hidden_state", "logits"}:
        raise ConfigError(
            f"{path / name}: modality_config asks for chat templates or for another output than last_hidden_state, "
            "which cannot be served"
        )
    for keys in (("config_kwargs", "config_args"), ("processing_kwargs",)):
        if key := next((key for key in keys if config.get(key)), None):
            raise ConfigError(f"{path / name}: {key} cannot be served: write what it changes into config.json")
    options = dict(config.get("processor_kwargs") or config.get("tokenizer_args") or {})
    options.pop("trust_remote_code", None)
    longest = config.get("max_seq_length")
    if _is_limit(longest) and "model_max_length" not in options:
        folder = dataclasses.replace(folder, longest=int(longest), longest_by=f"{name}: max_seq_length")
    return dataclasses.replace(
        folder, transformer=path, lower_case=bool(config.get("do_lower_case")), tokenizer_options=options
    )


def _is_limit(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < _NO_LIMIT


def _with_limit(folder: Folder) -> Folder:
    """max_seq_length overrides model_max_length of the tokenizer, as in sentence-transformers."""
    if folder.longest is not None:
        return folder
    name = "tokenizer_config.json"
    files = [path / name for path in (folder.transformer, folder.root) if (path / name).is_file()]
    config = read_object(files[0]) if files else {}
    for settings in (folder.tokenizer_options, config):
        key = "model_max_length" if "model_max_length" in settings else "max_len"
        if settings.get(key) is not None:
            if not _is_limit(settings[key]):
                return folder
            return dataclasses.replace(folder, longest=int(settings[key]), longest_by=f"{name}: {key}")
    return folder


def _pooling(path: Path) -> tuple[str, ...]:
    config = read_object(path, "the pooling is not described")
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for switch, mode in _POOLING_SWITCHES.items() if config.get(switch)] or ["mean"]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    for mode in modes:
        if mode not in POOLING_MODES:
            raise ConfigError(f"{path}: pooling {mode!r} is unknown: use {', '.join(POOLING_MODES)}")
    return modes


def _dense(path: Path, config: dict[str, Any]) -> tuple[Layer, ...]:
    said = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = _ACTIVATIONS.get(said.rpartition(".")[2]) if said.startswith("torch.") else None
    if activation is None:
        raise ConfigError(
            f"{path / 'config.json'}: activation {said} cannot be compiled: supported are {', '.join(_ACTIVATIONS)} of "
            "torch.nn"
        )
    if config.get("use_residual"):
        raise ConfigError(f"{path / 'config.json'}: use_residual cannot be compiled: train the layer without")
    sizes = [config.get(key) for key in ("in_features", "out_features")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ConfigError(f"{path / 'config.json'} does not say in_features and out_features: copy the folder again")
    bias = "" if config.get("bias", True) else ":nobias"
    linear = Layer(f"linear:{sizes[0]}:{sizes[1]}{bias}", _weights(path))
    return (linear, Layer(activation)) if activation else (linear,)


def _layer_norm(path: Path, config: dict[str, Any]) -> Layer:
    if not isinstance(config.get("dimension"), int):
        raise ConfigError(f"{path / 'config.json'} does not say the dimension of the LayerNorm: copy the folder again")
    return Layer(f"layernorm:{config['dimension']}", _weights(path))


def _weights(path: Path) -> Path:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / name).is_file():
            return path / name
    raise ConfigError(f"{path} has no weights (model.safetensors or pytorch_model.bin): copy the model folder again")


def _with_settings(folder: Folder) -> Folder:
    """With what config_sentence_transformers.json says: the prompts, and the size of the vectors."""
    path, config = folder.root / "config_sentence_transformers.json", folder.saved
    kind = config.get("model_type", "SentenceTransformer")
    if kind not in ("SentenceTransformer", "CrossEncoder"):
        raise ConfigError(
            f"{path} is of a {kind}, whose answers Arlo does not serve: give a dense encoder or a reranker"
        )
    raw = config.get("prompts")
    prompts = {str(name): text or "" for name, text in raw.items()} if isinstance(raw, dict) else {}
    if not all(isinstance(text, str) for text in prompts.values()):
        raise ConfigError(f"{path}: prompts are texts by name")
    default = config.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise ConfigError(f"{path}: default_prompt_name {default!r} is none of its prompts ({', '.join(prompts)})")
    dimensions = config.get("truncate_dim") or 0
    if not isinstance(dimensions, int) or dimensions < 0:
        raise ConfigError(f"{path}: truncate_dim {dimensions!r} is not a whole number above 0")
    if any(prompts.values()) and folder.pooling:
        _refuse_hidden_prompts(folder)
    return dataclasses.replace(folder, prompts=prompts, default_prompt=default, dimensions=dimensions)


def _refuse_hidden_prompts(folder: Folder) -> None:
    """Workers are not told which tokens are the prompt's, so none can be left out of the pooling."""
    for module in read_json(folder.root / "modules.json", ""):
        path = folder.root / str(module.get("path", "")) / "config.json"
        if module["type"].endswith(".Pooling") and not read_object(path).get("include_prompt", True):
            raise ConfigError(
                f"{path}: include_prompt = false cannot be served with prompts: remove the prompts from "
                "config_sentence_transformers.json, or use a model that pools them too"
            )
