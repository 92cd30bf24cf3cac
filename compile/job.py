"""The state shared by the steps that work on one runtime."""

from __future__ import annotations

import dataclasses

from arlo.catalog.manifest import Importance, OutputTensor
from arlo.compile.cache import Cache, Entry
from arlo.compile.engines.interface import Engine
from arlo.compile.options import CompileOptions
from arlo.compile.steps.resolve import SourceModel
from arlo.compile.texts import Texts


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
