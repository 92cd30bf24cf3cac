"""The answers to a simulated cascade's rows: from the records of real stages, or drawn from a population."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.decide import Answers, Floats, Ints
from arlo.cascade.manifest import CascadeManifest
from arlo.cascade.records import Recorded, Records, read_data
from arlo.cascade.search.ensemble import table_of
from arlo.cascade.spec import Rules
from arlo.cascade.study import Study, load_study, stage_answers
from arlo.errors import ConfigError
from arlo.simulator.cascade.served import Journeys
from arlo.simulator.scenario.cascades import StageSection

BINS = 8  # of lengths, that records are drawn by


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A scheme's choice: some of the stages, and rules; rules None: all at once, and a vote weighted by accuracy."""

    stages: tuple[int, ...]
    rules: Rules | None
    weights: tuple[float, ...] = ()  # of the vote


def rows_of(study: Study, chosen: Chosen, *, temperature: float = 1.0) -> Journeys:
    """The answers to a study's rows at the stages of a scheme, in its records' order. `temperature`: the factor by
    which logits are larger than when the calibrators were fitted."""
    if temperature != 1:
        study = _shaken(study, temperature)
    if chosen.rules is None:
        return _vote(study, chosen)
    alpha = chosen.rules.prune.alpha
    pruned = study.with_pruning(alpha)
    at = list(chosen.stages)
    said = [pruned.said[s] for s in at]
    right, agrees = (
        table_of(said, truth, np.ones(len(at)), chosen.rules.ensemble).right for truth in (study.truth, study.giant)
    )
    tokens = None
    if alpha:
        sent = [study.pruned[s - 1, s, alpha, "importance"][0].tokens if s else np.zeros_like(study.length) for s in at]
        tokens = np.stack(sent, axis=1).astype(np.int32)
    confidence = np.stack([each.confidence for each in said], axis=1)
    return Journeys(confidence=confidence, correct=right, agrees=agrees, tokens=tokens)


def _vote(study: Study, chosen: Chosen) -> Journeys:
    votes = np.zeros((len(study.row), study.said[0].raw.shape[1]))
    for s, weight in zip(chosen.stages, chosen.weights, strict=True):
        votes[np.arange(len(votes)), study.said[s].answer] += weight
    return _all_alike(votes.argmax(axis=1) == study.truth, votes.argmax(axis=1) == study.giant, len(chosen.stages))


def _all_alike(right: NDArray[np.bool_], agrees: NDArray[np.bool_] | None, stages: int) -> Journeys:
    def wide(values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.repeat(values[:, None], stages, axis=1)

    return Journeys(
        confidence=np.ones((len(right), stages)), correct=wide(right), agrees=None if agrees is None else wide(agrees)
    )


def _shaken(study: Study, factor: float) -> Study:
    def say(stage: int, recorded: Recorded) -> Answers:
        louder = dataclasses.replace(recorded, logits=recorded.logits * np.float32(factor))
        return stage_answers(study.cascade.stages[stage], louder, study.length)

    return dataclasses.replace(
        study,
        said=tuple(say(s, each) for s, each in enumerate(study.recorded)),
        pruned={
            at: (found, dataclasses.replace(measured, said=say(at[1], found)))
            for at, (found, measured) in study.pruned.items()
        },
    )


def read_study(manifest: Path, data: Path, records: Path | None) -> Study:
    """The records of a cascade.json. ConfigError if it has no points, or texts or records are missing."""
    cascade, texts = CascadeManifest.load(manifest), read_data(data)
    if cascade.data is None:
        raise ConfigError(f"{manifest} has no operating points yet: run `arlo fit`")
    folder = manifest if manifest.is_dir() else manifest.parent
    found = Records(records or folder / "records", texts)
    return load_study(cascade, folder, texts, found, shares=cascade.data.split, seed=cascade.data.seed)


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """Rows of a population: arrays [rows, stages]. `kept`: share of the tokens that a stage gets."""

    confidence: Floats
    right: NDArray[np.bool_]
    kept: Floats

    def take(self, rows: Ints) -> Drawn:
        """Some of the rows, in this order."""
        return Drawn(self.confidence[rows], self.right[rows], self.kept[rows])

    def at(self, chosen: Chosen, length: ArrayLike, *, temperature: float = 1.0) -> Journeys:
        """The journeys at a scheme's stages; `length` [rows] in tokens. `temperature`: as in rows_of(), two labels."""
        at = list(chosen.stages)
        if chosen.rules is None:
            # The vote with the larger weight is right; stages that are wrong are assumed to give the same answer.
            weights = np.asarray(chosen.weights)
            return _all_alike(self.right[:, at] @ weights >= (~self.right[:, at]) @ weights, None, len(at))
        confidence = self.confidence[:, at]
        if temperature != 1:
            with np.errstate(divide="ignore"):
                odds = np.log(confidence) - np.log1p(-confidence)
            confidence = 1 / (1 + np.exp(-odds * temperature))
        tokens = np.maximum(1, np.ceil(np.asarray(length)[:, None] * self.kept[:, at])).astype(np.int32)
        return Journeys(
            confidence=confidence, correct=self.right[:, at], tokens=tokens if (self.kept < 1).any() else None
        )


def draw(stages: Sequence[StageSection], rows: int, *, alpha: float = 0.0, seed: int = 0) -> Drawn:
    """Rows of a population. The last stage's confidence is 1; whether a stage is right is drawn independently."""
    rng = np.random.default_rng(seed)
    confidence = np.ones((rows, len(stages)))
    for s, stage in enumerate(stages[:-1]):
        x, above = np.asarray([(0.0, 1.0), *stage.confidence, (1.0, 0.0)]).T
        floor = 0.5 if stage.confidence[0][0] > 0.5 else 0.0  # two labels: never below a half
        x[0] = floor
        confidence[:, s] = np.interp(rng.random(rows), 1 - above, x)
    right = np.stack([rng.random(rows) < _steps(stage.right, confidence[:, 0]) for stage in stages], axis=1)
    kept = [1.0 - (float(np.interp(alpha, *np.asarray(s.pruned).T)) if alpha and s.pruned else 0.0) for s in stages]
    return Drawn(confidence, right, np.broadcast_to(np.asarray(kept), right.shape))


def _steps(pairs: Sequence[tuple[float, ...]], x: Floats) -> Floats:
    """The share, for each x, of the last pair that begins at or below it."""
    begin, share = np.asarray(pairs).T
    return np.asarray(share[np.maximum(np.searchsorted(begin, x, side="right") - 1, 0)])


def draw_by_length(of_records: Ints, lengths: Ints, rng: np.random.Generator) -> Ints:
    """A record for each row: of those in the row's length bin; bins hold equally many records."""
    edges = np.unique(np.quantile(of_records, np.linspace(0, 1, BINS + 1)[1:-1]))
    by_record, by_row = np.searchsorted(edges, of_records), np.searchsorted(edges, lengths)
    order = np.argsort(by_record, kind="stable")
    begin = np.searchsorted(by_record[order], np.arange(len(edges) + 2))
    sizes = np.diff(begin)
    picks = begin[by_row] + np.floor(rng.random(len(lengths)) * sizes[by_row]).astype(np.int64)
    return np.asarray(order[picks])


def toward_reach(goes_on: NDArray[np.bool_], factor: float) -> Floats:
    """Weights [rows] that sum to 1, under which `factor` times as many rows go on. ConfigError beyond all of them."""
    share = float(goes_on.mean())
    if not 0 < share < 1 or factor * share > 1:
        raise ConfigError(f"change.reach {factor:g}: {share:.1%} of the rows go on, and no more than all can")
    weights = np.where(goes_on, factor, (1 - factor * share) / (1 - share))
    return np.asarray(weights / weights.sum())
