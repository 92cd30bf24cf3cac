"""The last step: the manifest of the build, and the repository around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from arlo.catalog.manifest import Manifest, Runtime
from arlo.compile.cache import Entry, tool_versions
from arlo.compile.job import Job
from arlo.compile.repository.triton_config import model_code, triton_config
from arlo.compile.signals.words import words_of
from arlo.compile.spec import RuntimeSpec
from arlo.compile.steps.export import OPSET, tools_of
from arlo.compile.steps.latency import busy_warning, points_of
from arlo.compile.steps.repository import RepositoryWriter
from arlo.compile.steps.tokenizer import FILE_NAME as TOKENIZER
from arlo.compile.steps.verify import verification_of
from arlo.compile.verify.answers import FILE_NAME as REFERENCE
from arlo.planning.lengths.batches import BatchChoice


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """A runtime, ready to be written."""

    spec: RuntimeSpec
    built: Entry
    verified: Entry
    measured: Entry | None  # None: this machine cannot run the engine


def write_repository(
    job: Job, runtimes: list[Finished], writer: RepositoryWriter, batches: Sequence[BatchChoice] = ()
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
    return Manifest(
        model=model.name,
        task=model.task,
        source=model.source,
        tokenizer=tokenizer,
        inputs=model.inputs,
        outputs=job.outputs,
        runtimes=tuple(_described(job, runtime, writer) for runtime in runtimes),
        tools=tool_versions(*tools_of(model)) | engine.versions(),
        options={
            "lengths": [runtime.spec.max_length for runtime in runtimes if runtime.spec.shape == "static"],
            "dynamic": options.dynamic,
            "engine": engine.name,
            "device": options.device,
            "max_batch": options.max_batch,
            "memory_mb": options.memory_mb,
            "batches": [dataclasses.asdict(choice) for choice in batches],
            "batcher": options.batcher,
            "threads": options.threads,
            "tolerance": options.tolerance,
            "importance": options.importance,
            "confidence": options.confidence,
            "histogram": options.histogram,
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
        labels=model.labels,
        tasks=model.tasks,
        prompts=model.prompts,
        default_prompt=model.default_prompt,
        dimensions=model.dimensions,
        label_activation=model.label_activation,
        score_activation=model.score_activation,
        words=words_of(job.tokenizer.folder / tokenizer if tokenizer else None),
        importance=job.importance,
    )


def _described(job: Job, runtime: Finished, writer: RepositoryWriter) -> Runtime:
    engine, spec, measured = job.engine, runtime.spec, runtime.measured
    serving = engine.serving(spec)
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
        compute_capabilities=tuple(runtime.built.meta.get("compute_capabilities", ())),
        memory_mb=measured.meta["memory_mb"] if measured else None,
        files=writer.model(spec.name, triton_config(job, spec), model_code(serving.template), runtime.built),
    )
