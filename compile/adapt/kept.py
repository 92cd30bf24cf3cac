"""The steps of `arlo adapt`, each kept in the cache as soon as it is done, keyed by what it depends on:

    adapt-head       the heads fitted on the unchanged body
    adapt-variant    a variant's file, held to its torch module
    adapt-accuracy   which measured rows it answers correctly
    adapt-latency    one round of measurements over all files of a run

So an interrupted run resumes where it left off, and further counts, lengths or rows cost only their own work.
"""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from arlo.compile.adapt import measure
from arlo.compile.adapt.variant import KEPT_FILES, Plan
from arlo.compile.cache import Cache, Entry, code_version, link_out, tool_versions
from arlo.compile.progress import Reporter
from arlo.compile.steps.resolve import SourceModel
from arlo.profiler.machine import cpu_name

if TYPE_CHECKING:
    from arlo.compile.adapt.texts import Subject

Arrays = dict[str, NDArray[Any]]
ARRAYS = "arrays.npz"
# Code that determines a variant's file and its answers.
_CODE = tuple(
    f"adapt/{name}" for name in ("variant", "merge", "vision", "prompts", "tasks", "texts", "pictures", "tokens")
)


def digest(*parts: object) -> str:
    """sha256 of arrays by their content, and of other objects by their printed form."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(repr((part.dtype.str, part.shape)).encode())
            found.update(np.ascontiguousarray(part).data)
        else:
            found.update(repr(part).encode())
        found.update(b"\0")
    return found.hexdigest()


def body_of(model: SourceModel) -> dict[str, Any]:
    """Inputs that determine a body's answers."""
    files = {name: model.tokenizer_folder / name for name in KEPT_FILES}
    read = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items() if file.is_file()}
    return {
        "hashes": model.hashes,
        "task": model.task,
        "pooling": [list(model.pooling), model.normalize],
        "tokenizer": read,
        "tools": tool_versions("torch", "transformers"),
    }


def arrays_step(
    cache: Cache, step: str, parts: Mapping[str, Any], make: Callable[[], Mapping[str, NDArray[Any]]]
) -> tuple[Arrays, Entry]:
    """Arrays by name, out of the cache or made."""

    def write(folder: Path) -> dict[str, Any]:
        np.savez(folder / ARRAYS, **make())
        return {}

    entry = cache.step(step, parts, write)
    with np.load(entry.folder / ARRAYS, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}, entry


@dataclasses.dataclass(frozen=True, slots=True)
class Examined:
    """A variant: its file compared with its torch module, and, per task, whether it answers each row that it accepts
    correctly."""

    plan: Plan
    path: Path
    sha256: str
    compared: measure.Compared
    right: Mapping[str, NDArray[np.bool_]]


@dataclasses.dataclass(frozen=True, slots=True)
class Examiner:
    """Makes variants of a subject below `out`, with `threads` of ONNX Runtime, and measures them."""

    subject: Subject
    cache: Cache
    report: Reporter
    out: Path
    threads: int = 1

    def prepare(self) -> None:
        """One step: the subject reads its rows."""
        with self.report.timed("rows", "of all tasks") as ended:
            ended(self.subject.prepare(), f"{self.subject.fitted} fitted on, {self.subject.measured} measured", "")

    def examine(self, plan: Plan) -> Examined:
        """Run two steps: export a file that agrees with its torch module, then answer the measured rows with it."""
        exported = self.report.run("variant", plan.name, lambda: self._exported(plan), _agreement)
        path = link_out(exported, self.out / "models" / plan.name) / "model.onnx"
        found: Arrays = {}

        def answered() -> Entry:
            parts = {
                "file": exported.files["model.onnx"],
                "length": plan.length,
                "rows": self.subject.rows_digest,
                "tools": tool_versions("onnxruntime"),
                "code": code_version("adapt/measure", "adapt/texts", "adapt/pictures", "adapt/tokens", "adapt/tasks"),
            }
            said, entry = arrays_step(
                self.cache,
                "adapt-accuracy",
                parts,
                lambda: self.subject.right(measure.open_session(path, self.threads), plan),
            )
            found.update(said)
            return entry

        self.report.run("accuracy", plan.name, answered, lambda _: _right(found))
        return Examined(plan, path, exported.files["model.onnx"], measure.Compared(**exported.meta["compared"]), found)

    def latencies(
        self, examined: Sequence[Examined], batches: Sequence[int], *, fresh: bool = False
    ) -> dict[str, dict[int, float]]:
        """Median ms of full rows by variant and batch, in `measure.ROUNDS` steps. Each step measures all variants in
        turn, so that a disturbance affects them all. fresh: repeat measurements that the cache holds."""
        parts = {
            "files": {each.plan.name: each.sha256 for each in examined},
            "batches": list(batches),
            "threads": self.threads,
            "rows": self.subject.rows_digest,
            "machine": cpu_name(),
            "tools": tool_versions("onnxruntime"),
            "code": code_version("adapt/measure", "adapt/texts", "adapt/pictures", "adapt/tokens"),
        }
        plans = {each.plan.name: each.plan for each in examined}
        sessions: dict[str, Any] = {}

        def turn(_: Path) -> dict[str, Any]:
            warm = bool(sessions)
            for each in examined if not warm else ():
                sessions[each.plan.name] = measure.open_session(each.path, self.threads)

            def batch(name: str, rows: int) -> Mapping[str, Any]:
                return self.subject.full(plans[name], rows)

            if not warm:
                measure.timed(sessions, batches, batch, threads=self.threads)
            return {"ms": measure.timed(sessions, batches, batch, threads=self.threads)}

        taken: dict[str, dict[int, list[float]]] = {name: {rows: [] for rows in batches} for name in plans}
        for number in range(measure.ROUNDS):
            of = {**parts, "turn": number}
            entry = self.report.run(
                "latency",
                f"turn {number + 1} of {measure.ROUNDS}",
                lambda of=of: self.cache.step("adapt-latency", of, turn, fresh=fresh),  # type: ignore[misc]
            )
            for name, by_rows in entry.meta["ms"].items():
                for rows, ms in by_rows.items():
                    taken[name][int(rows)].append(ms)
        return {name: {rows: statistics.median(ms) for rows, ms in each.items()} for name, each in taken.items()}

    def _exported(self, plan: Plan) -> Entry:
        parts = {
            "plan": dataclasses.asdict(plan),
            "made_of": self.subject.made_of(plan),
            "tools": tool_versions("torch", "transformers", "onnx", "onnxscript", "onnxruntime"),
            "code": code_version(*_CODE, "adapt/measure", "pooling", "original"),
        }

        def make(folder: Path) -> dict[str, Any]:
            variant, path = self.subject.export(plan, folder)
            compared = self.subject.compare(variant, measure.open_session(path, self.threads), plan)
            return {"compared": dataclasses.asdict(compared)}

        return self.cache.step("adapt-variant", parts, make)


def _agreement(entry: Entry) -> str:
    compared = entry.meta["compared"]
    return f"agrees with torch on {compared['agreement']:.1%} of {compared['rows']} rows"


def _right(found: Arrays) -> str:
    return ", ".join(f"{task} {right.mean():.1%} right of {len(right)}" for task, right in found.items())
