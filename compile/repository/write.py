"""The last step: the manifest of the build, and the repository around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from arlo.catalog.manifest import Manifest, Runtime
from arlo.compile.cache import tool_versions
from arlo.compile.job import Job
from arlo.compile.repository.triton_config import config_text, model_code
from arlo.compile.runtime import Built
from arlo.compile.signals.words import words_of
from arlo.compile.steps.export import OPSET, tools_of
from arlo.compile.steps.latency import busy_warning, points_of
from arlo.compile.steps.repository import RepositoryWriter
from arlo.compile.steps.tokenizer import FILE_NAME as TOKENIZER
from arlo.compile.steps.verify import verification_of
from arlo.compile.verify.answers import FILE_NAME as REFERENCE
from arlo.planning.lengths.batches import BatchChoice

_OPTIONS = (
    *("dynamic", "device", "max_batch", "memory_mb", "batcher", "threads", "tolerance", "importance", "confidence"),
    "histogram",
)
_OF_MODEL = (
    *("task", "source", "inputs", "labels", "tasks", "prompts", "default_prompt", "dimensions"),
    *("label_activation", "score_activation"),
)


def write_repository(
    job: Job, runtimes: list[Built], writer: RepositoryWriter, batches: Sequence[BatchChoice] = ()
) -> Manifest:
    """Write the model folders and the tokenizer; returns the manifest, which is not written yet.

    batches: the batch choices, recorded as an explanation; empty if none were made.
    """
    options, model, engine = job.options, job.model, job.engine
    tokenizer = TOKENIZER if job.tokenizer.meta["found"] else None
    if tokenizer:
        writer.file(job.tokenizer.folder / tokenizer, tokenizer)
    assert job.reference is not None
    writer.file(job.reference.folder / REFERENCE, REFERENCE)
    as_they_are = {name: getattr(options, name) for name in _OPTIONS}
    return Manifest(
        model=model.name,
        tokenizer=tokenizer,
        outputs=job.outputs,
        runtimes=tuple(_described(job, runtime, writer) for runtime in runtimes),
        tools=tool_versions(*tools_of(model)) | engine.versions(),
        options={
            **as_they_are,
            "lengths": [runtime.spec.max_length for runtime in runtimes if runtime.spec.shape == "static"],
            "engine": engine.name,
            "batches": [dataclasses.asdict(choice) for choice in batches],
            "measured_busy": any(each.measured and busy_warning(each.measured) for each in runtimes),
            "opset": OPSET,
            "pooling": list(model.pooling),
            "layers": [layer.kind for layer in model.layers],
            "normalize": model.normalize,
            "limit": model.max_tokens,
            "source_sha256": model.hashes,
            "tokenizer_sha256": job.tokenizer.files.get(TOKENIZER),
            "reference_sha256": job.reference.files[REFERENCE],
        },
        words=words_of(job.tokenizer.folder / tokenizer if tokenizer else None),
        importance=job.importance,
        **{name: getattr(model, name) for name in _OF_MODEL},
    )


def _described(job: Job, runtime: Built, writer: RepositoryWriter) -> Runtime:
    engine, spec, measured = job.engine, runtime.spec, runtime.measured
    serving, options = engine.serving(spec), job.options
    config = config_text(
        serving,
        spec,
        inputs=job.model.inputs,
        outputs=job.outputs,
        threads=options.threads,
        batcher=options.batcher,
    )
    return Runtime(
        name=spec.name,
        max_length=spec.max_length,
        max_batch=spec.max_batch,
        dynamic=spec.dynamic,
        engine=engine.name,
        precision=engine.settings.precision,
        device=measured.meta["device"] if measured else "",
        latency=points_of(measured) if measured else (),
        verification=verification_of(runtime.verified),
        backend=serving.backend or serving.platform,
        profiles=spec.profiles,
        kinds=engine.settings.kinds,
        compute_capabilities=tuple(runtime.engine.meta.get("compute_capabilities", ())),
        memory_mb=measured.meta["memory_mb"] if measured else None,
        files=writer.model(spec.name, config, model_code(serving.template), runtime.engine),
    )
