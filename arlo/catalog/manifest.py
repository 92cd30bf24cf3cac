"""The manifest of a Triton model repository, which `arlo compile` writes and `arlo serve` reads.

It is the file `arlo.json` in the repository's root, next to the model folders (one per runtime). Triton ignores it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from arlo.catalog.latency import LatencyTable
from arlo.catalog.pbtxt import engines_inside
from arlo.catalog.structured import structured
from arlo.catalog.tasks import task_problems
from arlo.catalog.tensors import row_length, tensor_problems
from arlo.catalog.words import Words
from arlo.errors import ConfigError, printable

FILE_NAME = "arlo.json"
FORMAT = 2

Role = Literal["ids", "mask", "other", "tensor"]
Activation = Literal["softmax", "sigmoid", "identity", "tanh"]  # of logits; the gateway knows the same names
AdaptationKind = Literal["none", "merge", "prompt", "prefix"]

MAX_VOCABULARY = 2**32 - 1
MAX_LENGTH = 1 << 20  # tokens; the gateway keeps a counter for each length
MAX_BATCH = 1 << 16  # rows
MAX_LATENCY_US = (1 << 32) - 1  # the contract with the gateway holds no more: 71 minutes
_NAME = re.compile(r"[^./\x00-\x1f][^/\x00-\x1f]{,250}")  # of a runtime, which is a folder of the repository
_MODEL = re.compile(r"[^./\x00-\x1f\x7f-\x9f][^/\x00-\x1f\x7f-\x9f]{,199}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputTensor:
    """A per-token input, shape [rows, tokens]; or a tensor, shape [rows, *dims] (arlo.catalog.tensors)."""

    name: str
    datatype: str  # INT64 or INT32; of a tensor any of arlo.catalog.tensors.DATATYPES
    role: Role
    pad_value: int = 0
    optional: bool = False
    vocabulary: int = 0  # of role ids, and of whole numbers in a tensor: they are 0 to this - 1; 0: not known
    dims: tuple[int, ...] = ()  # of a tensor: of a row; the first may be -1: its length. BYTES: (1,), one element
    length_rule: str = ""  # of the first tensor where there are no ids: constant or patches:P


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputTensor:
    """An output, shape [rows, tokens, *dims] when token_level, else [rows, *dims]."""

    name: str
    datatype: str  # KServe v2 name, e.g. FP32
    token_level: bool
    dims: tuple[int, ...]
    on_request: bool = False  # only for requests that name it; one that names no output gets all others
    of_children: bool = False  # shape [children of all rows, *dims], as Manifest.counts says


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """The output `importance` [rows, tokens]: the attention that a token receives, summed over layers, heads and real
    queries (Tabi, EuroSys'23, section 4.2). Over a row it sums to layers x heads x real tokens."""

    layers: int  # summed: the last so many
    of_layers: int
    heads: int  # of each layer

    @property
    def maps(self) -> int:
        """The number of attention maps in the sum, which is also the mean importance of a token."""
        return self.layers * self.heads


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """The changes that `arlo adapt` made to the model."""

    kind: AdaptationKind
    per_layer: tuple[int, ...]  # tokens that go in each layer, or prompts that it has

    @property
    def flips(self) -> bool:
        """Whether rounding decides which of two equally similar tokens goes, so that devices may differ."""
        return self.kind == "merge"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPoint:
    """Latency of a whole batch: rows x tokens -> microseconds; measured ones are whole."""

    length: int
    batch: int
    latency_us: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How a runtime's answers compare with those of the original model, in float32, on the same texts."""

    rows: int  # texts that were compared
    max_abs_diff: float  # over all outputs and real tokens
    padding_diff: float  # largest change of an answer when the same row is padded further, or among other rows
    cosine: float | None = None  # lowest one; of embeddings
    agreement: float | None = None  # share of labels that are the same; of rerankers: of pairs of texts in that order
    ties: float | None = None  # share that differs only where the original itself is nearly undecided
    flipped: float | None = (
        None  # of one that merges or drops tokens: share of rows by another merge, see `arlo compile verify`
    )
    ran_on: str = ""  # the device, for people
    importance_sum: float | None = None  # largest relative error of a row's sum; None: there is no such output
    importance_padding: float | None = None  # largest change by padding or other rows, as a share of the row's largest
    engine_ran: bool = True  # False: no device here runs the engine; its graph was run by ONNX Runtime on the CPU


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The model compiled for one maximum length: one Triton model, `name`, in the repository."""

    name: str
    max_length: int
    max_batch: int
    dynamic: bool  # takes any length up to max_length
    engine: str  # onnxruntime, torch, tensorrt, tensorrt-rtx, emulated, simulated
    precision: str  # fp32, fp16, bf16
    device: str  # that the latency was measured on; empty: not measured yet
    latency: tuple[LatencyPoint, ...]  # empty: not measured yet, as no device at hand ran it
    verification: Verification | None = None  # None: emulated, or `arlo compile verify` found it wrong
    backend: str = "python"  # the Triton backend that serves it: python, tensorrt, onnxruntime, ...
    profiles: tuple[int, ...] = ()  # maximum lengths that one engine holds, its weights once
    kinds: tuple[str, ...] = ()  # how rows are laid out: static, dynamic, packed; empty: as `dynamic` says
    compute_capabilities: tuple[str, ...] = ()  # GPUs that the engine was built for, as SM86; empty: not bound to any
    memory_mb: int | None = None  # on its worker's device while it is loaded; None: not measured
    load_ms: int | None = None  # until a worker has loaded it; None: not measured
    # Path relative to the repository -> sha256.
    files: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def parts(self) -> tuple[Runtime, ...]:
        """The runtimes that a worker loads for it: itself, or the members of a bundle (arlo.catalog.bundle)."""
        return (self,)

    @property
    def table(self) -> LatencyTable:
        """Its latency table, as planning, dispatch and simulation read it."""
        return LatencyTable.from_us((point.length, point.batch, point.latency_us) for point in self.latency)

    def latency_ns(self, rows: int, length: int | None = None) -> int:
        """Nanoseconds of a batch: at max_length for a static runtime, which always computes that many; at `length`
        tokens for a dynamic one."""
        return self.table.at_ns(length if self.dynamic and length is not None else self.max_length, rows)

    def rows_in_flight(self, batches: int) -> int:
        """Rows in flight to one instance at a time, with room counted in batches; bounded by the contract."""
        return min(batches * self.max_batch, MAX_BATCH)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The time of one row of `length` tokens on each kind of runtime, in microseconds; None if there is none."""

    length: int
    static_us: float | None  # on the shortest static runtime that takes it
    dynamic_us: float | None
    padded_us: float | None  # on the longest static runtime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Which runtimes to serve on the device that they were measured on, and why. See `arlo.planning.lengths.advice`."""

    serve: Literal["static", "dynamic"]
    why: str  # a sentence or two, with the figures that decide
    device: str
    lengths: str  # the traffic that the means are over, for people
    mean_us: dict[str, float]  # static, dynamic, padded -> expected time of a row over that traffic
    compared: tuple[Compared, ...]  # ascending length


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that serving needs to know about a compiled model."""

    model: str  # the logical model's name
    # embedding, sequence-classification, reranker, token-classification, question-answering, emulated; of tensors
    # embedding, classification
    task: str
    source: str  # where the original model came from, for people
    tokenizer: str | None  # tokenizer.json, relative to the repository; None: token ids only
    inputs: tuple[InputTensor, ...]
    outputs: tuple[OutputTensor, ...]
    runtimes: tuple[Runtime, ...]  # ascending max_length
    tools: dict[str, str] = dataclasses.field(default_factory=dict)  # package -> version
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # that the build was given
    recommendation: Recommendation | None = None  # None: too little was measured to compare
    labels: tuple[str, ...] = ()  # names of a classifier's classes, in the order of its logits; empty: not known
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)  # by name, texts that may precede a client's
    default_prompt: str = ""  # name of the prompt for requests that name none; empty: no prompt
    dimensions: int = 0  # vectors are cut to so many unless a request asks for another size; 0: whole
    # Turns a classifier's logits into probabilities, and a reranker's into a score. Empty: the model has no logits of
    # labels, or comes from an older build: softmax, or sigmoid of a single label.
    label_activation: Activation | Literal[""] = ""
    score_activation: Activation | Literal[""] = ""
    words: Words | None = None  # which ids begin a word; None: no tokenizer, or one that does not mark words
    importance: Importance | None = None  # None: there is no such output
    adaptation: Adaptation | None = None  # None: it was not adapted
    # Tasks that share the model, in the order of their numbers, with the names of their classes: its input `task` gives
    # a row's task, whose logits come first. Empty: there is no such input.
    tasks: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    counts: str = ""  # the output that says how many children each row has; empty: none has any
    # Not in the file: runtimes that a logical model in the repository answers with (docs/plugin.md), as found there. A
    # server that runs the plugin holds all of them.
    inside: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def models(self) -> tuple[Manifest, ...]:
        """The manifests of all models on the workers: this one, or several (arlo.catalog.joined)."""
        return (self,)

    def of(self, runtime: Runtime) -> Manifest:
        """The manifest of the model that a runtime belongs to."""
        return self

    def save(self, repository: Path) -> None:
        """Write `arlo.json` atomically: readers see the old file or the new one, whole."""
        path = repository / FILE_NAME
        temporary = path.with_suffix(".tmp")
        fields = dataclasses.asdict(self)
        del fields["inside"]
        temporary.write_text(json.dumps(fields, indent=2) + "\n")
        temporary.replace(path)

    @classmethod
    def load(cls, repository: Path) -> Manifest:
        """Read and check `arlo.json`; ConfigError when it is missing or not of this format."""
        path = repository / FILE_NAME
        try:
            raw = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(f"{repository} has no {FILE_NAME}: build the repository with `arlo compile`") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError) as error:  # not JSON, or not even text
            raise ConfigError(f"{path} is not JSON ({error}): build the repository again") from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise ConfigError(f"{path} is not of manifest format {FORMAT}: build the repository again")
        raw.pop("fit", None)  # an obsolete measurement that no code reads
        try:
            manifest: Manifest = structured(cls, raw)
            if manifest.words is not None:
                manifest.words.table()  # ValueError when it is damaged
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path} lacks or misnames a field ({error}): build the repository again") from None
        if problem := next(_problems(manifest), None):
            raise ConfigError(f"{path}: {problem}. Build the repository again")
        static, others = ([r.name for r in manifest.runtimes if r.dynamic == dynamic] for dynamic in (False, True))
        return dataclasses.replace(manifest, inside=engines_inside(repository / manifest.model, static, others))


def check(manifest: Manifest) -> Manifest:
    """The manifest, if it can be served; else a ConfigError gives the reason before anything of it is written."""
    if problem := next(_problems(manifest), None):
        raise ConfigError(problem)
    return manifest


def outside(file: object) -> bool:
    """Whether a path is not below the repository that names it."""
    return not isinstance(file, str) or not file or Path(file).is_absolute() or ".." in Path(file).parts


def name_problem(name: object) -> str:
    """Why this cannot be a model's name, which is a folder; empty if it can."""
    if isinstance(name, str) and _MODEL.fullmatch(name):
        return ""
    return f"'{printable(str(name))}' cannot name a model: use up to 200 characters, no / and no first dot"


def _problems(manifest: Manifest) -> Iterator[str]:
    """The reasons why the manifest cannot be served. The file may have been written by hand, or damaged."""
    if problem := name_problem(manifest.model):
        yield problem
    if manifest.tokenizer is not None and outside(manifest.tokenizer):
        yield f"the tokenizer '{printable(str(manifest.tokenizer))}' is not in the repository"
    yield from _tensor_problems(manifest)
    if not isinstance(manifest.prompts, dict) or not all(isinstance(text, str) for text in manifest.prompts.values()):
        yield "its prompts are not texts by name"
    elif manifest.default_prompt and manifest.default_prompt not in manifest.prompts:
        yield f"its default prompt {manifest.default_prompt!r} is none of its prompts"
    if not _is_whole(manifest.dimensions, 0, MAX_LENGTH):
        yield f"its vectors are cut to {manifest.dimensions} numbers; it is 0 (whole) to {MAX_LENGTH}"
    for field in ("label_activation", "score_activation"):
        if getattr(manifest, field) not in ("", *get_args(Activation)):
            yield f"{field} is {getattr(manifest, field)!r}; known are {', '.join(get_args(Activation))}"
    if not manifest.runtimes:
        yield "it lists no runtimes"
    yield from (f"{what} is given twice" for what in _twice(f"runtime {r.name}" for r in manifest.runtimes))
    kinds = (
        f"a {'dynamic' if r.dynamic else 'static'} runtime of max_length {r.max_length}" for r in manifest.runtimes
    )
    yield from (f"{what} is given twice" for what in _twice(kinds))
    for runtime in manifest.runtimes:
        yield from _runtime_problems(runtime)


def _tensor_problems(manifest: Manifest) -> Iterator[str]:
    if manifest.adaptation is not None and manifest.adaptation.kind not in get_args(AdaptationKind):
        kinds = ", ".join(get_args(AdaptationKind))
        yield f"the adaptation is of the kind {manifest.adaptation.kind!r}; known are {kinds}"
    yield from task_problems(manifest.tasks, manifest.inputs)
    for tensor in manifest.inputs:
        if tensor.role not in ("ids", "mask", "other", "tensor"):
            yield f"input {tensor.name!r} has the role {tensor.role!r}; known are ids, mask, other and tensor"
        if not _is_whole(tensor.vocabulary, 0, MAX_VOCABULARY):
            yield f"input {tensor.name!r} has a vocabulary of {tensor.vocabulary}; it is 0 to {MAX_VOCABULARY}"
        if tensor.role != "tensor" and tensor.datatype not in ("INT64", "INT32"):
            yield f"input {tensor.name!r} is {tensor.datatype!r}; inputs are INT64 or INT32"
    roles = [tensor.role for tensor in manifest.inputs]
    problems = list(tensor_problems(manifest.inputs))
    yield from problems
    if set(roles) == {"tensor"} and not problems:
        yield from _length_problems(manifest)
    elif roles.count("ids") != 1 or roles.count("mask") > 1:
        yield "one input must have the role ids, and at most one the role mask; or all are tensors"
    for output in manifest.outputs:
        if not all(_is_whole(size, -1, MAX_LENGTH) for size in output.dims):
            yield f"output {output.name!r} has the dims {list(output.dims)}"
    counted = [output.name for output in manifest.outputs if output.of_children]
    if (counted or manifest.counts) and manifest.counts not in {output.name for output in manifest.outputs}:
        yield f"outputs of children need one that counts them, not {manifest.counts!r}"
    if manifest.outputs and all(output.on_request for output in manifest.outputs):
        yield "all outputs are on request, so that a request that names none would get nothing"
    for kind, names in (("input", manifest.inputs), ("output", manifest.outputs)):
        yield from (f"{kind} {name!r} is given twice" for name in _twice(str(tensor.name) for tensor in names))


def _length_problems(manifest: Manifest) -> Iterator[str]:
    """The length problems of a model of tensors alone, whose rows all have one length."""
    try:
        length = row_length(manifest.inputs)
    except ValueError as error:
        yield str(error)
        return
    for runtime in manifest.runtimes:
        if length is not None and (runtime.dynamic or runtime.max_length != length):
            yield f"runtime {runtime.name} is not of the one length of all rows, {length}"
    if all(tensor.optional for tensor in manifest.inputs):
        yield "all inputs are optional, so that a request would have no rows"


def _runtime_problems(runtime: Runtime) -> Iterator[str]:
    name = runtime.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"{name!r} cannot be the name of a runtime, which is a folder of the repository"
    if not _is_whole(runtime.max_length, 1, MAX_LENGTH):
        yield f"runtime {name} has max_length {runtime.max_length}; it is 1 to {MAX_LENGTH}"
    if not _is_whole(runtime.max_batch, 1, MAX_BATCH):
        yield f"runtime {name} has max_batch {runtime.max_batch}; it is 1 to {MAX_BATCH}"
    if runtime.memory_mb is not None and not _is_whole(runtime.memory_mb, 0, 1 << 30):
        yield f"runtime {name} takes {runtime.memory_mb} MB"
    if runtime.load_ms is not None and not _is_whole(runtime.load_ms, 0, 1 << 31):
        yield f"runtime {name} takes {runtime.load_ms} ms to load"
    for point in runtime.latency:
        if not (_is_whole(point.length, 1, MAX_LENGTH) and _is_whole(point.batch, 1, MAX_BATCH)):
            yield f"runtime {name} has a latency for {point.batch} row(s) of {point.length} tokens"
        if not _is_whole(point.latency_us, 0, MAX_LATENCY_US):
            yield f"runtime {name} has a latency of {point.latency_us} us; it is 0 to {MAX_LATENCY_US}"
    for file in runtime.files:
        if outside(file):
            yield f"runtime {name} names a file outside the repository: {file}"


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _twice(values: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [value for value in values if value in seen or seen.add(value)]  # type: ignore[func-returns-value]
