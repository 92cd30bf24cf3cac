"""The build from options to manifest: runs the steps in order and reports progress."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from arlo.catalog.manifest import Manifest, check
from arlo.compile.cache import Cache, Entry, Hasher, temporary_folder
from arlo.compile.engines.interface import Engine, get_engine
from arlo.compile.job import Job
from arlo.compile.options import DEFAULT_LENGTHS, CompileOptions, default_lengths
from arlo.compile.progress import Progress, Reporter
from arlo.compile.repository.write import write_repository
from arlo.compile.runtime import STEPS, Built, Task, Told, build_runtimes
from arlo.compile.signals.step import check_signals, importance_of, signals_step, wanted
from arlo.compile.spec import RuntimeSpec, Shape
from arlo.compile.steps.batches import batches_of, batches_step, check_batches
from arlo.compile.steps.cleanup import cleanup_step
from arlo.compile.steps.export import export_step, outputs_of
from arlo.compile.steps.export_torch import export_torch_step, kinds_of
from arlo.compile.steps.latency import ROUNDS, busy_warning, latency_step, odd, points_of, times_of
from arlo.compile.steps.lengths import LengthChoice, choose, longest_served
from arlo.compile.steps.reference import reference_step
from arlo.compile.steps.repository import RepositoryWriter, building_prefix, publish, staging
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.compile.steps.tokenizer import FILE_NAME as TOKENIZER
from arlo.compile.steps.tokenizer import tokenizer_step
from arlo.compile.texts import Texts
from arlo.errors import CompileError, ConfigError
from arlo.planning.lengths.advice import DISTURBED, advise
from arlo.planning.lengths.batches import BatchChoice
from arlo.traces.traffic import traffic

_SMALL_FILES_BYTES = 64 << 20


def compile_model(
    options: CompileOptions,
    progress: Callable[[Progress], None] = lambda _: None,
    *,
    chosen: Callable[[LengthChoice], None] = lambda _: None,
) -> Manifest:
    """Build the repository that `options` ask for and return its manifest.

    progress: called in this thread when a step begins and ends; runtimes may be built side by side. chosen: called
    when lengths = auto has chosen them. Raises ConfigError for wrong options or a source that cannot be served,
    CompileError naming the step (and length) that failed, EnvironmentProblem for missing packages. In every case,
    `options.out` holds either a whole build or its previous content.
    """
    engine = get_engine(options.engine, options.engine_settings)
    engine.versions()
    check_batches(options, engine)
    hasher = Hasher()
    with staging(options.out) as folder, _cache(options, hasher) as cache:
        report = Reporter(progress)
        report.total = _steps(options, engine)
        with report.timed("resolve", str(options.source)) as ended:
            model = resolve(options, hasher)
            options = _with_lengths(options, model, engine)
            report.total = _steps(options, engine)
            check_signals(options, model)
            _check_disk(options, model, cache, folder)
            requests = traffic(options.histogram, longest_served(options, model.max_tokens))
            ended(False, f"{model.model_type}, {model.task}", "; ".join(model.notes))
        tokenizer = report.run("tokenizer", model.name, lambda: tokenizer_step(cache, hasher, model), warn=_notes)
        if engine.name == "torch":
            make = partial(export_torch_step, cache, model, options.precision)
            exported = cleaned = report.run("export", model.name, make, warn=_notes)
            engine = get_engine("torch", kinds_of(engine.settings, exported))
        else:
            make = partial(export_step, cache, model, options.precision)
            exported = report.run("export", model.name, make, warn=_notes)
            if wanted(options):
                signals = partial(signals_step, cache, exported, model, options)
                exported = report.run("signals", model.name, signals)
            cleaned = report.run("cleanup", model.name, lambda: cleanup_step(cache, exported), _cleaned)
        outputs = outputs_of(exported)
        texts = Texts(tokenizer.folder / TOKENIZER if tokenizer.meta["found"] else None)
        job = Job(
            options=options,
            cache=cache,
            engine=engine,
            model=model,
            tokenizer=tokenizer,
            graph=cleaned,
            outputs=outputs,
            texts=texts,
            importance=importance_of(exported),
        )
        lengths = options.lengths if isinstance(options.lengths, tuple) else _lengths(job, report, chosen)
        batches = _batches(job, report, lengths) if options.max_batch == "auto" else ()
        reference = report.run(
            "reference",
            model.name,
            lambda: reference_step(cache, model, outputs, texts, lengths, importance=job.importance),
            lambda entry: f"{entry.meta['rows']} texts, {entry.meta['tokens']} tokens",
        )
        job = dataclasses.replace(job, reference=reference)
        runtimes = _build_all(job, report, lengths, {choice.length: choice.rows for choice in batches})
        with report.timed("repository", str(options.out)):
            manifest = write_repository(job, runtimes, RepositoryWriter(folder, hasher), batches)
            advice = advise(manifest, requests.by_length, lengths=requests.text)
            manifest = dataclasses.replace(manifest, recommendation=advice, adaptation=options.adaptation)
            check(manifest).save(folder)
            publish(folder, options.out)
    return manifest


def _with_lengths(options: CompileOptions, model: SourceModel, engine: Engine) -> CompileOptions:
    """The options, with the model's lengths if none are named. A model without token ids, whose rows all have one
    length, has one static runtime."""
    if model.row_length is None:
        return dataclasses.replace(options, lengths=options.lengths or default_lengths(model.max_tokens))
    if engine.name != "onnxruntime":
        raise ConfigError(f"{options.source} takes tensors, which {engine.name} is not built for here: use onnxruntime")
    if options.lengths not in (None, (model.row_length,)):
        raise ConfigError(f"{options.source}: every row is of length {model.row_length}: leave --lengths out")
    if options.max_batch == "auto":
        raise ConfigError("max_batch = auto is of models that take token ids: name a number, such as --max-batch 8")
    return dataclasses.replace(options, lengths=(model.row_length,), static=True, dynamic=False, profiles=False)


def _steps(options: CompileOptions, engine: Engine) -> int:
    """How many steps a build has; with lengths = auto, how many at most."""
    runtimes = len(specs_of(options, "", _at_most(options)))
    return (
        6
        - (engine.name == "torch")  # no clean-up
        + wanted(options)
        + (options.lengths == "auto")
        + (options.max_batch == "auto")
        + runtimes * _steps_of_one(engine)
    )


def _steps_of_one(engine: Engine) -> int:
    return len(STEPS) + (not engine.cannot_run())


def _lengths(job: Job, report: Reporter, chosen: Callable[[LengthChoice], None]) -> Sequence[int]:
    with report.timed("lengths", job.model.name) as ended:
        choice = choose(job)
        ended(False, ", ".join(map(str, choice.lengths)), "; ".join(choice.notes))
    report.total -= (job.options.max_runtimes - len(choice.lengths)) * _steps_of_one(job.engine)
    chosen(choice)
    return choice.lengths


def _batches(job: Job, report: Reporter, lengths: Sequence[int]) -> tuple[BatchChoice, ...]:
    def said(entry: Entry) -> str:
        return ", ".join(f"{choice.rows} of {choice.length} tokens" for choice in batches_of(job, entry))

    return batches_of(job, report.run("batches", job.model.name, lambda: batches_step(job, lengths), said))


def specs_of(
    options: CompileOptions, name: str, lengths: Sequence[int], batches: Mapping[int, int] | None = None
) -> list[RuntimeSpec]:
    """The runtimes of a build: static ones, shortest first, then the dynamic one and the one of several profiles.

    batches: rows of each length, with max_batch = auto. Runtimes of any length take the most of them.
    """
    rows = batches or dict.fromkeys(lengths, options.most_rows)

    def spec(shape: Shape, length: int = lengths[-1], suffix: str = "") -> RuntimeSpec:
        return RuntimeSpec(
            name=f"{name}_{suffix or shape}",
            max_length=length,
            max_batch=rows[length] if shape == "static" else max(rows.values()),
            shape=shape,
            profiles=tuple(lengths) if shape == "profiles" else (),
        )

    if options.engine == "torch":  # one process holds the weights once
        return [spec("profiles", suffix="torch")]
    specs = [spec("static", length, f"len{length}") for length in lengths] if options.static else []
    return specs + [spec("dynamic")] * options.dynamic + [spec("profiles")] * options.profiles


def _build_all(job: Job, report: Reporter, lengths: Sequence[int], batches: Mapping[int, int]) -> list[Built]:
    """Build and verify, in parallel where that pays; then measure one runtime after the other."""
    if job.options.profiles and job.options.engine == "onnxruntime" and all(t.role != "mask" for t in job.model.inputs):
        raise ConfigError("profiles pads rows to the next length, and this model has no attention mask to hide that")
    specs = specs_of(job.options, job.model.name, lengths, batches)
    tasks = [Task(job=job, spec=dataclasses.replace(spec, tensors=job.model.tensors)) for spec in specs]

    def tell(task: Task, told: Told) -> None:
        if told.entry is None:
            report.began(told.step, task.spec.title)
            return
        note = f"largest difference {told.entry.meta['max_abs_diff']:.1e}" if told.step == "verify" else ""
        entry, warning = told.entry, _notes(told.entry)
        report.ended(told.step, task.spec.title, seconds=told.seconds, cached=entry.cached, note=note, warning=warning)

    built = build_runtimes(tasks, tell=tell)
    if job.engine.cannot_run():
        return built
    with collected():
        measured = [_measure(job, report, each, lengths) for each in built]
        measured = _measured_again(job, report, built, measured, lengths)
    return [dataclasses.replace(each, measured=entry) for each, entry in zip(built, measured, strict=True)]


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Collect garbage once and freeze the rest, so that the collections of later memory measurements skip the objects
    of torch and the exporter: half a second each time."""
    ours = gc.get_freeze_count() == 0
    gc.collect()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


def _measured_again(
    job: Job, report: Reporter, built: Sequence[Built], measured: list[Entry], lengths: Sequence[int]
) -> list[Entry]:
    """Measure static runtimes again that took longer than one for more tokens, or far longer than the dynamic one:
    other work ran at the same time. Cached measurements passed this check when they were made.
    """
    for at in [*reversed(range(len(built)))] * ROUNDS:
        spec, entry = built[at].spec, measured[at]
        longer: dict[tuple[int, int], float] = {}
        for other, found in zip(built, measured, strict=True):
            if other.spec.dynamic:
                longer |= {point: us / DISTURBED for point, us in times_of(found).items()}
        for other, found in zip(built, measured, strict=True):
            if not other.spec.dynamic and other.spec.max_length > spec.max_length:
                longer |= {point: min(us, longer.get(point, us)) for point, us in times_of(found).items()}
        again = () if spec.dynamic or entry.cached else odd(times_of(entry), longer=longer)
        if again:
            report.total += 1
            measured[at] = _measure(job, report, built[at], lengths, before=entry, again=again)
    return measured


def _measure(
    job: Job,
    report: Reporter,
    built: Built,
    lengths: Sequence[int],
    *,
    before: Entry | None = None,
    again: Collection[tuple[int, int]] = (),
) -> Entry:
    took = (
        "" if before is None else f", {points_of(before)[-1].latency_us / 1e3:.1f} ms before, when something else ran"
    )
    return report.run(
        "latency",
        built.spec.title,
        lambda: latency_step(job, built.engine, built.spec, lengths, before=before, again=again),
        lambda entry: f"{points_of(entry)[-1].latency_us / 1e3:.1f} ms{took}",
        busy_warning,
    )


def _cleaned(entry: Entry) -> str:
    return f"{entry.meta['nodes_before']} nodes, {entry.meta['nodes_after']} left"


def _notes(entry: Entry) -> str:
    return "; ".join(entry.meta.get("notes", ()))


@contextlib.contextmanager
def _cache(options: CompileOptions, hasher: Hasher) -> Iterator[Cache]:
    """The cache, or a temporary one next to the output, so that its files can still be linked."""
    if options.use_cache:
        yield Cache(options.cache_root, hasher)
        return
    out = options.out.resolve()
    with temporary_folder(out.parent, building_prefix(out)) as folder:
        yield Cache(folder, hasher)


def _check_disk(options: CompileOptions, model: SourceModel, cache: Cache, folder: Path) -> None:
    """Reject the build before it starts if the files will not fit: in the cache, and again on another disk."""
    weights = model.weight_bytes
    if options.engine.startswith("tensorrt"):  # each engine holds the weights
        share = 0.55 if options.precision != "fp32" else 1.1
        engines = int(weights * share) * len(specs_of(options, "", _at_most(options)))
    else:
        engines = weights
    wanted = {cache.folder: weights + engines + _SMALL_FILES_BYTES}
    if cache.folder.stat().st_dev != folder.stat().st_dev:
        wanted[folder] = engines + _SMALL_FILES_BYTES
    for place, needed in wanted.items():
        free = shutil.disk_usage(place).free
        if free < needed:
            raise CompileError(
                f"resolve: {place} has {free >> 20} MB free and the build needs {needed >> 20} MB: "
                "free some space, name fewer lengths, or choose another disk with --out or ARLO_CACHE"
            )


def _at_most(options: CompileOptions) -> Sequence[int]:
    return range(1, options.max_runtimes + 1) if options.lengths == "auto" else options.lengths or DEFAULT_LENGTHS
