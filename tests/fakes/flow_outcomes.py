"""A flow of two stages, and what was recorded of its rows."""

from __future__ import annotations

import numpy as np

from arlo.catalog.flow_outcomes import Outcomes, VariantOutcomes

ROWS = 4000
FLOW = """
[flow]
name = "two"
slo_ms = 100
records = "records"
[[flow.stage]]
name = "first"
variant = [{{name = "small", latency = [[1, 1.0]]}}]
[[flow.stage]]
name = "second"
variant = [{{name = "large", latency = [[1, 10.0]]}}]
{edges}
"""
ONWARD = """
[[flow.edge]]
from = "first"
to = "second"
answer = {answer}
"""
EXIT = """
[[flow.edge]]
from = "first"
to = "exit"
when = {when}
"""


def outcomes() -> Outcomes:
    """Three labels. The small one is right as often as it says; the large one on nine rows of ten, whatever that is."""
    random = np.random.default_rng(3)
    truth = random.integers(0, 3, ROWS)
    sure = random.uniform(0.4, 1.0, ROWS)
    right = random.random(ROWS) < sure
    said = np.where(right, truth, (truth + 1) % 3)
    small = np.full((ROWS, 3), 0.0) + ((1 - sure) / 2)[:, None]
    small[np.arange(ROWS), said] = sure
    large_right = random.random(ROWS) < 0.9
    large = np.full((ROWS, 3), 0.05)
    large[np.arange(ROWS), np.where(large_right, truth, (truth + 2) % 3)] = 0.9
    return Outcomes(
        np.full(ROWS, 10, np.int32),
        {
            "small": VariantOutcomes(right, small.max(axis=1), 1.0, small, truth),
            "large": VariantOutcomes(large_right, large.max(axis=1), 1.0, large, truth),
        },
    )
