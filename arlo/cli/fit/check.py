"""The results of the points on the test split, compared with the bars that they should meet."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from arlo.cascade.guarantee import Risk
    from arlo.cascade.manifest import Point
    from arlo.cascade.study import Played, Study

MOST_ECE = 0.05
LEAST_TOLERANCE = 0.01  # half an interval of some thousand texts: no fewer could show a smaller loss


def check(test: Study, tolerance: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each stage and each point on the test split; `failed` names the bars that it missed. Accuracy is a bar of the
    default point alone, as other points may be made for another accuracy."""
    cascade = test.cascade
    stages = [_stage(test, s) for s in range(test.stages)]
    most = {cascade.default_point: max(tolerance, LEAST_TOLERANCE)}
    return stages, [_point(test, point, tolerance=most.get(point.name, np.inf)) for point in cascade.points]


def _stage(test: Study, s: int) -> dict[str, Any]:
    """The calibration of one stage on the test split."""
    from arlo.cascade import calibration as fitting
    from arlo.cascade.decide import in_order
    from arlo.cascade.spec import Calibrator

    stage = test.cascade.stages[s]
    out: dict[str, Any] = {"name": stage.name, "mean_ms": float(test.ms[:, s].mean()), "failed": []}
    if test.labels is None:
        return out
    z = in_order(stage.spec, test.recorded[s].logits)
    before = fitting.error_of(Calibrator(), z, test.labels)
    after = fitting.error_of(stage.calibrator, z, test.labels, test.length)
    out |= {"accuracy": float((test.said[s].answer == test.labels).mean()), "ece15": [before, after]}
    if after > max(MOST_ECE, before / 2):
        out["failed"].append(
            f"stage {stage.name}: ECE15 {before:.3f} -> {after:.3f} is neither halved nor at most {MOST_ECE}"
        )
    return out


def _point(test: Study, point: Point, *, tolerance: float) -> dict[str, Any]:
    played = test.play(point.all_rules)
    less = played.against_last(test.truth)
    last_ms, last_p99 = float(test.ms[:, -1].mean()), float(np.quantile(test.ms[:, -1], 0.99))
    failed = []
    if point.guarantee is not None:  # judged by its promise, without the tolerance
        risk, low = _risk(test, played, point.guarantee.risk)
        if low > point.guarantee.epsilon:
            failed.append(
                f"point {point.name}: its {point.guarantee.risk} is {risk:.2%}, {low:.2%} at the low end of its 95 % "
                f"interval; {point.guarantee.epsilon:.2%} is promised"
            )
    elif less.low < -tolerance:
        failed.append(
            f"point {point.name}: {less.mean:+.2%} against the last stage alone, {less.low:+.2%} at the low end of "
            f"its interval; {-tolerance:+.2%} is allowed"
        )
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
