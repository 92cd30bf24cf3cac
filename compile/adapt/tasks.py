"""Tasks that share one body: each has labelled texts and classes of its own, and all rows may be in one batch.

The answer of a row is the logits of all tasks side by side, for a head costs next to nothing beside the body: who asks
for a task reads its part. With one task that is what a classifier answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.compile.adapt import measure
from arlo.compile.adapt.variant import Head
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import ConfigError

FIT_SHARES = (0.55, 0.05, 0.4)  # of the texts: fitted on, not used, measured on


@dataclasses.dataclass(frozen=True, slots=True)
class Labelled:
    """The texts of a task."""

    texts: list[str]
    labels: list[str]
    split: NDArray[np.int8]  # by FIT_SHARES


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One task: which logits are its own, and the texts that it is measured on."""

    name: str
    labels: tuple[str, ...]
    first: int  # of its logits
    rows: list[tuple[int, ...]]  # token ids
    truth: NDArray[np.int64]  # [rows], among its labels
    fit_rows: list[tuple[int, ...]]  # that its head was fitted on; none: the model has one
    fit_truth: NDArray[np.int64]

    @property
    def fitted(self) -> int:
        """Texts that its head was fitted on."""
        return len(self.fit_rows)

    def right(self, logits: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Of logits [rows, classes of all tasks], whether each is right."""
        mine = logits[:, self.first : self.first + len(self.labels)]
        return np.asarray(mine.argmax(1) == self.truth)


def parse_tasks(given: list[str]) -> dict[str, Path]:
    """`FILE`, or `TASK=FILE` several times. ConfigError."""
    found: dict[str, Path] = {}
    for each in given:
        name, mark, file = each.partition("=")
        if not mark and len(given) > 1:
            raise ConfigError(f"--data {each}: with several tasks, name each: --data TASK=FILE")
        if mark and (not name.isidentifier() or name in found):
            raise ConfigError(f"--data {each}: a task needs a name of its own, of letters, digits and _")
        found[name if mark else "all"] = Path(file if mark else each)
    return found


def read_tasks(model: SourceModel, data: Mapping[str, Labelled], length: int) -> tuple[list[Task], Head | None]:
    """The tasks, and one head for all of them where the model gives embeddings. ConfigError for unfit texts."""
    if model.task != "embedding" and len(data) > 1:
        raise ConfigError("several tasks need a body that gives embeddings: this model has a head of its own")
    tasks: list[Task] = []
    heads: list[Head] = []
    for name, of in data.items():
        said = of.labels
        rows = measure.encode(model.tokenizer_folder / "tokenizer.json", of.texts, length)
        labels, split = model.labels, np.full(len(rows), 2, np.int8)
        fit_rows: list[tuple[int, ...]] = []
        classes = np.zeros(0, np.int64)
        if model.task == "embedding":
            labels = tuple(sorted(set(said)))
            split = of.split
            chosen = np.flatnonzero(split == 0)
            fit_rows = [rows[i] for i in chosen]
            classes = np.array([labels.index(said[i]) for i in chosen])
            heads.append(measure.fit_head(measure.embed(model, fit_rows), classes, labels))
        tested = np.flatnonzero(split == 2)
        if not len(tested):
            raise ConfigError(f"--data of task {name!r}: too few texts to measure on")
        known = {label: number for number, label in enumerate(labels)}
        truth = np.array([known.get(said[i], -1) for i in tested])
        if (truth < 0).any():
            raise ConfigError(
                f"--data of task {name!r} has labels that the model does not know: {', '.join(labels[:8])}, ..."
            )
        first = sum(len(task.labels) for task in tasks)
        tasks.append(Task(name, tuple(labels), first, [rows[i] for i in tested], truth, fit_rows, classes))
    if not heads:
        return tasks, None
    return tasks, joined_heads({task.name: head for task, head in zip(tasks, heads, strict=True)})


def joined_heads(heads: Mapping[str, Head]) -> Head:
    """One head for all tasks, side by side; of several, labels are called `task.label`."""
    names = [label if len(heads) == 1 else f"{task}.{label}" for task, head in heads.items() for label in head.labels]
    weights, biases = zip(*((head.weight, head.bias) for head in heads.values()), strict=True)
    return Head(tuple(names), np.concatenate(weights), np.concatenate(biases))
