"""Demand from the gateway's statistics: how many requests of each length come in one SLO period. Pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Demand:
    """Q of Eq. 1-7 for the bins that end at `max_lengths`, over a window.

    A bin holds the lengths above the previous maximum length up to its own; longer requests are in the last bin.
    """

    max_lengths: tuple[int, ...]
    mean: tuple[float, ...]  # requests per SLO period, average over the window
    peak: tuple[float, ...]  # the same, of the busiest sub-window of each bin
    rows: int  # requests counted
    span_s: float  # time they were counted over; less than the window when there were gaps or a restart

    @property
    def total(self) -> float:
        """Requests per SLO period in all bins."""
        return sum(self.mean)
