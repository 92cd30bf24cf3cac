"""Laws of importance for every model: known sums, and no contribution from padding or from other rows.

Each query spreads an attention of exactly 1 over the keys. So a row's importance sums to one for each head, layer and
real token; this exposes a padded query that was counted, or a masked key that got a share.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import Importance

SUM = {"fp32": 1e-3, "fp16": 1e-3, "bf16": 1e-2}
"""Largest relative error of a row's sum. Sums over queries are rounded to 2**-11 in half precision, 2**-9 in bf16."""
CHANGE = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 1.6e-1}
"""Largest change of a token's importance by padding or by other rows, as a share of the row's largest. In fp32 the
order of sums changes the last bits; else it is what `compare` allows of any answer, as attention itself is rounded."""


class ImportanceLaws:
    """Checks the importance [tokens] of rows, padding cut off, and keeps the worst."""

    def __init__(self, importance: Importance, precision: str) -> None:
        self.sum_diff = self.change = 0.0
        self._maps = importance.maps
        self._bounds = SUM[precision], CHANGE[precision]
        self._sum_at = self._change_at = ""

    def answer(self, values: NDArray[np.float32], place: str) -> None:
        """Check one row's answer. place: the row's name for people."""
        whole = np.isfinite(values).all() and (values >= 0).all()
        error = abs(float(values.astype(np.float64).sum()) / (self._maps * len(values)) - 1) if whole else math.inf
        if error > self.sum_diff:
            self.sum_diff, self._sum_at = error, place

    def surroundings(self, values: NDArray[np.float32], plain: NDArray[np.float32], place: str) -> None:
        """Compare a row padded differently or among other rows with the row by itself."""
        whole = np.isfinite(values).all() and np.isfinite(plain).all()
        change = float(np.abs(values.astype(np.float64) - plain).max() / max(plain.max(), 1e-30)) if whole else math.inf
        if change > self.change:
            self.change, self._change_at = change, place

    def missed(self) -> list[str]:
        """The broken laws, in words; empty if all hold."""
        found = []
        if self.sum_diff > self._bounds[0]:
            found.append(
                f"importance does not sum to {self._maps} a token, by a share of {self.sum_diff:.2g} (up to "
                f"{self._bounds[0]:g} is rounding) in {self._sum_at}"
            )
        if self.change > self._bounds[1]:
            found.append(
                f"importance changes by a share of {self.change:.2g}, more than {self._bounds[1]:g}, "
                f"in {self._change_at}"
            )
        return found
