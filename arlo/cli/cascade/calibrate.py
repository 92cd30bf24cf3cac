"""`arlo cascade calibrate`: fit each stage's calibrator on the fit split, judge it on the select split."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.cli.cascade.common import data_used, lengths, study_of
from arlo.cli.text import print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.calibration import Quality
    from arlo.cascade.spec import Calibrator


def run(args: argparse.Namespace) -> int:
    """Fit, judge, write."""
    from arlo.cascade import calibration as fitting
    from arlo.cascade.decide import in_order
    from arlo.cascade.spec import Calibrator

    bins = lengths(args.by_length, "--by-length")
    study = study_of(args)
    if study.labels is None:
        raise ConfigError("calibration needs labels: not every text has one")
    fit, held = study.of(0), study.of(1)
    assert fit.labels is not None
    assert held.labels is not None
    if len(fit.row) < fitting.LEAST_ROWS:
        raise ConfigError(f"the fit split has {len(fit.row)} texts, and {fitting.LEAST_ROWS} are needed: record more")
    notes = []
    if len(fit.row) < fitting.FEW_ROWS:
        notes.append(
            f"the fit split has {len(fit.row)} texts; temperatures are steady from about {fitting.FEW_ROWS} on"
        )
    stages, rows = [], []
    for s, stage in enumerate(study.cascade.stages):
        z, z_held = (in_order(stage.spec, each.recorded[s].logits) for each in (fit, held))
        losses: dict[str, float] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if args.calibrator == "auto":
                found, losses = fitting.choose(z, fit.labels, seed=args.seed)
            else:
                found = fitting.fit(args.calibrator, z, fit.labels)
        notes += [f"{stage.name}: {each.message}" for each in caught]
        if bins:
            found = fitting.fit_by_length(found, z, fit.labels, fit.length, bins, seed=args.seed)
        before = fitting.quality(Calibrator(), z_held, held.labels)
        after = fitting.quality(found, z_held, held.labels, held.length)
        ends = bins or (int(np.median(held.length)), int(held.length.max()))
        by_length = fitting.quality_by_length(found, z_held, held.labels, held.length, ends)
        found = dataclasses.replace(found, rows=len(fit.row), ece15=(before.ece15, after.ece15))
        stages.append(dataclasses.replace(stage, calibrator=found))
        rows.append(Row(stage.name, found, losses, before, after, by_length))
    # Thresholds that were found with other calibrators mean nothing.
    made = dataclasses.replace(
        study.cascade, stages=tuple(stages), points=(), default_point=None, curve=(), data=data_used(args, study)
    )
    made.save(args.cascade)
    for note in notes:
        print(f"arlo: {note}", file=sys.stderr)
    if args.json:
        print_json({"stages": [_as_dict(row) for row in rows]})
    else:
        _print(rows)
        print(f"written to {args.cascade}; next: arlo cascade search {args.cascade} --data {args.data}")
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A stage, and how well its confidence tells accuracy."""

    name: str
    calibrator: Calibrator
    losses: dict[str, float]  # cross-validated NLL of each kind that was tried
    before: Quality
    after: Quality
    by_length: list[tuple[int, Quality]]


def _as_dict(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "calibrator": dataclasses.asdict(row.calibrator),
        "cross_validated_nll": row.losses,
        "before": dataclasses.asdict(row.before),
        "after": dataclasses.asdict(row.after),
        "by_length": [{"length": end, **dataclasses.asdict(quality)} for end, quality in row.by_length],
    }


def _print(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="on the select split: before -> after", title_justify="left")
    for column in ("stage", "calibrator", "accuracy", "NLL", "ECE15", "adaptive ECE", "Brier", "ECE15 by length"):
        table.add_column(column, justify="left" if column in ("stage", "calibrator") else "right", no_wrap=True)
    for row in rows:
        found, before, after = row.calibrator, row.before, row.after
        kind = f"T {found.t:.3f}" if found.kind in ("temperature", "isotonic") else found.kind
        table.add_row(
            row.name,
            kind if found.kind in ("temperature", kind) else f"{found.kind}, {kind}",
            f"{after.accuracy:.2%}",
            *(
                f"{getattr(before, k):.3f} -> {getattr(after, k):.3f}"
                for k in ("nll", "ece15", "adaptive_ece", "brier")
            ),
            ", ".join(f"<={end}: {quality.ece15:.3f}" for end, quality in row.by_length),
        )
    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, 140)
    console.print(table)
