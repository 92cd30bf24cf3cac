"""What `arlo adapt` does with a model of text: its tasks, its variants, and what these say of labelled texts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import AdaptationKind
from arlo.compile.adapt import measure
from arlo.compile.adapt.fitted import NOTHING, Before, Fitted
from arlo.compile.adapt.prompts import Prompts, Way, prompted_body, prompted_work, train_prompts
from arlo.compile.adapt.tasks import Labelled, Task, read_tasks, with_room
from arlo.compile.adapt.variant import (
    Head,
    Heads,
    Plan,
    check_family,
    export_variant,
    inputs_of,
    output_name,
    plan_variant,
    torch_variant,
)
from arlo.compile.cache import Cache, code_version, tool_versions
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import ConfigError

COMPARED = 48  # rows on which file and torch model are held together


class Subject(Protocol):
    """A body with its tasks and the rows that they are measured on. What it says of them is there after `prepare`."""

    task_labels: Mapping[str, tuple[str, ...]]  # of each task whose rows there are
    room: int  # classes that the tables of several tasks hold; 0: there is one task
    fitted: int  # rows
    measured: int
    lengths: Sequence[int]  # of the measured rows; empty: all are of one length

    @property
    def fitted_tasks(self) -> Mapping[str, Fitted]:
        """By their numbers, those from before too; none: the model has a head."""

    def plan(self, count: int, kind: AdaptationKind = "merge") -> Plan:
        """The variant that merges, or drops, so many tokens a layer, or has so many prompts. ConfigError when there
        are too few tokens, and for a kind that it cannot be."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class Training:
    """How prompts are trained, and where they are kept."""

    way: Way
    epochs: int
    cache: Cache


class Texts:
    """See Subject."""

    def __init__(
        self,
        model: SourceModel,
        data: Mapping[str, Labelled],
        length: int,
        training: Training,
        before: Before = NOTHING,
    ) -> None:
        """ConfigError for a family that cannot merge."""
        check_family(model)
        self._model, self._length, self._data, self._training = model, length, data, training
        self._before, self.room = before.tasks, before.room

    def prepare(self) -> None:
        self._tasks, fitted = read_tasks(self._model, self._data, self._length)
        self._fitted: dict[str, Fitted] = {**self._before, **fitted}
        heads = {name: each.head for name, each in self._fitted.items()}
        self._head: Head | Heads | None = None
        if heads:
            self._head, self.room = with_room(heads, self.room)
        self._inputs = inputs_of(self._model, self._head)
        self._rows = [row for task in self._tasks for row in task.rows]
        self.task_labels: Mapping[str, tuple[str, ...]] = {task.name: task.labels for task in self._tasks}
        self.fitted = sum(task.fitted for task in self._tasks)
        self.lengths: Sequence[int] = [len(row) for row in self._rows]
        self.measured = len(self._rows)

    @property
    def fitted_tasks(self) -> Mapping[str, Fitted]:
        return self._fitted

    def plan(self, count: int, kind: AdaptationKind = "merge") -> Plan:
        if kind in ("prompt", "prefix") and self._model.task != "embedding":
            raise ConfigError("--prompts are trained on a body that gives embeddings")
        plan = plan_variant(self._model, self._length, count, kind)
        if not plan.prompted:
            return plan
        width = int(json.loads((self._model.folder / "config.json").read_text())["hidden_size"])
        work = prompted_work(self._length, len(plan.schedule), count, self._training.way, width=width)
        return dataclasses.replace(plan, multiplications=work)

    def export(self, plan: Plan, folder: Path) -> tuple[Any, Path]:
        variant = self._prompted(plan) if plan.prompted else torch_variant(self._model, plan, self._head)
        tasks = self._head.labels if isinstance(self._head, Heads) else None
        labels = self._head.labels if isinstance(self._head, Head) else self._model.labels
        output = output_name(self._model, self._head)
        return variant, export_variant(self._model, plan, variant, folder, labels=labels, output=output, tasks=tasks)

    def _prompted(self, plan: Plan) -> Any:
        """Each task has prompts and a head of its own: tables, too."""
        import torch

        found = {name: self._trained(name, plan.merge) for name in self._fitted}
        values = torch.nn.Parameter(torch.from_numpy(np.stack([each.values for each in found.values()])))
        head, _ = with_room({name: each.head for name, each in found.items()}, self.room)
        return torch_variant(self._model, plan, head, lambda body: prompted_body(body, values, self._training.way))

    def _trained(self, name: str, count: int) -> Prompts:
        """Prompts of a task; of one from before as they were."""
        fitted = self._fitted[name]
        if count not in fitted.prompts:
            task = next((task for task in self._tasks if task.name == name), None)
            if task is None:
                raise ConfigError(f"there are no {count} prompts of task {name!r}: run `arlo adapt` again")
            trained = {**fitted.prompts, count: self._train(task, fitted.head, count)}
            self._fitted[name] = fitted = dataclasses.replace(fitted, prompts=trained)
        return fitted.prompts[count]

    def _train(self, task: Task, head: Head, count: int) -> Prompts:
        """Kept in the cache: training takes minutes."""
        training = self._training
        rows = hashlib.sha256(repr((task.fit_rows, task.fit_truth.tolist(), task.labels)).encode()).hexdigest()
        parts = {
            "model": self._model.hashes,
            "rows": rows,
            "head": hashlib.sha256(head.weight.tobytes() + head.bias.tobytes()).hexdigest(),
            "training": [count, training.way, training.epochs, self._length],
            "tools": tool_versions("torch", "transformers"),
            "code": code_version("adapt/prompts", "adapt/merge", "pooling"),
        }

        def make(folder: Path) -> dict[str, Any]:
            found = train_prompts(
                self._model, task.fit_rows, task.fit_truth, head, count=count, way=training.way, epochs=training.epochs
            )
            np.savez(folder / "prompts.npz", values=found.values, weight=found.head.weight, bias=found.head.bias)
            return {}

        entry = training.cache.step("prompts", parts, make)
        with np.load(entry.folder / "prompts.npz") as stored:
            return Prompts(stored["values"], Head(head.labels, stored["weight"], stored["bias"]))

    def compare(self, variant: Any, session: Any, plan: Plan) -> measure.Compared:
        rows = self._rows[:COMPARED]
        return measure.compare(variant, session, self._inputs, rows, plan.length, label=True)

    def right(self, session: Any, plan: Plan) -> dict[str, NDArray[np.bool_]]:
        found = {}
        for task in self._tasks:
            number = list(self._fitted).index(task.name) if isinstance(self._head, Heads) else None
            found[task.name] = task.right(measure.answers(session, self._inputs, task.rows, plan.length, number))
        return found

    def times(
        self, sessions: Mapping[str, Any], plans: Sequence[Plan], batches: Sequence[int], threads: int
    ) -> dict[str, dict[int, float]]:
        widths = {plan.name: plan.length for plan in plans}
        return measure.latencies(sessions, self._inputs, widths, batches, texts=self._rows, threads=threads)
