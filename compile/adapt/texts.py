"""What `arlo adapt` does with a model of text: its tasks, its variants, and what these say of labelled texts."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import AdaptationKind
from arlo.compile.adapt import measure
from arlo.compile.adapt.fitted import NOTHING, Before, Fitted
from arlo.compile.adapt.kept import arrays_step, body_of, digest
from arlo.compile.adapt.merge import PROTECTED
from arlo.compile.adapt.prompts import Prompts, Way, prompted_body, prompted_work, train_prompts
from arlo.compile.adapt.tasks import UNNAMED, Labelled, Task, bin_ends, fitting, read_tasks, with_room
from arlo.compile.adapt.variant import (
    Head,
    Heads,
    Plan,
    check_family,
    export_variant,
    inputs_of,
    output_name,
    plan_variant,
    shape_of,
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
    protected: int  # tokens that are left alone
    width: int  # of the layers
    rows_digest: str  # of all measured rows and what they are

    @property
    def fitted_tasks(self) -> Mapping[str, Fitted]:
        """By their numbers, those from before too; none: the model has a head."""

    def plan(self, count: int, kind: AdaptationKind = "merge", length: int | None = None) -> Plan:
        """The variant that merges, or drops, so many tokens a layer, or has so many prompts; of a maximum length, or
        the longest one. ConfigError when there are too few tokens, and for a kind that it cannot be."""

    def prepare(self) -> bool:
        """Read the rows, and fit heads where the model gives embeddings; whether these were all in the cache.
        ConfigError for unfit data."""

    def made_of(self, plan: Plan) -> dict[str, Any]:
        """What a variant's file depends on beside its plan. Trains its prompts, if any."""

    def module(self, plan: Plan) -> Any:
        """The variant in torch, from its inputs by position."""

    def fit_batches(self, plan: Plan) -> list[dict[str, NDArray[Any]]]:
        """The inputs of some of the rows that heads are fitted on, none of which is measured; of at most the variant's
        length. Empty: there are none."""

    def export(self, plan: Plan, folder: Path) -> tuple[Any, Path]:
        """`module`, and the same as a file."""

    def compare(self, variant: Any, session: Any, plan: Plan) -> measure.Compared:
        """File and torch module on the same rows. CompileError when they do not agree."""

    def row_lengths(self, plan: Plan) -> Sequence[int]:
        """Of the measured rows that the variant takes, task by task; empty: all are of one length."""

    def ends(self, plan: Plan) -> Sequence[int]:
        """Of the length bins that its accuracy is told of, ascending, the last is its length; those of all variants
        are the same as far as they go."""

    def right(self, session: Any, plan: Plan) -> dict[str, NDArray[np.bool_]]:
        """Of each task, whether each measured row that the variant takes is right. Of the longest variants that is
        every row, cut where it is longer; of others those that fit."""

    def full(self, plan: Plan, count: int) -> Mapping[str, Any]:
        """The inputs of so many rows of full length."""


@dataclasses.dataclass(frozen=True, slots=True)
class Training:
    """How prompts are trained."""

    way: Way
    epochs: int


class Texts:
    """See Subject."""

    protected = PROTECTED

    def __init__(
        self,
        model: SourceModel,
        data: Mapping[str, Labelled],
        lengths: Sequence[int],
        training: Training,
        *,
        cache: Cache,
        before: Before = NOTHING,
        choosing: bool = False,
    ) -> None:
        """lengths: maximum ones of variants, tokens, ascending. choosing: schedules, for which a model that has a head
        sets texts aside, too. ConfigError for a family that cannot merge."""
        check_family(model)
        self.width = shape_of(model)[1]
        self._model, self._lengths, self._data, self._training = model, lengths, data, training
        self._length = lengths[-1]
        self._cache, self._before, self.room, self._choosing = cache, before.tasks, before.room, choosing

    def prepare(self) -> bool:
        self._tasks, fitted, cached = read_tasks(
            self._model, self._data, self._length, self._cache, choosing=self._choosing
        )
        self._fitted: dict[str, Fitted] = {**self._before, **fitted}
        heads = {name: each.head for name, each in self._fitted.items()}
        self._head: Head | Heads | None = None
        if heads:
            self._head, self.room = with_room(heads, self.room)
        self._inputs = inputs_of(self._model, self._head)
        self._rows = [row for task in self._tasks for row in task.rows]
        self.task_labels: Mapping[str, tuple[str, ...]] = {task.name: task.labels for task in self._tasks}
        self.fitted = sum(task.fitted for task in self._tasks)
        self.measured = len(self._rows)
        numbers = list(self._fitted) or [UNNAMED]  # of a model that has a head
        self.rows_digest = digest(
            *((task.name, numbers.index(task.name), task.labels, task.rows) for task in self._tasks),
            *(task.truth for task in self._tasks),
        )
        return cached

    @property
    def fitted_tasks(self) -> Mapping[str, Fitted]:
        return self._fitted

    def plan(self, count: int, kind: AdaptationKind = "merge", length: int | None = None) -> Plan:
        plan = plan_variant(self._model, length or self._length, count, kind)
        if not plan.prompted:
            return plan
        work = prompted_work(plan.length, len(plan.schedule), count, self._training.way, width=self.width)
        return dataclasses.replace(plan, multiplications=work)

    def made_of(self, plan: Plan) -> dict[str, Any]:
        heads = {name: each.head for name, each in self._fitted.items()}
        prompts: list[Prompts] = []
        if plan.prompted:
            prompts = [self._trained(name, plan) for name in self._fitted]
            heads = {name: each.head for name, each in zip(self._fitted, prompts, strict=True)}
        arrays = [array for head in heads.values() for array in (head.weight, head.bias)]
        return {
            "body": body_of(self._model),
            "labels": [[name, list(head.labels)] for name, head in heads.items()],  # in the order of the tasks
            "room": self.room,
            "heads": digest(*arrays),
            "prompts": [self._training.way, digest(*(each.values for each in prompts))] if prompts else [],
            "compared": digest(self._taken(plan)[:COMPARED]),
        }

    def module(self, plan: Plan) -> Any:
        return self._prompted(plan) if plan.prompted else torch_variant(self._model, plan, self._head)

    def fit_batches(self, plan: Plan) -> list[dict[str, NDArray[Any]]]:
        found, each = [], max(1, measure.SENSED // len(self._tasks))
        for task in self._tasks:
            rows = [row for row in task.fit_rows if len(row) <= plan.length][:each]
            number = list(self._fitted).index(task.name) if isinstance(self._head, Heads) else None
            found += measure.batches(self._inputs, rows, plan.length, number)
        return found

    def export(self, plan: Plan, folder: Path) -> tuple[Any, Path]:
        variant = self.module(plan)
        tasks = self._head.labels if isinstance(self._head, Heads) else None
        labels = self._head.labels if isinstance(self._head, Head) else self._model.labels
        output = output_name(self._model, self._head)
        return variant, export_variant(self._model, plan, variant, folder, labels=labels, output=output, tasks=tasks)

    def _prompted(self, plan: Plan) -> Any:
        """Each task has prompts and a head of its own: tables, too."""
        import torch

        found = {name: self._trained(name, plan) for name in self._fitted}
        values = torch.nn.Parameter(torch.from_numpy(np.stack([each.values for each in found.values()])))
        head, _ = with_room({name: each.head for name, each in found.items()}, self.room)
        return torch_variant(self._model, plan, head, lambda body: prompted_body(body, values, self._training.way))

    def _trained(self, name: str, plan: Plan) -> Prompts:
        """Prompts of a task; of one from before as they were. In the padding they are those of one length."""
        fitted, count = self._fitted[name], plan.merge
        key, length = (f"{count}-{plan.length}", plan.length) if plan.kind == "padding" else (str(count), 0)
        if key not in fitted.prompts:
            task = next((task for task in self._tasks if task.name == name), None)
            if task is None:
                raise ConfigError(f"there are no {count} prompts of task {name!r}: run `arlo adapt` again")
            trained = {**fitted.prompts, key: self._train(task, fitted.head, count, length)}
            self._fitted[name] = fitted = dataclasses.replace(fitted, prompts=trained)
        return fitted.prompts[key]

    def _train(self, task: Task, head: Head, count: int, length: int) -> Prompts:
        """Kept in the cache: training takes minutes. length: that rows are padded to, and fit; 0: any."""
        training = self._training
        fits = [not length or len(row) <= length for row in task.fit_rows]
        if not any(fits):
            raise ConfigError(
                f"task {task.name!r} has no text of at most {length} tokens to train prompts on: leave that length out"
            )
        given, truth = [row for row, fit in zip(task.fit_rows, fits, strict=True) if fit], task.fit_truth[fits]
        rows = hashlib.sha256(repr((given, truth.tolist(), task.labels)).encode()).hexdigest()
        parts = {
            "model": self._model.hashes,
            "rows": rows,
            "head": hashlib.sha256(head.weight.tobytes() + head.bias.tobytes()).hexdigest(),
            "training": [count, training.way, training.epochs, length or self._length],
            "tools": tool_versions("torch", "transformers"),
            "code": code_version("adapt/prompts", "adapt/merge", "pooling"),
        }

        def make() -> dict[str, NDArray[Any]]:
            found = train_prompts(
                self._model,
                given,
                truth,
                head,
                count=count,
                way=training.way,
                epochs=training.epochs,
                length=length,
            )
            return {"values": found.values, "weight": found.head.weight, "bias": found.head.bias}

        stored, _ = arrays_step(self._cache, "prompts", parts, make)
        return Prompts(stored["values"], Head(head.labels, stored["weight"], stored["bias"]))

    def _taken(self, plan: Plan) -> list[tuple[int, ...]]:
        """The measured rows of all tasks that fit a variant. ConfigError where there are none."""
        return fitting(self._rows, plan.length)

    def row_lengths(self, plan: Plan) -> Sequence[int]:
        return [len(row) for row in self._taken(plan)]

    def ends(self, plan: Plan) -> Sequence[int]:
        return bin_ends(self._lengths, plan.length)

    def compare(self, variant: Any, session: Any, plan: Plan) -> measure.Compared:
        rows = self._taken(plan)[:COMPARED]
        return measure.compare(variant, session, self._inputs, rows, plan.length, label=True)

    def right(self, session: Any, plan: Plan) -> dict[str, NDArray[np.bool_]]:
        found = {}
        for task in self._tasks:
            number = list(self._fitted).index(task.name) if isinstance(self._head, Heads) else None
            part = task.up_to(plan.length)
            found[task.name] = part.right(measure.answers(session, self._inputs, part.rows, plan.length, number))
        return found

    def full(self, plan: Plan, count: int) -> Mapping[str, Any]:
        return measure.full_rows(self._inputs, self._rows, plan.length, count)
