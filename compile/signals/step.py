"""Step between export and cleanup if signals are requested: the exported graph with further outputs.

Input: the export. Output: `model.onnx` with `importance` and `confidence` behind its outputs; `weights.bin`, linked.
Cache key: the export's files, which signals, versions, this code. Check: on a batch with padding, run by ONNX Runtime,
importance sums to one attention map for each head, layer and real token, and is zero at padding.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import Importance, OutputTensor
from arlo.compile.cache import Cache, Entry, code_version, link_or_copy, tool_versions
from arlo.compile.options import CompileOptions
from arlo.compile.signals.graph import CONFIDENCE, IMPORTANCE, add_confidence, add_importance
from arlo.compile.spec import GRAPH, WEIGHTS
from arlo.compile.steps.cleanup import TOOLS, Graph
from arlo.compile.steps.export import outputs_of
from arlo.compile.steps.resolve import SourceModel
from arlo.compile.verify.answers import plain_rows
from arlo.compile.verify.stand_in import open_stand_in
from arlo.errors import CompileError, ConfigError

_TOKENS, _REAL = 9, 6  # of the two rows that are tried; the second one is padded
_INEXACT = 0.02  # bf16 is that far from the sum


def wanted(options: CompileOptions) -> bool:
    """Whether the build has this step."""
    return options.importance is not None or options.confidence


def check_signals(options: CompileOptions, model: SourceModel) -> None:
    """Raise ConfigError when the model cannot give the requested signals."""
    if options.confidence and model.task != "sequence-classification":
        raise ConfigError(f"confidence is of sequence classifiers, and {model.name} is of the task {model.task}")
    if options.confidence and model.label_activation not in ("softmax", "sigmoid"):
        raise ConfigError(
            f"confidence is a probability, and {model.name} gives its labels values by the activation "
            f"{model.label_activation!r} (regression): leave --confidence out"
        )


def signals_step(cache: Cache, exported: Entry, model: SourceModel, options: CompileOptions) -> Entry:
    """Entry with the graph and its weights; meta: `outputs` and `notes`, as the export has them, and `importance` (the
    fields of `arlo.catalog.manifest.Importance`, or None)."""
    parts = {
        "graph": exported.files[GRAPH],
        "weights": exported.files[WEIGHTS],
        "outputs": exported.meta["outputs"],
        "importance": options.importance,
        "confidence": options.confidence and model.label_activation,
        "tools": tool_versions(*TOOLS, "onnxruntime"),
        "code": code_version("signals/step", "signals/graph", "steps/cleanup", "verify/stand_in"),
    }

    def make(folder: Path) -> dict[str, Any]:
        outputs = list(outputs_of(exported))
        taken = {output.name for output in outputs} & {IMPORTANCE, CONFIDENCE}
        if taken:
            raise CompileError(f"signals: the model has an output {taken.pop()} of its own")
        graph = Graph(exported.folder / GRAPH)
        layers = None
        if options.confidence:
            add_confidence(graph.model, model.label_activation)
            outputs.append(_output(CONFIDENCE, token_level=False, dims=(1,)))
        if options.importance is not None:  # last, see there
            last = None if options.importance == "all" else options.importance
            layers = add_importance(graph.model, last=last)
            outputs.append(_output(IMPORTANCE, token_level=True))
        link_or_copy(exported.folder / WEIGHTS, folder / WEIGHTS)
        graph.write(folder / GRAPH)
        importance = None
        if layers is not None:
            importance = _tried(folder, model, summed=layers[0], of=layers[1], precision=options.precision)
        return {
            "outputs": [dataclasses.asdict(output) for output in outputs],
            "notes": exported.meta["notes"],
            "importance": importance and dataclasses.asdict(importance),
        }

    return cache.step("signals", parts, make)


def importance_of(entry: Entry) -> Importance | None:
    """The sums of the output `importance`; None without it. The export's entry, which has no signals, also works."""
    fields = entry.meta.get("importance")
    return Importance(**fields) if fields else None


def _output(name: str, *, token_level: bool, dims: tuple[int, ...] = ()) -> OutputTensor:
    return OutputTensor(name=name, datatype="FP32", token_level=token_level, dims=dims, on_request=True)


def _tried(folder: Path, model: SourceModel, *, summed: int, of: int, precision: str) -> Importance:
    """The number of heads, derived from the sums of the first row, which has no padding; the second row checks it."""
    import numpy as np

    feed = plain_rows(model.inputs, (_TOKENS, _REAL))
    mask = feed["attention_mask"]
    try:
        found = open_stand_in(folder / GRAPH, folder / WEIGHTS, threads=1).run(feed, [IMPORTANCE])[IMPORTANCE]
    except Exception as error:  # ONNX Runtime raises its own kinds
        raise CompileError(
            f"signals: the graph with importance does not run ({str(error).splitlines()[0]}): its attention is not "
            "[rows, heads, queries, keys]; build without --importance"
        ) from error
    if found.shape == mask.shape:
        per_token = np.where(mask == 1, found, 0).sum(1, dtype=np.float64) / mask.sum(1)
        maps = round(float(per_token[0]))
        if maps and maps % summed == 0 and np.abs(per_token / maps - 1).max() < _INEXACT and not found[mask == 0].any():
            return Importance(layers=summed, of_layers=of, heads=maps // summed)
    raise CompileError(
        f"signals: importance does not sum to one for each real token, head and layer ({summed} layers, {precision}): "
        "the attention of this model is not that of an encoder; build without --importance"
    )
