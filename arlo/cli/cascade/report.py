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
from arlo.report import figure as frame
from arlo.report import page
from arlo.report.numbers import share
from arlo.report.table import table

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
    parts = [
        page.cards(
            [
                (f"{len(study.row):,}", "texts recorded"),
                (f"{len(test.row):,}", "of them to test on"),
                (" → ".join(stage.name for stage in cascade.stages), "stages"),
                (cascade.default_point or "-", "default point"),
            ]
        ),
        page.plots(_figures(study, test)),
    ]
    if study.labels is None:
        parts.insert(0, page.warnings(["The texts have no labels: accuracy is agreement with the last stage."]))
    beside = ways(study, fit=fit, seed=args.seed)
    parts += ["<h2>Ways to answer (test split)</h2>", _ways(study, beside)]
    worth = {point.name: ablation(study, point, seed=args.seed) for point in cascade.points}
    for name, without in worth.items():
        parts += [f"<h2>What makes the point {_escaped(name)}</h2>", _ablation(study, without)]
    words = pruning(study, seed=args.seed)
    if words:
        parts += ["<h2>Which words may go (last stage, test split)</h2>", _pruning(study, words)]
    page.write(
        args.out, page.render(f"Cascade {cascade.name}", parts, what=["Shown on texts that nothing was chosen on."])
    )
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


def _figures(study: Study, test: Study) -> list[Any]:
    figures = [_curve(study, test)]
    if test.labels is not None:
        figures += [_reliability(test, s) for s in range(test.stages)]
    return figures


def _reliability(test: Study, s: int) -> Any:
    from arlo.cascade import calibration as fitting
    from arlo.cascade.decide import answers
    from arlo.cascade.spec import Calibrator, StageSpec

    stage = test.cascade.stages[s]
    figure = frame.figure(f"Reliability of {stage.name}", "confidence", "accuracy")
    figure.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", name="as it should be", line={"color": frame.GREY, "dash": "dot"}
    )
    plain = answers(StageSpec(label_order=stage.label_order, calibrator=Calibrator()), test.recorded[s].logits)
    for name, said, color in (("before", plain, frame.ORANGE), ("calibrated", test.said[s], frame.BLUE)):
        right = said.answer == test.truth
        bins = [each for each in fitting.reliability(said.confidence, right) if each.rows]
        figure.add_scatter(
            x=[round(each.confidence, 4) for each in bins],
            y=[round(each.accuracy, 4) for each in bins],
            mode="lines+markers",
            name=f"{name}, ECE15 {fitting.ece(said.confidence, right):.3f}",
            text=[f"{each.rows:,} texts" for each in bins],
            line={"color": color},
        )
    figure.update_layout(hovermode="closest")
    return figure


def _curve(study: Study, test: Study) -> Any:
    cascade = study.cascade
    figure = frame.figure("Accuracy and time", "mean time of a text (ms)", what_accuracy_is(study))
    if cascade.curve and all(p.objective in ("mean", "p99") for p in cascade.points):
        figure.add_scatter(
            x=[round(cost, 4) for _, cost in cascade.curve],
            y=[round(accuracy, 5) for accuracy, _ in cascade.curve],
            mode="lines",
            name="curve (select split)",
            line={"color": frame.PALE},
        )
    for s, stage in enumerate(cascade.stages):
        figure.add_scatter(
            x=[round(float(test.ms[:, s].mean()), 4)],
            y=[round(float((test.said[s].answer == test.truth).mean()), 5)],
            mode="markers",
            name=f"{stage.name} alone",
            marker={"color": frame.GREY, "symbol": "square", "size": 9},
        )
    for i, point in enumerate(cascade.points):
        mean, low, high = point.accuracy or (point.agreement, point.agreement, point.agreement)
        figure.add_scatter(
            x=[round(point.mean_ms, 4)],
            y=[round(mean, 5)],
            error_y={"type": "data", "array": [high - mean], "arrayminus": [mean - low]},
            mode="markers",
            name=point.name,
            marker={"color": frame.color(i), "size": 11},
        )
    figure.update_layout(hovermode="closest")
    return figure


def _ways(study: Study, beside: Sequence[Way]) -> str:
    rows = [(each.name, share(each.accuracy), f"{each.mean_ms:.3g}", f"{each.cost:.3g}") for each in beside]
    return table(("", what_accuracy_is(study), "mean ms", "device ms of a row, over the models that fit"), rows)


def _ablation(study: Study, without: Sequence[Without]) -> str:
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
    return table(head, rows)


_NONE = ("", "", "", "", "")


def _pruning(study: Study, words: Sequence[Pruned]) -> str:
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
    return table(head, rows)


def _escaped(text: str) -> str:
    import html

    return html.escape(text)
