"""How `arlo adapt` handles a vision transformer: heads for its tasks, its variants, and their answers to pictures.

Pictures come as an .npz file: `rows` [n, channels, height, width] as the model takes them, `labels` [n], or
`labels_TASK` [n] for each of several tasks, and optionally `split` [n]: 0 to fit, 2 to measure.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import AdaptationKind
from arlo.catalog.tasks import TASK
from arlo.compile.adapt import measure
from arlo.compile.adapt.fitted import NOTHING, Before
from arlo.compile.adapt.tasks import FIT_SHARES, UNNAMED, fit_task
from arlo.compile.adapt.texts import Batches, Subject
from arlo.compile.adapt.variant import Head, Heads, Plan, merge_plan, shape_of, torch_head
from arlo.compile.adapt.vision import FAMILIES, PROTECTED, merging_vit, pool_image
from arlo.compile.cache import Cache
from arlo.compile.original import load_original
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import ConfigError

DECAY = 1e-3  # of the heads
LABELS = "labels"


class Pictures(Subject):
    """A vision transformer. Every row has as many tokens."""

    compared = 16

    def __init__(
        self,
        model: SourceModel,
        file: Path,
        limit: int | None,
        cache: Cache,
        *,
        before: Before = NOTHING,
        task: str = UNNAMED,
    ) -> None:
        """task: name of the task whose labels are unnamed in the file. ConfigError for a family that cannot merge."""
        if model.onnx is not None or model.model_type not in FAMILIES or model.task != "embedding":
            raise ConfigError(
                f"arlo adapt cannot merge tokens of {model.source} ({model.model_type}, {model.task}): of pictures it "
                f"takes folders of plain encoders of the family {', '.join(FAMILIES)}"
            )
        assert model.row_length is not None
        super().__init__(model, (model.row_length,), cache, before)
        self._file, self._limit, self._task = file, limit, task

    @functools.cached_property
    def _body(self) -> Any:
        with known_noise_silenced():
            return load_original(self._model, attention="eager")

    def prepare(self) -> bool:
        model, file = self._model, self._file
        rows, said, split = _read(file, self._limit)
        tensor = model.inputs[0]
        if rows.shape[1:] != tensor.dims:
            raise ConfigError(f"{file}: rows are {list(rows.shape[1:])}, and the model takes {list(tensor.dims)}")
        embedded = functools.cache(lambda: self._embedded(rows[split == 0]))  # of all tasks
        found = [
            fit_task(
                self._cache,
                model,
                self._task if named == UNNAMED else named,
                rows=rows,
                said=labels.tolist(),
                split=split,
                embed=lambda _: embedded(),
                decay=DECAY,
            )
            for named, labels in said.items()
        ]
        self._take([task for task, _, _ in found], {task.name: head for task, head, _ in found}, rows[split == 2])
        self.fitted = int((split == 0).sum())
        return all(cached for _, _, cached in found)

    def row_lengths(self, plan: Plan) -> Sequence[int]:
        return ()

    def ends(self, plan: Plan) -> Sequence[int]:
        return (plan.length,)

    def plan(self, count: int, kind: AdaptationKind = "merge", length: int | None = None) -> Plan:
        if kind != "merge":
            raise ConfigError("--prompts are of text; tokens of pictures are merged")
        if length not in (None, self._length):
            raise ConfigError(f"every picture is of length {self._length}: leave --lengths out")
        return merge_plan(self._length, count, *shape_of(self._model), PROTECTED)

    def module(self, plan: Plan) -> Any:
        assert self._head is not None
        return _variant(self._body, plan, self._head)

    def full(self, plan: Plan, count: int) -> Mapping[str, NDArray[Any]]:
        return self._given(self._rows[np.arange(count) % len(self._rows)], None)

    def _taken(self, plan: Plan) -> NDArray[np.float32]:
        return np.asarray(self._rows)

    def _batches(self, plan: Plan, rows: NDArray[np.float32], task: int | None = None) -> Batches:
        return [self._given(each, task) for each in _parts(rows)]

    def _given(self, rows: NDArray[np.float32], task: int | None) -> dict[str, NDArray[Any]]:
        """The inputs of rows, all of one task; None: of all in turn."""
        given: dict[str, NDArray[Any]] = {self._model.inputs[0].name: rows}
        if isinstance(self._head, Heads):
            turns = np.arange(len(rows)) % len(self._head.of)
            given[TASK] = (turns if task is None else np.full(len(rows), task))[:, None].astype(np.int64)
        return given

    def _embedded(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        import torch

        plain = merging_vit(self._body, [0] * int(self._body.config.num_hidden_layers))
        with torch.inference_mode():
            return np.concatenate([pool_image(*plain(torch.from_numpy(each))).numpy() for each in _parts(rows)])


def _variant(body: Any, plan: Plan, head: Head | Heads) -> Any:
    """A module from pixels [rows, channels, height, width], and `task` [rows, 1] if several, to logits."""
    import torch

    merging = merging_vit(body, plan.schedule)

    class Variant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.merging = merging
            self.head = torch_head(head)

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(pool_image(*self.merging(tensors[0])), *tensors[1:])
            return logits

    return Variant().eval()


def _parts(rows: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [rows[at : at + measure.BATCH] for at in range(0, len(rows), measure.BATCH)]


def _read(file: Path, limit: int | None) -> tuple[NDArray[np.float32], dict[str, NDArray[np.str_]], NDArray[np.int8]]:
    """Pictures, their labels by task, and their split. ConfigError for an invalid file."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as .npz ({error}): of pictures, data is rows and labels") from None
    said = {name.removeprefix(LABELS).removeprefix("_") or UNNAMED: arrays[name] for name in arrays if LABELS in name}
    if "rows" not in arrays or not said or any(len(each) != len(arrays["rows"]) for each in said.values()):
        raise ConfigError(f"{file} needs `rows` and as many `labels`, or `labels_TASK`; it has {', '.join(arrays)}")
    if bad := [name for name in said if not name.isidentifier()]:
        raise ConfigError(f"{file}: a task needs a name of letters, digits and _, not {bad[0]!r}")
    rows = np.asarray(arrays["rows"][:limit], np.float32)
    split = arrays.get("split")
    if split is None:
        order = np.random.default_rng(0).permutation(len(rows))
        split = np.searchsorted(np.cumsum(FIT_SHARES)[:-1], (order + 0.5) / len(rows))
    return rows, {name: each[:limit].astype(np.str_) for name, each in said.items()}, np.asarray(split[:limit], np.int8)
