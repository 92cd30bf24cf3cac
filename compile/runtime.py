"""From the cleaned graph to a verified engine: specialise -> build -> verify, here or in another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import psutil

from arlo.clock import monotonic_s
from arlo.compile.cache import Entry, NotCached
from arlo.compile.job import Job
from arlo.compile.parallel import run_all
from arlo.compile.spec import RuntimeSpec
from arlo.compile.steps.build import build_step
from arlo.compile.steps.specialise import specialise_step
from arlo.compile.steps.verify import verify_step

STEPS = ("specialise", "build", "verify")
_SHARE = 0.8  # of the free memory that builds may take together
_SMALL_BYTES = 32 << 20  # weights of a model whose runtimes are built in less time than a process takes to start


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The work of one process."""

    job: Job
    spec: RuntimeSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A step of a task began, or ended with `entry`."""

    step: str
    entry: Entry | None = None
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A runtime whose engine is there and exact."""

    spec: RuntimeSpec
    engine: Entry
    verified: Entry
    measured: Entry | None = None  # None: not yet, or this machine cannot run the engine


def build_runtime(task: Task, tell: Callable[[Told], None]) -> Built:
    """Run the steps of one runtime and report when each begins and ends."""
    job, spec = task.job, task.spec

    def run(step: str, make: Callable[[], Entry]) -> Entry:
        tell(Told(step=step))
        start_s = monotonic_s()
        entry = make()
        tell(Told(step=step, entry=entry, seconds=monotonic_s() - start_s))
        return entry

    graph = run("specialise", lambda: specialise_step(job, spec))
    engine = run("build", lambda: build_step(job, graph, spec))
    verified = run("verify", lambda: verify_step(job, engine, graph, spec))
    return Built(spec=spec, engine=engine, verified=verified)


def build_runtimes(tasks: Sequence[Task], *, tell: Callable[[Task, Told], None]) -> list[Built]:
    """All runtimes, in the order of the tasks. Cached runtimes are read in this process; the rest is built in worker
    processes where that pays: several at a time, or one at a time for engines that may crash."""
    results: dict[int, Built] = {}
    missing: list[int] = []
    for index, task in enumerate(tasks):
        told: list[Told] = []
        try:
            cached = dataclasses.replace(task.job, cache=task.job.cache.read_only())
            results[index] = build_runtime(dataclasses.replace(task, job=cached), told.append)
        except NotCached:
            missing.append(index)
            continue
        for each in told:
            tell(task, each)
    if not missing:
        return [results[index] for index in range(len(tasks))]
    jobs = min(len(missing), jobs_that_fit(tasks[0].job))
    if jobs == 1 and not _may_crash(tasks[0].job):
        for index in missing:
            task = tasks[index]
            results[index] = build_runtime(task, lambda each, task=task: tell(task, each))  # type: ignore[misc]
    else:
        todo = [tasks[index] for index in missing]
        built = run_all(build_runtime, todo, jobs=jobs, tell=tell, title=lambda task: task.spec.title)
        results |= dict(zip(missing, built, strict=True))
    return [results[index] for index in range(len(tasks))]


def jobs_that_fit(job: Job) -> int:
    """Builds at a time: as requested, else one for a small model, or as many as cores and free memory allow."""
    if job.options.jobs is not None:
        return job.options.jobs
    if job.model.weight_bytes < _SMALL_BYTES and not _may_crash(job):
        return 1
    needed = max(1, job.engine.build_memory(job.model.weight_bytes))
    fitting = int(psutil.virtual_memory().available * _SHARE) // needed
    return max(1, min(fitting, psutil.cpu_count() or 1))


def _may_crash(job: Job) -> bool:
    return job.engine.name.startswith("tensorrt")
