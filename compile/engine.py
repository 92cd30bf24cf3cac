"""The interface of engine back-ends, and the list of them.

A back-end turns a specialised ONNX graph into the files of a Triton model version, and can open these files in this
process, to verify and to measure them. How Triton serves the files is told by `backend` and `template`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.compile.spec import RuntimeSpec
from arlo.errors import ConfigError


class Runner(Protocol):
    """An opened engine."""

    def run(self, inputs: Mapping[str, NDArray[np.int64]], outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Compute the named outputs for inputs [rows, tokens]."""


class Engine(Protocol):
    """A back-end. It holds no state."""

    name: str
    precision: str
    backend: str  # the Triton backend that serves it
    template: str  # folder below triton_repo/templates

    def versions(self) -> dict[str, str]:
        """Packages that its result depends on."""

    def device(self) -> str:
        """What runs it on this machine, for people and for the key of measurements."""

    def build(self, graph: Path, weights: Path, spec: RuntimeSpec, folder: Path) -> dict[str, Any]:
        """Write the engine's files into `folder`; the dict says what was found. CompileError when it cannot."""

    def open(self, folder: Path, *, threads: int) -> Runner:
        """Open the files of `folder` in this process."""


def engine_names() -> tuple[str, ...]:
    """The back-ends that this version has."""
    return ("onnxruntime",)


def get_engine(name: str) -> Engine:
    """The back-end `name`; ConfigError when there is none."""
    if name == "onnxruntime":
        from arlo.compile.engine_onnxruntime import OnnxRuntimeEngine

        return OnnxRuntimeEngine()
    raise ConfigError(f"engine {name!r} is unknown: use one of {', '.join(engine_names())}")
