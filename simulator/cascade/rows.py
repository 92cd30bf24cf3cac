"""The answers to a simulated cascade's rows, from the records of its stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from arlo.cascade.manifest import CascadeManifest
from arlo.cascade.records import Records, read_data
from arlo.cascade.search.ensemble import table_of
from arlo.cascade.spec import Rules
from arlo.cascade.study import Study, load_study
from arlo.errors import ConfigError
from arlo.simulator.cascade.served import Journeys


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Some of the stages, and their rules; None: one stage answers every row."""

    stages: tuple[int, ...]
    rules: Rules | None


def whole(stages: Sequence[int], rules: Rules) -> Chosen:
    """All of these stages, one after the other."""
    return Chosen(stages=tuple(stages), rules=rules)


def alone(stage: int) -> Chosen:
    """One stage, for every row."""
    return Chosen(stages=(stage,), rules=None)


def rows_of(study: Study, chosen: Chosen) -> Journeys:
    """The answers to a study's rows at the chosen stages, in its records' order."""
    at, rules = list(chosen.stages), chosen.rules
    if rules is None:
        said = study.said[at[0]].answer[:, None]
        right, agrees = (said == each[:, None] for each in (study.truth, study.giant))
        return Journeys(confidence=np.ones(said.shape), correct=right, agrees=agrees, length=study.length)
    alpha = rules.prune.alpha
    pruned = study.with_pruning(alpha)
    answers = [pruned.said[s] for s in at]
    right, agrees = (
        table_of(answers, truth, np.ones(len(at)), rules.ensemble).right for truth in (study.truth, study.giant)
    )
    tokens = None
    if alpha:
        sent = [study.pruned[s - 1, s, alpha, "importance"][0].tokens if s else np.zeros_like(study.length) for s in at]
        tokens = np.stack(sent, axis=1).astype(np.int32)
    confidence = np.stack([each.confidence for each in answers], axis=1)
    return Journeys(confidence=confidence, correct=right, agrees=agrees, tokens=tokens, length=study.length)


def read_study(manifest: Path, data: Path) -> Study:
    """The records of a cascade.json. ConfigError if it has no points, or texts or records are missing."""
    cascade, texts = CascadeManifest.load(manifest), read_data(data)
    if cascade.data is None:
        raise ConfigError(f"{manifest} has no operating points yet: run `arlo fit`")
    folder = manifest if manifest.is_dir() else manifest.parent
    found = Records(folder / "records", texts)
    return load_study(cascade, folder, texts, found, shares=cascade.data.split, seed=cascade.data.seed)
