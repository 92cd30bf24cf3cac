"""Independent streams of random numbers: one for each purpose and each part of a workload.

A part is drawn from (seed, purpose, number of the part) alone. So lengths do not change when only the arrivals do, nor
the other way round, and a longer workload begins as the shorter one does. The numbers are those of NumPy's SFC64; other
versions of NumPy may draw others for some distributions (NumPy promises that only for its old generator).
"""

from __future__ import annotations

from typing import Final

import numpy as np

ARRIVALS: Final = 0
LENGTHS: Final = 1
STATES: Final = 2  # of the Markov chain that modulates arrivals
FIRST_STATE: Final = 3
DRIFT: Final = 4


def generator(seed: int, purpose: int, part: int = 0) -> np.random.Generator:
    """The generator of one part of one stream. `seed` is 0 or more."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence((seed, purpose, part))))
