"""Step 4, cleanup: the exported graph reduced to the parts that the engines need.

Input: the export. Output: `model.onnx` and `weights.bin`, the weights linked when they did not change.
Cache key: the export's files, versions of onnx, onnx-ir and onnxscript, this code.
Check: the inputs and outputs are those of the export, and `build` opens it.

The passes are those of onnxscript and onnx-ir: constants folded, casts of casts and identities taken out, equal
sub-expressions and equal constants kept once, dead nodes and unused weights dropped. Weights are memory-mapped.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.compile.cache import Cache, Entry, code_version, link_or_copy, tool_versions
from arlo.compile.spec import GRAPH, WEIGHTS
from arlo.errors import CompileError

if TYPE_CHECKING:
    import onnx_ir

TOOLS = ("onnx", "onnx-ir", "onnxscript")

_INLINE_BYTES = 1024
"""Constants above it lie in `weights.bin`, as torch has it; what is smaller is quicker to read in the graph."""
_FOLD_BYTES = 64 << 10
"""A node that reads a constant above it is a weight's: folded once by `cleanup`, never by `specialise`."""
_UNUSED_SHARE = 0.01
"""Weights that nothing reads are dropped from the file when they are more than this share of it."""
_ITERATIONS = 6


def cleanup_step(cache: Cache, exported: Entry) -> Entry:
    """Entry with the cleaned graph and its weights; meta: `nodes_before`, `nodes_after`, `weights_linked`."""
    parts = {
        "graph": exported.files[GRAPH],
        "weights": exported.files[WEIGHTS],
        "tools": tool_versions(*TOOLS),
        "code": code_version("steps/cleanup"),
    }
    return cache.step("cleanup", parts, lambda folder: _clean(exported.folder, folder))


def _clean(source: Path, folder: Path) -> dict[str, Any]:
    graph = Graph(source / GRAPH)
    before, signature = len(graph.model.graph), signature_of(graph.model)
    simplify(graph.model, weights=True)
    check_signature(graph.model, signature, "cleanup")
    linked = graph.reads_all_of(source / WEIGHTS)
    if linked:
        link_or_copy(source / WEIGHTS, folder / WEIGHTS)
        graph.write(folder / GRAPH)
    else:
        write_with_weights(graph.model, folder)
    return {"nodes_before": before, "nodes_after": len(graph.model.graph), "weights_linked": linked}


class Graph:
    """A graph whose weights are memory-mapped.

    onnx and onnx-ir refuse to read weights from a file with several hard links, such as those in the cache, so this
    class maps them itself. Weights that no pass has touched are written back unchanged, as a place in the file.
    """

    def __init__(self, path: Path) -> None:
        import numpy as np
        import onnx_ir

        self.model: onnx_ir.Model = onnx_ir.load(path)
        self._on_disk: dict[int, tuple[onnx_ir.TensorProtocol, onnx_ir.ExternalTensor]] = {}  # id of the first -> both
        for value in self.model.graph.initializers.values():
            place = value.const_value
            if isinstance(place, onnx_ir.ExternalTensor):
                shape = tuple(int(str(axis)) for axis in place.shape)
                array = np.memmap(place.path, place.dtype.numpy(), "r", place.offset or 0, shape)
                mapped = onnx_ir.Tensor(array, place.dtype, name=place.name)
                self._on_disk[id(mapped)] = mapped, place
                value.const_value = mapped

    def reads_all_of(self, weights: Path) -> bool:
        """Whether every large constant still lies in the file, and little else does."""
        used = 0
        for value in self.model.graph.initializers.values():
            tensor = value.const_value
            assert tensor is not None
            if id(tensor) in self._on_disk:
                used += tensor.nbytes
            elif tensor.nbytes > _INLINE_BYTES:
                return False
        return used >= weights.stat().st_size * (1 - _UNUSED_SHARE)

    def write(self, path: Path) -> None:
        """Write the graph alone. Mapped weights stay in their file; other constants go into the graph."""
        import onnx_ir

        for value in self.model.graph.initializers.values():
            if id(value.const_value) in self._on_disk:
                value.const_value = self._on_disk[id(value.const_value)][1]
        _write(onnx_ir.serde.serialize_model(self.model), path)


def write_with_weights(model: onnx_ir.Model, folder: Path) -> None:
    """Write a graph and a new file of its weights."""
    import onnx
    import onnx_ir

    path = folder / GRAPH
    onnx_ir.save(model, path, external_data=WEIGHTS, size_threshold_bytes=_INLINE_BYTES)
    if not (folder / WEIGHTS).exists():  # a model with no large weight at all
        (folder / WEIGHTS).touch()
    _write(onnx.load(str(path), load_external_data=False), path)


def _write(proto: Any, path: Path) -> None:
    # Inferred shapes name the free axes; fixing an axis would contradict them, and the engines infer them anyhow.
    proto.graph.ClearField("value_info")
    path.write_bytes(proto.SerializeToString())


def simplify(model: onnx_ir.Model, *, weights: bool) -> None:
    """Fold, deduplicate and drop, in place, until nothing changes. weights: constants of any size may change too."""
    from onnx_ir.passes import common
    from onnxscript.optimizer import optimize_ir

    def should_fold(node: onnx_ir.Node) -> bool | None:
        constants = [value.const_value for value in node.inputs if value is not None]
        largest = max((tensor.nbytes for tensor in constants if tensor is not None), default=0)
        return None if weights or largest <= _FOLD_BYTES else False

    with _folding_silenced():
        common.RemoveInitializersFromInputsPass()(model)
        optimize_ir(model, num_iterations=_ITERATIONS, should_fold=should_fold)
        common.IdentityEliminationPass()(model)
        if weights:
            _make_contiguous(model)
            common.DeduplicateHashedInitializersPass()(model)
            common.CommonSubexpressionEliminationPass()(model)
        common.RemoveUnusedNodesPass()(model)
        common.ClearMetadataAndDocStringPass()(model)


def _make_contiguous(model: onnx_ir.Model) -> None:
    """Lay out folded constants as files have them: a transposed one is a view, which cannot be hashed."""
    import numpy as np
    import onnx_ir

    for value in model.graph.initializers.values():
        array = value.const_value.numpy() if value.const_value is not None else None
        if array is not None and not array.flags.c_contiguous:
            assert value.const_value is not None
            value.const_value = onnx_ir.Tensor(np.ascontiguousarray(array), value.const_value.dtype, name=value.name)


@contextlib.contextmanager
def _folding_silenced() -> Iterator[None]:
    """No line for each node that is not folded. (The loggers are those of `quiet`, but nothing here needs torch.)"""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def signature_of(model: onnx_ir.Model) -> list[tuple[str, str, list[str]]]:
    """Name, type and axes of each input and output, in order."""
    return [
        (value.name or "", str(value.dtype), [str(axis) for axis in value.shape or ()])
        for value in (*model.graph.inputs, *model.graph.outputs)
    ]


def check_signature(model: onnx_ir.Model, wanted: list[tuple[str, str, list[str]]], step: str) -> None:
    """Raise CompileError if the passes changed the graph's inputs or outputs."""
    found = signature_of(model)
    if found != wanted:
        changed = [f"{old} became {new}" for old, new in zip(wanted, found, strict=False) if old != new]
        raise CompileError(
            f"{step}: the graph's inputs and outputs changed ({'; '.join(changed) or 'some are gone'}): "
            "other versions of onnx, onnx-ir and onnxscript may do better; constraints.txt names those that are tested"
        )


def fix_axes(model: onnx_ir.Model, fixed: Mapping[str, int]) -> None:
    """Fix the named axes of inputs and outputs, and forget the shapes that were inferred in between."""
    import onnx_ir

    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = onnx_ir.Shape([fixed.get(str(axis), axis) for axis in value.shape or ()])
    ends = {id(value) for value in model.graph.outputs}
    for node in model.graph:
        for value in node.outputs:
            if id(value) not in ends:
                value.shape = None
