"""Comparison of a runtime's answers with those of the original model, and the bounds of their differences.

The precision bounds differences of single numbers. The results that users see are bounded as well: the direction of an
embedding, the label of a classifier, the order of a reranker's texts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import Importance, OutputTensor
from arlo.catalog.tasks import NO_CLASS
from arlo.compile.signals.graph import IMPORTANCE
from arlo.compile.signals.laws import ImportanceLaws, Worst
from arlo.compile.verify.answers import Answered

_SPANS = "question-answering"  # its labels are the tokens where the answer begins and ends


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds that a precision must meet."""

    difference: float
    """Largest difference of any number. FP32: as it is; else a share of the output's largest number in the original,
    because rounding is relative: it says nothing about logits of 0.1 and hidden states of 20 alike."""
    relative: bool
    cosine: float
    agreement: float
    tie: float
    """Labels (or the order of two scores) that the original holds this close, as a share of its largest number, are
    near ties: which one comes out says nothing, so a runtime that chooses the other is not counted as wrong. Models
    with random weights are full of them, and so are texts without an answer. Far below `difference`, else the rule
    would excuse everything that `difference` lets through."""


BOUNDS = {
    # 2**-24 of rounding over a hundred operations in a row is 1e-5: 1e-4 holds for any order of summation, and not for
    # TF32 or for a wrong operator.
    "fp32": Bounds(difference=1e-4, relative=False, cosine=0.9999, agreement=1.0, tie=1e-5),
    # 2**-11 of rounding.
    "fp16": Bounds(difference=2e-2, relative=True, cosine=0.999, agreement=0.999, tie=4e-3),
    # 2**-8 of rounding, eight times that of FP16: eight times its bounds; 1 - cosine grows with the square.
    "bf16": Bounds(difference=1.6e-1, relative=True, cosine=0.99, agreement=0.99, tie=3.2e-2),
}

PADDING = 1e-4
"""Largest change of an answer by the ids that lie under the mask. They are multiplied by an attention of exactly zero,
in the same shape and so in the same order: whatever the precision, nothing should change at all."""


MOST_FLIPPED = 0.05
"""Share of the rows of a model that merges tokens that may be answered by another merge. Which of two equally
alike pairs goes is decided by rounding, which differs between devices and precisions."""


@dataclasses.dataclass(slots=True)
class Found:
    """The measurements of a comparison, and the place of the worst."""

    rows: int = 0
    flips: set[int] = dataclasses.field(default_factory=set)  # rows by another merge: of them nothing else is counted
    difference: Worst = dataclasses.field(default_factory=Worst)
    padding: Worst = dataclasses.field(default_factory=Worst)
    cosine: float | None = None
    cosine_at: str = ""  # text, as `row 3 of 128 tokens, last_hidden_state`
    same: int = 0  # labels, or orders of two scores, that are the same
    ties: int = 0  # that differ where the original is all but undecided
    compared: int = 0
    flip_at: str = ""

    @property
    def flipped(self) -> int:
        """The number of rows whose tokens were merged differently."""
        return len(self.flips)

    @property
    def agreement(self) -> float | None:
        """Share of labels that are the same; None where there are no labels."""
        return self.same / self.compared if self.compared else None

    @property
    def tied(self) -> float | None:
        """Share of labels that differ in near ties."""
        return self.ties / self.compared if self.compared else None


class Comparison:
    """Collects what one runtime answers.

    task: of the model. importance: the sum that this output has, if there is one; it has its own laws. Scales are those
    of the original over all given rows, so that one bound holds for all. flips: the model merges tokens, so rows beyond
    the bound are counted as merged differently.
    """

    def __init__(
        self,
        task: str,
        outputs: Sequence[OutputTensor],
        rows: Sequence[Answered],
        precision: str,
        tolerance: float | None,
        *,
        importance: Importance | None = None,
        flips: bool = False,
    ) -> None:
        self.bounds = BOUNDS[precision]
        self._flips = flips
        self.found = Found()
        self._task = task
        self._outputs = outputs
        self._rows = rows
        self._tolerance = tolerance
        self._scales = {
            output.name: max(
                (_size(row.answers[output.name]) for row in rows if output.name in row.answers),
                default=0.0,
            )
            for output in outputs
        }
        self.laws = ImportanceLaws(importance, precision) if importance is not None else None
        self._scores: dict[int, tuple[float, float]] = {}  # row -> score of the original, of the runtime

    def bound(self, output: str) -> float:
        """Largest difference allowed in this output."""
        # Importance grows with the square of the length, so that it is compared as a share whatever the precision.
        relative = self.bounds.relative or output == IMPORTANCE
        if self._tolerance is not None:
            return self._tolerance * (self._scales[output] if output == IMPORTANCE else 1.0)
        return self.bounds.difference * (self._scales[output] if relative else 1.0)

    def answer(self, index: int, got: Mapping[str, NDArray[np.float32]]) -> None:
        """Compare the answer to row `index`: by output [*dims] or [tokens, *dims], padding cut off."""
        row = self._rows[index]
        self.found.rows += 1
        if self.laws is not None:
            self.laws.answer(got[IMPORTANCE], f"row {index} ({len(row.row)} tokens)")
        if self._flips and self._by_another_merge(row, got):
            self.found.flips.add(index)
            return
        for number, output in enumerate(self._outputs):
            if output.name not in row.answers:
                continue
            expected, answer = row.answers[output.name], got[output.name]
            if output.name in row.positions:
                answer = answer[row.positions[output.name]]
            place = f"row {index} ({len(row.row)} tokens), {output.name}"
            self.found.difference.see(_largest(answer, expected), self.bound(output.name), place)
            if self._task == "embedding":
                if not output.token_level or number == 0:
                    self._cosine(answer, expected, place)
            elif number == 0 and expected.shape[-1:] == (1,) and not output.token_level:
                self._scores[index] = float(expected[0]), float(answer[0])
            elif not output.on_request and (number == 0 or self._task == _SPANS) and expected.shape[-1] > 1:
                self._labels(answer, expected, place)

    def _by_another_merge(self, row: Answered, got: Mapping[str, NDArray[np.float32]]) -> bool:
        first = self._outputs[0].name
        answer = got[first] if first not in row.positions else got[first][row.positions[first]]
        expected = row.answers[first]
        if _largest(answer, expected) > self.bound(first):
            return True
        # Within the bound the label of a near tie may still be another one.
        labels = self._task != "embedding" and expected.shape[-1:] != (1,)
        return labels and bool(self._other_labels(answer, expected).any())

    def padding(
        self, index: int, what: str, got: Mapping[str, NDArray[np.float32]], plain: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Compare two answers to row `index` that only its surroundings may have changed.

        what: `ids under the mask`, which must change nothing, or anything else, which may change the rounding.
        """
        row = f"row {index} ({len(self._rows[index].row)} tokens)"
        for output in self._outputs:
            left, right = got[output.name], plain[output.name]
            if output.name == IMPORTANCE and self.laws is not None:
                self.laws.surroundings(left, right, f"{row}, {what}")
                continue
            change = _largest(left, right)
            bound = self.bound(output.name)
            if self._flips and what != IDS_UNDER_MASK and change > bound:
                self.found.flips.add(index)
                continue
            if what == IDS_UNDER_MASK:
                bound = max(PADDING, self._tolerance or 0.0)
            self.found.padding.see(change, bound, f"{row}, {output.name}, {what}")

    def finish(self) -> Found:
        """Compare the order of scores, which needs all rows, and return the findings."""
        if self._scores:
            expected, answer = np.array(list(self._scores.values())).T
            indexes = list(self._scores)
            tie = self.bounds.tie * self._scales[self._outputs[0].name]
            left, right = np.triu_indices(len(expected), k=1)
            margin = expected[left] - expected[right]
            wrong = np.sign(margin) != np.sign(answer[left] - answer[right])
            counted = wrong & (np.abs(margin) > tie)
            self.found.compared += len(margin)
            self.found.same += int((~wrong).sum())
            self.found.ties += int((wrong & ~counted).sum())
            if counted.any():
                worst = int(np.argmax(np.where(counted, np.abs(margin), -1)))
                self.found.flip_at = f"rows {indexes[left[worst]]} and {indexes[right[worst]]}"
        return self.found

    def _cosine(self, answer: NDArray[np.float32], expected: NDArray[np.float32], place: str) -> None:
        left, right = answer.astype(np.float64), expected.astype(np.float64)
        norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
        lowest = float(np.min((left * right).sum(-1) / np.maximum(norms, 1e-30)))
        if self.found.cosine is None or not lowest >= self.found.cosine:
            self.found.cosine, self.found.cosine_at = lowest, place

    def _labels(self, answer: NDArray[np.float32], expected: NDArray[np.float32], place: str) -> None:
        expected, answer = np.atleast_2d(expected), np.atleast_2d(answer)
        theirs, ours = expected.argmax(-1), answer.argmax(-1)
        wrong = self._other_labels(answer, expected)
        self.found.compared += len(expected)
        self.found.same += int((theirs == ours).sum())
        self.found.ties += int(((theirs != ours) & ~wrong).sum())
        if wrong.any() and not self.found.flip_at:
            self.found.flip_at = place

    def _other_labels(self, answer: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Mask of the rows in [rows, labels] whose labels differ without a near tie."""
        expected, answer = np.atleast_2d(expected), np.atleast_2d(answer)
        every = np.arange(len(expected))
        margin = expected[every, expected.argmax(-1)] - expected[every, answer.argmax(-1)]
        return np.asarray(margin > self.bounds.tie * self._scales[self._outputs[0].name])


IDS_UNDER_MASK = "other ids under the mask"
FURTHER_PADDED = "padded further"
AMONG_OTHERS = "alone or among other rows"


def refusals(found: Found, bounds: Bounds) -> list[str]:
    """Every threshold that was missed: metric, value, threshold, the worst row. Empty when the runtime is exact."""
    missed = []
    if found.flipped > MOST_FLIPPED * found.rows:
        missed.append(
            f"{found.flipped / found.rows:.1%} of the rows are answered by another merge, more than {MOST_FLIPPED:.0%}"
        )
    missed += found.difference.missed("it differs by {0.value:.3g}, more than {0.bound:.3g} in {0.at}")
    missed += found.padding.missed("padding changes the answer by {0.value:.3g}, more than {0.bound:.3g} in {0.at}")
    if found.cosine is not None and not found.cosine >= bounds.cosine:
        missed.append(f"the cosine is {found.cosine:.6f}, less than {bounds.cosine:g} in {found.cosine_at}")
    if found.compared and not (found.same + found.ties) / found.compared >= bounds.agreement:
        missed.append(
            f"{(found.same + found.ties) / found.compared:.4%} of the labels agree, less than {bounds.agreement:.4g}, "
            f"first in {found.flip_at}"
        )
    return missed


def _largest(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """The largest difference; NaN if a value on either side is NaN."""
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return math.nan
    return float(np.abs(left.astype(np.float64) - right).max(initial=0.0))


def _size(answer: NDArray[np.float32]) -> float:
    """The largest number of an answer, ignoring fill values for classes that the row's task lacks: next to them any
    number would be small."""
    return float(np.abs(answer[answer != NO_CLASS]).max(initial=0.0))
