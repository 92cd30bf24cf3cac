"""`arlo cascade report`: one page about a cascade."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arlo.cli.cascade.common import fit_of, study_of, what_accuracy_is
from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.report.figure import BLUE, GREY, ORANGE, PALE
from arlo.report.numbers import share
from arlo.report.result import Document, chart, line, report, save, table

if TYPE_CHECKING:
    from arlo.cascade.ablation import Pruned, Way, Without
    from arlo.cascade.study import Study

KEPT = {
    "importance": "important, to a shorter runtime",
    "plain": "important, as Eq. 5 says",
    "random": "random",
    "first": "first",
}


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from arlo.cascade.ablation import ablation, pruning, ways

    fit = fit_of(args)
    study = study_of(args)
    if fit and (len(fit) != study.stages or min(fit) < 1):
        raise ConfigError(f"--fit needs a number of at least 1 for each of the {study.stages} stages")
    test = study.of(2)
    cascade = study.cascade
    beside = ways(study, fit=fit, seed=args.seed)
    worth = {point.name: ablation(study, point, seed=args.seed) for point in cascade.points}
    words = pruning(study, seed=args.seed)
    found = report(
        "cascade",
        f"Cascade {cascade.name}",
        label=cascade.name,
        what=["Shown on texts that nothing was chosen on."],
        cards=[
            (f"{len(study.row):,}", "texts recorded"),
            (f"{len(test.row):,}", "of them to test on"),
            (" → ".join(stage.name for stage in cascade.stages), "stages"),
            (cascade.default_point or "-", "default point"),
        ],
        warnings=["The texts have no labels: accuracy is agreement with the last stage."]
        if study.labels is None
        else [],
        charts=[
            _curve(study, test),
            *(_reliability(test, s) for s in range(test.stages if test.labels is not None else 0)),
        ],
        tables=[
            _ways(study, beside),
            *(_ablation(study, name, without) for name, without in worth.items()),
            _pruning(study, words) if words else {},
        ],
    )
    save(args.out, [found])
    if args.json:
        print_json(
            {
                "written": str(args.out),
                "accuracy_is": what_accuracy_is(study),
                "ways": [dataclasses.asdict(each) for each in beside],
                "points": {name: [dataclasses.asdict(each) for each in rows] for name, rows in worth.items()},
                "pruning": [_known(dataclasses.asdict(each)) for each in words],
            }
        )
    else:
        print(f"written to {args.out}")
    return 0


def _known(figures: dict[str, Any]) -> dict[str, Any]:
    """None for what is not known."""
    return {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in figures.items()}


def _reliability(test: Study, s: int) -> Document:
    from arlo.cascade import calibration as fitting
    from arlo.cascade.decide import answers
    from arlo.cascade.spec import Calibrator, StageSpec

    stage = test.cascade.stages[s]
    lines = [line("as it should be", [0, 1], [0, 1], color=GREY, dash=True)]
    plain = answers(StageSpec(label_order=stage.label_order, calibrator=Calibrator()), test.recorded[s].logits)
    for name, said, color in (("before", plain, ORANGE), ("calibrated", test.said[s], BLUE)):
        right = said.answer == test.truth
        bins = [each for each in fitting.reliability(said.confidence, right) if each.rows]
        title = f"{name}, ECE15 {fitting.ece(said.confidence, right):.3f}"
        text = [f"{each.rows:,} texts" for each in bins]
        x, y = [each.confidence for each in bins], [each.accuracy for each in bins]
        lines.append(line(title, x, y, "lines+markers", color=color, text=text))
    return chart(f"Reliability of {stage.name}", "confidence", "accuracy", lines)


def _curve(study: Study, test: Study) -> Document:
    cascade, lines = study.cascade, []
    if cascade.curve and all(p.objective in ("mean", "p99") for p in cascade.points):
        x, y = [cost for _, cost in cascade.curve], [accuracy for accuracy, _ in cascade.curve]
        lines.append(line("curve (select split)", x, y, color=PALE))
    for s, stage in enumerate(cascade.stages):
        at = float(test.ms[:, s].mean()), float((test.said[s].answer == test.truth).mean())
        lines.append(line(f"{stage.name} alone", [at[0]], [at[1]], "markers", color=GREY))
    for point in cascade.points:
        mean, low, high = point.accuracy or (point.agreement, point.agreement, point.agreement)
        lines.append(line(point.name, [point.mean_ms], [mean], "markers", error=[[high - mean], [mean - low]]))
    values = [value for each in lines for value in each["y"]]
    around = [max(0.0, min(values) - 0.02), min(1.0, max(values) + 0.02)]
    return chart("Accuracy and time", "mean time of a text (ms)", what_accuracy_is(study), lines, y_range=around)


def _ways(study: Study, beside: Sequence[Way]) -> Document:
    rows = [(each.name, share(each.accuracy), f"{each.mean_ms:.3g}", f"{each.cost:.3g}") for each in beside]
    head = ("", what_accuracy_is(study), "mean ms", "device ms of a row, over the models that fit")
    return table("Ways to answer (test split)", head, rows)


def _ablation(study: Study, point: str, without: Sequence[Without]) -> Document:
    rows = [
        (
            each.name,
            share(each.accuracy.mean),
            f"{each.against.mean:+.2%} ({each.against.low:+.2%} to {each.against.high:+.2%})",
            share(each.agreement),
            f"{each.mean_ms:.3g}",
        )
        for each in without
    ]
    head = ("", what_accuracy_is(study), "against the point, 95 %", "agreement with the last stage", "mean ms")
    return table(f"What makes the point {point}", head, rows)


_NONE = ("", "", "", "", "")


def _pruning(study: Study, words: Sequence[Pruned]) -> Document:
    def shown(value: float) -> str:
        return "-" if math.isnan(value) else share(value)

    rows = [
        (
            f"{each.alpha:g}, {KEPT[each.how]}",
            share(each.sent),
            f"{each.mean_ms:.3g}",
            share(each.agreement),
            shown(each.accuracy),
            share(each.shortened),
            shown(each.shortened_agreement),
            shown(each.shortened_accuracy),
            f"{each.going:,}",
            shown(each.going_agreement),
            shown(each.going_accuracy),
        )
        for each in words
    ]
    test = study.of(2)
    whole = float((test.giant == test.truth).mean())
    rows.append(
        ("whole texts", share(1.0), f"{test.ms[:, -1].mean():.3g}", share(1.0), share(whole), share(0.0), *_NONE)
    )
    head = (
        "alpha, words kept",
        "tokens sent",
        "mean ms",
        "agreement with the whole text's answer",
        "accuracy",
        "texts shortened",
        "their agreement",
        "their accuracy",
        "of these go on",
        "agreement of those",
        "accuracy of those",
    )
    return table("Which words may go (last stage, test split)", head, rows)
