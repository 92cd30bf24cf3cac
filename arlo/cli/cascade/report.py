"""`arlo cascade report`: one page about a cascade."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from arlo.cli.cascade.common import study_of, what_accuracy_is
from arlo.cli.text import print_json
from arlo.report import figure as frame
from arlo.report import page
from arlo.report.numbers import share
from arlo.report.table import table

if TYPE_CHECKING:
    from arlo.cascade.study import Study


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    study = study_of(args)
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
    parts += ["<h2>Ways to answer (test split)</h2>", _ways(test)]
    page.write(
        args.out, page.render(f"Cascade {cascade.name}", parts, what=["Shown on texts that nothing was chosen on."])
    )
    if args.json:
        print_json({"written": str(args.out), "accuracy_is": what_accuracy_is(study)})
    else:
        print(f"written to {args.out}")
    return 0


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


def _ways(test: Study) -> str:
    """Each stage alone, and each point."""
    rows = [
        (stage.name, share(float((said.answer == test.truth).mean())), f"{ms:.3g}")
        for stage, said, ms in zip(test.cascade.stages, test.said, test.ms.mean(axis=0).tolist(), strict=True)
    ]
    for point in test.cascade.points:
        accuracy = point.accuracy[0] if point.accuracy else point.agreement
        rows.append((point.name, share(accuracy), f"{point.mean_ms:.3g}"))
    return table(("", what_accuracy_is(test), "mean ms"), rows)
