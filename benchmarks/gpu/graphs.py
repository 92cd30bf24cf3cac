"""ONNX graphs and engines of a subject, through the steps of `arlo compile`, kept below the work folder."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from arlo.compile.cache import Cache, Hasher, key_of, link_or_copy, temporary_folder
from arlo.compile.engines.interface import Engine, Precision
from arlo.compile.options import CompileOptions
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec
from arlo.compile.steps.resolve import SourceModel, resolve

OUTPUT = "sentence_embedding"


class Graphs:
    """Of one model and precision."""

    def __init__(self, folder: Path, precision: str, work: Path, *, longest: int) -> None:
        self._work = work
        self._precision = cast(Precision, precision)
        self._hasher = Hasher()
        options = CompileOptions(source=folder, out=work / "unused", task="embedding", lengths=(longest,))
        self.model: SourceModel = resolve(options, self._hasher)

    @functools.cached_property
    def exported(self) -> Path:
        """Folder of the cleaned graph with free axes, and its weights. CompileError when the export fails."""
        from arlo.compile.steps.cleanup import cleanup_step
        from arlo.compile.steps.export import export_step

        cache = Cache(self._work / "cache", self._hasher)
        return cleanup_step(cache, export_step(cache, self.model, self._precision)).folder

    def inputs(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """input_ids and attention_mask, and zeros for whatever else the graph takes."""
        ids = rows["input_ids"]
        return {tensor.name: rows.get(tensor.name, ids * 0) for tensor in self.model.inputs}

    def plain(self, fixed: Mapping[str, int]) -> Path:
        """Folder of the graph with these axes fixed, beside the weights: what ONNX Runtime opens."""
        from arlo.compile.steps.specialise import specialise

        def make(folder: Path) -> None:
            specialise(self.exported, fixed, folder)
            link_or_copy(self.exported / WEIGHTS, folder / WEIGHTS)

        return self._made("plain", {"graph": self.exported.name, "fixed": dict(fixed)}, make)

    def engine(self, engine: Engine, spec: RuntimeSpec) -> Path:
        """Folder of the engine's files for one runtime. CompileError when it cannot be built."""
        from arlo.compile.steps.specialise import specialise

        scratch = self._work / "scratch" / engine.name
        scratch.mkdir(parents=True, exist_ok=True)

        def make(folder: Path) -> None:
            with temporary_folder(self._work, "graph-") as graph:
                specialise(self.exported, spec.fixed, graph)
                engine.build(graph / GRAPH, self.exported / WEIGHTS, spec, folder, scratch=scratch)

        parts = {
            "graph": self.exported.name,
            "engine": engine.name,
            "settings": engine.key(),
            "tools": engine.versions(),
            "spec": [spec.shape, spec.max_length, spec.max_batch, list(spec.profiles)],
            "device": engine.device(),
        }
        return self._made(engine.name, parts, make)

    def _made(self, kind: str, parts: Mapping[str, Any], make: Any) -> Path:
        """A folder for these parts, whole or absent: made aside and renamed."""
        folder = self._work / "engines" / kind / key_of(parts)
        if (folder / "made_from.json").exists():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder.parent, "making-") as aside:
            make(aside)
            (aside / "made_from.json").write_text(json.dumps(parts, default=str) + "\n")
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        return folder
