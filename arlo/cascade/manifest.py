"""cascade.json: a cascade as it is served, simulated and planned. Format 1.

`arlo fit` writes it next to the repositories of its stages. Reading it rejects unknown, misspelt or out-of-range
values; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Literal

from arlo.cascade.prune import Vocabulary
from arlo.cascade.spec import (
    MAX_STAGES,
    Calibrator,
    Ensemble,
    OverKind,
    Prune,
    Rule,
    Rules,
    ScaleKind,
    ScoreKind,
    StageSpec,
)
from arlo.catalog.manifest import FILE_NAME as REPOSITORY_FILE
from arlo.catalog.manifest import Manifest
from arlo.catalog.toml_text import not_a_number, read, write_whole
from arlo.errors import ConfigError

FILE_NAME = "cascade.json"
FORMAT = 1


def check_judged(what: str, one: Manifest) -> None:
    """ConfigError if a model's labels are not alternatives, so that a softmax does not give its confidence."""
    if one.label_activation not in ("", "softmax"):
        raise ConfigError(
            f"{what}: {one.model} gives each label a value of its own ({one.label_activation}: several labels a text, "
            "or regression), which says nothing of how sure it is of one: take a classifier of one label a text"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """The attention that a stage's output `importance` sums, and the tokens of its mean."""

    layers: str = "all"  # or last:K
    mean_over: Literal["words", "all"] = "words"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One model of the cascade."""

    name: str
    repository: str  # relative to cascade.json
    manifest_sha256: str  # of the repository's arlo.json
    tokenizer_group: int = 0  # stages of one group share a vocabulary
    label_order: tuple[int, ...] = ()  # place of each of its labels among the cascade's; none: the same
    calibrator: Calibrator = dataclasses.field(default_factory=Calibrator)
    score: ScoreKind = "max"
    over: OverKind = "min"
    scale: ScaleKind = "prob"
    importance: Importance | None = None  # None: its engine has no such output
    accuracy: float | None = None  # alone, on the test split
    memory_mb: int | None = None
    energy_mj: tuple[tuple[int, int, float], ...] = ()  # (tokens, rows, mJ of a batch)
    energy_source: str = ""  # measured, modelled

    def __post_init__(self) -> None:
        _ = self.spec

    @property
    def spec(self) -> StageSpec:
        """What decisions need."""
        return StageSpec(
            calibrator=self.calibrator,
            score=self.score,
            over=self.over,
            scale=self.scale,
            label_order=self.label_order,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """A bound that holds with probability 1 - delta for traffic like the rows that it was found on."""

    risk: Literal["disagreement", "harm", "accuracy loss"]
    epsilon: float
    delta: float
    rows: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An operating point: all parameters, and their results on the test split."""

    name: str
    search: str
    objective: str
    accuracy: tuple[float, float, float] | None  # with its 95 % interval; None: no labels
    agreement: float  # with the last stage alone
    reach: tuple[float, ...]
    reach_by_bin: tuple[tuple[float, ...], ...] = ()
    mean_ms: float
    rules: tuple[tuple[Rule, ...], ...]  # [price][stage but the last]
    start: int = 0  # stage that rows begin at
    skip: tuple[tuple[float, ...], ...] = ()
    prune: Prune = dataclasses.field(default_factory=Prune)
    ensemble: Ensemble = dataclasses.field(default_factory=Ensemble)
    guarantee: Guarantee | None = None

    def __post_init__(self) -> None:
        _ = self.all_rules

    @property
    def all_rules(self) -> Rules:
        """What decisions need."""
        return Rules(prices=self.rules, start=self.start, skip=self.skip, prune=self.prune, ensemble=self.ensemble)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataUsed:
    """The records behind the cascade's parameters."""

    sha256: str
    rows: int
    split: tuple[float, float, float] = (0.4, 0.3, 0.3)  # fit, select, test
    seed: int = 0
    lengths: tuple[float, ...] = ()  # quantiles on the test split, of tokens
    confidences: tuple[float, ...] = ()  # quantiles of the first stage's confidence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CascadeManifest:
    """See the module. Stages from the cheapest to the last."""

    format: int = FORMAT
    name: str
    task: str
    labels: tuple[str, ...]
    stages: tuple[Stage, ...]
    vocabularies: tuple[Vocabulary, ...] = ()  # by tokenizer group
    points: tuple[Point, ...] = ()
    default_point: str | None = None
    curve: tuple[tuple[float, float], ...] = ()  # accuracy, mean ms; on the select split
    data: DataUsed | None = None
    tools: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 2 <= len(self.stages) <= MAX_STAGES:
            raise ConfigError(f"a cascade has 2 to {MAX_STAGES} stages, not {len(self.stages)}")
        for what, names in (("stage", self.stages), ("point", self.points)):
            if len({each.name for each in names}) != len(names):
                raise ConfigError(f"a {what} is named twice")
        for stage in self.stages:
            if stage.label_order and len(stage.label_order) != len(self.labels):
                raise ConfigError(f"stage {stage.name}: label_order must name each of the {len(self.labels)} labels")
            if stage.calibrator.bias and len(stage.calibrator.bias) != len(self.labels):
                raise ConfigError(f"stage {stage.name}: its calibrator is for another number of labels")
        for point in self.points:
            if len(point.rules[0]) != len(self.stages) - 1:
                raise ConfigError(f"point {point.name}: it has rules for another number of stages")
        if self.default_point is not None:
            self.point(self.default_point)

    def point(self, name: str | None = None) -> Point:
        """The point of this name, or the default one. ConfigError, which lists the points, if there is none such."""
        wanted = name if name is not None else self.default_point
        found = next((each for each in self.points if each.name == wanted), None)
        if found is None:
            there = ", ".join(each.name for each in self.points) or "none yet: run `arlo fit`"
            raise ConfigError(f"the cascade has no operating point {wanted!r}; it has: {there}")
        return found

    def save(self, path: Path) -> None:
        """Write it atomically. `path`: the file, or the folder of cascade.json."""
        write_whole(_file(path), json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path, *, check_repositories: bool = True) -> CascadeManifest:
        """Read and check it; ConfigError names the field. `check_repositories`: refuse when a stage's repository is not
        the one that the cascade was calibrated and searched with."""
        path = _file(path)
        try:
            raw = json.loads(path.read_bytes(), parse_constant=not_a_number)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read ({error.strerror}): write one with `arlo fit`") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not JSON ({error})") from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise ConfigError(f"{path} is not of cascade format {FORMAT}: write it again with `arlo fit`")
        try:
            found: CascadeManifest = read(cls, raw, "")
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        if check_repositories:
            for stage in found.stages:
                if repository_hash(path.parent / stage.repository) != stage.manifest_sha256:
                    raise ConfigError(
                        f"{path}: the repository of stage {stage.name!r}, {stage.repository}, has changed since the "
                        "cascade was made. Its confidence may have, too: run `arlo fit` again"
                    )
        return found


def repository_hash(repository: Path) -> str:
    """sha256 of a repository's arlo.json; ConfigError where there is none."""
    try:
        return hashlib.sha256((repository / REPOSITORY_FILE).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{repository / REPOSITORY_FILE} cannot be read ({error.strerror})") from None


def _file(path: Path) -> Path:
    return path / FILE_NAME if path.is_dir() else path
