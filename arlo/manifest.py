"""The manifest of a Triton model repository: what `arlo compile` built, read by `arlo serve` and `arlo inspect`.

It lies as `arlo.json` in the repository's root, beside the model folders (one per runtime). Triton ignores it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

from arlo.errors import ConfigError

FILE_NAME = "arlo.json"
FORMAT = 1

Role = Literal["ids", "mask", "other"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputTensor:
    """A per-token input, shape [rows, tokens]."""

    name: str
    datatype: str  # INT64 or INT32
    role: Role
    pad_value: int = 0
    optional: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputTensor:
    """An output, shape [rows, tokens, *dims] when token_level, else [rows, *dims]."""

    name: str
    datatype: str  # KServe v2 name, e.g. FP32
    token_level: bool
    dims: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPoint:
    """Measured latency of a whole batch: rows x tokens -> microseconds."""

    length: int
    batch: int
    latency_us: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The model compiled for one maximum length: one Triton model, `name`, in the repository."""

    name: str
    max_length: int
    max_batch: int
    dynamic: bool
    engine: str  # onnxruntime, emulated, ...
    precision: str  # fp32, ...
    device: str  # what the latency was measured on
    latency: tuple[LatencyPoint, ...]
    max_abs_diff: float | None = None  # against the original model; None: not verified
    files: dict[str, str] = dataclasses.field(default_factory=dict)  # path relative to the repository -> sha256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that serving needs to know of a compiled model."""

    model: str  # the logical model's name
    task: str  # embedding, sequence-classification, token-classification, emulated
    source: str  # where the original model came from, for people
    tokenizer: str | None  # tokenizer.json, relative to the repository; None: token ids only
    inputs: tuple[InputTensor, ...]
    outputs: tuple[OutputTensor, ...]
    runtimes: tuple[Runtime, ...]  # ascending max_length
    tools: dict[str, str] = dataclasses.field(default_factory=dict)  # package -> version
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # what the build was asked for
    format: int = FORMAT

    def save(self, repository: Path) -> None:
        """Write `arlo.json` atomically: readers see the old file or the new one, whole."""
        path = repository / FILE_NAME
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")
        temporary.replace(path)

    @classmethod
    def load(cls, repository: Path) -> Manifest:
        """Read and check `arlo.json`; ConfigError when it is missing or not of this format."""
        path = repository / FILE_NAME
        try:
            raw = json.loads(path.read_text())
        except FileNotFoundError:
            raise ConfigError(f"{repository} has no {FILE_NAME}: build the repository with `arlo compile`") from None
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} is not JSON ({error}): build the repository again") from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise ConfigError(f"{path} is not of manifest format {FORMAT}: build the repository again")
        try:
            manifest = cls(
                **{
                    **raw,
                    "inputs": tuple(InputTensor(**t) for t in raw["inputs"]),
                    "outputs": tuple(OutputTensor(**{**t, "dims": tuple(t["dims"])}) for t in raw["outputs"]),
                    "runtimes": tuple(
                        Runtime(**{**r, "latency": tuple(LatencyPoint(**p) for p in r["latency"])})
                        for r in raw["runtimes"]
                    ),
                }
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path} lacks or misnames a field ({error}): build the repository again") from None
        if not manifest.runtimes:
            raise ConfigError(f"{path} lists no runtimes: build the repository again")
        return manifest
