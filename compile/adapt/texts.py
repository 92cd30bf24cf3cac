"""What `arlo adapt` does with a body: its tasks, its variants, and what these say of labelled rows; and with one of
text that answers whole rows."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import AdaptationKind, InputTensor
from arlo.compile.adapt import measure
from arlo.compile.adapt.fitted import NOTHING, Before, Fitted
from arlo.compile.adapt.kept import arrays_step, body_of, digest
from arlo.compile.adapt.prompts import Prompts, Way, prompted_body, prompted_work, train_prompts
from arlo.compile.adapt.tasks import UNNAMED, Labelled, Task, bin_ends, fitting, read_tasks, with_room
from arlo.compile.adapt.variant import (
    Head,
    Heads,
    Plan,
    check_family,
    export_variant,
    inputs_of,
    plan_variant,
    shape_of,
    torch_variant,
)
from arlo.compile.cache import Cache, code_version, tool_versions
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import ConfigError

Batches = list[dict[str, NDArray[Any]]]


class Subject(abc.ABC):
    """A body with its tasks and the rows that they are measured on. What it says of them is there after `prepare`.

    Here, what bodies of text do: rows are token ids, of any length up to that of a variant.
    """

    compared = 48  # rows on which file and torch model are held together
    task_labels: Mapping[str, tuple[str, ...]]  # of each task whose rows there are
    fitted_tasks: Mapping[str, Fitted]  # by their numbers, those from before too; none: the model has a head
    room = 0  # classes that the tables of several tasks hold; 0: there is one task
    fitted: int  # rows
    measured: int
    rows_digest: str  # of all measured rows and what they are
    _tasks: Sequence[Task]
    _rows: Any  # all measured ones
    _head: Head | Heads | None = None
    _inputs: Sequence[InputTensor]

    def __init__(self, model: SourceModel, lengths: Sequence[int], cache: Cache, before: Before = NOTHING) -> None:
        """lengths: maximum ones of variants, tokens, ascending."""
        self._model, self._lengths, self._length, self._cache = model, lengths, lengths[-1], cache
        self._before, self.room = before.tasks, before.room
        self.width = shape_of(model)[1]  # of the layers

    @abc.abstractmethod
    def prepare(self) -> bool:
        """Read the rows, and fit heads if the model gives embeddings; returns whether the cache had them all.
        ConfigError for unsuitable data."""

    def _take(self, tasks: Sequence[Task], fitted: Mapping[str, Fitted], rows: Any) -> None:
        """Tasks that were read, the heads fitted for them, and the measured rows of all of them."""
        self._tasks, self._rows = tasks, rows
        self.fitted_tasks = {**self._before, **fitted}
        if self.fitted_tasks:
            heads = {name: each.head for name, each in self.fitted_tasks.items()}
            self._head, self.room = with_room(heads, self.room)
        self._inputs = inputs_of(self._model, self._head)
        self.task_labels = {task.name: task.labels for task in tasks}
        self.fitted, self.measured = sum(len(task.fit_rows) for task in tasks), len(rows)
        numbers = list(self.fitted_tasks) or [UNNAMED]  # of a model that has a head
        named = ((task.name, numbers.index(task.name), task.labels) for task in tasks)
        self.rows_digest = digest(*named, *(task.rows for task in tasks), *(task.truth for task in tasks))

    def right(self, session: Any, plan: Plan) -> dict[str, NDArray[np.bool_]]:
        """Whether each measured row that the variant accepts is right, by task. The longest variants accept every row,
        cut to their length; the others accept the rows that fit."""
        found = {}
        for task in self._tasks:
            number = list(self.fitted_tasks).index(task.name) if isinstance(self._head, Heads) else None
            part = task.up_to(plan.length)
            found[task.name] = part.right(self._said(session, self._batches(plan, part.rows, number)))
        return found

    def plan(self, count: int, kind: AdaptationKind = "merge", length: int | None = None) -> Plan:
        """The variant that merges `count` tokens a layer, or has `count` prompts, for a maximum length (None: the
        longest). ConfigError when there are too few tokens, and for a kind that the subject does not support."""
        return plan_variant(self._model, length or self._length, count, kind)

    def made_of(self, plan: Plan) -> dict[str, Any]:
        """Inputs that determine a variant's file in addition to its plan. Trains its prompts, if any."""
        return self._made_of(plan, {name: each.head for name, each in self.fitted_tasks.items()})

    def _made_of(self, plan: Plan, heads: Mapping[str, Head]) -> dict[str, Any]:
        return {
            "body": body_of(self._model),
            "labels": [[name, list(head.labels)] for name, head in heads.items()],  # in the order of the tasks
            "room": self.room,
            "heads": digest(*(array for head in heads.values() for array in (head.weight, head.bias))),
            "compared": digest(self._taken(plan)[: self.compared]),
        }

    def module(self, plan: Plan) -> Any:
        """The variant in torch, from its inputs by position."""
        return torch_variant(self._model, plan, self._head)

    def export(self, plan: Plan, folder: Path) -> tuple[Any, Path]:
        """`module`, and the same as a file."""
        variant = self.module(plan)
        return variant, export_variant(self._model, self._head, variant, self.full(plan, 2), folder)

    def compare(self, variant: Any, session: Any, plan: Plan) -> measure.Compared:
        """Compare file and torch module on the same rows. CompileError when they do not agree."""
        import torch

        rows = self._taken(plan)[: self.compared]
        batches, wanted = self._batches(plan, rows), []
        with torch.inference_mode():
            for batch in batches:
                wanted.append(variant(*map(torch.from_numpy, batch.values())).float().numpy())
        said = self._said(session, batches)
        return measure.agreed(self._answers(said, rows), self._answers(np.concatenate(wanted), rows))

    @staticmethod
    def _said(session: Any, batches: Batches) -> NDArray[np.float32]:
        """The answers of a file to the rows of all batches."""
        return np.concatenate([session.run(None, batch)[0] for batch in batches])

    def row_lengths(self, plan: Plan) -> Sequence[int]:
        """Lengths of the measured rows that the variant accepts, task by task; empty: all rows have one length."""
        return [len(row) for row in self._taken(plan)]

    def ends(self, plan: Plan) -> Sequence[int]:
        """Ends of the length bins by which accuracy is reported, ascending; the last is the variant's length. Variants
        share the bins up to their lengths."""
        return bin_ends(self._lengths, plan.length)

    def full(self, plan: Plan, count: int) -> Mapping[str, NDArray[Any]]:
        """The inputs of so many rows of full length."""
        return measure.full_rows(self._inputs, self._rows, plan.length, count)

    def _taken(self, plan: Plan) -> Any:
        """The measured rows of all tasks that fit a variant. ConfigError where there are none."""
        return fitting(self._rows, plan.length)

    def _batches(self, plan: Plan, rows: Any, task: int | None = None) -> Batches:
        """The inputs of rows, all of one task by its number; None: of all tasks in turn where there are several."""
        return measure.batches(self._inputs, rows, plan.length, task)

    def _answers(self, values: NDArray[np.float32], rows: Any) -> NDArray[np.float32]:
        """The part of the answers to rows that is compared, [answers, classes]."""
        return values


@dataclasses.dataclass(frozen=True, slots=True)
class Training:
    """How prompts are trained."""

    way: Way
    epochs: int


class Texts(Subject):
    """A model of text that answers whole rows."""

    def __init__(
        self,
        model: SourceModel,
        data: Mapping[str, Labelled],
        lengths: Sequence[int],
        training: Training,
        *,
        cache: Cache,
        before: Before = NOTHING,
    ) -> None:
        """ConfigError for a family that cannot merge."""
        check_family(model)
        super().__init__(model, lengths, cache, before)
        self._data, self._training = data, training

    def prepare(self) -> bool:
        tasks, fitted, cached = read_tasks(self._model, self._data, self._length, self._cache)
        self._take(tasks, fitted, [row for task in tasks for row in task.rows])
        return cached

    def plan(self, count: int, kind: AdaptationKind = "merge", length: int | None = None) -> Plan:
        plan = super().plan(count, kind, length)
        if not plan.prompted:
            return plan
        work = prompted_work(plan.length, len(plan.schedule), count, self._training.way, width=self.width)
        return dataclasses.replace(plan, multiplications=work)

    def made_of(self, plan: Plan) -> dict[str, Any]:
        if not plan.prompted:
            return super().made_of(plan)
        prompts = {name: self._trained(name, plan) for name in self.fitted_tasks}
        values = [self._training.way, digest(*(each.values for each in prompts.values()))]
        return self._made_of(plan, {name: each.head for name, each in prompts.items()}) | {"prompts": values}

    def module(self, plan: Plan) -> Any:
        """With prompts, each task has its own prompts and its own head, both in tables."""
        if not plan.prompted:
            return super().module(plan)
        import torch

        found = {name: self._trained(name, plan) for name in self.fitted_tasks}
        values = torch.nn.Parameter(torch.from_numpy(np.stack([each.values for each in found.values()])))
        head, _ = with_room({name: each.head for name, each in found.items()}, self.room)
        return torch_variant(self._model, plan, head, lambda body: prompted_body(body, values, self._training.way))

    def _trained(self, name: str, plan: Plan) -> Prompts:
        """Prompts of a task; an existing task keeps its prompts."""
        fitted, count = self.fitted_tasks[name], plan.merge
        if str(count) not in fitted.prompts:
            task = next((task for task in self._tasks if task.name == name), None)
            if task is None:
                raise ConfigError(f"there are no {count} prompts of task {name!r}: run `arlo adapt` again")
            trained = {**fitted.prompts, str(count): self._train(task, fitted.head, count)}
            fitted = dataclasses.replace(fitted, prompts=trained)
            self.fitted_tasks = {**self.fitted_tasks, name: fitted}
        return fitted.prompts[str(count)]

    def _train(self, task: Task, head: Head, count: int) -> Prompts:
        """Train prompts, or take them from the cache: training takes minutes."""
        way, epochs = self._training.way, self._training.epochs
        rows = hashlib.sha256(repr((task.fit_rows, task.fit_truth.tolist(), task.labels)).encode()).hexdigest()
        parts = {
            "model": self._model.hashes,
            "rows": rows,
            "head": digest(head.weight, head.bias),
            "training": [count, way, epochs, self._length],
            "tools": tool_versions("torch", "transformers"),
            "code": code_version("adapt/prompts", "adapt/merge", "pooling"),
        }

        def make() -> dict[str, NDArray[Any]]:
            found = train_prompts(self._model, task.fit_rows, task.fit_truth, head, count=count, way=way, epochs=epochs)
            return {"values": found.values, "weight": found.head.weight, "bias": found.head.bias}

        stored, _ = arrays_step(self._cache, "prompts", parts, make)
        return Prompts(stored["values"], Head(head.labels, stored["weight"], stored["bias"]))
