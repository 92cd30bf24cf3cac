"""What an experiment gives: rows beside the paper's, parameters, sensitivity. Plain values, kept as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from benchmarks.papers.arlo.cells import Context

Aim = Literal["at_least", "at_most", "near", "fact"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A value of the paper. `aim` says when ours reaches it.

    at_least, at_most: ours is not below, or not above. near: within `tolerance` of it (a share). fact: a statement of
    the paper without a number, or a value that only sets ours in relation; it is not judged.
    """

    quantity: str
    paper: float | None
    unit: str
    where: str  # section, figure or table
    aim: Aim = "at_least"
    tolerance: float = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Ours beside a target. `low` and `high`: over the seeds, or over the assumptions of the sensitivity table."""

    target: str  # a key of PAPER
    ours: float | None
    note: str  # why it differs, from what
    low: float | None = None
    high: float | None = None
    over: str = ""  # what low and high span
    better: float | None = None  # the same with what we ship instead of what the paper has


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of figures; cells are written as they stand."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of an experiment, and who says so."""

    name: str
    value: str
    source: str  # "paper", or why it is taken


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All of an experiment."""

    rows: Sequence[Row]
    parameters: Sequence[Parameter] = ()
    tables: Sequence[Table] = ()
    sensitivity: Sequence[Table] = ()
    findings: Sequence[str] = ()  # paragraphs: what the figures say


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A figure or table of the paper."""

    name: str
    title: str
    text: str  # what the paper does, and what is done here
    paper: Mapping[str, Target]  # its values
    run: Callable[[Context], Outcome]


Verdict = Literal["reached", "shipped", "beyond", "short", "fact", "missing"]
VERDICTS: dict[Verdict, str] = {
    "reached": "reached",
    "shipped": "reached as shipped",
    "beyond": "beyond",
    "short": "short",
    "fact": "for comparison",
    "missing": "not measured",
}


def verdict(target: dict[str, Any], row: dict[str, Any]) -> Verdict:
    """Whether ours reaches the paper's. `shipped`: only with what we ship.

    `beyond`: on the right side, but so far away that it is another regime, which is judged by what is left of a
    reduction (1 - reduction): less than a third of the paper's.
    """
    paper, ours = target["paper"], row["ours"]
    if ours is None:
        return "missing"
    if target["aim"] == "fact" or paper is None:
        return "fact"
    if not _good(target, ours):
        return "shipped" if row.get("better") is not None and _good(target, row["better"]) else "short"
    if target["aim"] == "at_least" and target["unit"] == "% less" and paper > 0 and (100 - ours) < (100 - paper) / 3:
        return "beyond"
    return "reached"


def _good(target: dict[str, Any], value: float) -> bool:
    paper = target["paper"]
    if target["aim"] == "near":
        return bool(abs(value - paper) <= target["tolerance"] * abs(paper))
    slack = 1e-9 + 0.005 * abs(paper)  # what rounding to the paper's digits leaves open
    return bool(value >= paper - slack if target["aim"] == "at_least" else value <= paper + slack)


def reduction(ours: float, other: float) -> float:
    """How much less `ours` is than `other`, in percent."""
    return 100 * (1 - ours / other) if other and math.isfinite(other) else math.nan


def plain(value: Any) -> Any:
    """Dataclasses, tuples and NumPy numbers as JSON has them; floats to 6 digits, NaN and infinity as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None
