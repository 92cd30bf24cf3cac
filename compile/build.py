"""Step 5, build: the engine's files for one runtime, a whole Triton model version but for the model code.

Input: the specialised graph and the export's weights. Output: whatever the engine back-end writes.
Cache key: both contents, the engine, its versions, the runtime's shape, this code. Check: the back-end opens it.
"""

from __future__ import annotations

from arlo.compile.cache import Entry, code_version
from arlo.compile.export import GRAPH, WEIGHTS
from arlo.compile.job import Job
from arlo.compile.spec import RuntimeSpec


def build_step(job: Job, specialised: Entry, spec: RuntimeSpec) -> Entry:
    """Entry with the engine's files."""
    exported, engine = job.exported, job.engine
    parts = {
        "graph": specialised.files[GRAPH],
        "weights": exported.files[WEIGHTS],
        "fixed": spec.fixed,
        "engine": engine.name,
        "tools": engine.versions(),
        "code": code_version("build", f"engine_{engine.name}"),
    }
    graph, weights = specialised.folder / GRAPH, exported.folder / WEIGHTS
    return job.cache.step("build", parts, lambda folder: engine.build(graph, weights, spec, folder))
