"""How `arlo adapt` handles a token classifier: a merged token gets the answer of the token it was merged into.

The data has no label for each token, so `accuracy` is agreement: the share of tokens that get the label that the
unchanged model gives them, special tokens left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.compile.adapt import measure
from arlo.compile.adapt.fitted import Fitted
from arlo.compile.adapt.kept import arrays_step, body_of, digest
from arlo.compile.adapt.texts import Subject
from arlo.compile.adapt.variant import Plan, check_family
from arlo.compile.cache import Cache, code_version
from arlo.compile.original import load_original
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import ConfigError

TASK = "as the model"


class TokenTexts(Subject):
    """A token classifier. Each token of its rows counts."""

    fitted = 0
    fitted_tasks: Mapping[str, Fitted] = {}

    def __init__(self, model: SourceModel, texts: Sequence[str], lengths: Sequence[int], cache: Cache) -> None:
        """ConfigError for a family that cannot merge."""
        check_family(model)
        super().__init__(model, lengths, cache)
        self._texts, self._inputs = texts, model.inputs

    def prepare(self) -> bool:
        found = measure.encode(self._model.tokenizer_folder / "tokenizer.json", self._texts, self._length)
        self._rows = [row for row in found if len(row) > 2]
        if not self._rows:
            raise ConfigError("--data has no text to measure on")
        parts = {
            "body": body_of(self._model),
            "rows": digest(self._rows),
            "code": code_version("adapt/tokens", "adapt/measure", "original"),
        }
        said, entry = arrays_step(
            self._cache, "adapt-labels", parts, lambda: {"labels": np.concatenate(self._labels_of_original())}
        )
        ends = np.cumsum([len(row) - 2 for row in self._rows])
        self._wanted: list[NDArray[np.int64]] = np.split(said["labels"], ends[:-1])
        self.task_labels = {TASK: self._model.labels}
        self.measured = len(self._rows)
        self.rows_digest = digest(self._rows, said["labels"])
        return entry.cached

    def row_lengths(self, plan: Plan) -> Sequence[int]:
        return [len(row) for row in self._taken(plan) for _ in row[1:-1]]

    def right(self, session: Any, plan: Plan) -> dict[str, NDArray[np.bool_]]:
        rows = self._taken(plan)
        wanted = [labels for labels, row in zip(self._wanted, self._rows, strict=True) if len(row) <= plan.length]
        said = self._said(session, self._batches(plan, rows))
        return {TASK: np.asarray(self._answers(said, rows).argmax(1) == np.concatenate(wanted))}

    def _answers(self, values: NDArray[np.float32], rows: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
        """The values [rows, tokens, labels] of the rows' own tokens, concatenated."""
        return np.concatenate([each[1 : len(row) - 1] for each, row in zip(values, rows, strict=True)])

    def _labels_of_original(self) -> list[NDArray[np.int64]]:
        """The unchanged model's labels for each batch's tokens, concatenated."""
        with known_noise_silenced():
            import torch

            original = load_original(self._model)
        parts = []
        with torch.inference_mode():
            for at in range(0, len(self._rows), measure.BATCH):
                rows = self._rows[at : at + measure.BATCH]
                given = measure.padded(self._inputs, rows, max(map(len, rows)))
                logits = original(**{name: torch.from_numpy(array) for name, array in given.items()}).logits
                parts.append(self._answers(logits.float().numpy(), rows).argmax(1))
        return parts
