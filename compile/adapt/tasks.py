"""Tasks that share one body: each has its own labelled texts and classes, and rows of all tasks may share one batch.

With one unnamed task a variant is an ordinary classifier. With named tasks its heads form a table from which the input
`task` chooses for each row (arlo.catalog.tasks), so another task may be added.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.compile.adapt import measure
from arlo.compile.adapt.fitted import Fitted
from arlo.compile.adapt.kept import arrays_step, body_of, digest
from arlo.compile.adapt.variant import Head, Heads
from arlo.compile.cache import Cache, code_version
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import ConfigError

FIT_SHARES = (0.55, 0.05, 0.4)  # of the texts: fitted on, not used, measured on
UNNAMED = "all"
ROOM = 32  # classes; that of the tables is a multiple of it


@dataclasses.dataclass(frozen=True, slots=True)
class Labelled:
    """The texts of a task."""

    texts: list[str]
    labels: list[str]
    split: NDArray[np.int8]  # by FIT_SHARES


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One task, and the rows that it is measured on: token ids of texts, or pictures as one array."""

    name: str
    labels: tuple[str, ...]
    rows: Any
    truth: NDArray[np.int64]  # [rows], among its labels
    fit_rows: Any = ()  # that its head was fitted on
    fit_truth: NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    def up_to(self, length: int) -> Task:
        """The same, of texts of at most so many tokens. ConfigError where there are none."""
        if isinstance(self.rows, np.ndarray):  # pictures have one length
            return self
        fits = [len(row) <= length for row in self.rows]
        return dataclasses.replace(self, rows=fitting(self.rows, length), truth=self.truth[fits])

    def right(self, logits: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether each row of the task's logits [rows, its classes or more] is right."""
        return np.asarray(logits[:, : len(self.labels)].argmax(1) == self.truth)


def fit_task(
    cache: Cache,
    model: SourceModel,
    name: str,
    *,
    rows: Any,
    said: Sequence[str],
    split: NDArray[np.int8],
    embed: Callable[[Any], NDArray[np.float32]],
    decay: float = 1e-4,
) -> tuple[Task, Fitted, bool]:
    """A task, the head fitted for it, and whether the cache had that. embed: rows to embeddings of the unchanged model.
    ConfigError where there are too few rows."""
    labels = tuple(sorted(set(said)))
    truth = np.array([labels.index(label) for label in said])
    parts: list[Any] = [rows[of] if isinstance(rows, np.ndarray) else [rows[i] for i in of] for of in _split(split)]
    fit_truth, measured_truth = (truth[of] for of in _split(split))
    if not len(fit_truth) or not len(measured_truth):
        raise ConfigError(
            f"--data of task {name!r}: {len(fit_truth)} rows to fit a head on and {len(measured_truth)} to measure on "
            "are too few"
        )

    def fit() -> dict[str, NDArray[np.float32]]:
        head = measure.fit_head(embed(parts[0]), fit_truth, labels, decay=decay)
        return {"weight": head.weight, "bias": head.bias}

    key = {
        "body": body_of(model),
        "rows": digest(parts[0], fit_truth),
        "labels": list(labels),
        "code": code_version("adapt/measure", "adapt/vision", "adapt/pictures", "pooling", "original"),
    }
    found, entry = arrays_step(cache, "adapt-head", key, fit)
    head = Head(labels, found["weight"], found["bias"])
    return Task(name, labels, parts[1], measured_truth, parts[0], fit_truth), Fitted(head), entry.cached


def _split(split: NDArray[np.int8]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The numbers of the rows to fit on, and of those to measure on."""
    return np.flatnonzero(split == 0), np.flatnonzero(split == 2)


def parse_tasks(given: list[str]) -> dict[str, Path]:
    """`FILE`, or `TASK=FILE` several times. ConfigError."""
    found: dict[str, Path] = {}
    for each in given:
        name, mark, file = each.partition("=")
        if not mark and len(given) > 1:
            raise ConfigError(f"--data {each}: with several tasks, name each: --data TASK=FILE")
        if mark:
            check_name(name, f"--data {each}")
        if name in found:
            raise ConfigError(f"--data {each}: there is a task of this name already")
        found[name if mark else UNNAMED] = Path(file if mark else each)
    return found


def check_name(name: str, where: str) -> None:
    """Raise ConfigError for an invalid task name."""
    if not name.isidentifier() or name == UNNAMED:
        raise ConfigError(f"{where}: a task needs a name of letters, digits and _, and {UNNAMED!r} is none")


def read_tasks(
    model: SourceModel, data: Mapping[str, Labelled], length: int, cache: Cache
) -> tuple[list[Task], dict[str, Fitted], bool]:
    """The tasks, the head fitted for each if the model gives embeddings, and whether the cache had it. ConfigError for
    unsuitable texts."""
    if model.task != "embedding" and list(data) != [UNNAMED]:
        raise ConfigError("named tasks need a body that gives embeddings: this model has a head of its own")
    tasks: list[Task] = []
    fitted: dict[str, Fitted] = {}
    all_cached = True
    for name, of in data.items():
        rows = measure.encode(model.tokenizer_folder / "tokenizer.json", of.texts, length)
        if model.task == "embedding":
            embed = functools.partial(measure.embed, model)
            task, fitted[name], cached = fit_task(
                cache, model, name, rows=rows, said=of.labels, split=of.split, embed=embed
            )
            all_cached = all_cached and cached
        else:
            known = {label: number for number, label in enumerate(model.labels)}
            task = Task(name, model.labels, rows, np.array([known.get(label, -1) for label in of.labels]))
            if not rows or (task.truth < 0).any():
                raise ConfigError(
                    f"--data of task {name!r} has no texts, or labels that the model does not know: "
                    f"{', '.join(model.labels[:8])}, ..."
                )
        tasks.append(task)
    return tasks, fitted, all_cached


def fitting(rows: Sequence[tuple[int, ...]], length: int) -> list[tuple[int, ...]]:
    """Those of at most so many tokens. ConfigError where there are none."""
    found = [row for row in rows if len(row) <= length]
    if not found:
        raise ConfigError(f"no measured text has at most {length} tokens: leave that length out")
    return found


def bin_ends(lengths: Sequence[int], longest: int) -> list[int]:
    """Ends of the length bins, ascending up to `longest`: `lengths` (ascending) and fractions of the last of them."""
    last = lengths[-1]
    return sorted(end for end in {last // 4, last // 2, last - 1, *lengths} if 0 < end <= longest)


def with_room(heads: Mapping[str, Head], room: int) -> tuple[Head | Heads, int]:
    """The one head of a task without a name; else the tables of all, and how many classes they hold of each. room: of
    tables that there are already; 0: there are none. ConfigError where a task has more classes."""
    if list(heads) == [UNNAMED]:
        return heads[UNNAMED], 0
    most = max(len(head.labels) for head in heads.values())
    if room and most > room:
        raise ConfigError(
            f"the tables of these engines have room for {room} classes of a task, and {most} are needed: run "
            "`arlo adapt` again with all tasks"
        )
    room = room or -(-most // ROOM) * ROOM
    return Heads(dict(heads), room), room
