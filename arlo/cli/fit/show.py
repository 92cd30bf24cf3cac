"""The results of a fit, as JSON and as a table."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from arlo.cli.fit.common import what_accuracy_is

if TYPE_CHECKING:
    from arlo.cascade.manifest import Point, Stage
    from arlo.cascade.study import Study

TIMES = ("mean ms", "of last", "p99 of last")


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """The results of the steps; `stages` and `points` are of the test split."""

    study: Study
    calibration: dict[str, Any]
    searched: dict[str, Any]
    stages: list[dict[str, Any]]
    points: list[dict[str, Any]]

    @property
    def failed(self) -> list[str]:
        """The bars that are missed."""
        return [line for each in (*self.stages, *self.points) for line in each["failed"]]

    def as_dict(self) -> dict[str, Any]:
        """Stages and points with their results on the test split, and their inputs."""
        calibrated = {each["name"]: each for each in self.calibration["stages"]}
        made = {each["name"]: each for each in self.searched["points"]}
        return {
            "accuracy_is": what_accuracy_is(self.study),
            "texts": len(self.study.row),
            "rows": len(self.study.of(2).row),
            "stages": [{**calibrated.get(each["name"], {}), **each} for each in self.stages],
            "points": [{**each, "as_written": made.get(each["name"])} for each in self.points],
            **{name: self.searched[name] for name in ("ensembles", "curve", "warnings")},
            "failed": self.failed,
        }

    @property
    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The head, and a row for each stage alone and each point."""
        study, last_ms = self.study, self.stages[-1]["mean_ms"]
        rows: list[tuple[str, ...]] = []
        for stage, each in zip(study.cascade.stages, self.stages, strict=True):
            right = f"{each['accuracy']:.2%}" if "accuracy" in each else ""
            ece = f"{each['ece15'][0]:.3f} -> {each['ece15'][1]:.3f}" if "ece15" in each else ""
            times = (f"{each['mean_ms']:.3g}", f"{each['mean_ms'] / last_ms:.2f}", "")
            rows.append((f"{stage.name} alone", right, "", "", "", *times, ece, _calibrated(stage)))
        for point, each in zip(study.cascade.points, self.points, strict=True):
            less = each["against_last"]
            rows.append(
                (
                    point.name,
                    f"{each['accuracy']['mean']:.2%}",
                    f"{less['mean']:+.2%} ({less['low']:+.2%} to {less['high']:+.2%})",
                    f"{each['agreement']:.1%}",
                    " ".join(f"{share:.2f}" for share in each["reach"]),
                    *(f"{each['mean_ms']:.3g}", f"{each['mean_of_last']:.2f}", f"{each['p99_of_last']:.2f}"),
                    "",
                    _with(point),
                )
            )
        head = ("", what_accuracy_is(study), "against last, 95 %", "agreement", "reach", *TIMES, "ECE15", "with")
        return head, rows

    def show(self) -> None:
        """Print the table, and the bars that are missed."""
        from arlo.report.terminal import columns, console, say

        out, title = console(160), f"{len(self.study.of(2).row)} texts of the test split"
        out.print(columns(*self.table, left=(0, len(self.table[0]) - 1), title=title))
        say(
            out,
            [
                f"{each['name']} through the gateway: {served['same']} of {served['rows']} rows as recorded, "
                f"{served['degraded']} degraded"
                for each in self.points
                if (served := each.get("served"))
            ],
        )
        say(out, [f"missed: {line}" for line in self.failed])


def _calibrated(stage: Stage) -> str:
    found = stage.calibrator
    kind = f"T {found.t:.3f}" if found.kind in ("temperature", "isotonic") else found.kind
    return kind if found.kind in ("temperature", kind) else f"{found.kind}, {kind}"


def _with(point: Point) -> str:
    """The methods that a point uses in addition to thresholds."""
    parts = [
        f"soft rule, c {point.rules[0][0].c:g}" if point.rules[0][0].kind == "soft" else "",
        "thresholds by length" if len(point.rules[0][0].t) > 1 else "",
        f"alpha {point.prune.alpha:g}" if point.prune.alpha else "",
        "skips" if any(point.skip) else "",
        "ensemble" if point.ensemble.kind != "none" else "",
        f"{len(point.rules)} prices" if len(point.rules) > 1 else "",
    ]
    return ", ".join(part for part in parts if part)
