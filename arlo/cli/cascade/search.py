"""`arlo cascade search`: operating points, written into cascade.json."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.cli.cascade.common import TIMES_MS, data_used, lengths, study_of, what_accuracy_is, within
from arlo.cli.text import print_json

if TYPE_CHECKING:
    from arlo.cascade.manifest import CascadeManifest, Point
    from arlo.cascade.search.find import Found
    from arlo.cascade.study import Study

CURVE_POINTS = 200


def run(args: argparse.Namespace) -> int:
    """Search, write, print."""
    from rich.console import Console

    from arlo.cascade.search.find import Options, find, removable
    from arlo.report.progress import LiveBar

    within(args.accuracy, 0, 1, "--accuracy")
    within(args.tolerance, 0, 1, "--tolerance")
    within(args.slo_ms, *TIMES_MS, "--slo-ms")
    within(args.alpha_max, 0, 100, "--alpha-max")
    within(args.most_removed, 0, 1, "--most-removed")
    study = study_of(args, objective=args.objective)
    options = Options(
        objective=args.objective,
        accuracy=args.accuracy,
        slo_ms=np.inf if args.slo_ms is None else args.slo_ms,
        tolerance=args.tolerance,
        bins=lengths(args.by_length, "--by-length"),
        plain=args.plain,
        alpha_max=args.alpha_max,
        most_removed=args.most_removed,
        epsilon=args.epsilon,
        delta=args.delta,
        risk=args.risk,
        seed=args.seed,
    )
    with LiveBar(Console(stderr=True), "searching"):
        found = find(study, options)
        _, useless = removable(study, options)
    cascade, test = study.cascade, study.of(2)
    names = {point.name for point in found.points}
    points = (*(p for p in cascade.points if p.name not in names), *found.points)
    stages = tuple(
        dataclasses.replace(stage, accuracy=float((said.answer == test.truth).mean()))
        for stage, said in zip(cascade.stages, test.said, strict=True)
    )
    made = dataclasses.replace(
        cascade,
        stages=stages,
        points=points,
        default_point=_default(cascade, [p.name for p in points]),
        curve=_curve(found),
        data=data_used(args, study),
    )
    made.save(args.cascade)
    warnings = [
        *found.warnings,
        *(
            f"stage {cascade.stages[s].name} does not pay (benefit {benefit:.3g}): a cascade without it costs no more"
            for s, benefit in useless
        ),
    ]
    for line in warnings:
        print(f"arlo: warning: {line}", file=sys.stderr)
    if args.json:
        print_json(_as_dict(study, found, warnings))
    else:
        _print(study, found)
        print(f"written to {args.cascade}; next: arlo cascade check {args.cascade} --data {args.data}")
    return 0


def _default(cascade: CascadeManifest, names: list[str]) -> str | None:
    if cascade.default_point in names:
        return cascade.default_point
    return "ap" if "ap" in names else names[0] if names else None


def _curve(found: Found) -> tuple[tuple[float, float], ...]:
    """At most CURVE_POINTS of the front."""
    front = found.front
    at = np.unique(np.linspace(0, len(front) - 1, min(CURVE_POINTS, len(front))).round().astype(np.int64))
    return tuple(zip(front.accuracy[at].tolist(), front.cost[at].tolist(), strict=True))


def _as_dict(study: Study, found: Found, warnings: list[str]) -> dict[str, Any]:
    return {
        "accuracy_is": what_accuracy_is(study),
        "points": [dataclasses.asdict(point) for point in found.points],
        "ensembles": {name: dataclasses.asdict(gain) for name, gain in found.gains.items()},
        "curve": [list(each) for each in _curve(found)],
        "warnings": warnings,
    }


def _print(study: Study, found: Found) -> None:
    from rich.console import Console
    from rich.table import Table

    test = study.of(2)
    table = Table(box=None, pad_edge=False, title="on the test split", title_justify="left")
    for column in ("point", what_accuracy_is(study), "95 %", "agreement", "mean ms", "of last", "reach", "with"):
        table.add_column(column, justify="left" if column in ("point", "with") else "right", no_wrap=True)
    last_ms = float(test.ms[:, -1].mean())
    for s, stage in enumerate(study.cascade.stages):
        right = test.said[s].answer == test.truth
        alone = float(test.ms[:, s].mean())
        agreement = float((test.said[s].answer == test.giant).mean())
        table.add_row(
            f"{stage.name} alone",
            f"{right.mean():.2%}",
            "",
            f"{agreement:.1%}",
            f"{alone:.3g}",
            f"{alone / last_ms:.2f}",
        )
    for point in found.points:
        accuracy = point.accuracy or (point.agreement, float("nan"), float("nan"))
        table.add_row(
            point.name,
            f"{accuracy[0]:.2%}",
            f"{accuracy[1]:.1%} to {accuracy[2]:.1%}" if point.accuracy else "",
            f"{point.agreement:.1%}",
            f"{point.mean_ms:.3g}",
            f"{point.mean_ms / last_ms:.2f}",
            " ".join(f"{each:.2f}" for each in point.reach),
            _with(point),
        )
    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, 140)
    console.print(table)


def _with(point: Point) -> str:
    """What a point uses beside thresholds."""
    parts = [
        f"soft rule, c {point.rules[0][0].c:g}" if point.rules[0][0].kind == "soft" else "",
        "thresholds by length" if len(point.rules[0][0].t) > 1 else "",
        f"alpha {point.prune.alpha:g}" if point.prune.alpha else "",
        "skips" if any(point.skip) else "",
        "ensemble" if point.ensemble.kind != "none" else "",
        f"{len(point.rules)} prices" if len(point.rules) > 1 else "",
    ]
    return ", ".join(part for part in parts if part)
