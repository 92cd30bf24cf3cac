"""Tasks that share one model: the input that says which one a row is of.

`task` is INT64 [rows, 1], the number of the row's task. A task keeps its number: new ones come behind those that are
there. A row's logits are as many as the largest task has classes; the first are its own, the others NO_CLASS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arlo.catalog.manifest import InputTensor

TASK = "task"
MOST_TASKS = 1024  # as in the gateway
NO_CLASS = -8192.0  # that every precision holds exactly, and of which no softmax makes more than 0


def task_input(count: int) -> InputTensor:
    """The input, of so many tasks."""
    from arlo.catalog.manifest import InputTensor

    return InputTensor(name=TASK, datatype="INT64", role="tensor", dims=(1,), vocabulary=count)


def task_problems(tasks: Mapping[str, Sequence[str]], inputs: Sequence[InputTensor]) -> Iterator[str]:
    """What cannot be served, in words."""
    if not tasks:
        return
    if not all(isinstance(name, str) and name and labels for name, labels in tasks.items()):
        yield "a task has no name, or no labels"
    if len(tasks) > MOST_TASKS:
        yield f"{len(tasks)} tasks share the model; at most {MOST_TASKS} can"
    if task_input(len(tasks)) not in inputs:
        yield f"it has tasks, and no input {TASK!r} of INT64 [1] below {len(tasks)}"
