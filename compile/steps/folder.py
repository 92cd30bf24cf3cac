"""The files of a model folder besides config.json and the weights, read like sentence-transformers and transformers do.

A folder with modules.json is a sentence-transformers folder, and the files of its modules count. Without it, that
library starts from the transformer alone: mean pooling, no prompts, the limit of the tokenizer. So does this reader.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar, cast, overload

from arlo.compile.cache import Hasher
from arlo.compile.layers import Layer
from arlo.errors import ConfigError, printable

T = TypeVar("T")

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
# Keys of these files that are read, or change nothing that is served; sentence-transformers has further ones.
_TRANSFORMER_KEYS = (
    *("transformer_task", "modality_config", "module_output_name", "processor_kwargs", "tokenizer_args"),
    *("max_seq_length", "do_lower_case", "unpad_inputs"),
)
# Options that sentence-transformers takes from its caller, never from the folder.
_OF_CALLER = ("subfolder", "token", "cache_dir", "revision", "local_files_only", "trust_remote_code")
_ACTIVATIONS = {
    **{"Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid"},
    "Identity": "",
}
_SUPPORTED = "Transformer, Pooling, Dense, LayerNorm, Normalize and Dropout"
# Every folder with a tokenizer has at least one of these.
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "merges.txt", "bpe.codes", "*.tiktoken")
_WEIGHTS = (".safetensors", ".bin", ".onnx", ".data", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".npz", ".ckpt")
_NO_LIMIT = 10**20  # the rule of transformers: a larger value means no limit
_EMBEDDING = "sentence_embedding"
_SAVED = "config_sentence_transformers.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """An allowed kind of value in a JSON file, in words and as a check."""

    words: str
    fits: Callable[[Any], bool]


def _is_object_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


TEXT: Kind[str] = Kind("a text", lambda value: isinstance(value, str))
TEXTS: Kind[list[str]] = Kind("a list of texts", lambda value: isinstance(value, list) and all(map(TEXT.fits, value)))
FLAG: Kind[bool] = Kind("true or false", lambda value: isinstance(value, bool))
INTEGER: Kind[int] = Kind("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool))
COUNT: Kind[int] = Kind("a whole number of 0 or more", lambda value: INTEGER.fits(value) and value >= 0)
SIZE: Kind[int] = Kind("a whole number above 0", lambda value: INTEGER.fits(value) and value > 0)
OBJECT: Kind[dict[str, Any]] = Kind("a JSON object", _is_object_of(lambda value: True))
TEXT_BY_NAME: Kind[dict[str, str]] = Kind("an object of texts by name", _is_object_of(TEXT.fits))
TEXTS_BY_NAME: Kind[dict[str, list[str]]] = Kind("an object of lists of texts by name", _is_object_of(TEXTS.fits))
_PROMPTS: Kind[dict[str, str | None]] = Kind(
    "an object of texts by name", _is_object_of(lambda value: value is None or isinstance(value, str))
)
_MODES: Kind[str | list[str]] = Kind("a text or a list of texts", lambda value: TEXT.fits(value) or TEXTS.fits(value))
_LIMIT: Kind[float] = Kind(
    "a whole number above 0",
    lambda value: SIZE.fits(value) or (isinstance(value, float) and value >= 1 and not value % 1),
)


class Settings(dict[str, Any]):
    """The object in a JSON file of the model folder."""

    def __init__(self, found: dict[str, Any], path: Path) -> None:
        super().__init__(found)
        self.path = path

    @overload
    def read(self, key: str, kind: Kind[T], default: None) -> T | None: ...
    @overload
    def read(self, key: str, kind: Kind[T], default: T) -> T: ...
    def read(self, key: str, kind: Kind[T], default: T | None) -> T | None:
        """The value, or the default where the file has none. ConfigError for one of another kind; null is allowed
        where the default is None."""
        value = self.get(key, default)
        if key not in self or (value is None and default is None):
            return default
        if not kind.fits(value):
            raise self.refused(key, f"is not {kind.words}", "correct it, or copy the model folder again")
        return cast(T, value)

    def refused(self, key: str, why: str, remedy: str) -> ConfigError:
        """The error that refuses the value of a key."""
        return ConfigError(
            f"{self.path}: {key} = {printable(json.dumps(self[key], ensure_ascii=False))} {why}: {remedy}"
        )


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
    saved: Settings = dataclasses.field(default_factory=lambda: Settings({}, Path(_SAVED)))


def read_folder(root: Path) -> Folder:
    """Read modules.json and the files it names. ConfigError for settings that cannot be served."""
    path = root / _SAVED
    folder = Folder(root=root, transformer=root)
    if not (root / "modules.json").is_file():  # then the libraries do not look at the settings either
        return _with_limit(folder, Settings({}, root / _TRANSFORMER_FILES[0]))
    saved = read_object(path) if path.is_file() else Settings({}, path)
    folder = dataclasses.replace(folder, found=True, pooling=(), saved=saved)
    kinds = []
    for kind, place in _modules(root):
        folder = _with_module(folder, kind, place)
        kinds.append(kind)
    if kinds[:1] != ["Transformer"] or kinds.count("Transformer") > 1:
        raise ConfigError(
            f"{root / 'modules.json'} lists {', '.join(kinds) or 'no modules'}, which cannot be compiled: it needs one "
            "Transformer, as the first"
        )
    return _with_settings(folder)


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    """The kind of each module of modules.json, and its folder."""
    file = root / "modules.json"
    listed = read_json(file, "it cannot be read")
    for found in listed if isinstance(listed, list) else [None]:
        if not isinstance(found, dict) or "type" not in found:
            raise ConfigError(f"{file} does not list modules: copy the model folder again")
        module = Settings(found, file)
        name, path = module.read("type", TEXT, ""), PurePosixPath(module.read("path", TEXT, ""))
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"{file} names {path}, which is outside the folder: move it inside")
        if not name.startswith("sentence_transformers."):
            raise ConfigError(
                f"{file} has a module of its own code, {name}, which Arlo does not run: give an ONNX file of the model"
            )
        yield name.rpartition(".")[2], root / path


def read_json(path: Path, problem: str) -> Any:
    """The content of a JSON file; ConfigError if it is missing (`problem` explains the consequence) or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
        return found
    except FileNotFoundError:
        raise ConfigError(f"{path.parent} has no {path.name}: {problem}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): copy the model folder again") from None


def read_object(path: Path, problem: str = "it cannot be read") -> Settings:
    """The content of a JSON file that holds an object."""
    found = read_json(path, problem)
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object: copy the model folder again")
    return Settings(found, path)


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
    if kind == "Pooling":
        if pooled:
            raise ConfigError(f"{folder.root / 'modules.json'} has two modules Pooling: keep one")
        return dataclasses.replace(folder, pooling=_pooling(path / "config.json"))
    if kind == "Dropout":
        return folder
    if not pooled or kind not in ("Dense", "LayerNorm", "Normalize"):
        where = "" if pooled or kind not in ("Dense", "LayerNorm", "Normalize") else " before the pooling"
        raise ConfigError(
            f"{folder.root / 'modules.json'} has a module {kind}{where}, which cannot be compiled: supported are "
            f"{_SUPPORTED}, in this order from the pooling on"
        )
    file = path / "config.json"
    config = read_object(file) if file.is_file() else Settings({}, file)
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, _EMBEDDING):
            raise config.refused(key, "cannot be compiled", "only the embedding is changed behind the pooling")
    if kind == "Normalize":  # one that is followed by others is a layer
        return dataclasses.replace(folder, layers=_closed(folder), normalize=True)
    made = _dense(path, config) if kind == "Dense" else (_layer_norm(path, config),)
    return dataclasses.replace(folder, layers=(*_closed(folder), *made), normalize=False)


def _closed(folder: Folder) -> tuple[Layer, ...]:
    return (*folder.layers, *([Layer("normalize")] if folder.normalize else []))


def _with_transformer(folder: Folder, path: Path) -> Folder:
    config = Settings({}, path)
    for name in _TRANSFORMER_FILES:
        if (path / name).is_file() and (config := read_object(path / name)):
            break
    if config.read("transformer_task", TEXT, _TRANSFORMER_TASKS[0]) not in _TRANSFORMER_TASKS:
        supported = f"supported are {' and '.join(_TRANSFORMER_TASKS)}"
        raise config.refused("transformer_task", "cannot be served", supported)
    modalities = config.read("modality_config", OBJECT, {})
    outputs = [each.get("method_output_name") if isinstance(each, dict) else each for each in modalities.values()]
    if "message" in modalities or not all(each in ("last_hidden_state", "logits") for each in outputs):
        raise config.refused(
            "modality_config",
            "asks for chat templates or for another output than last_hidden_state",
            "only text and its tokens' embeddings are served",
        )
    for key, value in config.items():
        if key not in _TRANSFORMER_KEYS and _own_options(value) not in (None, {}):
            into = "write what it changes into config.json" if key in ("config_kwargs", "config_args") else "remove it"
            raise config.refused(key, "cannot be served", into)
    # The older name of two counts.
    key = "tokenizer_args" if "tokenizer_args" in config else "processor_kwargs"
    options = _own_options(config.read(key, OBJECT, {}))
    folder = dataclasses.replace(
        folder, transformer=path, lower_case=bool(config.get("do_lower_case")), tokenizer_options=options
    )
    return _with_limit(folder, config)


def _own_options(options: Any) -> Any:
    """The options without those that are ignored in a folder."""
    if not isinstance(options, dict):
        return options
    return {key: value for key, value in options.items() if key not in _OF_CALLER}


def _with_limit(folder: Folder, config: Settings) -> Folder:
    """The folder with the model_max_length that AutoTokenizer gets from sentence-transformers or reads itself: the
    first one named. config: of the module Transformer."""
    file = "tokenizer_config.json"
    files = [path / file for path in (folder.transformer, folder.root) if (path / file).is_file()]
    own = read_object(files[0]) if files else Settings({}, folder.transformer / file)
    options = Settings(folder.tokenizer_options, config.path)
    for settings, key in (
        *((options, "model_max_length"), (config, "max_seq_length"), (own, "model_max_length")),
        *((options, "max_len"), (own, "max_len")),
    ):
        if key in settings and (settings is not config or settings[key] is not None):
            said = settings.read(key, _LIMIT, None)
            longest = int(said) if said is not None and said < _NO_LIMIT else None
            return dataclasses.replace(folder, longest=longest, longest_by=f"{settings.path.name}: {key}")
    return folder


def _pooling(path: Path) -> tuple[str, ...]:
    config = read_object(path, "the pooling is not described")
    modes = config.read("pooling_mode", _MODES, [])
    if "pooling_mode" not in config:
        modes = [mode for switch, mode in _POOLING_SWITCHES.items() if config.get(switch)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not modes:
        raise config.refused("pooling_mode", "names no mode", f"use {', '.join(POOLING_MODES)}")
    for mode in modes:
        if mode not in POOLING_MODES:
            raise ConfigError(f"{path}: pooling {mode!r} is unknown: use {', '.join(POOLING_MODES)}")
    return tuple(modes)


def _dense(path: Path, config: Settings) -> tuple[Layer, ...]:
    said = config.read("activation_function", TEXT, "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(said.rpartition(".")[2]) if said.startswith("torch.") else None
    if activation is None:
        supported = f"supported are {', '.join(_ACTIVATIONS)} of torch.nn"
        raise config.refused("activation_function", "cannot be compiled", supported)
    if config.get("use_residual"):
        raise config.refused("use_residual", "cannot be compiled", "train the layer without")
    sizes = [config.read(key, SIZE, 0) for key in ("in_features", "out_features")]
    if not all(sizes):
        raise ConfigError(f"{config.path} does not say in_features and out_features: copy the folder again")
    bias = "" if config.get("bias", True) else ":nobias"
    linear = Layer(f"linear:{sizes[0]}:{sizes[1]}{bias}", _weights(path))
    return (linear, Layer(activation)) if activation else (linear,)


def _layer_norm(path: Path, config: Settings) -> Layer:
    if not (dimension := config.read("dimension", SIZE, 0)):
        raise ConfigError(f"{config.path} does not say the dimension of the LayerNorm: copy the folder again")
    return Layer(f"layernorm:{dimension}", _weights(path))


def _weights(path: Path) -> Path:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / name).is_file():
            return path / name
    raise ConfigError(f"{path} has no weights (model.safetensors or pytorch_model.bin): copy the model folder again")


def _with_settings(folder: Folder) -> Folder:
    """The folder with the settings of config_sentence_transformers.json: the prompts, and the size of the vectors."""
    config = folder.saved
    if config.read("model_type", TEXT, "SentenceTransformer") not in ("SentenceTransformer", "CrossEncoder"):
        raise config.refused("model_type", "has answers that are not served", "give a dense encoder or a reranker")
    prompts = {name: text or "" for name, text in (config.read("prompts", _PROMPTS, None) or {}).items()}
    default = config.read("default_prompt_name", TEXT, None) or ""
    if default in {"query", "document"} - prompts.keys():  # which sentence-transformers has by itself, and empty
        default = ""
    if default and default not in prompts:
        raise config.refused("default_prompt_name", "is none of its prompts", f"they are {', '.join(prompts)}")
    dimensions = config.read("truncate_dim", SIZE, None) or 0
    if any(prompts.values()) and folder.pooling:
        _refuse_hidden_prompts(folder)
    return dataclasses.replace(folder, prompts=prompts, default_prompt=default, dimensions=dimensions)


def _refuse_hidden_prompts(folder: Folder) -> None:
    """Raise ConfigError if the pooling excludes the prompt: workers do not know which tokens belong to it."""
    for kind, place in _modules(folder.root):
        path = place / "config.json"
        if kind == "Pooling" and not read_object(path).get("include_prompt", True):
            raise ConfigError(
                f"{path}: include_prompt = false cannot be served with prompts: remove the prompts from "
                f"{_SAVED}, or use a model that pools them too"
            )
