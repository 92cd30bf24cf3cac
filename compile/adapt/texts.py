"""What `arlo adapt` does with a model of text: its tasks, its variants, and what these say of labelled texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.compile.adapt import measure
from arlo.compile.adapt.tasks import Labelled, read_tasks
from arlo.compile.adapt.variant import (
    Plan,
    check_family,
    export_variant,
    output_name,
    plan_variant,
    torch_variant,
)
from arlo.compile.steps.resolve import SourceModel

COMPARED = 48  # rows on which file and torch model are held together


class Subject(Protocol):
    """A body with its tasks and the rows that they are measured on. What it says of them is there after `prepare`."""

    labels: Sequence[str]  # of all tasks, side by side
    task_labels: Mapping[str, tuple[str, ...]]
    fitted: int  # rows
    measured: int
    lengths: Sequence[int]  # of the measured rows; empty: all are of one length

    def plan(self, merge: int, *, prune: bool = False) -> Plan:
        """The variant that merges, or drops, so many tokens a layer. ConfigError when there are too few."""

    def prepare(self) -> None:
        """Read the rows, and fit heads where the model gives embeddings. ConfigError for unfit data."""

    def export(self, plan: Plan, folder: Path) -> tuple[Any, Path]:
        """The variant in torch, and as a file."""

    def compare(self, variant: Any, session: Any, plan: Plan) -> measure.Compared:
        """File and torch module on the same rows. CompileError when they do not agree."""

    def right(self, session: Any, plan: Plan) -> dict[str, NDArray[np.bool_]]:
        """Of each task, whether each measured row is right."""

    def times(
        self, sessions: Mapping[str, Any], plans: Sequence[Plan], batches: Sequence[int], threads: int
    ) -> dict[str, dict[int, float]]:
        """Median ms of full rows by variant and batch."""


class Texts:
    """See Subject."""

    def __init__(self, model: SourceModel, data: Mapping[str, Labelled], length: int) -> None:
        """ConfigError for a family that cannot merge."""
        check_family(model)
        self._model, self._length, self._data = model, length, data

    def prepare(self) -> None:
        self._tasks, self._head = read_tasks(self._model, self._data, self._length)
        self._rows = [row for task in self._tasks for row in task.rows]
        self.labels = self._model.labels if self._head is None else self._head.labels
        self.task_labels = {task.name: task.labels for task in self._tasks}
        self.fitted = sum(task.fitted for task in self._tasks)
        self.lengths = [len(row) for row in self._rows]
        self.measured = len(self._rows)

    def plan(self, merge: int, *, prune: bool = False) -> Plan:
        return plan_variant(self._model, self._length, merge, prune=prune)

    def export(self, plan: Plan, folder: Path) -> tuple[Any, Path]:
        variant = torch_variant(self._model, plan, self._head)
        output = output_name(self._model, self._head)
        return variant, export_variant(self._model, plan, variant, folder, labels=self.labels, output=output)

    def compare(self, variant: Any, session: Any, plan: Plan) -> measure.Compared:
        rows = self._rows[:COMPARED]
        return measure.compare(variant, session, self._model.inputs, rows, plan.length, label=True)

    def right(self, session: Any, plan: Plan) -> dict[str, NDArray[np.bool_]]:
        return {
            task.name: task.right(measure.answers(session, self._model.inputs, task.rows, plan.length))
            for task in self._tasks
        }

    def times(
        self, sessions: Mapping[str, Any], plans: Sequence[Plan], batches: Sequence[int], threads: int
    ) -> dict[str, dict[int, float]]:
        widths = {plan.name: plan.length for plan in plans}
        return measure.latencies(sessions, self._model.inputs, widths, batches, texts=self._rows, threads=threads)
