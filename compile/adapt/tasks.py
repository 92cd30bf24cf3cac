"""Tasks that share one body: each has its own labelled texts and classes, and rows of all tasks may share one batch.

With one unnamed task a variant is an ordinary classifier. With named tasks its heads form a table from which the input
`task` chooses for each row (arlo.catalog.tasks), so another task may be added.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.compile.adapt import measure
from arlo.compile.adapt.fitted import Fitted
from arlo.compile.adapt.kept import digest, head_step
from arlo.compile.adapt.variant import Head, Heads
from arlo.compile.cache import Cache
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
    """One task, and the texts that it is measured on."""

    name: str
    labels: tuple[str, ...]
    rows: list[tuple[int, ...]]  # token ids
    truth: NDArray[np.int64]  # [rows], among its labels
    fit_rows: list[tuple[int, ...]]  # that its head was fitted on
    fit_truth: NDArray[np.int64]

    def up_to(self, length: int) -> Task:
        """The same, of texts of at most so many tokens. ConfigError where there are none."""
        fits = [len(row) <= length for row in self.rows]
        return dataclasses.replace(self, rows=fitting(self.rows, length), truth=self.truth[fits])

    def right(self, logits: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether each row of the task's logits [rows, its classes or more] is right."""
        return np.asarray(logits[:, : len(self.labels)].argmax(1) == self.truth)


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
    cached = True
    for name, of in data.items():
        said = of.labels
        rows = measure.encode(model.tokenizer_folder / "tokenizer.json", of.texts, length)
        labels, split = model.labels, np.full(len(rows), 2, np.int8)
        fit_rows: list[tuple[int, ...]] = []
        classes = np.zeros(0, np.int64)
        if model.task == "embedding":
            split = of.split
            chosen = np.flatnonzero(split == 0)
            fit_rows = [rows[i] for i in chosen]
            labels = tuple(sorted(set(said)))
            classes = np.array([labels.index(said[i]) for i in chosen])
            if not len(chosen):
                raise ConfigError(f"--data of task {name!r}: too few texts to fit a head on")
            fit = functools.partial(_fit, model, fit_rows, classes, labels)
            head, entry = head_step(cache, model, digest(fit_rows, classes), labels, fit)
            fitted[name] = Fitted(head)
            cached = cached and entry.cached
        tested = np.flatnonzero(split == 2)
        if not len(tested):
            raise ConfigError(f"--data of task {name!r}: too few texts to measure on")
        known = {label: number for number, label in enumerate(labels)}
        truth = np.array([known.get(said[i], -1) for i in tested])
        if (truth < 0).any():
            raise ConfigError(
                f"--data of task {name!r} has labels that the model does not know: {', '.join(labels[:8])}, ..."
            )
        tasks.append(Task(name, tuple(labels), [rows[i] for i in tested], truth, fit_rows, classes))
    return tasks, fitted, cached


def _fit(
    model: SourceModel, rows: Sequence[tuple[int, ...]], classes: NDArray[np.int64], labels: Sequence[str]
) -> Head:
    return measure.fit_head(measure.embed(model, rows), classes, labels)


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
