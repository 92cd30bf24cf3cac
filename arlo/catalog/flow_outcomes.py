"""The outcomes of every variant on the same labelled rows: `outcomes.npz`, which `arlo fit --variants` writes.

Two models fail on the same rows, so the product of accuracies is not the accuracy of a path, and a model's confidence
in a row predicts the gain of a further model. Accuracies of paths, shares of exits and simulated rows come from here.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.catalog.flow import Flow, FlowStage
from arlo.catalog.toml_text import write_whole
from arlo.errors import ConfigError

FILE_NAME = "outcomes.npz"
Z95 = 1.959964

Floats = NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class VariantOutcomes:
    """The outcomes of one variant."""

    correct: NDArray[np.bool_]  # [rows]
    score: Floats  # [rows], its largest probability at `temperature`
    temperature: float = 1.0  # fitted on these rows
    said: Floats | None = None  # [rows, labels], probabilities at `temperature`; None: not kept
    truth: NDArray[np.integer[Any]] | None = None  # [rows], number of the right label
    labels: tuple[str, ...] = ()  # names of the columns of `said`


@dataclasses.dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes on the same labelled rows, by the name of a variant."""

    length: NDArray[np.int32]  # [rows], tokens of the first variant
    variants: Mapping[str, VariantOutcomes]

    def save(self, folder: Path) -> Path:
        """Write `outcomes.npz` whole."""
        arrays: dict[str, NDArray[np.generic]] = {"length": self.length}
        for name, found in self.variants.items():
            arrays[f"correct/{name}"], arrays[f"score/{name}"] = found.correct, found.score.astype(np.float32)
            arrays[f"temperature/{name}"] = np.asarray(found.temperature, np.float64)
            if found.said is not None and found.truth is not None:
                arrays[f"said/{name}"] = found.said.astype(np.float16)
                arrays[f"truth/{name}"] = found.truth.astype(np.int32)
            if found.labels:
                arrays[f"labels/{name}"] = np.asarray(found.labels)
        path, content = folder / FILE_NAME, io.BytesIO()
        np.savez(content, **arrays)
        write_whole(path, content.getvalue())
        return path

    @classmethod
    def load(cls, folder: Path) -> Outcomes:
        """Read `outcomes.npz`. ConfigError when it is missing or damaged."""
        path = folder / FILE_NAME
        try:
            with path.open("rb") as raw, np.load(raw) as file:
                arrays = {name: file[name] for name in file.files}
            names = [name.removeprefix("correct/") for name in arrays if name.startswith("correct/")]
            variants = {name: _variant(arrays, name) for name in names}
        except FileNotFoundError:
            raise ConfigError(f"{folder} has no {FILE_NAME}: make it with `arlo fit --variants`") from None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} is damaged ({error}): make it again with `arlo fit --variants`") from None
        return cls(arrays["length"].astype(np.int32), variants)

    def accuracy(self, name: str, max_lengths: Sequence[int]) -> tuple[float, ...]:
        """A variant's accuracy on the rows of each length bin [max_lengths]; an empty bin has that of all rows."""
        correct = self.variants[name].correct
        bins = np.searchsorted(np.asarray(max_lengths), self.length)
        found = []
        for i in range(len(max_lengths)):
            mine = correct[bins == i]
            found.append(float(mine.mean()) if len(mine) else float(correct.mean()))
        return tuple(found)

    def of(self, flow: Flow) -> RowOutcomes:
        """The outcomes by stage and variant of a flow, for the variants that have recorded names."""
        return self.of_stages(flow.stages)

    def of_stages(self, stages: Sequence[FlowStage]) -> RowOutcomes:
        """The outcomes by stage and variant. Scores are at the temperature that the flow gives."""
        found = {
            (stage.name, variant.name): _at(self.variants[variant.name], variant.temperature)
            for stage in stages
            for variant in stage.variants
            if variant.name in self.variants
        }
        return RowOutcomes(
            {key: each.correct for key, each in found.items()},
            score={key: each.score for key, each in found.items()},
            said={key: each.said for key, each in found.items() if each.said is not None},
            truth={key: each.truth for key, each in found.items() if each.truth is not None},
            labels={key: each.labels for key, each in found.items() if each.labels and each.said is not None},
        )


def _variant(arrays: Mapping[str, NDArray[np.generic]], name: str) -> VariantOutcomes:
    """The outcomes of one variant. ValueError, KeyError if the arrays do not fit together."""
    rows = len(arrays["length"])
    correct, score = arrays[f"correct/{name}"] != 0, arrays[f"score/{name}"].astype(np.float32)
    temperature = float(arrays[f"temperature/{name}"].astype(float)) if f"temperature/{name}" in arrays else 1.0
    said, truth = arrays.get(f"said/{name}"), arrays.get(f"truth/{name}")
    each = [correct.shape, score.shape, *([] if said is None or truth is None else [said.shape[:1], truth.shape])]
    labels = arrays.get(f"labels/{name}", ())
    named = not len(labels) or (said is not None and said.shape[1:] == (len(labels),))
    if any(shape != (rows,) for shape in each) or not named or not (math.isfinite(temperature) and temperature > 0):
        raise ValueError("its arrays do not go together")
    return VariantOutcomes(
        correct,
        score,
        temperature,
        None if said is None else said.astype(np.float32),
        None if truth is None else truth.astype(np.int32),
        tuple(str(label) for label in labels),
    )


def _at(found: VariantOutcomes, temperature: float) -> VariantOutcomes:
    """The outcomes with probabilities at another temperature, if they were kept."""
    if found.said is None or math.isclose(found.temperature, temperature):
        return found
    q = np.power(np.maximum(found.said.astype(np.float64), 1e-12), found.temperature / temperature)
    q /= q.sum(axis=1, keepdims=True)
    return dataclasses.replace(found, score=q.max(axis=1), temperature=temperature, said=q)


def interval(right: int, rows: int) -> tuple[float, float]:
    """The 95 % interval of a share of rows (Wilson)."""
    if rows == 0:
        return 0.0, 1.0
    p, z2 = right / rows, Z95**2 / rows
    middle, half = p + z2 / 2, Z95 * math.sqrt(p * (1 - p) / rows + z2 / (4 * rows))
    return max((middle - half) / (1 + z2), 0.0), min((middle + half) / (1 + z2), 1.0)


def by_length(right: NDArray[np.bool_], length: ArrayLike, ends: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of each length bin, their accuracy and its interval, by the bin's longest row; empty bins are left
    out."""
    bins, found = np.searchsorted(np.asarray(ends), length), []
    for i, end in enumerate(ends):
        if rows := int((bins == i).sum()):
            good = int(right[bins == i].sum())
            found.append({"max_length": end, "rows": rows, "accuracy": good / rows, "interval": interval(good, rows)})
    return found


Key = tuple[str, str]  # stage, variant


@dataclasses.dataclass(frozen=True, slots=True)
class RowOutcomes:
    """The outcomes of variants on the same labelled rows."""

    correct: Mapping[Key, NDArray[np.bool_]]  # [rows]
    score: Mapping[Key, Floats] = dataclasses.field(default_factory=dict)  # [rows], largest calibrated probability
    said: Mapping[Key, Floats] = dataclasses.field(default_factory=dict)  # [rows, labels], calibrated
    truth: Mapping[Key, NDArray[np.integer[Any]]] = dataclasses.field(default_factory=dict)  # [rows], the right label
    labels: Mapping[Key, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    price: float = 0.0  # of a worker-second, in accuracy; exits that follow the load decide by it
    joule: float = 0.0  # of a joule, likewise

    def __post_init__(self) -> None:
        if len({len(rows) for rows in self.correct.values()}) > 1:
            raise ConfigError("row outcomes must be of the same rows for all variants")

    @property
    def rows(self) -> int:
        """The number of recorded rows."""
        return len(next(iter(self.correct.values()), ()))

    def signal(self, key: Key, name: str) -> Floats | None:
        """A score that guards read, [rows] in [0, 1]; None: it was not recorded."""
        if name == "calibrated_max":
            return self.score.get(key)
        q = self.said.get(key)
        if q is None:
            return None
        if name == "margin":
            top = np.sort(q, axis=1)
            return np.asarray(top[:, -1] - top[:, -2])
        entropy = -np.where(q > 0, q * np.log(np.maximum(q, 1e-300)), 0.0).sum(axis=1)
        return np.asarray(np.clip(1 - entropy / math.log(q.shape[1]), 0.0, 1.0))

    def label(self, key: Key) -> NDArray[np.int64] | None:
        """The number of the likeliest label, [rows]; None: label names were not kept."""
        return self.said[key].argmax(axis=1) if key in self.labels else None

    def mixed(self, so_far: Way, key: Key, weights: Sequence[float]) -> Way:
        """An answer mixed with that of the next variant; if probabilities were not kept, the better of the two."""
        own = Way(self.correct[key], self.said.get(key), self.truth.get(key))
        same = own.truth is not None and so_far.truth is not None and np.array_equal(own.truth, so_far.truth)
        if not same or own.said is None or so_far.said is None or own.said.shape != so_far.said.shape:
            return own if own.right.mean() >= so_far.right.mean() else so_far
        q = (weights[0] * so_far.said + weights[1] * own.said) / sum(weights)
        return Way(np.asarray(q.argmax(axis=1) == own.truth), q, own.truth)


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """The joint answers of a way's variants."""

    right: NDArray[np.bool_]  # [rows]
    said: Floats | None = None  # [rows, labels]
    truth: NDArray[np.integer[Any]] | None = None  # [rows]


@functools.lru_cache(maxsize=8)
def _outcomes(folder: str) -> Outcomes:
    return Outcomes.load(Path(folder))


def records_of(flow: Flow) -> RowOutcomes | None:
    """The recorded answers of a flow's variants, read once. ConfigError when the file is damaged."""
    return _outcomes(flow.records).of(flow) if flow.records else None
