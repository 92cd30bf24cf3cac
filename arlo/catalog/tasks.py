"""Tasks that share one model: its input says which task a row belongs to.

`task` is INT64 [rows, 1], the number of the row's task. A task keeps its number: new ones are added at the end. A row
has as many logits as the largest task has classes; the first are its own, the others NO_CLASS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arlo.catalog.manifest import InputTensor

TASK = "task"
MOST_TASKS = 1024  # as in the gateway
NO_CLASS = -8192.0  # exact in every precision; no softmax makes more than 0 of it


def task_input(count: int) -> InputTensor:
    """The input `task` of a model with `count` tasks."""
    from arlo.catalog.manifest import InputTensor

    return InputTensor(name=TASK, datatype="INT64", role="tensor", dims=(1,), vocabulary=count)


def task_problems(tasks: Mapping[str, Sequence[str]], inputs: Sequence[InputTensor]) -> Iterator[str]:
    """The reasons why the tasks cannot be served."""
    if not tasks:
        return
    if not all(isinstance(name, str) and name and labels for name, labels in tasks.items()):
        yield "a task has no name, or no labels"
    if len(tasks) > MOST_TASKS:
        yield f"{len(tasks)} tasks share the model; at most {MOST_TASKS} can"
    if task_input(len(tasks)) not in inputs:
        yield f"it has tasks, and no input {TASK!r} of INT64 [1] below {len(tasks)}"
