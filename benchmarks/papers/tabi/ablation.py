"""The worth of an operating point compared with other ways to answer, and of each of its mechanisms: the same search
without it, on the same texts.

    python -m benchmarks.papers.tabi.ablation CASCADE --data FILE --fit 4,1
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from arlo.cascade.decide import Floats
from arlo.cascade.manifest import Point
from arlo.cascade.search import exact, points
from arlo.cascade.search.ladder import as_rules
from arlo.cascade.spec import Calibrator, Ensemble, Prune, Rules
from arlo.cascade.study import Played, Study, stage_answers
from arlo.cli.text import listed
from benchmarks.papers.hybridserve.plan import study_of
from benchmarks.papers.tabi import search as tabi


@dataclasses.dataclass(frozen=True, slots=True)
class Without:
    """A point with something taken away, on the test split."""

    name: str
    accuracy: points.Interval
    against: points.Interval  # accuracy less that of the point as it is
    agreement: float
    mean_ms: float


def ablation(study: Study, point: Point, *, seed: int = 0) -> list[Without]:
    """Rows of a table: the point, then without each mechanism it has, then with words left out at random or all but the
    first, if such texts are recorded. Without calibration, thresholds are searched again for the same mean time."""
    test = study.of(2)
    whole = test.play(point.all_rules, seed=seed)
    rows = [_row("as searched", whole, whole)]
    rules = point.all_rules
    if rules.ensemble.kind != "none":
        rows.append(_row("no ensemble", test.play(dataclasses.replace(rules, ensemble=Ensemble()), seed=seed), whole))
    if any(rules.skip):
        rows.append(_row("no skips", test.play(dataclasses.replace(rules, skip=()), seed=seed), whole))
    alpha = rules.prune.alpha
    plain = dataclasses.replace(rules, prune=Prune())
    if alpha:
        rows.append(_row("no pruning", test.play(plain, seed=seed), whole))
        for how, name in (
            ("plain", "pruned as Eq. 5 says, not filled again"),
            ("random", "random words left out"),
            ("first", "first words only"),
        ):
            if alpha in test.alphas(how):
                rows.append(_row(name, test.with_pruning(alpha, how).play(plain, seed=seed), whole))
    rows.append(_row("no calibration", _uncalibrated(study, plain, whole, seed=seed), whole))
    return rows


@dataclasses.dataclass(frozen=True, slots=True)
class Pruned:
    """The last stage on pruned texts of the test split."""

    alpha: float
    how: str  # "importance", or a name of benchmarks.papers.tabi.words
    sent: float  # share of the tokens
    mean_ms: float
    agreement: float  # with its answer to the whole text
    accuracy: float  # nan without labels
    shortened: float  # share of the texts that importance takes to a shorter runtime; of every way the same texts
    shortened_agreement: float  # of these; nan where there are none
    shortened_accuracy: float
    going: int  # those of the shortened texts that go on to the last stage at the default point; 0: there is none
    going_agreement: float
    going_accuracy: float


def pruning(study: Study, *, seed: int = 0) -> list[Pruned]:
    """Figures of all recorded kinds of pruning. `plain` and `importance` of one alpha use the same runtimes, so their
    answers are compared at one cost; random and first words are as many tokens as `importance`."""
    test = study.of(2)
    points = study.cascade.points
    goes = np.zeros(len(test.row), np.bool_)
    if points:
        rules = dataclasses.replace(study.cascade.point().all_rules, prune=Prune())
        goes = test.play(rules, seed=seed).ended.ran[:, -1]
    found = []
    for (a, b, alpha, how), (recorded, measured) in sorted(test.pruned.items()):
        if (a, b) == (test.stages - 2, test.stages - 1):
            same = measured.said.answer == test.giant
            right = same & False if test.labels is None else measured.said.answer == test.labels
            chosen, _ = test.pruned.get((a, b, alpha, "importance"), (recorded, measured))
            part = chosen.tokens < test.recorded[-1].tokens
            known, on = test.labels is not None, part & goes
            found.append(
                Pruned(
                    alpha=alpha,
                    how=how,
                    sent=float(recorded.tokens.sum() / test.recorded[-1].tokens.sum()),
                    mean_ms=float(measured.ms.mean()),
                    agreement=float(same.mean()),
                    accuracy=float(right.mean()) if known else np.nan,
                    shortened=float(part.mean()),
                    shortened_agreement=float(same[part].mean()) if part.any() else np.nan,
                    shortened_accuracy=float(right[part].mean()) if part.any() and known else np.nan,
                    going=int(on.sum()),
                    going_agreement=float(same[on].mean()) if on.any() else np.nan,
                    going_accuracy=float(right[on].mean()) if on.any() and known else np.nan,
                )
            )
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """One way to answer, on the test split."""

    name: str
    accuracy: float
    mean_ms: float
    cost: float  # device time of a row in ms, over the models that fit on a device (Tabi section 7.1)


def ways(study: Study, *, fit: Sequence[float] = (), tolerance: float = 0.01, seed: int = 0) -> list[Way]:
    """Each stage alone, INFaaS' choice among them, Cocktail's vote, and the points. The first two systems choose on the
    select split, at most `tolerance` less accurate than the last stage. `fit`: models of each stage that a device
    holds (default: one each)."""
    select, test = study.of(1), study.of(2)
    holds = np.asarray(fit or (1.0,) * study.stages)
    found = [
        Way(stage.name, float((said.answer == test.truth).mean()), ms, ms / float(models))
        for stage, said, ms, models in zip(
            study.cascade.stages, test.said, test.ms.mean(axis=0).tolist(), holds, strict=True
        )
    ]
    target = float((select.said[-1].answer == select.truth).mean()) - tolerance
    stage = tabi.infaas(tabi.by_stage(select), select.truth, accuracy=target)
    if stage is not None:
        found.append(dataclasses.replace(found[stage], name=f"INFaaS: {found[stage].name}"))
    vote = tabi.cocktail(tabi.by_stage(select), select.truth, accuracy=target)
    if vote is not None:
        found.append(_vote(select, test, vote.stages, holds))
    for point in study.cascade.points:
        played = test.play(point.all_rules, seed=seed)
        spent = test.with_pruning(point.prune.alpha).ms * played.ended.ran
        found.append(
            Way(point.name, played.accuracy.mean, float(played.ms.mean()), float((spent / holds).sum(axis=1).mean()))
        )
    return found


def _vote(select: Study, test: Study, stages: Sequence[int], holds: Floats) -> Way:
    votes = np.zeros((len(test.row), test.said[0].raw.shape[1]))
    for s in stages:
        votes[np.arange(len(votes)), test.said[s].answer] += float((select.said[s].answer == select.truth).mean())
    ms = test.ms[:, list(stages)]
    return Way(
        name=f"Cocktail: {' + '.join(test.cascade.stages[s].name for s in stages)}",
        accuracy=float((votes.argmax(axis=1) == test.truth).mean()),
        mean_ms=float(ms.max(axis=1).mean()),
        cost=float((ms / holds[list(stages)]).sum(axis=1).mean()),
    )


def _row(name: str, played: Played, whole: Played) -> Without:
    return Without(
        name, played.accuracy, points.paired(played.right, whole.right), played.agreement, float(played.ms.mean())
    )


def _uncalibrated(study: Study, rules: Rules, whole: Played, *, seed: int) -> Played:
    """T = 1 everywhere, and the thresholds of the select split's curve whose mean time is nearest."""
    raw = [dataclasses.replace(stage, calibrator=Calibrator()) for stage in study.cascade.stages]
    said = tuple(stage_answers(s, r, study.length) for s, r in zip(raw, study.recorded, strict=True))
    plain = dataclasses.replace(study, said=said)
    front = exact.search(plain.of(1).table(), seed=seed)
    at = int(np.abs(front.cost - float(whole.ms.mean())).argmin())
    prices = (as_rules(front.thresholds[at]),)
    return plain.of(2).play(dataclasses.replace(rules, prices=prices, skip=()), seed=seed)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("cascade", type=Path, help="a cascade.json with operating points")
    add("--data", type=Path, required=True, metavar="FILE", help="texts, JSON lines")
    add("--records", type=Path, metavar="DIR", help="where records are (default: records beside the cascade)")
    add(
        "--fit",
        type=listed(0, above=True),
        default=(),
        metavar="N,...",
        help="models of each stage that a device holds (default: one each)",
    )
    args = parser.parse_args(argv)
    study = study_of(args.cascade, args.data, args.records)
    tables = {
        "ways": [dataclasses.asdict(each) for each in ways(study, fit=args.fit)],
        "points": {
            point.name: [dataclasses.asdict(each) for each in ablation(study, point)] for point in study.cascade.points
        },
        "pruning": [dataclasses.asdict(each) for each in pruning(study)],
    }
    print(json.dumps(tables, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
