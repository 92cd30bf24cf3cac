"""The state shared by the steps that work on one runtime."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import Importance, OutputTensor
from arlo.compile.cache import Cache, Entry
from arlo.compile.engines.interface import Engine
from arlo.compile.options import CompileOptions
from arlo.compile.steps.resolve import SourceModel
from arlo.compile.texts import Texts
from arlo.compile.verify.answers import Row, pad


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One build, after the export and the clean-up. It can be pickled: runtimes are built in other processes."""

    options: CompileOptions
    cache: Cache
    engine: Engine
    model: SourceModel
    tokenizer: Entry
    graph: Entry  # cleaned: `model.onnx` with free axes, and `weights.bin`, in the precision of the engine
    outputs: tuple[OutputTensor, ...]
    texts: Texts
    importance: Importance | None = None  # None: without that output
    reference: Entry | None = None  # texts and the original's answers; None: before the lengths are known

    @property
    def threads(self) -> int:
        """Threads of one instance, also when it is measured."""
        return self.options.threads or 1

    @property
    def device(self) -> str:
        """The device of measurements, for people and for cache keys."""
        return f"{self.engine.device()}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def rows(self, length: int, count: int = 1) -> dict[str, NDArray[np.int64]]:
        """So many rows of real text of exactly that length, as tensors [rows, length]."""
        rows = [self.texts.ids(length, sample=number) for number in range(count)]
        return pad(self.model.inputs, [Row(tuple(row), (0,) * length) for row in rows], length)
