"""The staircase of latency over length (paper, section 3.3 and its step size of 64 tokens). Pure.

Kernels work in tiles, so latency rises in steps: inside a step a longer input costs nothing (below 5 % there), and a
runtime compiled for a length inside a step wastes the rest of it. The ends of the steps are the lengths to compile for.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

from arlo.errors import ConfigError

# Latency per token inside the steps, as a share of that between them, above which the shape has no real steps.
_SLOPE_SHARE = 0.3

Shape = Literal["steps", "linear", "flat", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """The shape found in a latency curve. `edges` and `step` are given for the shape `steps` only."""

    shape: Shape
    edges: tuple[int, ...] = ()  # the longest measured length of each step, ascending
    step: int | None = None  # suggested distance of maximum lengths, tokens
    uniform: bool = False  # the steps are equally long, as far as the measured lengths can tell
    tolerance: float = 0.05

    @property
    def text(self) -> str:
        """One sentence for people."""
        match self.shape:
            case "steps":
                edges = ", ".join(str(edge) for edge in self.edges)
                advice = f"compile for multiples of {self.step}" if self.uniform else "compile for these lengths"
                return (
                    f"steps of {'' if self.uniform else 'about '}{self.step} tokens, ending at {edges} "
                    f"(less than {self.tolerance:.0%} change inside a step): {advice}"
                )
            case "linear":
                return "linear: no steps at the measured lengths, every shorter maximum length saves time"
            case "flat":
                return f"flat: less than {self.tolerance:.0%} change over all measured lengths"
            case "unknown":
                return "unknown: at least 3 lengths are needed to look for steps"


def staircase(points: Iterable[tuple[int, float]], tolerance: float = 0.05) -> Staircase:
    """Find the steps in (length, latency) points, in any order and unit; several of one length are averaged.

    A step is a run of lengths over which latency changes by less than `tolerance`. A straight line also has such runs
    where it is flat for its height. So there must be at least two runs of several lengths, and latency must rise far
    less per token inside the runs than between them, or the shape is `linear`.
    """
    if not 0 < tolerance < 1:
        raise ConfigError(f"the tolerance of a staircase is above 0 and below 1, not {tolerance:g}")
    by_length: dict[int, list[float]] = {}
    for length, latency in points:
        by_length.setdefault(length, []).append(latency)
    line = [(length, statistics.fmean(values)) for length, values in sorted(by_length.items())]
    if len(line) < 3:
        return Staircase(shape="unknown", tolerance=tolerance)
    runs = _runs(line, tolerance)
    if len(runs) == 1:
        return Staircase(shape="flat", tolerance=tolerance)
    inside = [(left, right) for run in runs for left, right in itertools.pairwise(run)]
    between = [(left[-1], right[0]) for left, right in itertools.pairwise(runs)]
    long_runs = sum(len(run) > 1 for run in runs)
    if long_runs < 2 or _slope(inside) > _SLOPE_SHARE * _slope(between):
        return Staircase(shape="linear", tolerance=tolerance)
    edges = tuple(run[-1][0] for run in runs)
    # The last step may continue past the last measured length, so it does not reveal the step size.
    widths = [high - low for low, high in zip((0, *edges), edges[:-1], strict=False)]
    step = statistics.median_low(widths)
    resolution = max(right[0] - left[0] for left, right in itertools.pairwise(line))
    uniform = all(abs(width - step) < resolution for width in widths)
    return Staircase(shape="steps", edges=edges, step=step, uniform=uniform, tolerance=tolerance)


def _runs(line: Sequence[tuple[int, float]], tolerance: float) -> list[list[tuple[int, float]]]:
    """Neighbours whose highest latency is less than `tolerance` above their lowest, from the shortest on."""
    runs: list[list[tuple[int, float]]] = []
    low = high = 0.0
    for length, latency in line:
        low, high = min(low, latency), max(high, latency)
        if runs and high < low * (1 + tolerance):
            runs[-1].append((length, latency))
        else:
            runs.append([(length, latency)])
            low = high = latency
    return runs


def _slope(pairs: Sequence[tuple[tuple[int, float], tuple[int, float]]]) -> float:
    """Latency per token over all pairs together."""
    tokens = sum(right[0] - left[0] for left, right in pairs)
    return sum(right[1] - left[1] for left, right in pairs) / tokens if tokens else 0.0
