"""Laws of importance for every model: known sums, and no contribution from padding or from other rows.

Each query spreads an attention of exactly 1 over the keys. So a row's importance sums to one for each head, layer and
real token; this exposes a padded query that was counted, or a masked key that got a share.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import Importance

SUM = {"fp32": 1e-3, "fp16": 1e-3, "bf16": 1e-2}
"""Largest relative error of a row's sum. Sums over queries are rounded to 2**-11 in half precision, 2**-9 in bf16."""
CHANGE = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 1.6e-1}
"""Largest change of a token's importance by padding or by other rows, as a share of the row's largest. In fp32 the
order of sums changes the last bits; else it is what `compare` allows of any answer, as attention itself is rounded."""


@dataclasses.dataclass(slots=True)
class Worst:
    """The worst of some numbers that have bounds. NaN is worst of all."""

    value: float = 0.0  # the largest
    ratio: float = 0.0  # the largest over its bound
    bound: float = 0.0  # of that one
    at: str = ""  # and its place, for people

    def see(self, value: float, bound: float, at: str) -> None:
        """One more number."""
        if math.isnan(value) or value > self.value:
            self.value = value
        ratio = value / bound if bound else math.inf * value if value else 0.0
        if not ratio <= self.ratio and not math.isnan(self.ratio):
            self.ratio, self.bound, self.at = ratio, bound, at

    def missed(self, text: str) -> list[str]:
        """`text` about it, with {0} for this object, if a bound was missed."""
        return [] if self.ratio <= 1 else [text.format(self)]


class ImportanceLaws:
    """Checks the importance [tokens] of rows, padding cut off, and keeps the worst."""

    def __init__(self, importance: Importance, precision: str) -> None:
        self.sum, self.change = Worst(), Worst()
        self._maps, self._precision = importance.maps, precision

    def answer(self, values: NDArray[np.float32], place: str) -> None:
        """Check one row's answer. place: the row's name for people."""
        whole = np.isfinite(values).all() and (values >= 0).all()
        error = abs(float(values.astype(np.float64).sum()) / (self._maps * len(values)) - 1) if whole else math.inf
        self.sum.see(error, SUM[self._precision], place)

    def surroundings(self, values: NDArray[np.float32], plain: NDArray[np.float32], place: str) -> None:
        """Compare a row padded differently or among other rows with the row by itself."""
        whole = np.isfinite(values).all() and np.isfinite(plain).all()
        change = float(np.abs(values.astype(np.float64) - plain).max() / max(plain.max(), 1e-30)) if whole else math.inf
        self.change.see(change, CHANGE[self._precision], place)

    def missed(self) -> list[str]:
        """The broken laws, in words; empty if all hold."""
        share = f"importance does not sum to {self._maps} a token, by a share of {{0.value:.2g}} "
        return [
            *self.sum.missed(share + "(up to {0.bound:g} is rounding) in {0.at}"),
            *self.change.missed("importance changes by a share of {0.value:.2g}, more than {0.bound:g}, in {0.at}"),
        ]
