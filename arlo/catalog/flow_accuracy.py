"""How accurate a path through a flow is: from row outcomes where they were recorded, else a product of means.

Two models are wrong on the same rows, so a product of accuracies is not the accuracy of a path. Where every stage of a
path was recorded for the same rows, the path's accuracy is counted (Loki's profiled accuracy of a path).

Outcomes lie in a folder as `outcomes.npz`, which `arlo accuracy` writes: what every variant made of every labelled row.
"""

from __future__ import annotations

import dataclasses
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.flow import Flow, Prefix
from arlo.errors import ConfigError

FILE_NAME = "outcomes.npz"
Z95 = 1.959964


@dataclasses.dataclass(frozen=True, slots=True)
class VariantOutcomes:
    """What one variant made of the rows."""

    correct: NDArray[np.bool_]  # [rows]
    score: NDArray[np.float32]  # [rows], its confidence before calibration: the largest probability


@dataclasses.dataclass(frozen=True, slots=True)
class Outcomes:
    """Of the same labelled rows, by the name of a variant."""

    length: NDArray[np.int32]  # [rows], tokens of the first variant
    variants: Mapping[str, VariantOutcomes]

    def save(self, folder: Path) -> Path:
        """Write `outcomes.npz` whole."""
        arrays: dict[str, NDArray[np.generic]] = {"length": self.length}
        for name, found in self.variants.items():
            arrays[f"correct/{name}"], arrays[f"score/{name}"] = found.correct, found.score
        path, temporary = folder / FILE_NAME, folder / "outcomes.unfinished"
        try:
            with temporary.open("wb") as file:
                np.savez(file, **arrays)
            temporary.replace(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror})") from None
        return path

    @classmethod
    def load(cls, folder: Path) -> Outcomes:
        """Read `outcomes.npz`. ConfigError when it is missing or damaged."""
        path = folder / FILE_NAME
        try:
            with path.open("rb") as raw, np.load(raw) as file:
                arrays = {name: file[name] for name in file.files}
            rows = len(arrays["length"])
            names = [name.removeprefix("correct/") for name in arrays if name.startswith("correct/")]
            variants = {n: VariantOutcomes(arrays[f"correct/{n}"] != 0, arrays[f"score/{n}"]) for n in names}
            if any(each.correct.shape != (rows,) or each.score.shape != (rows,) for each in variants.values()):
                raise ValueError("its arrays do not go together")
        except FileNotFoundError:
            raise ConfigError(f"{folder} has no {FILE_NAME}: make it with `arlo accuracy`") from None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} is damaged ({error}): make it again with `arlo accuracy`") from None
        return cls(arrays["length"].astype(np.int32), variants)

    def accuracy(self, name: str, max_lengths: Sequence[int]) -> tuple[float, ...]:
        """Of a variant, of the rows of each length bin [max_lengths]; a bin without rows has that of all rows."""
        correct = self.variants[name].correct
        bins = np.searchsorted(np.asarray(max_lengths), self.length)
        found = []
        for i in range(len(max_lengths)):
            mine = correct[bins == i]
            found.append(float(mine.mean()) if len(mine) else float(correct.mean()))
        return tuple(found)

    def of(self, flow: Flow) -> RowOutcomes:
        """By stage and variant of a flow, where they have these names."""
        return RowOutcomes(
            {
                (stage.name, variant.name): self.variants[variant.name].correct
                for stage in flow.stages
                for variant in stage.variants
                if variant.name in self.variants
            }
        )


def interval(right: int, rows: int) -> tuple[float, float]:
    """95 % of a share of rows (Wilson)."""
    if rows == 0:
        return 0.0, 1.0
    p, z2 = right / rows, Z95**2 / rows
    middle, half = p + z2 / 2, Z95 * math.sqrt(p * (1 - p) / rows + z2 / (4 * rows))
    return max((middle - half) / (1 + z2), 0.0), min((middle + half) / (1 + z2), 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class RowOutcomes:
    """What variants made of the same labelled rows."""

    correct: Mapping[tuple[str, str], NDArray[np.bool_]]  # (stage, variant) -> [rows]

    def __post_init__(self) -> None:
        if len({len(rows) for rows in self.correct.values()}) > 1:
            raise ConfigError("row outcomes must be of the same rows for all variants")


def path_accuracy(flow: Flow, stage: int, prefix: Prefix, outcomes: RowOutcomes | None = None) -> float:
    """Expected accuracy, in [0, 1], of what the variants of a prefix answer together at its last stage.

    On an edge of combine `product` all must be right, with `last` the head answers anew, and `weighted` counts as the
    better of both, which is what an ensemble is for. Means over the length bins of each stage.
    """
    line = flow.line(stage)
    pairs = list(zip(line, prefix, strict=True))
    names = [(flow.stages[i].name, flow.stages[i].variants[k].name) for i, k in pairs]
    counted = outcomes is not None and all(name in outcomes.correct for name in names)
    accuracy = 0.0
    rows: NDArray[np.bool_] | None = None
    for at, (i, k) in enumerate(pairs):
        edge = flow.parent_edge[i]
        combine = "last" if at == 0 or edge is None else flow.edges[edge].combine
        own = flow.stages[i].accuracy(k)
        if combine == "product":
            accuracy *= own
        else:
            accuracy = own if combine == "last" else max(accuracy, own)
        if counted and outcomes is not None:
            said = outcomes.correct[names[at]]
            if combine == "last" or rows is None:
                rows = said
            elif combine == "product":
                rows = rows & said
            else:
                rows = said if said.mean() >= rows.mean() else rows
    return float(rows.mean()) if rows is not None else accuracy
