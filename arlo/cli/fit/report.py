"""One page about a cascade: reliability of its stages, its curve and its points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arlo.cli.fit.common import what_accuracy_is
from arlo.report.figure import BLUE, GREY, ORANGE, PALE
from arlo.report.result import Document, chart, line, report, table

if TYPE_CHECKING:
    from arlo.cascade.study import Study
    from arlo.cli.fit.show import Fitted


def result(found: Fitted) -> Document:
    """The result, for a page or a result file."""
    study = found.study
    test = study.of(2)
    cascade = study.cascade
    labelled = study.labels is not None
    return report(
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
        warnings=[] if labelled else ["The texts have no labels: accuracy is agreement with the last stage."],
        charts=[_curve(study, test), *(_reliability(test, s) for s in range(test.stages if labelled else 0))],
        tables=[table("Ways to answer (test split)", *found.table)],
    )


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
