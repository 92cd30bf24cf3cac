"""Step 9, build: the engine's files for one runtime, a whole Triton model version but for the model code.

Input: the specialised graph and the export's weights. Output: the files that the engine back-end writes.
Cache key: both contents, the engine, its versions, the runtime's shape, this code. Check: the back-end opens it.
"""

from __future__ import annotations

from arlo.compile.cache import Entry, code_version
from arlo.compile.job import Job
from arlo.compile.spec import RuntimeSpec


def build_step(job: Job, specialised: Entry, spec: RuntimeSpec) -> Entry:
    """Entry with the engine's files."""
    graph, engine = job.graph, job.engine
    parts = {
        "graph": specialised.files[engine.graph],
        "weights": graph.files[engine.weights],
        "spec": [spec.shape, spec.max_length, spec.max_batch, list(spec.profiles)],
        "engine": engine.name,
        "settings": engine.key(),
        "tools": engine.versions(),
        "code": code_version("steps/build", f"engines/{engine.name.partition('-')[0]}"),
    }
    source, weights = specialised.folder / engine.graph, graph.folder / engine.weights
    scratch = job.cache.folder / "scratch" / engine.name
    scratch.mkdir(parents=True, exist_ok=True)
    return job.cache.step("build", parts, lambda folder: engine.build(source, weights, spec, folder, scratch=scratch))
