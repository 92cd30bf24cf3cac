"""Step 6, verify: every runtime against the original model, on real text, with and without padding.

Input: the built engine, the original model. Output: the largest absolute difference over all outputs.
Cache key: the engine's files, the original's hashes, the texts, the tolerance, versions, this code.
Check: the difference is at most the tolerance, else CompileError names the length.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.compile.cache import Entry, code_version, tool_versions
from arlo.compile.engine import Runner
from arlo.compile.job import Job
from arlo.compile.resolve import SourceModel
from arlo.compile.spec import RuntimeSpec
from arlo.compile.texts import prose_hash
from arlo.compile.tokenizer import FILE_NAME as TOKENIZER
from arlo.errors import CompileError


def verify_step(job: Job, built: Entry, spec: RuntimeSpec, *, below: int) -> Entry:
    """Entry with meta `max_abs_diff` (float) and `rows` (the text lengths that were compared).

    below: the next shorter runtime's length (0: none): the shortest text that is sent here is among those tried.
    """
    engine, tolerance = job.engine, job.options.tolerance or 1e-4
    lengths = text_lengths(spec.max_length, below)
    parts = {
        "engine": built.files,
        "original": job.model.hashes,
        "task": job.model.task,
        "pooling": [job.model.pooling, job.model.normalize],
        "outputs": [output.name for output in job.outputs],
        "lengths": lengths,
        "max_batch": spec.max_batch,
        "dynamic": spec.dynamic,
        "tokenizer": job.tokenizer.files.get(TOKENIZER),
        "prose": prose_hash(),
        "tolerance": tolerance,
        "tools": tool_versions("torch", "transformers", "tokenizers") | engine.versions(),
        "code": code_version("verify", "texts", "original", "pooling"),
    }

    def make(_: object) -> dict[str, Any]:
        runner = engine.open(built.folder, spec, threads=len(os.sched_getaffinity(0)))
        worst = _worst(job, runner, spec, lengths)
        if not worst <= tolerance:  # also refuses NaN
            raise CompileError(
                f"verify: {spec.title} differs from the original model by {worst:.3g}, more than {tolerance:g}: "
                "this export is not exact enough; try other package versions, or allow more with --tolerance"
            )
        return {"max_abs_diff": worst, "rows": lengths}

    return job.cache.step("verify", parts, make)


def text_lengths(max_length: int, below: int) -> list[int]:
    """Text lengths to try: full, just too long for the level below, half, and the shortest real text."""
    wanted = {max_length, min(below + 1, max_length), max(1, max_length // 2), min(3, max_length)}
    return sorted(wanted, reverse=True)


def pad_rows(model: SourceModel, rows: Sequence[Sequence[int]], width: int) -> dict[str, NDArray[np.int64]]:
    """Rows of ids as tensors [rows, width], padded on the right as the gateway pads."""
    ids, mask = (
        np.full((len(rows), width), model.inputs[0].pad_value, np.int64),
        np.zeros((len(rows), width), np.int64),
    )
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    known = {"ids": ids, "mask": mask}
    return {
        tensor.name: known.get(tensor.role, np.full((len(rows), width), tensor.pad_value, np.int64))
        for tensor in model.inputs
    }


def _worst(job: Job, runner: Runner, spec: RuntimeSpec, lengths: list[int]) -> float:
    rows = [job.texts.ids(length, sample=index) for index, length in enumerate(lengths)]
    names = [output.name for output in job.outputs]
    worst = 0.0
    for start in range(0, len(rows), spec.max_batch):
        batch = rows[start : start + spec.max_batch]
        width = max(map(len, batch)) if spec.dynamic else spec.max_length
        answers = runner.run(pad_rows(job.model, batch, width), names)
        for index, row in enumerate(batch):
            expected = job.reference.answer(row)
            for output in job.outputs:
                got = answers[output.name][index]
                difference = np.abs((got[: len(row)] if output.token_level else got) - expected[output.name])
                worst = max(worst, float(difference.max())) if np.isfinite(difference).all() else float("nan")
                if np.isnan(worst):
                    return worst
    return worst
