"""The build from options to manifest: runs the steps in order and reports progress."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from arlo.clock import monotonic_s
from arlo.compile.build import build_step
from arlo.compile.cache import Cache, Entry, Hasher, temporary_folder, tool_versions
from arlo.compile.engine import get_engine
from arlo.compile.export import OPSET, TOOLS, export_step, outputs_of
from arlo.compile.job import Job
from arlo.compile.latency import busy_warning, latency_step, points_of
from arlo.compile.options import CompileOptions
from arlo.compile.original import Reference
from arlo.compile.repository import RepositoryWriter, building_prefix, publish, staging
from arlo.compile.resolve import SourceModel, resolve
from arlo.compile.spec import RuntimeSpec
from arlo.compile.specialise import specialise_step
from arlo.compile.texts import Texts
from arlo.compile.tokenizer import FILE_NAME as TOKENIZER
from arlo.compile.tokenizer import tokenizer_step
from arlo.compile.triton_config import model_code, triton_config
from arlo.compile.verify import verify_step
from arlo.errors import CompileError
from arlo.manifest import Manifest, Runtime, Verification

_STEPS_PER_RUNTIME = 4
_SMALL_FILES_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A step began, or ended when `done`."""

    step: str
    title: str  # what it works on: the model's name, or `length 128`
    number: int  # steps finished before this one
    total: int
    done: bool = False
    cached: bool = False
    seconds: float = 0.0
    note: str = ""  # the result, for people
    warning: str = ""  # what people should know or do


class _Reporter:
    def __init__(self, report: Callable[[Progress], None], total: int) -> None:
        self._report = report
        self._total = total
        self._number = 0

    def run(
        self,
        step: str,
        title: str,
        work: Callable[[], Entry],
        note: Callable[[Entry], str] = lambda _: "",
        warn: Callable[[Entry], str] = lambda _: "",
    ) -> Entry:
        """Run a step between its two reports."""
        with self.timed(step, title) as ended:
            entry = work()
            ended(entry.cached, note(entry), warn(entry))
        return entry

    @contextlib.contextmanager
    def timed(self, step: str, title: str) -> Iterator[Callable[[bool, str, str], None]]:
        """Report begin and end around a block, which may say how it ended."""
        event = Progress(step=step, title=title, number=self._number, total=self._total)
        self._report(event)
        start = monotonic_s()

        def ended(cached: bool, note: str, warning: str) -> None:
            nonlocal event
            event = dataclasses.replace(event, cached=cached, note=note, warning=warning)

        yield ended
        self._number += 1
        self._report(dataclasses.replace(event, number=self._number, done=True, seconds=monotonic_s() - start))


def compile_model(options: CompileOptions, progress: Callable[[Progress], None] = lambda _: None) -> Manifest:
    """Build the repository that `options` ask for and return its manifest.

    progress: called in this thread when a step begins and ends. Raises ConfigError for wrong options or a source that
    cannot be served, CompileError naming the step (and length) that failed, EnvironmentProblem for missing packages.
    Whatever happens, `options.out` holds either a whole build or what was there before.
    """
    engine = get_engine(options.engine, options.engine_settings)
    hasher = Hasher()
    with staging(options.out) as folder, _cache(options, hasher) as cache:
        report = _Reporter(progress, total=4 + _STEPS_PER_RUNTIME * (len(options.lengths) + options.dynamic))
        with report.timed("resolve", str(options.source)) as ended:
            model = resolve(options, hasher)
            _check_disk(model, cache, folder)
            ended(False, f"{model.model_type}, {model.task}", "; ".join(model.notes))
        tokenizer = report.run("tokenizer", model.name, lambda: tokenizer_step(cache, hasher, model))
        exported = report.run("export", model.name, lambda: export_step(cache, model), warn=_notes)
        job = Job(
            options=options,
            cache=cache,
            engine=engine,
            model=model,
            tokenizer=tokenizer,
            graph=exported,
            outputs=outputs_of(exported),
            texts=Texts(tokenizer.folder / TOKENIZER if tokenizer.meta["found"] else None),
            reference=Reference(model),
        )
        runtimes = _build_all(job, report)
        with report.timed("repository", str(options.out)):
            manifest = _write(job, runtimes, RepositoryWriter(folder, hasher))
            manifest.save(folder)
            publish(folder, options.out)
    return manifest


@dataclasses.dataclass(frozen=True, slots=True)
class _Finished:
    spec: RuntimeSpec
    built: Entry
    verified: Entry
    measured: Entry


def _build_all(job: Job, report: _Reporter) -> list[_Finished]:
    """Static runtimes, shortest first, then the dynamic one; one after the other, so that a wrong one shows early."""
    name, lengths, max_batch = job.model.name, job.options.lengths, job.options.max_batch
    specs = [RuntimeSpec(name=f"{name}_len{n}", max_length=n, max_batch=max_batch, shape="static") for n in lengths]
    if job.options.dynamic:
        specs.append(RuntimeSpec(name=f"{name}_dynamic", max_length=lengths[-1], max_batch=max_batch, shape="dynamic"))
    below = dict(zip(lengths, (0, *lengths), strict=False))
    return [_build(job, report, spec, 0 if spec.dynamic else below[spec.max_length]) for spec in specs]


def _build(job: Job, report: _Reporter, spec: RuntimeSpec, below: int) -> _Finished:
    title = spec.title
    graph = report.run("specialise", title, lambda: specialise_step(job, spec))
    built = report.run("build", title, lambda: build_step(job, graph, spec))
    verified = report.run(
        "verify",
        title,
        lambda: verify_step(job, built, spec, below=below),
        lambda entry: f"largest difference {entry.meta['max_abs_diff']:.1e}",
    )
    measured = report.run(
        "latency",
        title,
        lambda: latency_step(job, built, spec),
        lambda entry: f"{points_of(entry)[-1].latency_us / 1e3:.1f} ms",
        busy_warning,
    )
    return _Finished(spec, built, verified, measured)


def _write(job: Job, runtimes: list[_Finished], writer: RepositoryWriter) -> Manifest:
    options, model, engine = job.options, job.model, job.engine
    described = []
    for runtime in runtimes:
        spec = runtime.spec
        described.append(
            Runtime(
                name=spec.name,
                max_length=spec.max_length,
                max_batch=spec.max_batch,
                dynamic=spec.dynamic,
                engine=engine.name,
                precision=engine.settings.precision,
                device=runtime.measured.meta["device"],
                latency=points_of(runtime.measured),
                verification=Verification(
                    rows=len(runtime.verified.meta["rows"]),
                    max_abs_diff=runtime.verified.meta["max_abs_diff"],
                    padding_diff=0.0,
                ),
                files=writer.model(
                    spec.name, triton_config(job, spec), model_code(engine.serving(spec).template), runtime.built
                ),
            )
        )
    tokenizer = TOKENIZER if job.tokenizer.meta["found"] else None
    if tokenizer:
        writer.file(job.tokenizer.folder / tokenizer, tokenizer)
    return Manifest(
        model=model.name,
        task=model.task,
        source=model.source,
        tokenizer=tokenizer,
        inputs=model.inputs,
        outputs=job.outputs,
        runtimes=tuple(described),
        tools=tool_versions(*TOOLS) | engine.versions(),
        options={
            "lengths": list(options.lengths),
            "dynamic": options.dynamic,
            "engine": engine.name,
            "max_batch": options.max_batch,
            "threads": options.threads,
            "tolerance": options.tolerance,
            "opset": OPSET,
            "pooling": list(model.pooling),
            "normalize": model.normalize,
            "source_sha256": model.hashes,
        },
    )


def _notes(entry: Entry) -> str:
    return "; ".join(entry.meta["notes"])


@contextlib.contextmanager
def _cache(options: CompileOptions, hasher: Hasher) -> Iterator[Cache]:
    """The cache, or a passing one beside the output, so that its files can still be linked."""
    if options.use_cache:
        yield Cache(options.cache_root, hasher)
        return
    out = options.out.resolve()
    with temporary_folder(out.parent, building_prefix(out)) as folder:
        yield Cache(folder, hasher)


def _check_disk(model: SourceModel, cache: Cache, folder: Path) -> None:
    """Refuse before the work starts when the weights will not fit: once in the cache, once more on another disk."""
    wanted = {cache.folder: model.weight_bytes * 2 + _SMALL_FILES_BYTES}
    if cache.folder.stat().st_dev != folder.stat().st_dev:
        wanted[folder] = model.weight_bytes + _SMALL_FILES_BYTES
    for place, needed in wanted.items():
        free = shutil.disk_usage(place).free
        if free < needed:
            raise CompileError(
                f"resolve: {place} has {free >> 20} MB free and the build needs {needed >> 20} MB: "
                "free some space, or choose another disk with --out or ARLO_CACHE"
            )
