"""Step 8, specialise: fix the axes of the cleaned graph to one maximum length, and fold what follows from it.

Input: the cleaned graph. Output: `model.onnx` alone; it still points at the `weights.bin` of the clean-up.
Cache key: the graph, the fixed axes, versions of the tools, this code.
Check: inputs and outputs are those of the source but for the fixed axes; `build` opens it and compares the shapes.

Most nodes that the exporter adds to the model's arithmetic compute shapes. With the axes known they are constant: an
engine then has no shape to compute, neither on a GPU's host CPU nor in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arlo.compile.cache import Entry, code_version, link_or_copy, tool_versions
from arlo.compile.job import Job
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec
from arlo.compile.steps.cleanup import TOOLS, Graph, check_signature, fix_axes, signature_of, simplify


def specialise_step(job: Job, spec: RuntimeSpec) -> Entry:
    """Entry with the graph whose axes are fixed as `spec` says; meta: `fixed` and `nodes`."""
    if job.engine.graph != GRAPH:  # no graph: the same model folder serves all shapes
        return job.graph
    parts = {
        "graph": job.graph.files[GRAPH],
        "weights": job.graph.files[WEIGHTS],  # small constants that are folded may lie there
        "fixed": spec.fixed,
        "tools": tool_versions(*TOOLS),
        "code": code_version("steps/specialise", "steps/cleanup"),
    }
    return job.cache.step("specialise", parts, lambda folder: specialise(job.graph.folder, spec.fixed, folder))


def specialise(source: Path, fixed: Mapping[str, int], folder: Path) -> dict[str, Any]:
    """Write the graph in folder `source` into `folder` with the named axes fixed."""
    if not fixed:
        link_or_copy(source / GRAPH, folder / GRAPH)
        return {"fixed": {}}
    graph = Graph(source / GRAPH)
    fix_axes(graph.model, fixed)
    signature = signature_of(graph.model)
    simplify(graph.model, weights=False)
    check_signature(graph.model, signature, "specialise")
    graph.write(folder / GRAPH)
    return {"fixed": dict(fixed), "nodes": len(graph.model.graph)}
