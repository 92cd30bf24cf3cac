"""Each stage's calibrator, fitted on the fit split and judged on the select split."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.study import Study


def calibrate(study: Study, kind: Any, bins: tuple[int, ...]) -> dict[str, Any]:
    """`kind`: of calibrator, or auto; `bins`: longest rows of length bins. ConfigError if there are too few texts."""
    from arlo.cascade import calibration as fitting
    from arlo.cascade.decide import in_order
    from arlo.cascade.spec import Calibrator

    fit, held = study.of(0), study.of(1)
    assert fit.labels is not None
    assert held.labels is not None
    rows = len(fit.row)
    if rows < fitting.LEAST_ROWS:
        raise ConfigError(f"the fit split has {rows} texts, and {fitting.LEAST_ROWS} are needed: give more texts")
    few = f"the fit split has {rows} texts; temperatures are steady from about {fitting.FEW_ROWS} on"
    notes, stages = [few] if rows < fitting.FEW_ROWS else [], []
    for s, stage in enumerate(study.cascade.stages):
        z, z_held = (in_order(stage.spec, each.recorded[s].logits) for each in (fit, held))
        losses: dict[str, float] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if kind == "auto":
                found, losses = fitting.choose(z, fit.labels)
            else:
                found = fitting.fit(kind, z, fit.labels)
        notes += [f"{stage.name}: {each.message}" for each in caught]
        if bins:
            found = fitting.fit_by_length(found, z, fit.labels, fit.length, bins)
        before = fitting.error_of(Calibrator(), z_held, held.labels)
        after = fitting.error_of(found, z_held, held.labels, held.length)
        found = dataclasses.replace(found, rows=rows, ece15=(before, after))
        stages.append({"name": stage.name, "calibrator": dataclasses.asdict(found), "cross_validated_nll": losses})
    return {"stages": stages, "notes": notes}
