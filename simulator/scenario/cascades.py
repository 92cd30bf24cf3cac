"""The sections of a scenario with a cascade: [cascade], [[stage]], [[change]]."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

from arlo.config.field import FieldError, Flag, option, same, section
from arlo.simulator.scenario.sections import ClusterSection

SINGLE = "single:"


@section("cascade")
class CascadeSection:
    """A cascade in place of one model (docs/flows.md): its rows come from records, where there is a `manifest`, else
    from a population that the [[stage]] describe. [workload], [cluster], [dispatch] and [[fault]] are as ever; there is
    nothing to allocate or to scale."""

    manifest: Path | None = option(
        default=None,
        doc="A cascade.json with operating points. The test split of its records is simulated.",
        left_out="a population",
    )
    data: Path | None = option(default=None, doc="The texts that its records are of.", relation="with manifest")
    records: Path | None = option(
        default=None, doc="Where its records are.", left_out="`records` beside the manifest", relation="with manifest"
    )
    scheme: str = option(
        default="arlo",
        doc="Which of the stages answer a row. `arlo`: the operating point `point`; of a population the cheapest with "
        "hard thresholds that loses at most `tolerance`. `single:STAGE`: one stage.",
        flag=Flag("NAME", "which stages of a cascade answer: arlo, single:STAGE", name="cascade-scheme", sweep=True),
    )
    point: str | None = option(
        default=None, doc="Operating point of the scheme arlo.", left_out="the default one", relation="with manifest"
    )
    workers: tuple[int, ...] = option(
        default=(),
        doc="Workers of each stage; [[fault]] numbers them in this order. A scheme of fewer stages has all of them.",
        left_out="every worker holds all stages",
        minimum=0,
        relation="their sum is cluster.workers",
    )
    price: Literal["off", "auto"] = option(
        default="off", doc="Under load, rows have to be less sure to end earlier; of the scheme arlo."
    )
    tolerance: float = option(
        default=0.01,
        doc="Accuracy that may be lost against the last stage.",
        minimum=0,
        maximum=1,
        relation="of a population",
    )
    alpha: float = option(
        default=0.0,
        doc="Words of less than alpha times the mean importance are left out (0: none), a share of the tokens that "
        "`stage.pruned` says.",
        minimum=0,
        maximum=10,
        relation="of a population",
    )
    lengths: Literal["records", "workload"] | None = option(
        default=None,
        doc="Whose lengths the rows have. `workload`: records are drawn by length, so that the rows of a length say "
        "what texts of that length say.",
        left_out="`records` where there are some",
    )
    watts: tuple[float, ...] = option(
        default=(),
        doc="Of a worker that waits, and of one that executes: energy of a row is modelled by these. Without them by "
        "what `arlo fit` wrote of every stage, rows alone and no time that workers wait; else not told.",
        unit="W",
        minimum=0,
    )

    def check_relations(self) -> None:
        if self.manifest is not None and self.data is None:
            raise FieldError("cascade", "data", "is needed with manifest: the texts that the records are of")
        for key in ("data", "records", "point"):
            if self.manifest is None and getattr(self, key) is not None:
                raise FieldError("cascade", key, "is of a manifest: leave it out, or name one")
        if self.manifest is not None and self.alpha:
            raise FieldError("cascade", "alpha", "is of a population, not of records")
        if self.scheme != "arlo" and not self.scheme.startswith(SINGLE):
            raise FieldError("cascade", "scheme", f"must be one of arlo, {SINGLE}STAGE, not {self.scheme!r}")
        if self.watts and (len(self.watts) != 2 or self.watts[1] < self.watts[0]):
            raise FieldError("cascade", "watts", "are two numbers: of a worker that waits, and of one that executes")


@section("stage")
class StageSection:
    """A stage of the cascade, from the cheapest to the last: its latency, and of a population what it says."""

    name: str = option(doc="As in the manifest, where there is one.")
    profile: str | None = same(
        ClusterSection,
        "profile",
        default=None,
        left_out="the repository that the manifest names",
        relation="or latency_ms",
    )
    latency_ms: float | None = option(
        default=None, doc="Time of one row, whatever its length.", unit="ms", above=0, relation="or profile"
    )
    factor: float = option(default=1.0, doc="Its time is so many times that of the profile.", above=0, maximum=1000)
    max_lengths: tuple[int, ...] = option(
        default=(), doc="Maximum lengths of its runtimes.", left_out="`cluster.max_lengths`", unit="tokens", minimum=1
    )
    confidence: tuple[tuple[float, ...], ...] = option(
        default=(),
        doc="Of a population, and every stage but the last: `[[x, share], ...]`, the share of the rows that reach it "
        "whose confidence is above x; linear between. Confidences of several stages are drawn independently.",
    )
    right: tuple[tuple[float, ...], ...] = option(
        default=(),
        doc="Of a population: `[[x, share], ...]`, how often its answer is right for rows whose confidence at the "
        "first stage is x or more, up to the next x.",
    )
    pruned: tuple[tuple[float, ...], ...] = option(
        default=(),
        doc="Of a population: `[[alpha, share], ...]`, the share of a row's tokens left out on the way to it; linear "
        "between.",
    )

    def check_relations(self) -> None:
        if self.profile is not None and self.latency_ms is not None:
            raise FieldError("stage", "latency_ms", "or profile: each says how long the stage takes")
        for key in ("confidence", "right", "pruned"):
            pairs = getattr(self, key)
            if any(len(pair) != 2 for pair in pairs):
                raise FieldError("stage", key, "is made of pairs")
            if any(not 0 <= share <= 1 for _, share in pairs) or any(
                b[0] <= a[0] for a, b in itertools.pairwise(pairs)
            ):
                raise FieldError("stage", key, "must ascend in its first numbers, and have shares from 0 to 1")
        if any(b[1] > a[1] for a, b in itertools.pairwise(self.confidence)):
            raise FieldError("stage", "confidence", "must fall: fewer rows are above a higher confidence")
        if any(not 0 < x < 1 for x, _ in self.confidence):
            raise FieldError("stage", "confidence", "must have confidences between 0 and 1")


@section("change")
class ChangeSection:
    """From some moment on, rows are others than those that the scheme was chosen on; as often as wanted. A change
    holds until the next one."""

    at_s: float = option(doc="When.", unit="s", minimum=0)
    temperature: float = option(
        default=1.0,
        doc="Logits are so many times too large for the calibrators in force: confidences lie at temperature T / so "
        "much.",
        above=0,
        maximum=20,
    )
    reach: float = option(
        default=1.0,
        doc="So many times as many rows go on past the first stage, by the thresholds of the scheme arlo.",
        minimum=0,
        maximum=100,
    )
