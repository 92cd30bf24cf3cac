"""`arlo cascade check`: what the points give on the test split, against the bars that they should meet."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.cli.cascade.common import study_of, what_accuracy_is, within
from arlo.cli.text import print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.guarantee import Risk
    from arlo.cascade.manifest import Point
    from arlo.cascade.study import Played, Study

MOST_ECE = 0.05
SAME = 1e-9  # of what cascade.json says of a point and what its records give


def run(args: argparse.Namespace) -> int:
    """Compare; 1 when a bar is missed."""
    within(args.tolerance, 0, 1, "--tolerance")
    study = study_of(args)
    cascade = study.cascade
    points = cascade.points if args.point is None else (cascade.point(args.point),)
    if not points:
        raise ConfigError("the cascade has no operating points yet: run `arlo cascade search`")
    test = study.of(2)
    stages = [_stage(test, s) for s in range(test.stages)]
    judged = args.point or cascade.default_point  # others may have been made for another accuracy
    found = [
        _point(test, point, tolerance=args.tolerance if point.name == judged else np.inf, seed=args.seed)
        for point in points
    ]
    if args.rows is not None:
        _write_rows(args, test, points)
    if args.target is not None:
        _ask(args, test, points, found)
    failed = [line for each in (*stages, *found) for line in each["failed"]]
    if args.json:
        print_json({"accuracy_is": what_accuracy_is(study), "rows": len(test.row), "stages": stages, "points": found})
    else:
        _print(test, stages, found)
        for line in failed:
            print(f"missed: {line}")
    return 1 if failed else 0


def _stage(test: Study, s: int) -> dict[str, Any]:
    """Calibration of one stage on the test split."""
    from arlo.cascade import calibration as fitting
    from arlo.cascade.decide import in_order
    from arlo.cascade.spec import Calibrator

    stage = test.cascade.stages[s]
    out: dict[str, Any] = {"name": stage.name, "mean_ms": float(test.ms[:, s].mean()), "failed": []}
    if test.labels is None:
        return out
    z = in_order(stage.spec, test.recorded[s].logits)
    before = fitting.quality(Calibrator(), z, test.labels).ece15
    after = fitting.quality(stage.calibrator, z, test.labels, test.length).ece15
    out |= {"accuracy": float((test.said[s].answer == test.labels).mean()), "ece15": [before, after]}
    if after > max(MOST_ECE, before / 2):
        out["failed"].append(
            f"stage {stage.name}: ECE15 {before:.3f} -> {after:.3f} is neither halved nor at most {MOST_ECE}"
        )
    return out


def _point(test: Study, point: Point, *, tolerance: float, seed: int) -> dict[str, Any]:
    played = test.play(point.all_rules, seed=seed)
    less = played.against_last(test.truth)
    last_ms, last_p99 = float(test.ms[:, -1].mean()), float(np.quantile(test.ms[:, -1], 0.99))
    failed = []
    if point.guarantee is not None:  # judged by what was promised, whatever the tolerance
        risk, low = _risk(test, played, point.guarantee.risk)
        if low > point.guarantee.epsilon:
            failed.append(
                f"point {point.name}: its {point.guarantee.risk} is {risk:.2%}, {low:.2%} at the low end of its 95 % "
                f"interval; {point.guarantee.epsilon:.2%} is promised"
            )
    elif less.low < -tolerance:
        failed.append(
            f"point {point.name}: {less.mean:+.2%} against the last stage alone, {less.low:+.2%} at the low end of its "
            f"interval; {-tolerance:+.2%} is allowed"
        )
    written = point.accuracy[0] if point.accuracy is not None else point.agreement
    seen = played.accuracy.mean if point.accuracy is not None else played.agreement
    if abs(written - seen) > SAME:
        failed.append(f"point {point.name}: cascade.json says {written:.4%}, these records {seen:.4%}")
    return {
        "name": point.name,
        "accuracy": dataclasses.asdict(played.accuracy),
        "against_last": dataclasses.asdict(less),
        "agreement": played.agreement,
        "reach": played.ended.ran.mean(axis=0).tolist(),
        "mean_ms": float(played.ms.mean()),
        "mean_of_last": float(played.ms.mean()) / last_ms,
        "p99_of_last": float(np.quantile(played.ms, 0.99)) / last_p99,
        "failed": failed,
    }


def _risk(test: Study, played: Played, risk: Risk) -> tuple[float, float]:
    """A guarantee's risk on the test split, and the low end of its 95 % interval."""
    from arlo.cascade.search.points import interval, paired

    answer, giant = played.ended.answer, played.giant
    if risk == "accuracy loss":
        found = paired(giant == test.truth, answer == test.truth)
    else:
        wrong = answer != giant if risk == "disagreement" else (giant == test.truth) & (answer != test.truth)
        found = interval(wrong.astype(np.int64))
    return found.mean, found.low


def _ask(args: argparse.Namespace, test: Study, points: tuple[Point, ...], found: list[dict[str, Any]]) -> None:
    """Each point through the gateway, into what was found of it."""
    from arlo.cascade.records import read_data
    from arlo.cli.cascade.through import compare

    cascade = test.cascade
    folder = args.cascade if args.cascade.is_dir() else args.cascade.parent
    tokenizer = folder / cascade.stages[0].repository
    data, model = read_data(args.data), args.model or cascade.name
    for point, each in zip(points, found, strict=True):
        served = compare(test, data, point, target=args.target, model=model, tokenizer=tokenizer, seed=args.seed)
        each["served"] = served
        differ = served["stage"] + served["answer"] + served["confidence"]
        if differ:
            each["failed"].append(
                f"point {point.name}: {differ} of {served['rows']} rows through {args.target} are not as recorded "
                f"(stage {served['stage']}, answer {served['answer']}, confidence {served['confidence']})"
            )


def _write_rows(args: argparse.Namespace, test: Study, points: tuple[Point, ...]) -> None:
    """A line for each row and point, as a gateway should decide it."""
    try:
        with args.rows.open("w") as file:
            for point in points:
                for line in _rows(test, point, test.play(point.all_rules, seed=args.seed)):
                    file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise ConfigError(f"{args.rows} cannot be written ({error.strerror})") from None


def _rows(test: Study, point: Point, played: Played) -> list[dict[str, Any]]:
    from arlo.cascade.decide import REASONS

    ended, labels = played.ended, test.cascade.labels
    return [
        {
            "point": point.name,
            "row": int(row),
            "stage": int(ended.stage[i]),
            "reason": REASONS[ended.reason[i]],
            "answer": labels[ended.answer[i]],
            "confidence": float(ended.confidence[i]),
        }
        for i, row in enumerate(test.row)
    ]


def _print(test: Study, stages: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, 160)
    table = Table(box=None, pad_edge=False, title=f"{len(test.row)} texts of the test split", title_justify="left")
    for column in (
        "",
        what_accuracy_is(test),
        "against last, 95 %",
        "agreement",
        "reach",
        "mean",
        "p99 of last",
        "ECE15",
    ):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for each in stages:
        ece = f"{each['ece15'][0]:.3f} -> {each['ece15'][1]:.3f}" if "ece15" in each else ""
        accuracy = f"{each['accuracy']:.2%}" if "accuracy" in each else ""
        table.add_row(f"{each['name']} alone", accuracy, "", "", "", f"{each['mean_ms']:.3g} ms", "", ece)
    for each in found:
        less = each["against_last"]
        table.add_row(
            each["name"],
            f"{each['accuracy']['mean']:.2%}",
            f"{less['mean']:+.2%} ({less['low']:+.2%} to {less['high']:+.2%})",
            f"{each['agreement']:.1%}",
            " ".join(f"{share:.2f}" for share in each["reach"]),
            f"{each['mean_ms']:.3g} ms, {each['mean_of_last']:.2f} of last",
            f"{each['p99_of_last']:.2f}",
            "",
        )
    console.print(table)
    for each in found:
        if "served" in each:
            served = each["served"]
            print(
                f"{each['name']} through the gateway: {served['same']} of {served['rows']} rows as recorded, "
                f"{served['degraded']} degraded"
            )
