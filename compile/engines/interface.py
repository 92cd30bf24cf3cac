"""The interface of engine back-ends, and the list of them.

A back-end turns a specialised ONNX graph (torch: a model folder) into the files of a Triton model version, and can open
these files in this process, to verify and to measure them. `serving` describes how Triton serves the files.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import dataclasses
import gc
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import psutil
from numpy.typing import NDArray

from arlo.compile.engines.tensorrt_gpu import gpu_memory_used
from arlo.compile.spec import RuntimeSpec
from arlo.errors import CompileError, ConfigError
from arlo.profiler.machine import cpu_name, gpu_names

Precision = Literal["fp32", "fp16", "bf16"]
Device = Literal["cpu", "cuda"]
Kind = Literal["static", "dynamic", "packed"]
"""How rows are laid out: padded to a recorded shape, padded to the longest of the batch, or end to end."""
Backend = Literal["python", "native"]
"""python: our model code in Triton's Python backend. native: Triton's own back-end of that engine."""

DEFAULT_COMPUTE_CAPABILITIES = ("SM86", "SM89", "SM120")


class Runner(Protocol):
    """An opened engine."""

    def run(self, inputs: Mapping[str, NDArray[np.int64]], outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Compute the named outputs for inputs [rows, tokens]."""


class SessionRunner:
    """A `Runner` by a session of arlo.templates, or of ONNX Runtime."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def run(self, inputs: Mapping[str, NDArray[np.int64]], outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        return dict(zip(outputs, self.session.run(list(outputs), dict(inputs)), strict=True))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings that an engine is built with, in addition to the graph."""

    precision: Precision = "fp32"
    device: Device = "cpu"
    backend: Backend = "python"
    compute_capabilities: tuple[str, ...] = DEFAULT_COMPUTE_CAPABILITIES  # of tensorrt-rtx
    kinds: tuple[Kind, ...] = ()  # of torch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How Triton serves the files of an engine."""

    backend: str  # the `backend` of config.pbtxt: python, tensorrt, onnxruntime
    platform: str = ""  # its `platform`: tensorrt_plan, onnxruntime_onnx; empty for the Python backend
    gpu: bool = False
    template: str = ""  # folder below triton_repo/templates whose files lie in the version folder; empty: none
    model_file: str = ""  # `default_model_filename`, where the back-end needs it
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of config.pbtxt
    accelerator: Mapping[str, str] = dataclasses.field(default_factory=dict)  # options of ONNX Runtime's CUDA provider
    profiles: tuple[str, ...] = ()  # of the instance group: TensorRT's profiles by number


class Engine(Protocol):
    """A back-end with its settings. It holds no other state and can be pickled."""

    name: str
    graph: str  # the files that it is built from: an ONNX graph and its weights, or a model folder of torch
    weights: str
    settings: EngineSettings

    def versions(self) -> dict[str, str]:
        """Versions of packages that determine the result. EnvironmentProblem, naming the remedy, if one is missing."""

    def device(self) -> str:
        """The device that runs the engine here, for people and for keys of measurements: `cpu: ...` or `gpu: ...`."""

    def cannot_run(self) -> str:
        """Why this machine cannot run the engine, as in `there is no NVIDIA GPU driver here`; empty when it can."""

    def key(self) -> dict[str, Any]:
        """The settings that the files depend on, for the cache."""

    def build_memory(self, weight_bytes: int) -> int:
        """Bytes of memory that the build of one runtime takes at most, for float32 weights of that size."""

    def build(self, graph: Path, weights: Path, spec: RuntimeSpec, folder: Path, *, scratch: Path) -> dict[str, Any]:
        """Write the engine's files into `folder` and return the build's findings. CompileError when it cannot.

        An ONNX graph names its weights `weights.bin`; the two lie in different folders of the cache and must not be
        changed.
        `scratch` is kept between builds (timing caches); its files may be gone or of another version.
        """

    def open(self, folder: Path, spec: RuntimeSpec, *, threads: int) -> Runner:
        """Open the files of `folder` in this process. CompileError when this machine cannot."""

    def memory_used(self) -> int | None:
        """Bytes in use where engines run: by this process on the CPU, by all processes on the GPU. None if unknown.

        The increase while an engine is opened and run is the memory that this engine takes.
        """

    def serving(self, spec: RuntimeSpec) -> Serving:
        """The way Triton serves the engine."""


class HostEngine(abc.ABC):
    """The part of an `Engine` that those share that run on the CPU or on a GPU."""

    package: str  # of Python
    settings: EngineSettings

    @abc.abstractmethod
    def lacks_cuda(self) -> str:
        """Why the package cannot use the GPU; empty when it can."""

    def device(self) -> str:
        if self.settings.device == "cuda":
            return f"gpu: {next(iter(gpu_names()), 'NVIDIA')}"
        return f"cpu: {cpu_name()}"

    def cannot_run(self) -> str:
        if self.settings.device == "cpu":
            return ""
        from arlo.workers.triton.server import has_gpu

        return self.lacks_cuda() if has_gpu() else "there is no NVIDIA GPU driver here"

    def memory_used(self) -> int | None:
        if self.settings.device != "cpu":
            return gpu_memory_used()
        importlib.import_module(self.package)  # its code is not the engine's
        return resident_bytes()


def resident_bytes() -> int:
    """Resident memory of this process, after returning freed memory to the system, which a session would else reuse."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def check_runs(engine: Engine, spec: RuntimeSpec) -> None:
    """Raise CompileError if this machine cannot run the engine."""
    if reason := engine.cannot_run():
        raise CompileError(f"{spec.title} cannot run here: {reason}")


def engine_names() -> tuple[str, ...]:
    """The back-ends that this version has."""
    return ("onnxruntime", "torch", "tensorrt", "tensorrt-rtx")


def get_engine(name: str, settings: EngineSettings | None = None) -> Engine:
    """The back-end `name`; ConfigError when there is none, or when the settings do not suit it."""
    settings = settings or EngineSettings()
    if name == "onnxruntime":
        from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine

        return OnnxRuntimeEngine(settings)
    if name == "torch":
        from arlo.compile.engines.torch import TorchEngine

        return TorchEngine(settings)
    if name in ("tensorrt", "tensorrt-rtx"):
        from arlo.compile.engines.tensorrt import TensorRtEngine

        return TensorRtEngine(name, settings)
    raise ConfigError(f"engine {name!r} is unknown: use one of {', '.join(engine_names())}")
