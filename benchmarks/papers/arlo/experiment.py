"""The result of an experiment: rows next to the paper's, and tables. Plain values, kept as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from benchmarks.papers.arlo.cells import Context

Verdict = Literal["reached", "as shipped", "beyond", "short", "for comparison"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Our value and the paper's. `aim` defines when ours reaches it: not below (at_least), not above (at_most), within
    `tolerance` of it, a share (near). fact: shown next to it, not judged."""

    quantity: str
    where: str  # section, figure or table
    paper: float | None
    unit: str
    ours: float
    shipped: float | None = None  # the same with what we ship instead of what the paper has
    aim: Literal["at_least", "at_most", "near", "fact"] = "at_least"
    tolerance: float = 0.1
    note: str = ""  # what it is made of; why it differs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of figures; cells are written unchanged."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Figures or tables of the paper. `text`: the paper's experiment, ours, and the conclusion."""

    title: str
    text: str
    run: Callable[[Context], tuple[Sequence[Row], Sequence[Table]]]


def verdict(row: Mapping[str, Any]) -> Verdict:
    """Whether our value reaches the paper's. `beyond`: on the right side, but so far away that it is another regime:
    the remainder of a reduction (1 - reduction) is less than a third of the paper's."""
    paper, ours = row["paper"], row["ours"]
    if row["aim"] == "fact" or paper is None:
        return "for comparison"
    if not _good(row, ours):
        return "as shipped" if row["shipped"] is not None and _good(row, row["shipped"]) else "short"
    if row["aim"] == "at_least" and row["unit"] == "% less" and paper > 0 and (100 - ours) < (100 - paper) / 3:
        return "beyond"
    return "reached"


def _good(row: Mapping[str, Any], value: float) -> bool:
    paper = row["paper"]
    if row["aim"] == "near":
        return bool(abs(value - paper) <= row["tolerance"] * abs(paper))
    slack = 1e-9 + 0.005 * abs(paper)  # what rounding to the paper's digits leaves open
    return bool(value >= paper - slack if row["aim"] == "at_least" else value <= paper + slack)


def reduction(ours: float, other: float) -> float:
    """Reduction from `other` to `ours`, in percent."""
    return 100 * (1 - ours / other) if other and math.isfinite(other) else math.nan


def ms(value: float) -> str:
    """Milliseconds, rounded to three significant digits or to whole ones."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def plain(value: Any) -> Any:
    """The value in JSON types, dataclasses as objects; floats to 6 digits, NaN and infinity as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, str | int) or value is None:
        return value
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None
