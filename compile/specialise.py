"""Step 4, specialise: fix the axes of the exported graph to one maximum length.

Input: the export. Output: `model.onnx` alone; it still points at the `weights.bin` of the export.
Cache key: the graph, the fixed axes, version of onnx, this code. Check: `build` opens it and compares the shapes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arlo.compile.cache import Entry, code_version, tool_versions
from arlo.compile.job import Job
from arlo.compile.spec import GRAPH, RuntimeSpec


def specialise_step(job: Job, spec: RuntimeSpec) -> Entry:
    """Entry with the graph whose axes are fixed as `spec` says."""
    parts = {
        "graph": job.graph.files[GRAPH],
        "fixed": spec.fixed,
        "tools": tool_versions("onnx"),
        "code": code_version("specialise"),
    }
    return job.cache.step("specialise", parts, lambda folder: _specialise(job.graph.folder / GRAPH, spec, folder))


def _specialise(graph: Path, spec: RuntimeSpec, folder: Path) -> dict[str, Any]:
    import onnx

    proto = onnx.load(str(graph), load_external_data=False)
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in spec.fixed:
                dim.dim_value = spec.fixed[dim.dim_param]
    (folder / GRAPH).write_bytes(proto.SerializeToString())
    return {"fixed": spec.fixed}
