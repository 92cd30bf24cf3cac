"""A planner's view of the traffic: demand by an average that forgets, factors of edges (Loki, section 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from arlo.catalog.flow import Flow

COM = 1.6  # centre of mass, in samples of a second: alpha = 1 / 2.6
WINDOW = 20  # samples
PRIOR = 50.0  # rows that the flow's factor counts for


def ewma(samples: Sequence[float], com: float = COM) -> float:
    """Mean of samples, oldest first, at least one; weights are (1 - alpha)^age, alpha = 1 / (1 + com)."""
    keep = com / (1 + com)
    total = weight = 0.0
    for sample in samples:
        total = total * keep + sample
        weight = weight * keep + 1
    return total / weight


@dataclasses.dataclass(slots=True)
class Demand:
    """Roots per second, from counts of whole seconds."""

    com: float = COM
    window: int = WINDOW
    samples: list[float] = dataclasses.field(default_factory=list)

    def add(self, count: float) -> None:
        """Add the roots of one second."""
        self.samples = [*self.samples, count][-self.window :]

    def rate(self) -> float:
        """Roots per second; 0 before the first second."""
        return ewma(self.samples, self.com) if self.samples else 0.0


class LiveFactors:
    """Mean rows at an edge's head for a row of a variant at its tail: measured, with the flow's factor as a prior."""

    def __init__(self, flow: Flow, prior: float = PRIOR, com: float = COM) -> None:
        self._flow, self.prior, self.keep = flow, prior, com / (1 + com)
        self._seen: dict[tuple[int, int], tuple[float, float]] = {}  # parents, children, both forgotten equally

    def add(self, edge: int, variant: int, parents: int, children: int) -> None:
        """Add one sample (one heartbeat)."""
        had_parents, had_children = self._seen.get((edge, variant), (0.0, 0.0))
        self._seen[edge, variant] = (had_parents * self.keep + parents, had_children * self.keep + children)

    def factors(self) -> dict[tuple[int, int], float]:
        """Factors by (edge, variant of the tail), of the edges that were seen."""
        return {
            (edge, variant): (self.prior * self._flow.factor(edge, variant) + children) / (self.prior + parents)
            for (edge, variant), (parents, children) in self._seen.items()
        }


def worth(utility: float, gain: float, cost_s: float, price: float) -> bool:
    """Whether a row should go on: its gain in accuracy is worth more than the worker-seconds that it costs."""
    return utility * gain > price * cost_s
