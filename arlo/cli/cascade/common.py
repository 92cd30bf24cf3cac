"""What the actions of `arlo cascade` share."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from arlo.errors import ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from arlo.cascade.manifest import CascadeManifest, DataUsed
    from arlo.cascade.records import Data, Records
    from arlo.cascade.study import Study

TIMES_MS = (1e-3, 3.6e6)


def opened(args: argparse.Namespace) -> tuple[CascadeManifest, Path, Data, Records]:
    """The cascade, its folder, the data and the records that the command line names."""
    from arlo.cascade.manifest import CascadeManifest
    from arlo.cascade.records import Records, read_data

    cascade = CascadeManifest.load(args.cascade)
    folder: Path = args.cascade if args.cascade.is_dir() else args.cascade.parent
    data = read_data(args.data)
    data.labels(cascade.labels)  # before hours of records are made of texts that nothing can be learnt from
    return cascade, folder, data, Records(args.records or folder / "records", data)


def study_of(args: argparse.Namespace, *, objective: str = "mean") -> Study:
    """The cascade with all its records."""
    from arlo.cascade.study import load_study

    need_scipy()
    cascade, folder, data, records = opened(args)
    known = cascade.data
    shares: tuple[float, ...] = known.split if known else (0.4, 0.3, 0.3)
    shares = numbers(args.split, "--split") if args.split else shares
    if args.seed is not None and not 0 <= args.seed < 2**63:
        raise ConfigError(f"--seed must be from 0 to 2^63 - 1, not {args.seed}")
    args.seed = args.seed if args.seed is not None else known.seed if known else 0
    if known is not None and args.action != "calibrate" and (shares, args.seed) != (known.split, known.seed):
        raise ConfigError(
            "the cascade was calibrated with another --split or --seed: texts that it was fitted on would be searched "
            "or tested on. Leave both out, or calibrate again with them"
        )
    if len(shares) != 3 or min(shares) <= 0 or not abs(sum(shares) - 1) <= 1e-9:
        raise ConfigError(f"--split must be three shares above 0 whose sum is 1, not {args.split!r}")
    args.shares = shares
    return load_study(cascade, folder, data, records, objective=objective, shares=shares, seed=args.seed)


def data_used(args: argparse.Namespace, study: Study) -> DataUsed:
    """What calibration and search note of the records."""
    from arlo.cascade.drift import quantiles
    from arlo.cascade.manifest import DataUsed
    from arlo.cascade.records import read_data

    fit, select, test = args.shares
    last = study.of(2)
    return DataUsed(
        sha256=read_data(args.data).sha256,
        rows=len(study.row),
        split=(fit, select, test),
        seed=args.seed,
        lengths=quantiles(last.length),
        confidences=quantiles(last.said[0].confidence),
    )


def need_scipy() -> None:
    """EnvironmentProblem where it is not installed."""
    import importlib.util

    if importlib.util.find_spec("scipy") is None:
        raise EnvironmentProblem("this needs SciPy: pip install 'arlo-serve[cascade]'")


def numbers(text: str | None, option: str) -> tuple[float, ...]:
    """Of a list joined by commas; none: empty."""
    try:
        found = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise ConfigError(f"{option} must be numbers joined by commas, not {text!r}")
    return found


def within(value: float | None, low: float, high: float, option: str) -> None:
    """ConfigError unless it is none, or from `low` to `high`; what is no number is not."""
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{option} must be from {low:g} to {high:g}, not {value:g}")


def lengths(text: str | None, option: str) -> tuple[int, ...]:
    """Lengths, ascending."""
    found = tuple(int(value) for value in numbers(text, option))
    if list(found) != sorted(set(found)) or any(value < 1 for value in found):
        raise ConfigError(f"{option} must be lengths that ascend, not {text!r}")
    return found


def names(text: str | None) -> tuple[str, ...]:
    """Of a list joined by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def what_accuracy_is(study: Study) -> str:
    """How a column of accuracies is called."""
    return "accuracy" if study.labels is not None else "agreement"
