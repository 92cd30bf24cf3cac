"""What `arlo adapt` does with a token classifier: merged tokens are answered as what they were merged into.

Data has no label for each token, so what is counted is how many tokens get the label that the unchanged model gives
them: `accuracy` is agreement with it, special tokens left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import AdaptationKind
from arlo.compile.adapt import measure
from arlo.compile.adapt.fitted import Fitted
from arlo.compile.adapt.kept import arrays_step, body_of, digest
from arlo.compile.adapt.merge import PROTECTED
from arlo.compile.adapt.tasks import bin_ends, fitting
from arlo.compile.adapt.texts import COMPARED
from arlo.compile.adapt.variant import Plan, check_family, export_variant, plan_variant, shape_of, torch_variant
from arlo.compile.cache import Cache, code_version
from arlo.compile.original import load_original
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import ConfigError

TASK = "as the model"


class TokenTexts:
    """See arlo.compile.adapt.texts.Subject."""

    protected = PROTECTED

    def __init__(
        self,
        model: SourceModel,
        texts: Sequence[str],
        lengths: Sequence[int],
        cache: Cache,
        *,
        aside: Sequence[str] = (),
    ) -> None:
        """lengths: maximum ones of variants, tokens, ascending. aside: texts that are not measured. ConfigError for a
        family that cannot merge."""
        check_family(model)
        self.width = shape_of(model)[1]
        self._model, self._lengths, self._texts, self._cache = model, lengths, texts, cache
        self._aside = aside
        self._length = lengths[-1]

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
        self.task_labels: Mapping[str, tuple[str, ...]] = {TASK: self._model.labels}
        self.fitted_tasks: Mapping[str, Fitted] = {}
        self.room = 0
        self.fitted = len(self._aside)
        self.measured = len(self._rows)
        self.rows_digest = digest(self._rows, said["labels"])
        return entry.cached

    def plan(self, count: int, kind: AdaptationKind = "merge", length: int | None = None) -> Plan:
        return plan_variant(self._model, length or self._length, count, kind)

    def module(self, plan: Plan) -> Any:
        return torch_variant(self._model, plan)

    def fit_batches(self, plan: Plan) -> list[dict[str, NDArray[Any]]]:
        found = measure.encode(self._model.tokenizer_folder / "tokenizer.json", self._aside, self._length)
        rows = [row for row in found if 2 < len(row) <= plan.length][: measure.SENSED]
        return measure.batches(self._model.inputs, rows, plan.length)

    def made_of(self, plan: Plan) -> dict[str, Any]:
        return {"body": body_of(self._model), "compared": digest(self._taken(plan)[:COMPARED])}

    def _taken(self, plan: Plan) -> list[tuple[int, ...]]:
        return fitting(self._rows, plan.length)

    def ends(self, plan: Plan) -> Sequence[int]:
        return bin_ends(self._lengths, plan.length)

    def row_lengths(self, plan: Plan) -> Sequence[int]:
        return [len(row) for row in self._taken(plan) for _ in row[1:-1]]

    def export(self, plan: Plan, folder: Path) -> tuple[Any, Path]:
        variant = self.module(plan)
        return variant, export_variant(self._model, plan, variant, folder, labels=self._model.labels, output="logits")

    def compare(self, variant: Any, session: Any, plan: Plan) -> measure.Compared:
        """Each token is a row of its own."""
        import torch

        rows = self._taken(plan)[:COMPARED]
        given = measure.padded(self._model.inputs, rows, plan.length)
        with torch.inference_mode():
            wanted = variant(*(torch.from_numpy(array) for array in given.values())).float().numpy()
        said = session.run(None, given)[0]
        return measure.agreed(_inner(said, rows), _inner(wanted, rows), label=True)

    def right(self, session: Any, plan: Plan) -> dict[str, NDArray[np.bool_]]:
        rows = self._taken(plan)
        wanted = [labels for labels, row in zip(self._wanted, self._rows, strict=True) if len(row) <= plan.length]
        said = measure.answers(session, self._model.inputs, rows, plan.length)
        return {TASK: np.asarray(_inner(said, rows).argmax(1) == np.concatenate(wanted))}

    def full(self, plan: Plan, count: int) -> Mapping[str, Any]:
        return measure.full_rows(self._model.inputs, self._rows, plan.length, count)

    def _labels_of_original(self) -> list[NDArray[np.int64]]:
        """Of each batch's tokens, one after the other."""
        with known_noise_silenced():
            import torch

            original = load_original(self._model)
        parts = []
        with torch.inference_mode():
            for at in range(0, len(self._rows), measure.BATCH):
                rows = self._rows[at : at + measure.BATCH]
                given = measure.padded(self._model.inputs, rows, max(map(len, rows)))
                logits = original(**{name: torch.from_numpy(array) for name, array in given.items()}).logits
                parts.append(_inner(logits.float().numpy(), rows).argmax(1))
        return parts


def _inner(values: NDArray[np.float32], rows: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
    """Of [rows, tokens, labels] those of the rows' own tokens, one after the other, [all tokens, labels]."""
    return np.concatenate([each[1 : len(row) - 1] for each, row in zip(values, rows, strict=True)])
