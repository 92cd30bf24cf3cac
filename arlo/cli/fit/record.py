"""Texts run through compiled engines on real workers, one text at a time; their answers are stored as they come.

Engines take turns of PART texts, so that other work on the machine slows all of them alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from arlo.cascade.records import engine_hash
from arlo.catalog.manifest import Manifest, Runtime
from arlo.clock import monotonic_s
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.manifest import CascadeManifest
    from arlo.cascade.prune import Vocabulary
    from arlo.cascade.records import Data, Recorded, Records
    from arlo.profiler.wire import WorkerClient

PART = 256  # rows that are written at a time
WARM = 5  # calls of each runtime that are not counted

Tokens = tuple[NDArray[np.int64], NDArray[np.int64] | None]  # ids and type ids of a row
Cut = Callable[["Vocabulary", NDArray[np.int64], int, int], NDArray[np.int64]]  # of ids, count, row: places to keep


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """Texts for one repository: whole, or as the stage before left them."""

    repository: Path
    key: str  # of its records
    what: str
    rows: tuple[int, ...]  # that are not recorded yet
    importance: bool = False  # whether it is asked for
    places: Callable[[int], NDArray[np.int64] | None] = lambda _: None  # of a row's kept tokens; None: all


def whole(name: str, repository: Path, data: Data, records: Records, *, importance: bool = False) -> Job:
    """The job of every text, unchanged."""
    key = records.key(name, engine_hash(Manifest.load(repository)))
    return Job(repository, key, name, left(key, data, records), importance)


def left(key: str, data: Data, records: Records) -> tuple[int, ...]:
    """Numbers of the texts that are not recorded yet."""
    there = set(records.rows(key).tolist())
    return tuple(row for row in range(len(data.examples)) if row not in there)


class Stages:
    """The parts of a cascade to record. `folder`: of its cascade.json."""

    def __init__(self, cascade: CascadeManifest, folder: Path, data: Data, records: Records) -> None:
        self._cascade, self._folder, self._data, self._records = cascade, folder, data, records

    def record(self, alphas: Sequence[float], *, threads: int) -> None:
        """Record whole texts, then texts pruned with each alpha; existing records are kept."""
        self.run([self.whole(s) for s in range(len(self._cascade.stages))], threads=threads)
        for alpha in alphas:
            self.run([self.pruned(s, alpha) for s in range(1, len(self._cascade.stages))], threads=threads)

    def run(self, work: Sequence[Job], *, threads: int) -> None:
        """Run jobs on workers."""
        record(work, self._data, self._records, threads=threads)

    def whole(self, stage: int) -> Job:
        """The job of whole texts; with importance if the next stage may need it."""
        each = self._cascade.stages[stage]
        repository = self._folder / each.repository
        return whole(each.name, repository, self._data, self._records, importance=self._asked(stage))

    def pruned(
        self, stage: int, alpha: float, how: str = "importance", *, to_level: bool = True, cut: Cut | None = None
    ) -> Job:
        """The job of texts as the stage before leaves them. `how`: the name of the records; `cut`: which tokens are
        kept instead of the important ones, as many of them."""
        from arlo.cascade.prune import Rewording, prune
        from arlo.cascade.spec import Prune
        from arlo.cascade.study import pruned_variant, stage_key

        cascade, folder, source = self._cascade, self._folder, stage - 1
        names = (cascade.stages[source].name, cascade.stages[stage].name)
        if cascade.stages[source].importance is None:
            raise ConfigError(
                f"stage {names[0]} has no output importance, so nothing can be pruned after it: compile it with "
                "`arlo compile --importance`, or leave out --alphas"
            )
        said = self._records.load(stage_key(cascade, folder, self._records, source))
        if said is None or len(said.row) < len(self._data.examples):
            raise ConfigError(f"stage {names[0]} must be recorded on whole texts first")
        groups = [cascade.stages[at].tokenizer_group for at in (source, stage)]
        before, vocabulary = (cascade.vocabularies[group] for group in groups)
        repository = folder / cascade.stages[stage].repository
        levels = [r.max_length for r in runtimes_of(Manifest.load(repository)) if not r.dynamic]
        first, tokenize = (Tokenize(folder / cascade.stages[at].repository) for at in (source, stage))
        spec = Prune(alpha=alpha, to_level=to_level)

        def places(row: int) -> NDArray[np.int64]:
            ids, _ = tokenize(self._data, row)
            source_ids = first(self._data, row)[0]
            to = None if groups[0] == groups[1] else Rewording(vocabulary, ids)
            if to is not None and (len(source_ids) >= first.longest or len(ids) >= tokenize.longest):
                return np.arange(len(ids))  # perhaps cut, each after other words
            kept = prune(spec, before, source_ids, said.importance_of(row), levels, to=to)
            return kept if cut is None else cut(vocabulary, ids, len(kept), row)

        variant = pruned_variant(cascade, folder, source, alpha, how)
        key = stage_key(cascade, folder, self._records, stage, variant)
        self._records.note_variant((*names, alpha, how))
        job = Job(repository, key, f"{names[1]} alpha {alpha:g} {how}", (), self._asked(stage), places)
        job = dataclasses.replace(job, rows=left(key, self._data, self._records))
        return self._without_whole(job, stage)

    def _without_whole(self, job: Job, stage: int) -> Job:
        """Copy the records of texts that lose nothing. Not if importance is also recorded, which is read together with
        how it was asked for."""
        said = self._records.load(self.whole(stage).key)
        if job.importance or said is None or not job.rows:
            return job
        there = np.asarray(job.rows)[np.isin(job.rows, said.row)]
        sizes = said.take(there).tokens
        same = [row for row, size in zip(there, sizes, strict=True) if _size(job.places(row)) == size]
        if same:
            self._records.append(job.key, said.take(np.asarray(same, np.int64)))
        return dataclasses.replace(job, rows=left(job.key, self._data, self._records))

    def _asked(self, stage: int) -> bool:
        return stage < len(self._cascade.stages) - 1 and self._cascade.stages[stage].importance is not None


def _size(places: NDArray[np.int64] | None) -> int | None:
    return None if places is None else len(places)


class Tokenize:
    """Rows of a data file as a stage's tokenizer cuts them, up to the longest runtime."""

    def __init__(self, repository: Path) -> None:
        from arlo.client.tokenizer import Tokenizer

        manifest = Manifest.load(repository)
        if manifest.tokenizer is None:
            raise ConfigError(f"{repository} has no tokenizer, so texts cannot be run on it")
        self._tokenizer = Tokenizer(repository / manifest.tokenizer)
        self.longest = runtimes_of(manifest)[-1].max_length

    def __call__(self, data: Data, row: int) -> Tokens:
        example = data.examples[row]
        text = example.text if example.text_pair is None else (example.text, example.text_pair)
        found = self._tokenizer.encode([text], cut_to=self.longest)[0]
        return found.ids, found.type_ids


def runtimes_of(manifest: Manifest) -> list[Runtime]:
    """The runtimes that serve, by ascending length: static ones, or the dynamic one if advised or the only one."""
    dynamic = [r for r in manifest.runtimes if r.dynamic]
    static = [r for r in manifest.runtimes if not r.dynamic]
    advised = manifest.recommendation is not None and manifest.recommendation.serve == "dynamic"
    return sorted(dynamic if dynamic and (advised or not static) else static, key=lambda r: r.max_length)


def record(work: Sequence[Job], data: Data, records: Records, *, threads: int) -> None:
    """Run jobs, each on its own worker; none is started if nothing is missing."""
    from rich.console import Console

    from arlo.profiler.findings import BUSY
    from arlo.report.progress import LiveBar

    work = [job for job in work if job.rows]
    if not work:
        return
    count, loads = len(data.examples), list[float]()
    done = {job.key: count - len(job.rows) for job in work}
    with LiveBar(Console(stderr=True), f"{work[0].what}: starting a worker") as bar:

        def keep(job: Job, part: Recorded) -> None:
            records.append(job.key, part)
            done[job.key] += len(part.row)
            bar.show(sum(done.values()), count * len(work), f"{job.what}: {done[job.key]} of {count} texts")

        asyncio.run(_on_workers(work, data, threads=threads, keep=keep, loads=loads))
    busy = [load for load in loads if load > BUSY]
    if busy:
        print(
            f"arlo: warning: the machine was busy: other work took up to {max(busy):.0%} of its CPU time in "
            f"{len(busy)} of {len(loads)} turns, so times may be too high: record into other --records when it is idle",
            file=sys.stderr,
        )


async def _on_workers(
    work: Sequence[Job],
    data: Data,
    *,
    threads: int,
    keep: Callable[[Job, Recorded], None],
    loads: list[float],
) -> None:
    from arlo.profiler.worker import end_on_sigterm

    end_on_sigterm()
    turn = asyncio.Lock()  # first come, first served
    try:
        async with asyncio.TaskGroup() as group:
            for job in work:
                to = functools.partial(keep, job)
                group.create_task(_on_worker(job, data, threads=threads, keep=to, turn=turn, loads=loads))
    except BaseExceptionGroup as problems:
        raise problems.exceptions[0] from None


async def _on_worker(
    job: Job,
    data: Data,
    *,
    threads: int,
    keep: Callable[[Recorded], None],
    turn: asyncio.Lock,
    loads: list[float],
) -> None:
    from arlo.profiler.machine import CpuTimes
    from arlo.profiler.worker import in_thread, one_worker

    manifest, tokenize = Manifest.load(job.repository), Tokenize(job.repository)
    stop = threading.Event()
    async with contextlib.AsyncExitStack() as stack:
        async with turn:
            started = one_worker(job.repository, threads=threads)
            pool, worker, client = await stack.enter_async_context(started)
        for runtime, rows in _by_runtime(job, manifest, tokenize, data):
            async with turn:
                await pool.load(worker, runtime.name)
            session = _Session(client, manifest, runtime, stop, importance=job.importance)
            for first in range(0, len(rows), PART):
                async with turn:
                    before = CpuTimes.read(os.getpid())
                    await in_thread(functools.partial(session.run, rows[first : first + PART], keep), stop.set)
                    load = before.other_load(CpuTimes.read(os.getpid()))
                    loads += [] if load is None else [load]
            async with turn:
                await pool.unload(worker, runtime.name)


def _by_runtime(
    job: Job, manifest: Manifest, tokenize: Tokenize, data: Data
) -> Iterator[tuple[Runtime, list[tuple[int, Tokens]]]]:
    """Rows with their tokens, by the runtime that serves them: the shortest that takes them."""
    runtimes = runtimes_of(manifest)
    found: dict[str, list[tuple[int, Tokens]]] = {runtime.name: [] for runtime in runtimes}
    for row in job.rows:
        ids, types = tokenize(data, row)
        kept = job.places(row)
        if kept is not None:
            ids, types = ids[kept], None if types is None else types[kept]
        runtime = next(r for r in runtimes if r.max_length >= len(ids))
        found[runtime.name].append((row, (ids, types)))
    return ((runtime, found[runtime.name]) for runtime in runtimes if found[runtime.name])


class _Session:
    """One loaded runtime."""

    def __init__(
        self,
        client: WorkerClient,
        manifest: Manifest,
        runtime: Runtime,
        stop: threading.Event,
        *,
        importance: bool,
    ) -> None:
        self._client, self._manifest, self._runtime, self._stop = client, manifest, runtime, stop
        self._warm = False
        self._logits = manifest.outputs[0].name
        self._importance = importance and any(output.name == "importance" for output in manifest.outputs)

    def run(self, rows: list[tuple[int, Tokens]], keep: Callable[[Recorded], None]) -> None:
        """Rows, kept as one part; when stopped, up to the row under way."""
        for _, tokens in rows[: 1 if self._warm else WARM]:
            self._ask(tokens)
        self._warm = True
        part = []
        for row, tokens in rows:
            if self._stop.is_set():
                break
            part.append((row, len(tokens[0]), *self._ask(tokens)))
        if part:
            keep(self._joined(part))

    def _ask(self, tokens: Tokens) -> tuple[NDArray[np.float32], float, NDArray[np.float32] | None, float]:
        """Logits [labels], ms; importance [tokens], ms with it. Importance takes time, and only rows that may be pruned
        pay for it, so each way is timed."""
        outputs, ms = self._timed(tokens, (self._logits,))
        logits = outputs[self._logits].reshape(-1)
        if not self._importance:
            return logits, ms, None, ms
        outputs, asked_ms = self._timed(tokens, (self._logits, "importance"))
        return logits, ms, outputs["importance"].reshape(-1)[: len(tokens[0])], asked_ms

    def _timed(self, tokens: Tokens, outputs: tuple[str, ...]) -> tuple[dict[str, NDArray[np.float32]], float]:
        from arlo.profiler.wire import token_request

        length = len(tokens[0]) if self._runtime.dynamic else self._runtime.max_length
        request = token_request(self._manifest, self._runtime.name, length, *tokens, outputs=outputs)
        began_s = monotonic_s()
        raw = self._client.infer(self._runtime.name, request)
        ms = 1000 * (monotonic_s() - began_s)
        return outputs_of(raw), ms

    def _joined(self, part: list[Any]) -> Recorded:
        from arlo.cascade.records import Recorded

        rows, tokens, logits, ms, importance, asked_ms = zip(*part, strict=True)
        return Recorded(
            np.array(rows, np.int64),
            np.stack(logits),
            np.array(tokens, np.int32),
            np.array(ms, np.float32),
            np.concatenate(importance) if self._importance else None,
            np.array(asked_ms, np.float32) if self._importance else None,
        )


def outputs_of(raw: bytes) -> dict[str, NDArray[np.float32]]:
    """Outputs of a serialised answer, by name, as float32."""
    from tritonclient.grpc import service_pb2

    from arlo.client.codec import from_raw

    answer: Any = service_pb2.ModelInferResponse.FromString(raw)
    pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
    return {output.name: from_raw(output, content).astype(np.float32) for output, content in pairs}
