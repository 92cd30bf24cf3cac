"""A cascade with its records: arrays by row, and the results of any parameters on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.cascade.decide import Answers, Bools, Ended, Floats, Ints, answers, walk
from arlo.cascade.energy import energy_mj
from arlo.cascade.manifest import CascadeManifest, Stage
from arlo.cascade.records import Data, Recorded, Records, engine_hash, ms_by_row
from arlo.cascade.search.ensemble import spent, table_of
from arlo.cascade.search.points import Interval, interval, paired
from arlo.cascade.search.table import Table
from arlo.cascade.spec import Ensemble, Rules
from arlo.catalog.manifest import Manifest
from arlo.errors import ConfigError

# Stage that the importance is of, stage that answers, alpha, and which words are left out: "importance", those of Eq. 5
# where that reaches a shorter runtime, which is then filled again. Comparisons may record others.
Variant = tuple[int, int, float, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A stage's answers to every row, and the ms [rows] they take."""

    said: Answers
    ms: Floats


@dataclasses.dataclass(frozen=True, slots=True)
class Study:
    """The rows that every stage has recorded. `cost` is the cost in searches, in ms or mJ; `ms` is time alone."""

    cascade: CascadeManifest
    row: Ints  # [rows], number in the data
    split: NDArray[np.int8]
    length: Ints  # tokens at the first stage, before anything is pruned
    labels: Ints | None  # None: no labels, and accuracy is agreement with the last stage
    giant: Ints  # [rows], the last stage's answers to whole texts
    recorded: tuple[Recorded, ...]  # by stage, of these rows
    said: tuple[Answers, ...]
    ms: Floats  # [rows, stages]
    cost: Floats
    asked_ms: Floats  # [rows], of the first stage with importance
    pruned: Mapping[Variant, tuple[Recorded, Measured]]

    @property
    def stages(self) -> int:
        """How many."""
        return len(self.said)

    @property
    def truth(self) -> Ints:
        """Labels [rows], else the last stage's answers."""
        return self.giant if self.labels is None else self.labels

    def take(self, which: Bools) -> Study:
        """Some of the rows."""
        rows = np.nonzero(which)[0]

        def some(recorded: Recorded) -> Recorded:
            return recorded.take(recorded.row[rows])

        return dataclasses.replace(
            self,
            row=self.row[rows],
            split=self.split[rows],
            length=self.length[rows],
            labels=None if self.labels is None else self.labels[rows],
            giant=self.giant[rows],
            recorded=tuple(some(each) for each in self.recorded),
            said=tuple(part(each, rows) for each in self.said),
            ms=self.ms[rows],
            cost=self.cost[rows],
            asked_ms=self.asked_ms[rows],
            pruned={at: (some(r), Measured(part(m.said, rows), m.ms[rows])) for at, (r, m) in self.pruned.items()},
        )

    def of(self, split: int) -> Study:
        """The rows of a split: 0 fit, 1 select, 2 test. ConfigError where there are none."""
        which = self.split == split
        if not which.any():
            raise ConfigError("a split holds no rows: record more texts, of more groups")
        return self.take(which)

    def with_pruning(self, alpha: float, how: str = "importance") -> Study:
        """The study as if each stage but the first got the text pruned by the stage before it. All stages but the last
        then take the extra time of computing importance. ConfigError where no such texts are recorded."""
        if not alpha:
            return self
        said, ms, cost = list(self.said), self.ms.copy(), self.cost.copy()
        for s in range(1, self.stages):
            found = self.pruned.get((s - 1, s, alpha, how))
            if found is None:
                raise ConfigError(f"no texts are recorded that were pruned with alpha {alpha:g} ({how})")
            said[s] = found[1].said
        for s in range(self.stages):
            taken = self.asked_ms if s == 0 else self.pruned[s - 1, s, alpha, how][1].ms
            # A cost that is not time is per ms of the stage.
            cost[:, s] *= taken / np.maximum(ms[:, s], 1e-9)
            ms[:, s] = taken
        return dataclasses.replace(self, said=tuple(said), ms=ms, cost=cost)

    def alphas(self, how: str = "importance") -> list[float]:
        """Those for which every stage but the first is recorded on pruned texts."""
        found = {alpha for _, _, alpha, h in self.pruned if h == how}
        return sorted(a for a in found if all((s - 1, s, a, how) in self.pruned for s in range(1, self.stages)))

    def table(self, ensemble: Ensemble | None = None) -> Table:
        """The input of the searches."""
        return table_of(self.said, self.truth, self.cost, ensemble)

    def play(self, rules: Rules, *, seed: int = 0, price: int = 0) -> Played:
        """Every row through the cascade. The rules' pruning is played from records of pruned texts."""
        study = self.with_pruning(rules.prune.alpha)
        ended = walk(rules, study.said, self.length, row=self.row, seed=seed, price=price)
        return Played(ended, ended.answer == self.truth, self.giant, spent(ended.ran, study.ms))


@dataclasses.dataclass(frozen=True, slots=True)
class Played:
    """How rows ended, whether they are right, the last stage's answers to whole texts, and ms: [rows]."""

    ended: Ended
    right: Bools
    giant: Ints
    ms: Floats

    @property
    def accuracy(self) -> Interval:
        """Accuracy with its interval."""
        return interval(self.right)

    @property
    def agreement(self) -> float:
        """Share of answers that are those of the last stage alone."""
        return float((self.ended.answer == self.giant).mean())

    def against_last(self, truth: Ints) -> Interval:
        """Accuracy less that of the last stage alone, over the same rows."""
        return paired(self.right, self.giant == truth)


def part(said: Answers, rows: Ints | Bools) -> Answers:
    """The answers of some rows."""
    return Answers(*(getattr(said, field.name)[rows] for field in dataclasses.fields(said)))


def load_study(
    cascade: CascadeManifest,
    folder: Path,
    data: Data,
    records: Records,
    *,
    objective: str = "mean",
    shares: Sequence[float] = (0.4, 0.3, 0.3),
    seed: int = 0,
) -> Study:
    """Read the records of all stages; ConfigError names a stage that lacks some. `folder`: of cascade.json."""
    found: list[Recorded] = []
    keys = [stage_key(cascade, folder, records, s) for s in range(len(cascade.stages))]
    for stage, key in zip(cascade.stages, keys, strict=True):
        whole = records.load(key)
        if whole is None or len(whole.row) < len(data.examples):
            there = 0 if whole is None else len(whole.row)
            raise ConfigError(
                f"stage {stage.name!r} has records of {there} of {len(data.examples)} texts: the same `arlo fit` "
                "resumes"
            )
        found.append(whole)
    row = found[0].row
    length = found[0].tokens.astype(np.int64)
    ms = np.stack([ms_by_row(each) for each in found], axis=1)
    pruned: dict[Variant, tuple[Recorded, Measured]] = {}
    for a, b, alpha, how, key in pruned_keys(cascade, folder, records):
        whole = records.load(key)
        if whole is not None and len(whole.row) == len(row):
            found_there = stage_answers(cascade.stages[b], whole, length)
            pruned[a, b, alpha, how] = (whole, Measured(found_there, ms_by_row(whole, importance=True)))
    if objective == "energy":
        cost = np.stack(
            [energy_mj(s.energy_mj, r.tokens, s.name) for s, r in zip(cascade.stages, found, strict=True)], 1
        )
    else:
        cost = ms
    said = tuple(stage_answers(s, r, length) for s, r in zip(cascade.stages, found, strict=True))
    return Study(
        cascade=cascade,
        row=row,
        split=data.splits(shares, seed)[row],
        length=length,
        labels=data.labels(cascade.labels)[row] if data.labelled else None,
        recorded=tuple(found),
        giant=said[-1].answer,
        said=said,
        ms=ms,
        cost=cost,
        asked_ms=ms_by_row(found[0], importance=True),
        pruned=pruned,
    )


def stage_answers(stage: Stage, recorded: Recorded, length: Ints) -> Answers:
    """A stage's answers, from its records; `length` [rows]: tokens before pruning."""
    return answers(stage.spec, recorded.logits, length)


def stage_key(cascade: CascadeManifest, folder: Path, records: Records, stage: int, variant: str = "") -> str:
    """Name of a stage's records."""
    each = cascade.stages[stage]
    return records.key(each.name, engine_hash(Manifest.load(folder / each.repository)), variant)


def pruned_keys(cascade: CascadeManifest, folder: Path, records: Records) -> list[tuple[int, int, float, str, str]]:
    """(source, stage, alpha, how, key) of requested pruned texts, whether or not they are recorded in full."""
    names = {stage.name: s for s, stage in enumerate(cascade.stages)}
    found = []
    for source, target, alpha, how in records.variants():
        if source in names and target in names:
            variant = pruned_variant(cascade, folder, names[source], alpha, how)
            a, b = names[source], names[target]
            found.append((a, b, alpha, how, stage_key(cascade, folder, records, b, variant)))
    return found


def pruned_variant(cascade: CascadeManifest, folder: Path, source: int, alpha: float, how: str) -> str:
    """Name of pruned texts; it includes the source engine, whose masks they use."""
    stage = cascade.stages[source]
    engine = engine_hash(Manifest.load(folder / stage.repository))
    return f"pruned by {stage.name} alpha {alpha:g} {how} {engine}"
