"""Step 10, verify: every runtime against the original model, on real text, with and without padding.

Input: the built engine, its graph, the reference answers. Output: the fields of `arlo.catalog.manifest.Verification`.
Cache key: the engine's files, the rows and answers, the precision, the tolerance, the device, versions, this code.
Check: the bounds of `compare`, else CompileError names the length, the problem, its place and its remedy.

If no device here runs the engine, `stand_in` runs the graph that it was built from instead. That finds errors of the
graph, its precision and its shapes, but not a wrong kernel: `arlo compile verify` does, on the GPU.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import Adaptation, Importance, InputTensor, OutputTensor, Verification
from arlo.compile.cache import Entry, code_version
from arlo.compile.engines.interface import Runner
from arlo.compile.engines.torch import TorchEngine
from arlo.compile.job import Job
from arlo.compile.repository.triton_config import model_code
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec
from arlo.compile.verify.answers import FILE_NAME, Answered, Row, load, pad
from arlo.compile.verify.compare import AMONG_OTHERS, FURTHER_PADDED, IDS_UNDER_MASK, Comparison, Found, refusals
from arlo.compile.verify.stand_in import open_stand_in, stand_in_versions
from arlo.errors import CompileError

_DYNAMIC_TOKENS = 16_384  # that a runtime of dynamic shape computes, over all levels
_SURROUNDINGS = 4  # rows that are also run with other padding and other neighbours
Answers = dict[str, NDArray[np.float32]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of verification: an opened engine and the known facts about it."""

    runner: Runner
    spec: RuntimeSpec
    task: str
    precision: str
    inputs: Sequence[InputTensor]
    outputs: Sequence[OutputTensor]
    tolerance: float | None = None
    importance: Importance | None = None
    adaptation: Adaptation | None = None

    @property
    def flips(self) -> bool:
        """Whether rows may be answered by another merge (compare.MOST_FLIPPED)."""
        return self.adaptation is not None and self.adaptation.flips


def verify_step(job: Job, built: Entry, specialised: Entry, spec: RuntimeSpec) -> Entry:
    """Entry whose meta holds the fields of `arlo.catalog.manifest.Verification`.

    built: the engine; specialised: the graph that it was made from, for where the engine cannot be run.
    """
    assert job.reference is not None, "the reference step comes first"
    engine, reference = job.engine, job.reference
    levels = reference.meta["levels"]
    cannot = engine.cannot_run()
    serving = engine.serving(spec)  # the same files may be served in other ways, by other code
    parts = {
        "engine": built.files,
        "serving": [dict(serving.parameters), *map(job.cache.hash, model_code(serving.template))],
        "answers": levels if spec.dynamic else levels[str(spec.max_length)],
        "spec": [spec.shape, spec.max_length, spec.max_batch, list(spec.profiles)],
        "precision": engine.settings.precision,
        "tolerance": job.options.tolerance,
        "stand_in": [specialised.files, job.graph.files[engine.weights], stand_in_versions()] if cannot else None,
        "device": "" if cannot else engine.device(),
        "tools": engine.versions(),
        "importance": job.importance and dataclasses.asdict(job.importance),
        "flips": job.options.adaptation is not None and job.options.adaptation.flips,
        "code": code_version("steps/verify", "verify/compare", "verify/answers", "verify/stand_in", "signals/laws"),
    }

    def make(_: object) -> dict[str, Any]:
        threads = len(os.sched_getaffinity(0))
        if cannot:
            name, runner = _stand_in(job, built, specialised, spec, threads=threads)
            ran_on = f"{name} on the CPU, in place of the engine: {cannot}"
        else:
            runner, ran_on = engine.open(built.folder, spec, threads=threads), engine.device()
        subject = Subject(
            runner=runner,
            spec=spec,
            task=job.model.task,
            precision=engine.settings.precision,
            inputs=job.model.inputs,
            outputs=job.outputs,
            tolerance=job.options.tolerance,
            importance=job.importance,
            adaptation=job.options.adaptation,
        )
        rows = rows_for(load(reference.folder / FILE_NAME, job.outputs), spec)
        return dataclasses.asdict(verify(subject, rows, ran_on=ran_on, engine_ran=not cannot))

    return job.cache.step("verify", parts, make)


def _stand_in(job: Job, built: Entry, specialised: Entry, spec: RuntimeSpec, *, threads: int) -> tuple[str, Runner]:
    """The name of a replacement for an engine that no device here can run, and its runner."""
    if isinstance(job.engine, TorchEngine):
        return "torch", job.engine.open_on("cpu", built.folder, spec, threads=threads)
    graph, weights = specialised.folder / GRAPH, job.graph.folder / WEIGHTS
    return "ONNX Runtime", open_stand_in(graph, weights, threads=threads)


def verification_of(entry: Entry) -> Verification:
    """The findings of `verify_step`, for the manifest."""
    return Verification(**entry.meta)


def verify(subject: Subject, rows: Sequence[Answered], *, ran_on: str, engine_ran: bool) -> Verification:
    """Run the rows, also with other padding and other neighbours, and compare. CompileError if it is not exact."""
    comparison = Comparison(
        subject.task,
        subject.outputs,
        rows,
        subject.precision,
        subject.tolerance,
        importance=subject.importance,
        flips=subject.flips,
    )
    found, laws = _run(subject, rows, comparison), comparison.laws
    missed = refusals(found, comparison.bounds) + (laws.missed() if laws else [])
    if missed:
        raise CompileError(_message(subject, missed, engine_ran=engine_ran))
    return Verification(
        rows=found.rows,
        max_abs_diff=found.difference.value,
        padding_diff=found.padding.value,
        cosine=found.cosine,
        agreement=found.agreement,
        ties=found.tied,
        flipped=found.flipped / found.rows if subject.flips else None,
        importance_sum=laws.sum.value if laws else None,
        importance_padding=laws.change.value if laws else None,
        ran_on=ran_on,
        engine_ran=engine_ran,
    )


def rows_for(rows: Sequence[Answered], spec: RuntimeSpec) -> list[Answered]:
    """The rows that were chosen for a static runtime; for a dynamic one, of each level in turn as many as it affords.

    CompileError when there are none.
    """
    if not spec.dynamic:
        chosen = [row for row in rows if row.level == spec.max_length]
    else:
        by_level: dict[int, list[Answered]] = {}
        for row in rows:
            if len(row.row) <= spec.max_length:
                by_level.setdefault(row.level, []).append(row)
        chosen, tokens = [], 0
        for rank in range(max(map(len, by_level.values()), default=0)):
            turn = [level[rank] for level in by_level.values() if rank < len(level)]
            if tokens and tokens + sum(len(row.row) for row in turn) > _DYNAMIC_TOKENS:
                break
            chosen += turn
            tokens += sum(len(row.row) for row in turn)
    if not chosen:
        raise CompileError(f"verify: {spec.title}: {FILE_NAME} has no texts for it: build the repository again")
    return chosen


def _run(subject: Subject, rows: Sequence[Answered], comparison: Comparison) -> Found:
    spec = subject.spec
    # Texts as they arrive: batches that mix lengths. A full batch is among them, if only with rows that come again.
    order = np.random.default_rng(0).permutation(len(rows)).tolist() if spec.max_batch > 1 else range(len(rows))
    order = list(order)
    if len(order) < spec.max_batch:
        order = np.resize(np.array(order), spec.max_batch).tolist()
    seen: dict[int, Answers] = {}
    watched = set(_watched(rows))
    for start in range(0, len(order), spec.max_batch):
        batch = order[start : start + spec.max_batch]
        width = max(len(rows[index].row) for index in batch) if spec.dynamic else spec.max_length
        for index, answers in zip(batch, _answers(subject, [rows[index].row for index in batch], width), strict=True):
            if index in seen:
                continue
            seen[index] = answers if index in watched else {}
            comparison.answer(index, answers)
    for index in watched:
        _surroundings(subject, rows, index, seen[index], comparison)
    return comparison.finish()


def _watched(rows: Sequence[Answered]) -> list[int]:
    """Rows to run in other surroundings: of those with most kept answers, the shorter ones, which are padded most."""
    deep = [index for index, row in enumerate(rows) if row.deep] or list(range(len(rows)))
    ascending = sorted(deep, key=lambda index: len(rows[index].row))
    picks = np.unique(np.linspace(0, len(ascending) - 1, min(_SURROUNDINGS, len(ascending))).astype(int))
    return [ascending[pick] for pick in picks]


def _surroundings(
    subject: Subject, rows: Sequence[Answered], index: int, first: Answers, comparison: Comparison
) -> None:
    """Answers to a row alone, padded to the full length, and with other ids under the mask."""
    spec, row = subject.spec, rows[index].row
    alone = _one(subject, row, len(row)) if spec.dynamic else _one(subject, row, spec.max_length)
    if spec.max_batch > 1:
        comparison.padding(index, AMONG_OTHERS, first, alone)
    if len(row) == spec.max_length:
        return
    padded = _one(subject, row, spec.max_length) if spec.dynamic else alone
    if spec.dynamic:
        comparison.padding(index, FURTHER_PADDED, padded, alone)
    longest = max((answered.row for answered in rows), key=len)
    # Ids of a real text, from its end, so that the row is not just continued by what it may continue with anyway.
    other = _one(subject, row, spec.max_length, filling=longest.ids[::-1])
    comparison.padding(index, IDS_UNDER_MASK, other, padded)


def _one(subject: Subject, row: Row, width: int, *, filling: Sequence[int] = ()) -> Answers:
    return next(iter(_answers(subject, [row], width, filling=filling)))


def _answers(subject: Subject, rows: Sequence[Row], width: int, *, filling: Sequence[int] = ()) -> Iterable[Answers]:
    """What the engine answers to each row, padding cut off."""
    names = [output.name for output in subject.outputs]
    got = subject.runner.run(pad(subject.inputs, rows, width, filling=filling), names)
    for index, row in enumerate(rows):
        yield {
            output.name: got[output.name][index][: len(row)] if output.token_level else got[output.name][index]
            for output in subject.outputs
        }


def _message(subject: Subject, missed: Sequence[str], *, engine_ran: bool) -> str:
    what = f"verify: {subject.spec.title} differs from the original model: {'; '.join(missed)}"
    if any("padding changes" in text for text in missed):
        return (
            f"{what}. The model does not mask its padding, or the engine drops the mask: texts must not be padded; "
            "serve it with --dynamic and --max-batch 1 only if the difference is accepted with --tolerance"
        )
    if subject.adaptation is not None:
        return f"{what}. Leave this count out, or merge fewer tokens a layer"
    advice = {
        "fp16": "numbers above 65504 overflow in FP16: use --precision bf16 or fp32",
        "bf16": "use --precision fp16 or fp32",
        "fp32": "this export is not exact enough: try other package versions",
    }[subject.precision]
    return f"{what}. {advice[0].upper()}{advice[1:]}, or accept a larger difference of single numbers with --tolerance"
